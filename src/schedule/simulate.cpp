// Event-driven simulation of the three streams. Each stream holds its instructions in program order; its head starts
// once all dependencies of the head have ended. Between two events all speeds are constant: communication runs at the
// speed that Interference gives, computation at what the cores which move bytes leave it. An event is the end of a
// running instruction's work or of the launch delay of a head. Each round starts what can start, sets the speeds,
// advances to the earliest event, and subtracts the work done from the running instructions.
#include "lancet/schedule/simulate.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/stream_times.h"

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Stream;

constexpr double no_event = std::numeric_limits<double>::infinity();
constexpr double slowest = 0.1;  // least speed of computation, however many bytes move beside it
constexpr std::size_t compute = 0, expert = 1, reduce = 2;

// The state of a stream: its instructions in order, and the one at its head, which runs or waits.
struct StreamState {
  std::vector<InstructionId> queue;
  std::size_t head = 0;
  std::size_t need = 0;  // number of the head's dependencies that have ended
  double ready = 0;      // earliest start of the head, by the dependencies that have ended
  bool running = false;
  double left = 0;  // remaining work of the running head, in milliseconds at full speed
  double rate = 1;
  double queued = 0;  // time that a running all-to-all still waits behind an all-reduce's messages

  bool done() const { return head == queue.size(); }
  InstructionId at_head() const { return queue[head]; }
};

