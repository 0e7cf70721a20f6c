// When the instructions of a run were on their streams, by pairs of events around stretches of them, or around each.
#pragma once
#include <array>
#include <memory>
#include <vector>

#include "lancet/backend/device.h"
#include "device_stream.h"

namespace lancet::runtime {

class StreamTimes {
 public:
  // All events are made here: while streams wait for flags nothing is asked of the device that could wait for them. All
  // that is given outlives this.
  static Result<StreamTimes> make(const ir::Plan& plan, const Streams& streams, const FlagPlan& flags,
                                  backend::Device& device);

  // The zero of all times of a run, on the queue of the compute stream.
  Status begin(backend::Stream& queue) { return queue.record(*start_); }
  // Around stretch `number` of the stream.
  Status begin_stretch(std::size_t stream, std::size_t number, backend::Stream& queue) {
    return queue.record(*stretches_[stream][number].start);
  }
  Status end_stretch(std::size_t stream, std::size_t number, backend::Stream& queue) {
    return queue.record(*stretches_[stream][number].end);
  }
  Status begin_instruction(std::int32_t instruction, backend::Stream& queue) {
    return queue.record(*instructions_[static_cast<std::size_t>(instruction)].start);
  }
  Status end_instruction(std::int32_t instruction, backend::Stream& queue) {
    return queue.record(*instructions_[static_cast<std::size_t>(instruction)].end);
  }

  // Once the streams are idle: a span an instruction, of its own events where `each`, else its share of its stretch.
  Status read(bool each, std::vector<Span>& spans) const;

 private:
  struct Pair {
    std::unique_ptr<backend::Event> start, end;
  };

  StreamTimes(const ir::Plan& plan, const Streams& streams, const FlagPlan& flags, backend::Device& device)
      : plan_(&plan), streams_(&streams), flags_(&flags), device_(&device) {}
  Result<Pair> make_pair() const;
  Result<Span> span_of(const Pair& events) const;
  void share_out(std::size_t stream, const Stretch& stretch, const Span& span, std::vector<Span>& spans) const;

  const ir::Plan* plan_;
  const Streams* streams_;
  const FlagPlan* flags_;
  backend::Device* device_;
  std::unique_ptr<backend::Event> start_;
  std::array<std::vector<Pair>, ir::stream_count> stretches_;
  std::vector<Pair> instructions_;
};

}  // namespace lancet::runtime
