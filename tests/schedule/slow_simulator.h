// The law of schedule::simulate() a second time, written to be read and not to be fast. Speeds are constant between two
// events, each a start or an end; every event computes all speeds from the whole state.
#pragma once
#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <vector>

#include "lancet/schedule/simulate.h"

namespace lancet::test {

class SlowSimulator {
 public:
  SlowSimulator(std::span<const schedule::RankClass> classes, const ir::Mesh& mesh)
      : classes_(classes), meetings_(schedule::meetings_of(classes, mesh)) {
    for (const schedule::RankClass& of : classes) {
      const std::size_t count = of.program.instructions.size();
      jobs_.emplace_back(count);
      for (std::size_t i = 0; i < count; ++i) {
        jobs_.back()[i].ms = of.op_costs[i].ms;
        if (const std::int32_t met = meetings_.of[jobs_.size() - 1][i]; met >= 0)
          for (const auto& member : meetings_.members[std::size_t(met)])
            jobs_.back()[i].ms =
                std::max(jobs_.back()[i].ms, classes[std::size_t(member.stage)].op_costs[member.instruction].ms);
      }
    }
  }

  // By class and instruction; what never ends has an end below 0.
  std::vector<std::vector<ir::Interval>> run() {
    for (;;) {
      while (end_all() || start_one()) {
      }
      for (std::size_t c = 0; c < jobs_.size(); ++c)
        if (const auto at = head(c, ir::Stream::expert); at && !has_work(c, ir::Stream::reduce)) job(*at).queued = 0;
      const double step = next_event();
      if (step == never) break;
      advance(step);
    }
    std::vector<std::vector<ir::Interval>> when;
    for (const auto& of_class : jobs_) {
      auto& of = when.emplace_back();
      for (const Job& job : of_class) of.push_back({job.start, job.end});
    }
    return when;
  }

 private:
  static constexpr double never = std::numeric_limits<double>::infinity(), rounding = 1e-9;

  struct Job {
    double ms = 0, start = -1, end = -1, done = 0, queued = 0;
    bool runs() const { return start >= 0 && end < 0; }
    bool has_work() const { return runs() && ms - done > rounding; }
  };
  struct Place {
    std::size_t c, i;
  };

  ir::Stream stream(Place at) const { return classes_[at.c].program.instructions[at.i].stream; }
  Job& job(Place at) { return jobs_[at.c][at.i]; }

  // What is done together, with the instruction itself.
  std::vector<Place> together(Place at) const {
    const std::int32_t met = meetings_.of[at.c][at.i];
    if (met < 0) return {at};
    std::vector<Place> all;
    for (const auto& member : meetings_.members[std::size_t(met)])
      all.push_back({std::size_t(member.stage), member.instruction});
    return all;
  }

  // The first instruction of a stream that has not ended.
  std::optional<Place> head(std::size_t c, ir::Stream of) const {
    for (std::size_t i = 0; i < jobs_[c].size(); ++i)
      if (stream({c, i}) == of && jobs_[c][i].end < 0) return Place{c, i};
    return std::nullopt;
  }
  bool has_work(std::size_t c, ir::Stream of) {
    const auto at = head(c, of);
    return at && job(*at).has_work();
  }
  // When it may start, by what it waits for; nothing while that has not ended.
  std::optional<double> ready(Place at) const {
    double ms = 0;
    for (const ir::InstructionId id : classes_[at.c].needed[at.i]) {
      const Place before{at.c, id.index()};
      if (jobs_[at.c][before.i].end < 0) return std::nullopt;
      ms = std::max(ms, jobs_[at.c][before.i].end + (stream(before) == stream(at) ? 0 : classes_[at.c].launch_ms));
    }
    return ms;
  }
  bool can_start(Place at) {
    const auto first = head(at.c, stream(at));
    const auto when = ready(at);
    return first->i == at.i && !job(at).runs() && when && *when <= now_ + rounding;
  }

  template <class Do>
  void each_head(const Do& run) {
    for (std::size_t s = 0; s < ir::stream_count; ++s)
      for (std::size_t c = 0; c < jobs_.size(); ++c)
        if (const auto at = head(c, ir::Stream(s))) run(*at);
  }

