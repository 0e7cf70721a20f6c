#include "lancet/schedule/simulate.h"

#include <algorithm>
#include <array>
#include <limits>

#include "lancet/ir/stream_times.h"

namespace lancet::schedule {
namespace {

using ir::InstructionId;

constexpr double never = std::numeric_limits<double>::infinity();
constexpr double slowest = 0.1;  // of compute, however many bytes move beside it
constexpr std::size_t compute = 0, expert = 1, reduce = 2;

// A lane at work: its instructions in order, and the one at its head, which runs or waits.
struct LaneState {
  std::vector<InstructionId> queue;
  std::size_t head = 0;
  std::size_t need = 0;  // of the head's needs, how many have ended
  double ready = 0;      // when the head may start, as far as is known
  bool running = false;
  double left = 0;  // of the running head, milliseconds alone
  double rate = 1;

  bool done() const { return head == queue.size(); }
  InstructionId at_head() const { return queue[head]; }
};

class Simulation {
 public:
  Simulation(const ir::Program& program, const Needed& needed, std::span<const cost::Load> loads,
             const cost::Interference& interference, double launch_ms, Wire wire)
      : program_(program),
        needed_(needed),
        loads_(loads),
        interference_(interference),
        launch_ms_(launch_ms),
        wire_(wire),
        when_(program.instructions.size()),
        ended_(program.instructions.size()) {
    for (std::size_t i = 0; i < program.instructions.size(); ++i)
      lanes_[lane_of(i)].queue.push_back({static_cast<std::int32_t>(i)});
  }

  std::vector<ir::Interval> run() {
    for (;;) {
      // What starts and takes no time may let others start at the same moment.
      for (bool changed = true; changed;) {
        changed = false;
        for (LaneState& lane : lanes_)
          while (start(lane)) changed = true;
      }
      set_rates();
      double step = never;
      for (const LaneState& lane : lanes_) step = std::min(step, until_event(lane));
      if (step == never) break;
      advance(step);
    }
    for (const LaneState& lane : lanes_) LANCET_CHECK(lane.done(), "the simulation came to rest before its end");
    return std::move(when_);
  }

 private:
  std::size_t lane_of(std::size_t instruction) const {
    return static_cast<std::size_t>(program_.instructions[instruction].lane);
  }

  // Counts what the head waits for and has ended; true once that is everything.
  bool all_ended(LaneState& lane) {
    const std::size_t i = lane.at_head().index();
    for (; lane.need < needed_[i].size(); ++lane.need) {
      const std::size_t before = needed_[i][lane.need].index();
      LANCET_CHECK(before < i, "instruction {} needs the later instruction {}", i, before);
      if (!ended_[before]) return false;
      const double signal = when_[before].end + (lane_of(before) == lane_of(i) ? 0 : launch_ms_);
      lane.ready = std::max(lane.ready, signal);
    }
    return true;
  }

  bool start(LaneState& lane) {
    if (lane.running || lane.done() || !all_ended(lane) || lane.ready > time_) return false;
    const std::size_t i = lane.at_head().index();
    if (wire_ == Wire::all_to_all_first && lane_of(i) == reduce && lanes_[expert].running) return false;
    when_[i].start = time_;
    lane.left = loads_[i].ms;
    lane.running = lane.left > 0;
    if (!lane.running) end(lane);
    return true;
  }

  void end(LaneState& lane) {
    const std::size_t i = lane.at_head().index();
    when_[i].end = time_;
    ended_[i] = true;
    lane.running = false;
    lane.need = 0;
    lane.ready = time_;
    ++lane.head;
  }

  void set_rates() {
    const double beside_compute = lanes_[compute].running ? interference_.wire_beside_compute : 1;
    const double beside_wire = lanes_[expert].running && lanes_[reduce].running ? interference_.wire_beside_wire : 1;
    double share = 0;
    for (std::size_t wire : {expert, reduce}) {
      LaneState& lane = lanes_[wire];
      lane.rate = beside_compute * beside_wire;
      if (!lane.running) continue;
      // Bytes that move slower also take the cores more slowly: in the end core_ms in all.
      const cost::Load& load = loads_[lane.at_head().index()];
      share += load.core_ms / load.ms * lane.rate;
    }
    lanes_[compute].rate = std::max(slowest, 1 - share);
  }

  double until_event(const LaneState& lane) const {
    if (lane.running) return lane.left / lane.rate;
    if (lane.done() || lane.need < needed_[lane.at_head().index()].size()) return never;
    return lane.ready > time_ ? lane.ready - time_ : never;  // ready, but the wire is another's
  }

  // What falls within a rounding error of the step falls at its end: ties stay ties.
  void advance(double step) {
    const double latest = step + 1e-12 * (time_ + step);
    std::array<bool, ir::lane_count> due{};
    for (std::size_t lane = 0; lane < ir::lane_count; ++lane) due[lane] = until_event(lanes_[lane]) <= latest;
    time_ += step;
    for (std::size_t lane = 0; lane < ir::lane_count; ++lane) {
      LaneState& state = lanes_[lane];
      if (state.running && due[lane])
        end(state);
      else if (state.running)
        state.left -= step * state.rate;
      else if (due[lane])
        state.ready = time_;
    }
  }

  const ir::Program& program_;
  const Needed& needed_;
  std::span<const cost::Load> loads_;
  const cost::Interference& interference_;
  const double launch_ms_;
  const Wire wire_;
  std::vector<ir::Interval> when_;
  std::vector<bool> ended_;
  std::array<LaneState, ir::lane_count> lanes_;
  double time_ = 0;
};

}  // namespace

Timeline simulate(const ir::Program& program, const Needed& needed, std::span<const cost::Load> loads,
                  const cost::Interference& interference, double launch_ms, Wire wire) {
  const std::size_t count = program.instructions.size();
  LANCET_CHECK(needed.size() == count && loads.size() == count,
               "expected needs and loads of {} instructions, found {} and {}", count, needed.size(), loads.size());
  Timeline timeline;
  timeline.when = Simulation(program, needed, loads, interference, launch_ms, wire).run();
  for (const ir::Interval& interval : timeline.when) timeline.makespan = std::max(timeline.makespan, interval.end);
  const auto times = ir::lane_times(program, std::span<const ir::Interval>(timeline.when));
  timeline.compute = times.busy[compute];
  timeline.all_to_all = times.busy[expert];
  timeline.all_reduce = times.busy[reduce];
  timeline.communication = times.communication;
  timeline.exposed = times.exposed;
  return timeline;
}

}  // namespace lancet::schedule
