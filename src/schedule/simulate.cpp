// Event-driven simulation of the streams of all classes. Each stream holds its instructions in program order; its head
// starts once all dependencies of the head have ended and, if it meets others, all of them are at theirs. Between two
// events of a class all its speeds are constant: communication runs at the speed that Interference gives, computation
// at what the cores which move bytes leave it. An event is the end of a running instruction's work or of the launch
// delay of a head. Each round takes the classes with the earliest event and subtracts the work done from their running
// instructions, starts what can start, and sets the speeds. A class without an event is left alone until what it does
// together with another one starts, ends, or changes its speed.
#include "lancet/schedule/simulate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/stream_times.h"

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Stream;

constexpr double no_event = std::numeric_limits<double>::infinity();
constexpr std::size_t compute = 0, expert = 1, reduce = 2;

// The state of a stream: its instructions in order, and the one at its head, which runs or waits.
struct StreamState {
  std::vector<InstructionId> queue;
  std::size_t head = 0;
  std::size_t need = 0;  // number of the head's dependencies that have ended
  double ready = 0;      // earliest start of the head, by the dependencies that have ended
  bool running = false;
  double ms = 0;      // of the running head
  double left = 0;    // of that, in milliseconds at full speed
  double speed = 1;   // of messages, by what this class does at once
  double rate = 1;    // the least speed of all classes that are in it
  double queued = 0;  // time that a running all-to-all still waits behind an all-reduce's messages

  bool done() const { return head == queue.size(); }
  InstructionId at_head() const { return queue[head]; }
};

// A class up to the time `now`. Its next event is at `event`, `step` later.
struct ClassState {
  std::array<StreamState, ir::stream_count> streams;
  std::vector<ir::Interval> when;
  std::vector<char> ended;
  std::vector<Stream> stream_of;  // by instruction
  double now = 0, step = 0, event = no_event;
  bool touched = false;
};

InstructionId placed(const RankClass& of, std::size_t place) {
  return of.order.empty() ? ir::id_of(place) : of.order[place];
}

class Simulation {
 public:
  Simulation(std::span<const RankClass> classes, const Meetings& meetings, Network network)
      : classes_(classes), meetings_(meetings), network_(network), states_(classes.size()) {
    for (std::size_t c = 0; c < classes.size(); ++c) {
      const std::size_t count = classes[c].program.instructions.size();
      states_[c].when.resize(count);
      states_[c].ended.resize(count);
      for (const ir::Instruction& at : classes[c].program.instructions) states_[c].stream_of.push_back(at.stream);
      for (std::size_t i = 0; i < count; ++i) {
        const InstructionId next = placed(classes[c], i);
        states_[c].streams[stream_of(c, next.index())].queue.push_back(next);
      }
    }
  }

  // By class and instruction.
  std::vector<std::vector<ir::Interval>> run() {
    for (std::size_t c = 0; c < states_.size(); ++c) touch(c);
    for (;;) {
      settle();
      const ClassState* next = &states_.front();
      for (const ClassState& state : states_)
        if (state.event < next->event) next = &state;
      if (next->event == no_event) break;
      time_ = next->event;
      for (std::size_t c = 0; c < states_.size(); ++c)
        if (states_[c].event <= time_ * (1 + same)) touch(c);
    }
    std::vector<std::vector<ir::Interval>> when;
    for (std::size_t c = 0; c < states_.size(); ++c) {
      for (const StreamState& stream : states_[c].streams) {
        if (stream.done()) continue;
        const ir::Instruction& at = classes_[c].program.instructions[stream.at_head().index()];
        LANCET_CHECK(false, "the stages wait for one another: stage {} in {} at {}", c, at.op, at.label);
      }
      when.push_back(std::move(states_[c].when));
    }
    return when;
  }

 private:
  static constexpr double same = 1e-12;  // events within a rounding error happen at once, so that ties stay ties

  std::size_t stream_of(std::size_t c, std::size_t instruction) const {
    return static_cast<std::size_t>(states_[c].stream_of[instruction]);
  }

  std::span<const Meetings::Member> met_by(std::size_t c, InstructionId id) const {
    if (meetings_.of.empty() || meetings_.of[c][id.index()] < 0) return {};
    return meetings_.members[std::size_t(meetings_.of[c][id.index()])];
  }
  StreamState& stream_of(const Meetings::Member& member) {
    return states_[std::size_t(member.stage)].streams[stream_of(std::size_t(member.stage), member.instruction)];
  }