  bool end_all() {
    bool ended = false;
    each_head([&](Place at) {
      if (!job(at).runs() || job(at).has_work()) return;
      job(at).end = now_;
      ended = true;
    });
    return ended;
  }
  bool start_one() {
    bool started = false;
    each_head([&](Place at) {
      const std::vector<Place> all = together(at);
      if (started || !std::ranges::all_of(all, [&](Place each) { return can_start(each); })) return;
      started = true;
      const auto& queue_ms = classes_[at.c].interference.queue_ms;
      if (queue_ms && stream(at) == ir::Stream::expert && has_work(at.c, ir::Stream::reduce)) {
        const double early_ms = classes_[at.c].op_costs[at.i].early_ms;
        job(at).queued = std::max(0.0, *queue_ms - early_ms);
        for (const Place each : together(*head(at.c, ir::Stream::reduce))) job(each).ms += early_ms;
      }
      for (const Place each : all) job(each).start = now_;
    });
    return started;
  }

  // Of a message, by what its class does at once.
  double own_speed(Place at) {
    const cost::Interference& law = classes_[at.c].interference;
    const double beside_compute = has_work(at.c, ir::Stream::compute) ? law.network_beside_compute : 1;
    if (law.queue_ms) {
      const bool expert_has_it =
          has_work(at.c, ir::Stream::expert) && job(*head(at.c, ir::Stream::expert)).queued <= rounding;
      const bool paused =
          stream(at) == ir::Stream::reduce ? expert_has_it : stream(at) == ir::Stream::expert && !expert_has_it;
      return paused ? 0 : beside_compute;
    }
    int out = 0, in = 0;
    for (std::size_t s = 1; s < ir::stream_count; ++s)
      if (has_work(at.c, ir::Stream(s))) {
        out += goes_out(ir::Stream(s));
        in += comes_in(ir::Stream(s));
      }
    const auto share = [&](int messages) { return messages > 1 ? 2 * law.network_beside_network / messages : 1.0; };
    return beside_compute * std::min(goes_out(stream(at)) ? share(out) : 1, comes_in(stream(at)) ? share(in) : 1);
  }
  static bool collective(ir::Stream s) { return s == ir::Stream::expert || s == ir::Stream::reduce; }
  static bool goes_out(ir::Stream s) {
    return collective(s) || s == ir::Stream::send_next || s == ir::Stream::send_previous;
  }
  static bool comes_in(ir::Stream s) { return collective(s) || !goes_out(s); }

  double speed(Place at) {
    double slowest = never;
    if (stream(at) != ir::Stream::compute) {
      for (const Place each : together(at)) slowest = std::min(slowest, own_speed(each));
      return slowest;
    }
    double moved = 0;  // the share of the cores that moves bytes
    for (std::size_t s = 1; s < ir::stream_count; ++s)
      if (has_work(at.c, ir::Stream(s))) {
        const Place message = *head(at.c, ir::Stream(s));
        moved += classes_[at.c].op_costs[message.i].core_ms / job(message).ms * speed(message);
      }
    return std::max(1 - schedule::most_of_cores, 1 - moved);
  }

  double next_event() {
    double step = never;
    each_head([&](Place at) {
      if (job(at).runs()) {
        if (const double rate = speed(at); rate > 0) step = std::min(step, (job(at).ms - job(at).done) / rate);
        if (job(at).queued > rounding) step = std::min(step, job(at).queued);
      } else if (const auto when = ready(at); when && *when > now_ + rounding) {
        step = std::min(step, *when - now_);
      }
    });
    return step;
  }
  void advance(double step) {
    std::vector<std::pair<Place, double>> worked;
    each_head([&](Place at) {
      if (job(at).runs()) worked.emplace_back(at, step * speed(at));
    });
    for (const auto& [at, ms] : worked) {
      job(at).done += ms;
      job(at).queued = std::max(0.0, job(at).queued - step);
    }
    now_ += step;
  }

  const std::span<const schedule::RankClass> classes_;
  const schedule::Meetings meetings_;
  std::vector<std::vector<Job>> jobs_;  // by class and instruction
  double now_ = 0;
};

}  // namespace lancet::test
