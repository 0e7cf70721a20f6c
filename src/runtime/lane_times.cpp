#include "lane_times.h"

#include <algorithm>
#include <array>
#include <limits>

namespace lancet::runtime {
namespace {

// Walks the spans of one lane in order.
class LaneCursor {
 public:
  LaneCursor(const ir::Program& program, std::span<const Span> spans, ir::Lane lane)
      : program_(program), spans_(spans), lane_(lane) {
    settle();
  }
  bool done() const { return next_ == spans_.size(); }
  // Busy at `time`, and when that changes next. `time` must not fall from call to call.
  bool busy_at(std::int64_t time, std::int64_t& change) {
    while (!done() && spans_[next_].end <= time) {
      ++next_;
      settle();
    }
    if (done()) {
      change = std::numeric_limits<std::int64_t>::max();
      return false;
    }
    const Span& span = spans_[next_];
    change = span.start > time ? span.start : span.end;
    return span.start <= time;
  }

 private:
  void settle() {
    while (next_ < spans_.size() && program_.instructions[next_].lane != lane_) ++next_;
  }
  const ir::Program& program_;
  std::span<const Span> spans_;
  ir::Lane lane_;
  std::size_t next_ = 0;
};

}  // namespace

StepTimes lane_times(const ir::Program& program, std::span<const Span> spans, std::int64_t step_ns) {
  std::array<LaneCursor, ir::lane_count> lanes{LaneCursor(program, spans, ir::Lane::compute),
                                               LaneCursor(program, spans, ir::Lane::expert),
                                               LaneCursor(program, spans, ir::Lane::reduce)};
  std::array<std::int64_t, ir::lane_count> busy_ns{};
  std::int64_t communication = 0, exposed = 0;
  for (std::int64_t time = 0;;) {
    std::int64_t next = std::numeric_limits<std::int64_t>::max();
    std::array<bool, ir::lane_count> busy{};
    for (std::size_t lane = 0; lane < ir::lane_count; ++lane) {
      std::int64_t change = 0;
      busy[lane] = lanes[lane].busy_at(time, change);
      next = std::min(next, change);
    }
    if (next == std::numeric_limits<std::int64_t>::max()) break;
    const std::int64_t length = next - time;
    for (std::size_t lane = 0; lane < ir::lane_count; ++lane) busy_ns[lane] += busy[lane] ? length : 0;
    const bool wire = busy[1] || busy[2];
    communication += wire ? length : 0;
    exposed += wire && !busy[0] ? length : 0;
    time = next;
  }
  constexpr double ms = 1e-6;
  return {double(step_ns) * ms,    double(busy_ns[0]) * ms,    double(busy_ns[1]) * ms,
          double(busy_ns[2]) * ms, double(communication) * ms, double(exposed) * ms};
}

}  // namespace lancet::runtime