  // Advances a class to the present time, and marks it for settle().
  void touch(std::size_t c) {
    if (!std::exchange(states_[c].touched, true)) touched_.push_back(c);
    advance(c);
  }

  // Counts the head's dependencies that have ended; true once all have.
  bool all_ended(std::size_t c, StreamState& stream) {
    const ClassState& state = states_[c];
    const std::size_t i = stream.at_head().index();
    const std::vector<InstructionId>& needed = classes_[c].needed[i];
    for (; stream.need < needed.size(); ++stream.need) {
      const std::size_t before = needed[stream.need].index();
      if (!state.ended[before]) return false;
      const double signal =
          state.when[before].end + (stream_of(c, before) == stream_of(c, i) ? 0 : classes_[c].launch_ms);
      stream.ready = std::max(stream.ready, signal);
    }
    return true;
  }

  bool can_start(std::size_t c, StreamState& stream) {
    return !stream.running && !stream.done() && all_ended(c, stream) && stream.ready <= time_;
  }

  bool start(std::size_t c, StreamState& stream) {
    if (!can_start(c, stream)) return false;
    auto& streams = states_[c].streams;
    if (network_ == Network::all_to_all_first && &stream == &streams[reduce] && streams[expert].left > 0) return false;
    const InstructionId id = stream.at_head();
    const auto met = met_by(c, id);
    double ms = classes_[c].op_costs[id.index()].ms;
    for (const Meetings::Member& member : met) {
      StreamState& other = stream_of(member);
      const auto of = std::size_t(member.stage);
      if (!can_start(of, other) || other.at_head().index() != member.instruction) return false;
      ms = std::max(ms, classes_[of].op_costs[member.instruction].ms);
    }
    if (met.empty()) begin(c, stream, ms);
    for (const Meetings::Member& member : met) {
      touch(std::size_t(member.stage));
      begin(std::size_t(member.stage), stream_of(member), ms);
    }
    const auto& queue_ms = classes_[c].interference.queue_ms;
    if (queue_ms && &stream == &streams[expert] && streams[reduce].left > 0) {
      const double early_ms = classes_[c].op_costs[id.index()].early_ms;
      stream.queued = std::max(0.0, *queue_ms - early_ms);
      delay(c, streams[reduce], early_ms);
    }
    end_worked(c, stream);
    return true;
  }

  // Adds to the work of what runs, for all that are in it.
  void delay(std::size_t c, StreamState& stream, double ms) {
    const auto met = met_by(c, stream.at_head());
    if (met.empty()) {
      stream.left += ms;
      stream.ms += ms;
    }
    for (const Meetings::Member& member : met) {
      touch(std::size_t(member.stage));
      stream_of(member).left += ms;
      stream_of(member).ms += ms;
    }
  }

  void begin(std::size_t c, StreamState& stream, double ms) {
    states_[c].when[stream.at_head().index()].start = time_;
    stream.left = stream.ms = ms;
    stream.running = true;
  }

  // Ends the running head if its work is done, for all that are in it.
  bool end_worked(std::size_t c, StreamState& stream) {
    if (!stream.running || stream.left > 0) return false;
    const auto met = met_by(c, stream.at_head());
    if (met.empty()) end(c, stream);
    for (const Meetings::Member& member : met) {
      touch(std::size_t(member.stage));
      if (StreamState& other = stream_of(member); other.running) end(std::size_t(member.stage), other);
    }
    return true;
  }

  void end(std::size_t c, StreamState& stream) {
    const std::size_t i = stream.at_head().index();
    states_[c].when[i].end = time_;
    states_[c].ended[i] = true;
    stream.running = false;
    stream.left = 0;
    stream.need = 0;
    stream.ready = time_;
    ++stream.head;
  }

  // Starts what can start, sets the speeds, and finds the next events.
  void settle() {
    for (std::size_t known = 0; known < touched_.size();) {
      known = touched_.size();
      start_all();
      for (std::size_t k = 0; k < touched_.size(); ++k) set_speeds(states_[touched_[k]], classes_[touched_[k]]);
      for (std::size_t k = 0; k < touched_.size(); ++k) agree(touched_[k]);
    }
    for (const std::size_t c : touched_) {
      ClassState& state = states_[c];
      set_rate_of_compute(c);
      state.step = no_event;
      for (const StreamState& stream : state.streams) state.step = std::min(state.step, until_event(c, stream));
      state.event = state.now + state.step;
      state.touched = false;
    }
    touched_.clear();
  }