class Simulation {
 public:
  Simulation(const ir::Program& program, const Dependencies& dependencies, std::span<const cost::OpCost> op_costs,
             const cost::Interference& interference, double launch_ms, Network network,
             std::span<const InstructionId> order = {})
      : program_(program),
        dependencies_(dependencies),
        op_costs_(op_costs),
        interference_(interference),
        launch_ms_(launch_ms),
        network_(network),
        when_(program.instructions.size()),
        ended_(program.instructions.size()) {
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const InstructionId next = order.empty() ? ir::id_of(i) : order[i];
      streams_[stream_of(next.index())].queue.push_back(next);
    }
  }

  std::vector<ir::Interval> run() {
    for (;;) {
      // An instruction that takes no time may let others start at the same moment.
      for (bool changed = true; changed;) {
        changed = false;
        for (StreamState& stream : streams_)
          while (end_worked(stream) || start(stream)) changed = true;
      }
      set_rates();
      double step = no_event;
      for (const StreamState& stream : streams_) step = std::min(step, until_event(stream));
      if (step == no_event) break;
      advance(step);
    }
    for (const StreamState& stream : streams_) LANCET_CHECK(stream.done(), "the simulation stopped before its end");
    return std::move(when_);
  }

 private:
  std::size_t stream_of(std::size_t instruction) const {
    return static_cast<std::size_t>(program_.instructions[instruction].stream);
  }

  // Counts the head's dependencies that have ended; true once all have.
  bool all_ended(StreamState& stream) {
    const std::size_t i = stream.at_head().index();
    for (; stream.need < dependencies_[i].size(); ++stream.need) {
      const std::size_t before = dependencies_[i][stream.need].index();
      if (!ended_[before]) return false;
      const double signal = when_[before].end + (stream_of(before) == stream_of(i) ? 0 : launch_ms_);
      stream.ready = std::max(stream.ready, signal);
    }
    return true;
  }

  bool start(StreamState& stream) {
    if (stream.running || stream.done() || !all_ended(stream) || stream.ready > time_) return false;
    const std::size_t i = stream.at_head().index();
    if (network_ == Network::all_to_all_first && stream_of(i) == reduce && streams_[expert].left > 0) return false;
    when_[i].start = time_;
    stream.left = op_costs_[i].ms;
    stream.running = true;
    if (interference_.queue_ms && stream_of(i) == expert && streams_[reduce].left > 0) {
      stream.queued = std::max(0.0, *interference_.queue_ms - op_costs_[i].early_ms);
      streams_[reduce].left += op_costs_[i].early_ms;
    }
    end_worked(stream);
    return true;
  }

  // Ends the running head if its work is done.
  bool end_worked(StreamState& stream) {
    if (!stream.running || stream.left > 0) return false;
    const std::size_t i = stream.at_head().index();
    when_[i].end = time_;
    ended_[i] = true;
    stream.running = false;
    stream.need = 0;
    stream.ready = time_;
    ++stream.head;
    return true;
  }

  // The speed of the messages of each stream on the network.
  std::array<double, ir::stream_count> network_speeds() {
    StreamState& all_to_all = streams_[expert];
    const bool reduce_sends = streams_[reduce].left > 0;
    if (!interference_.queue_ms) {
      const double each = all_to_all.left > 0 && reduce_sends ? interference_.network_beside_network : 1;
      return {1, each, each};
    }
    if (!reduce_sends) all_to_all.queued = 0;
    const bool expert_sends = all_to_all.left > 0 && all_to_all.queued <= 0;
    return {1, expert_sends ? 1.0 : 0.0, expert_sends ? 0.0 : 1.0};
  }

  void set_rates() {
    const double beside_compute = streams_[compute].left > 0 ? interference_.network_beside_compute : 1;
    const auto speeds = network_speeds();
    double share = 0;
    for (std::size_t communication : {expert, reduce}) {
      StreamState& stream = streams_[communication];
      stream.rate = beside_compute * speeds[communication];
      if (stream.left <= 0) continue;
      // core_ms is charged in proportion to progress, so a slowed message still costs core_ms in total.
      const cost::OpCost& op_cost = op_costs_[stream.at_head().index()];
      share += op_cost.core_ms / op_cost.ms * stream.rate;
    }
    streams_[compute].rate = std::max(slowest, 1 - share);
  }

  double until_event(const StreamState& stream) const {
    if (stream.running)
      return std::min(
          {stream.left > 0 ? stream.left / stream.rate : no_event, stream.queued > 0 ? stream.queued : no_event});
    if (stream.done() || stream.need < dependencies_[stream.at_head().index()].size()) return no_event;
    return stream.ready > time_ ? stream.ready - time_
                                : no_event;  // no event: it is ready, but an all-to-all goes first
  }

  // Events within a rounding error of the step's end happen at its end, so that ties stay ties.
  void advance(double step) {
    const double latest = step + 1e-12 * (time_ + step);
    std::array<bool, ir::stream_count> launched{};
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
      launched[stream] = !streams_[stream].running && until_event(streams_[stream]) <= latest;
    time_ += step;
    const auto work = [&](double& left, double rate) {
      if (left > 0) left = left / rate <= latest ? 0 : left - step * rate;
    };
    for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
      StreamState& state = streams_[stream];
      if (launched[stream]) state.ready = time_;
      work(state.left, state.rate);
      work(state.queued, 1);
      end_worked(state);
    }
  }

  const ir::Program& program_;
  const Dependencies& dependencies_;
  std::span<const cost::OpCost> op_costs_;
  const cost::Interference& interference_;
  const double launch_ms_;
  const Network network_;
  std::vector<ir::Interval> when_;
  std::vector<bool> ended_;
  std::array<StreamState, ir::stream_count> streams_;
  double time_ = 0;
};

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
  const std::size_t count = program.instructions.size();
  LANCET_CHECK(dependencies.size() == count && op_costs.size() == count,
               "expected needs and op_costs of {} instructions, found {} and {}", count, dependencies.size(),
               op_costs.size());
  for (std::size_t i = 0; i < count; ++i)
    for (InstructionId before : dependencies[i])
      LANCET_CHECK(before.index() < i, "instruction {} needs the later instruction {}", i, before.value);
  return timeline_of(program, Simulation(program, dependencies, op_costs, interference, launch_ms, network).run());
}

double makespan_in_order(const ir::Program& program, std::span<const InstructionId> order,
                         const Dependencies& dependencies, std::span<const cost::OpCost> op_costs,
                         const cost::Interference& interference, double launch_ms) {
  LANCET_CHECK(order.size() == program.instructions.size(), "expected an order of {} instructions, found {}",
               program.instructions.size(), order.size());
  double makespan = 0;
  for (const ir::Interval& interval :
       Simulation(program, dependencies, op_costs, interference, launch_ms, Network::shared, order).run())
    makespan = std::max(makespan, interval.end);
  return makespan;
}

Result<Timeline> simulate(const ir::Plan& plan, const cost::Costs& costs) {
  LANCET_ASSIGN(const std::vector<cost::OpCost> op_costs, cost::op_costs(costs, plan.program));
  Dependencies needed = ir::dependencies(plan.program);
  join(needed, plan.waits);
  return simulate(plan.program, needed, op_costs, costs.interference(), costs.launch_ms());
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
