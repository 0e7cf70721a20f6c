// Usually only sections carry events, since each event costs the device stream time. A section's measured span is then
// divided among its instructions in proportion to their predicted times (evenly if the plan has no predictions).
#include "device_times.h"

#include <algorithm>
#include <utility>

namespace lancet::runtime {

// Only every eighth run is timed, since an event costs the device stream and the host about a microsecond.
constexpr std::int64_t timed_every = 8;

Result<StreamTimes> StreamTimes::make(const ir::Plan& plan, const Streams& streams, const FlagPlan& flags,
                                      backend::Device& device) {
  StreamTimes times(plan, streams, flags, device);
  LANCET_ASSIGN(times.start_, device.make_event());
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
    for (std::size_t i = 0; i < flags.streams[stream].size(); ++i) {
      LANCET_ASSIGN(Pair pair, times.make_pair());
      times.sections_[stream].push_back(std::move(pair));
    }
  for (std::size_t i = 0; i < plan.program.instructions.size(); ++i) {
    LANCET_ASSIGN(Pair pair, times.make_pair());
    times.instructions_.push_back(std::move(pair));
  }
  return times;
}

void StreamTimes::begin_run(std::int64_t number) {
  const bool requested = std::exchange(requested_, false);
  each_ = requested && number > 0;
  timed_ = each_ || number == 1 || (number > 0 && number % timed_every == 0);
}

Status StreamTimes::read(std::vector<Span>& spans) const {
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
    for (std::size_t i = 0; i < flags_->streams[stream].size(); ++i) {
      const Section& section = flags_->streams[stream][i];
      if (!each_) {
        LANCET_ASSIGN(const Span span, span_of(sections_[stream][i]));
        divide(stream, section, span, spans);
        continue;
      }
      for (std::size_t at = section.begin; at < section.end; ++at) {
        const auto instruction = static_cast<std::size_t>((*streams_)[stream][at].instruction);
        LANCET_ASSIGN(spans[instruction], span_of(instructions_[instruction]));
      }
    }
  return {};
}

Result<StreamTimes::Pair> StreamTimes::make_pair() const {
  Pair pair;
  LANCET_ASSIGN(pair.start, device_->make_event());
  LANCET_ASSIGN(pair.end, device_->make_event());
  return pair;
}

Result<Span> StreamTimes::span_of(const Pair& events) const {
  LANCET_ASSIGN(const double start, device_->milliseconds(*start_, *events.start));
  LANCET_ASSIGN(const double end, device_->milliseconds(*start_, *events.end));
  return Span{static_cast<std::int64_t>(start * 1e6), static_cast<std::int64_t>(std::max(start, end) * 1e6)};
}

void StreamTimes::divide(std::size_t stream, const Section& section, const Span& span, std::vector<Span>& spans) const {
  auto weight = [&](std::size_t at) {
    const ir::Interval& predicted = plan_->predicted[static_cast<std::size_t>((*streams_)[stream][at].instruction)];
    return std::max(predicted.end - predicted.start, 1e-6);
  };
  double total = 0, before = 0;
  for (std::size_t at = section.begin; at < section.end; ++at) total += weight(at);
  const auto length = double(span.end - span.start);
  for (std::size_t at = section.begin; at < section.end; ++at) {
    Span& mine = spans[static_cast<std::size_t>((*streams_)[stream][at].instruction)];
    mine.start = span.start + static_cast<std::int64_t>(length * before / total);
    before += weight(at);
    mine.end = span.start + static_cast<std::int64_t>(length * before / total);
  }
}

}  // namespace lancet::runtime