  // An instruction that takes no time may let others start at the same moment. Of those that do, all-to-alls go before
  // all-reduces, in whichever class they are.
  void start_all() {
    for (bool changed = true; changed;) {
      changed = false;
      for (std::size_t s = 0; s < ir::stream_count; ++s)
        for (std::size_t k = 0; k < touched_.size(); ++k)
          while (end_worked(touched_[k], states_[touched_[k]].streams[s]) ||
                 start(touched_[k], states_[touched_[k]].streams[s]))
            changed = true;
    }
  }

  // What one class does at once slows down.
  void set_speeds(ClassState& state, const RankClass& of) const {
    auto& streams = state.streams;
    const cost::Interference& interference = of.interference;
    const double beside_compute = streams[compute].left > 0 ? interference.network_beside_compute : 1;
    const auto goes_out = [](std::size_t s) {
      return s <= reduce || s == std::size_t(Stream::send_next) || s == std::size_t(Stream::send_previous);
    };
    const auto comes_in = [&](std::size_t s) { return s <= reduce || !goes_out(s); };
    int out = 0, in = 0;
    for (std::size_t s = expert; s < streams.size(); ++s)
      if (streams[s].left > 0) {
        out += goes_out(s);
        in += comes_in(s);
      }
    const auto share = [&](int messages) {
      return messages > 1 ? 2 * interference.network_beside_network / messages : 1;
    };
    StreamState& all_to_all = streams[expert];
    if (streams[reduce].left <= 0) all_to_all.queued = 0;
    const bool expert_sends = all_to_all.left > 0 && all_to_all.queued <= 0;
    for (std::size_t s = expert; s < streams.size(); ++s) {
      const double both = std::min(goes_out(s) ? share(out) : 1, comes_in(s) ? share(in) : 1);
      const double in_turn = s == expert ? double(expert_sends) : s == reduce ? double(!expert_sends) : 1;
      streams[s].speed = streams[s].rate = beside_compute * (interference.queue_ms ? in_turn : both);
    }
  }

  // What classes do together has one rate.
  void agree(std::size_t c) {
    for (std::size_t s = expert; s < ir::stream_count; ++s) {
      const StreamState& stream = states_[c].streams[s];
      if (!stream.running) continue;
      double rate = stream.speed;
      const auto met = met_by(c, stream.at_head());
      for (const Meetings::Member& member : met) rate = std::min(rate, stream_of(member).speed);
      for (const Meetings::Member& member : met) {
        StreamState& other = stream_of(member);
        if (other.rate == rate) continue;
        touch(std::size_t(member.stage));
        other.rate = rate;
      }
    }
  }

  // core_ms is charged in proportion to progress, so a slowed message still costs core_ms in total.
  void set_rate_of_compute(std::size_t c) {
    auto& streams = states_[c].streams;
    double share = 0;
    for (std::size_t s = expert; s < streams.size(); ++s)
      if (streams[s].left > 0)
        share += classes_[c].op_costs[streams[s].at_head().index()].core_ms / streams[s].ms * streams[s].rate;
    streams[compute].rate = std::max(1 - most_of_cores, 1 - share);
  }

  double until_event(std::size_t c, const StreamState& stream) const {
    if (stream.running)
      return std::min(
          {stream.left > 0 ? stream.left / stream.rate : no_event, stream.queued > 0 ? stream.queued : no_event});
    if (stream.done() || stream.need < classes_[c].needed[stream.at_head().index()].size()) return no_event;
    const double now = states_[c].now;
    return stream.ready > now ? stream.ready - now : no_event;  // no event: it is ready, but others are not
  }

  void advance(std::size_t c) {
    ClassState& state = states_[c];
    if (state.now == time_) return;
    const double step = time_ == state.event ? state.step : time_ - state.now;
    const double latest = step + same * time_;
    std::array<bool, ir::stream_count> launched{};
    for (std::size_t s = 0; s < ir::stream_count; ++s)
      launched[s] = !state.streams[s].running && until_event(c, state.streams[s]) <= latest;
    state.now = time_;
    const auto work = [&](double& left, double rate) {
      if (left > 0) left = left / rate <= latest ? 0 : left - step * rate;
    };
    for (std::size_t s = 0; s < ir::stream_count; ++s) {
      StreamState& stream = state.streams[s];
      if (launched[s]) stream.ready = time_;
      work(stream.left, stream.rate);
      work(stream.queued, 1);
    }
    for (StreamState& stream : state.streams) end_worked(c, stream);
  }

