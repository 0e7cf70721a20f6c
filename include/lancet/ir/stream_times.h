// Busy, communication and exposed time of the streams: one definition for measured and for simulated spans.
#pragma once
#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "lancet/ir/program.h"

namespace lancet::ir {

template <class Time>
struct StreamTimes {
  std::array<Time, stream_count> busy{};
  Time communication{};  // time during which a communication stream is busy
  Time exposed{};        // the part of it during which the compute stream is idle
};

// Walks the spans of one stream in order.
template <class Span>
class StreamCursor {
 public:
  using Time = decltype(Span::start);
  static constexpr Time never = std::numeric_limits<Time>::max();

  StreamCursor(const Program& program, std::span<const Span> spans, Stream stream)
      : program_(program), spans_(spans), stream_(stream) {
    settle();
  }
  // True if the stream is busy at `time`; `change` is set to the next time at which that changes, or to `never`. `time`
  // must not decrease from call to call.
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
    while (!done() && program_.instructions[next_].stream != stream_) ++next_;
  }
  const Program& program_;
  std::span<const Span> spans_;
  Stream stream_;
  std::size_t next_ = 0;
};

// spans: start and end per instruction, from 0 on, in order within each stream. Allocates no memory.
template <class Span>
StreamTimes<decltype(Span::start)> stream_times(const Program& program, std::span<const Span> spans) {
  using Cursor = StreamCursor<Span>;
  using Time = typename Cursor::Time;
  auto cursors = [&]<std::size_t... stream>(std::index_sequence<stream...>) {
    return std::array<Cursor, stream_count>{Cursor(program, spans, Stream(stream))...};
  }
  (std::make_index_sequence<stream_count>());
  StreamTimes<Time> times;
  for (Time time{};;) {
    Time next = Cursor::never;
    std::array<bool, stream_count> busy{};
    for (std::size_t stream = 0; stream < stream_count; ++stream) {
      Time change{};
      busy[stream] = cursors[stream].busy_at(time, change);
      next = std::min(next, change);
    }
    if (next == Cursor::never) return times;
    const Time length = next - time;
    for (std::size_t stream = 0; stream < stream_count; ++stream) times.busy[stream] += busy[stream] ? length : Time{};
    const bool communicating = std::any_of(busy.begin() + 1, busy.end(), [](bool one) { return one; });
    times.communication += communicating ? length : Time{};
    times.exposed += communicating && !busy[0] ? length : Time{};
    time = next;
  }
}

}  // namespace lancet::ir
