#include "stream_times.h"

#include <algorithm>

namespace lancet::runtime {

StreamTimes::StreamTimes(const ir::Plan& plan, const Lanes& lanes, const FlagPlan& flags, backend::Device& device)
    : plan_(plan), lanes_(lanes), flags_(flags), device_(device), instructions_(plan.program.instructions.size()) {
  for (std::size_t lane = 0; lane < ir::lane_count; ++lane) stretches_[lane].resize(flags.lanes[lane].size());
}

Status StreamTimes::read(bool each, std::vector<Span>& spans) const {
  for (std::size_t lane = 0; lane < ir::lane_count; ++lane)
    for (std::size_t i = 0; i < flags_.lanes[lane].size(); ++i) {
      const Stretch& stretch = flags_.lanes[lane][i];
      if (!each) {
        LANCET_ASSIGN(const Span span, span_of(stretches_[lane][i]));
        share_out(lane, stretch, span, spans);
        continue;
      }
      for (std::size_t at = stretch.begin; at < stretch.end; ++at) {
        const auto instruction = static_cast<std::size_t>(lanes_[lane][at].instruction);
        LANCET_ASSIGN(spans[instruction], span_of(instructions_[instruction]));
      }
    }
  return {};
}

// An event is made when it is first needed.
Status StreamTimes::mark(std::unique_ptr<backend::Event>& event, backend::Stream& stream) {
  if (!event) {
    LANCET_ASSIGN(event, device_.make_event());
  }
  return stream.record(*event);
}

Result<Span> StreamTimes::span_of(const Pair& events) const {
  LANCET_ASSIGN(const double start, device_.milliseconds(*start_, *events.start));
  LANCET_ASSIGN(const double end, device_.milliseconds(*start_, *events.end));
  return Span{static_cast<std::int64_t>(start * 1e6), static_cast<std::int64_t>(std::max(start, end) * 1e6)};
}

// A stretch's time, among its instructions as the plan predicts them, or evenly.
void StreamTimes::share_out(std::size_t lane, const Stretch& stretch, const Span& span,
                            std::vector<Span>& spans) const {
  auto weight = [&](std::size_t at) {
    const ir::Interval& predicted = plan_.predicted[static_cast<std::size_t>(lanes_[lane][at].instruction)];
    return std::max(predicted.end - predicted.start, 1e-6);
  };
  double total = 0, before = 0;
  for (std::size_t at = stretch.begin; at < stretch.end; ++at) total += weight(at);
  const auto length = double(span.end - span.start);
  for (std::size_t at = stretch.begin; at < stretch.end; ++at) {
    Span& mine = spans[static_cast<std::size_t>(lanes_[lane][at].instruction)];
    mine.start = span.start + static_cast<std::int64_t>(length * before / total);
    before += weight(at);
    mine.end = span.start + static_cast<std::int64_t>(length * before / total);
  }
}

}  // namespace lancet::runtime