  const std::span<const RankClass> classes_;
  const Meetings& meetings_;
  const Network network_;
  std::vector<ClassState> states_;
  std::vector<std::size_t> touched_;  // classes that settle() has to go on with
  double time_ = 0;
};

// Of a single class.
std::vector<ir::Interval> simulate_one(const RankClass& of, Network network) {
  const Meetings none;
  return std::move(Simulation({&of, 1}, none, network).run().front());
}

void check(const RankClass& of) {
  const std::size_t count = of.program.instructions.size();
  LANCET_CHECK(of.needed.size() == count && of.op_costs.size() == count,
               "expected needs and op_costs of {} instructions, found {} and {}", count, of.needed.size(),
               of.op_costs.size());
  LANCET_CHECK(of.order.empty() || of.order.size() == count, "expected an order of {} instructions, found {}", count,
               of.order.size());
  for (std::size_t i = 0; i < count && of.order.empty(); ++i)
    for (InstructionId before : of.needed[i])
      LANCET_CHECK(before.index() < i, "instruction {} needs the later instruction {}", i, before.value);
}

// The stages that an instruction of `stage` meets, with its own; its own alone if it meets none. stages: that axis.
std::vector<int> stages_met(const ir::Instruction& at, const ir::Mesh& mesh, const ir::Mesh& stages, int stage) {
  if (ir::between_stages(at.stream)) {
    const int other = ir::neighbour(stages, stage, at.stream).value();
    return {std::min(stage, other), std::max(stage, other)};
  }
  if (at.stream == Stream::compute || !ir::group_of(at, mesh).has(ir::Axis::stage)) return {stage};
  const std::string key = ir::key_of(at);
  const std::size_t named = key.find(':');
  return ir::ranks_of(named == key.npos ? "stage" : "stage" + key.substr(named), stages, stage);
}

// What meets has the same name: of a message, the stage that sends and its stream; else a collective's stages and key.
std::string name_of(const ir::Instruction& at, const std::vector<int>& met, int stage) {
  if (ir::between_stages(at.stream)) {
    const bool sends = at.stream == Stream::send_next || at.stream == Stream::send_previous;
    const int sender = sends ? stage : met[0] + met[1] - stage;
    return std::string(ir::name(sends ? at.stream : ir::opposite(at.stream))) + ' ' + std::to_string(sender);
  }
  std::string name = ir::key_of(at);
  for (const int of : met) name += ' ' + std::to_string(of);
  return name;
}

}  // namespace

void join(Dependencies& dependencies, const Dependencies& extra) {
  LANCET_CHECK(extra.empty() || extra.size() == dependencies.size(),
               "expected extra needs of {} instructions, found {}", dependencies.size(), extra.size());
  for (std::size_t i = 0; i < extra.size(); ++i) {
    auto& list = dependencies[i];
    list.insert(list.end(), extra[i].begin(), extra[i].end());
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }
}

Timeline timeline_of(const ir::Program& program, std::vector<ir::Interval> when) {
  const auto times = ir::stream_times(program, std::span<const ir::Interval>(when));
  Timeline timeline{.when = std::move(when),
                    .compute = times.busy[compute],
                    .all_to_all = times.busy[expert],
                    .all_reduce = times.busy[reduce],
                    .communication = times.communication,
                    .exposed = times.exposed};
  for (const ir::Interval& interval : timeline.when) timeline.makespan = std::max(timeline.makespan, interval.end);
  return timeline;
}

Timeline simulate(const ir::Program& program, const Dependencies& dependencies, std::span<const cost::OpCost> op_costs,
                  const cost::Interference& interference, double launch_ms, Network network) {
  const RankClass all{program, dependencies, op_costs, interference, launch_ms};
  check(all);
  return timeline_of(program, simulate_one(all, network));
}

double makespan_in_order(const ir::Program& program, std::span<const InstructionId> order,
                         const Dependencies& dependencies, std::span<const cost::OpCost> op_costs,
                         const cost::Interference& interference, double launch_ms) {
  const RankClass all{program, dependencies, op_costs, interference, launch_ms, order};
  check(all);
  double makespan = 0;
  for (const ir::Interval& interval : simulate_one(all, Network::shared)) makespan = std::max(makespan, interval.end);
  return makespan;
}

