// How long the lanes were busy, of spans that a run measured or a simulation predicted: one definition for both.
#pragma once
#include <algorithm>
#include <array>
#include <limits>
#include <span>

#include "lancet/ir/program.h"

namespace lancet::ir {

template <class Time>
struct LaneTimes {
  std::array<Time, lane_count> busy{};
  Time communication{};  // a communication lane is busy
  Time exposed{};        // and the compute lane is not
};

// Walks the spans of one lane in order.
template <class Span>
class LaneCursor {
 public:
  using Time = decltype(Span::start);
  static constexpr Time never = std::numeric_limits<Time>::max();

  LaneCursor(const Program& program, std::span<const Span> spans, Lane lane)
      : program_(program), spans_(spans), lane_(lane) {
    settle();
  }
  // Busy at `time`, and when that changes next. `time` must not fall from call to call.
  bool busy_at(Time time, Time& change) {
    while (!done() && spans_[next_].end <= time) {
      ++next_;
      settle();
    }
    if (done()) {
      change = never;
      return false;
    }
    const Span& span = spans_[next_];
    change = span.start > time ? span.start : span.end;
    return span.start <= time;
  }

 private:
  bool done() const { return next_ == spans_.size(); }
  void settle() {
    while (!done() && program_.instructions[next_].lane != lane_) ++next_;
  }
  const Program& program_;
  std::span<const Span> spans_;
  Lane lane_;
  std::size_t next_ = 0;
};

// spans: start and end per instruction, from 0 on, in order within each lane. Allocates nothing.
template <class Span>
LaneTimes<decltype(Span::start)> lane_times(const Program& program, std::span<const Span> spans) {
  using Cursor = LaneCursor<Span>;
  using Time = typename Cursor::Time;
  std::array<Cursor, lane_count> lanes{Cursor(program, spans, Lane::compute), Cursor(program, spans, Lane::expert),
                                       Cursor(program, spans, Lane::reduce)};
  LaneTimes<Time> times;
  for (Time time{};;) {
    Time next = Cursor::never;
    std::array<bool, lane_count> busy{};
    for (std::size_t lane = 0; lane < lane_count; ++lane) {
      Time change{};
      busy[lane] = lanes[lane].busy_at(time, change);
      next = std::min(next, change);
    }
    if (next == Cursor::never) return times;
    const Time length = next - time;
    for (std::size_t lane = 0; lane < lane_count; ++lane) times.busy[lane] += busy[lane] ? length : Time{};
    const bool wire = busy[1] || busy[2];
    times.communication += wire ? length : Time{};
    times.exposed += wire && !busy[0] ? length : Time{};
    time = next;
  }
}

}  // namespace lancet::ir