Meetings meetings_of(std::span<const RankClass> stages, const ir::Mesh& mesh) {
  ir::Mesh axis;
  axis[ir::Axis::stage] = mesh[ir::Axis::stage];
  Meetings meetings;
  std::map<std::pair<std::string, int>, std::int32_t> known;  // by name and turn
  std::vector<std::size_t> expected;                          // members, by meeting
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const auto& instructions = stages[stage].program.instructions;
    meetings.of.emplace_back(instructions.size(), -1);
    std::map<std::string, int> turns;
    for (std::size_t place = 0; place < instructions.size(); ++place) {
      const std::size_t i = placed(stages[stage], place).index();
      const std::vector<int> met = stages_met(instructions[i], mesh, axis, int(stage));
      if (met.size() == 1) continue;
      const std::string name = name_of(instructions[i], met, int(stage));
      const auto id = std::int32_t(meetings.members.size());
      const auto [found, is_new] = known.try_emplace({name, turns[name]++}, id);
      if (is_new) {
        meetings.members.emplace_back();
        expected.push_back(met.size());
      }
      meetings.members[std::size_t(found->second)].push_back({int(stage), i});
      meetings.of[stage][i] = found->second;
    }
  }
  for (const auto& [name, id] : known)
    LANCET_CHECK(meetings.members[std::size_t(id)].size() == expected[std::size_t(id)],
                 "{} of {} stages meet in {}, number {}", meetings.members[std::size_t(id)].size(),
                 expected[std::size_t(id)], name.first, name.second);
  return meetings;
}

StagesTimeline simulate(std::span<const RankClass> stages, const ir::Mesh& mesh) {
  std::ranges::for_each(stages, check);
  const Meetings meetings = meetings_of(stages, mesh);
  std::vector<std::vector<ir::Interval>> when = Simulation(stages, meetings, Network::shared).run();
  StagesTimeline result;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    result.stages.push_back(timeline_of(stages[stage].program, std::move(when[stage])));
    result.makespan = std::max(result.makespan, result.stages.back().makespan);
  }
  return result;
}

Result<StagesTimeline> simulate(std::span<const ir::Plan> stages, const ir::Mesh& mesh, const cost::Costs& costs) {
  std::vector<std::vector<cost::OpCost>> op_costs(stages.size());
  std::vector<Dependencies> needed(stages.size());
  std::vector<RankClass> classes;
  for (std::size_t stage = 0; stage < stages.size(); ++stage) {
    const ir::Plan& plan = stages[stage];
    const auto of_stage = costs.of_stage(int(stage));
    LANCET_ASSIGN(op_costs[stage], cost::op_costs(*of_stage, plan.program));
    needed[stage] = ir::dependencies(plan.program);
    join(needed[stage], plan.waits);
    classes.push_back({plan.program, needed[stage], op_costs[stage], of_stage->interference(), of_stage->launch_ms()});
  }
  return simulate(classes, mesh);
}

Result<Timeline> simulate(const ir::Plan& plan, const cost::Costs& costs) {
  LANCET_ASSIGN(StagesTimeline timeline, simulate(std::span(&plan, 1), ir::Mesh(), costs));
  return std::move(timeline.stages.front());
}

Dependencies turns(const ir::Program& program, Dependencies dependencies) {
  std::vector<bool> is_part;
  for (const ir::Instruction& at : program.instructions) is_part.push_back(at.attributes.has("parts"));
  return turns(program, std::move(dependencies), is_part);
}

Dependencies turns(const ir::Program& program, Dependencies dependencies, const std::vector<bool>& overlaps) {
  Dependencies extra(dependencies.size());
  std::array<InstructionId, 2> last{}, last_whole{};  // compute, expert
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    if (at.stream == Stream::reduce || ir::between_stages(at.stream)) continue;
    const std::size_t mine = at.stream == Stream::compute ? 0 : 1;
    const InstructionId other = overlaps[i] ? last_whole[1 - mine] : last[1 - mine];
    if (other.valid()) extra[i].push_back(other);
    last[mine] = id_of(i);
    if (!overlaps[i]) last_whole[mine] = id_of(i);
  }
  join(dependencies, extra);
  return dependencies;
}

Dependencies one_message_at_a_time(const ir::Program& program, Dependencies dependencies) {
  Dependencies extra(dependencies.size());
  std::array<InstructionId, ir::stream_count> last{};
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Stream stream = program.instructions[i].stream;
    if (stream == Stream::compute) continue;
    const InstructionId other =
        last[static_cast<std::size_t>(stream == Stream::expert ? Stream::reduce : Stream::expert)];
    if (other.valid()) extra[i].push_back(other);
    last[static_cast<std::size_t>(stream)] = id_of(i);
  }
  join(dependencies, extra);
  return dependencies;
}

}  // namespace lancet::schedule
