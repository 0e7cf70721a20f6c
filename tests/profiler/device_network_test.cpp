// Whom measured messages go to, and messages between devices that fail while they are measured.
#include <array>
#include <catch2/catch.hpp>
#include <set>

#include "doubles/device_traits.h"
#include "host_accelerator.h"
#include "profiler/network_profile.h"

using namespace lancet;

namespace {

// A stream on which delay() fails.
class NoDelay final : public backend::Stream {
 public:
  NoDelay(std::unique_ptr<backend::Stream> under, std::set<backend::Stream*>& all)
      : under_(std::move(under)), all_(all) {
    all_.insert(this);
  }
  ~NoDelay() override { all_.erase(this); }
  Status copy(void* to, const void* from, std::size_t bytes) override { return under_->copy(to, from, bytes); }
  Status zero(void* memory, std::size_t bytes) override { return under_->zero(memory, bytes); }
  Status signal(backend::Flag* flag) override { return under_->signal(flag); }
  Status wait(backend::Flag* flag) override { return under_->wait(flag); }
  Status record(backend::Event& event) override { return under_->record(event); }
  Status scale(float* values, std::size_t count, float factor) override { return under_->scale(values, count, factor); }
  Status delay(double) override { return internal_error("no delay"); }
  Status mark() override { return under_->mark(); }
  Status delay_from_mark(double milliseconds) override { return under_->delay_from_mark(milliseconds); }
  Status begin_capture() override { return under_->begin_capture(); }
  Result<std::unique_ptr<backend::Graph>> end_capture() override { return under_->end_capture(); }
  Status launch(backend::Graph& graph) override { return under_->launch(graph); }
  Status synchronize() override { return under_->synchronize(); }
  Result<bool> idle() override { return under_->idle(); }
  void* native() override { return under_->native(); }

 private:
  std::unique_ptr<backend::Stream> under_;
  std::set<backend::Stream*>& all_;
};

class NoDelays final : public backend::Device, public runtime::Accelerator {
 public:
  Device& device() override { return *this; }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override { return host_.find_kernel(op); }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) override {
    return host_.make_communicator(stream);
  }
  std::string build() const override { return host_.build(); }

  std::string name() const override { return "no delays"; }
  std::string architecture() const override { return "none"; }
  std::string identity() const override { return "none"; }
  const backend::DeviceTraits& traits() const override { return test::hopper_traits; }
  std::int64_t free_bytes() const override { return 0; }
  Status bind_thread() override { return {}; }
  Result<std::byte*> allocate(std::size_t bytes) override { return under().allocate(bytes); }
  void free(std::byte* memory) override { under().free(memory); }
  Result<std::byte*> allocate_host(std::size_t bytes) override { return under().allocate_host(bytes); }
  void free_host(std::byte* memory) override {
    for (backend::Stream* stream : streams_) freed_in_use = freed_in_use || !stream->idle().value();
    under().free_host(memory);
  }
  Result<std::unique_ptr<backend::Stream>> make_stream(bool urgent) override {
    LANCET_ASSIGN(auto made, under().make_stream(urgent));
    return std::unique_ptr<backend::Stream>(std::make_unique<NoDelay>(std::move(made), streams_));
  }
  Result<std::unique_ptr<backend::Event>> make_event() override { return under().make_event(); }
  Result<double> milliseconds(backend::Event& from, backend::Event& to) override {
    return under().milliseconds(from, to);
  }

  bool freed_in_use = false;  // host memory copied while a stream had work

 private:
  backend::Device& under() { return host_.device(); }
  std::set<backend::Stream*> streams_;
  test::HostAccelerator host_;
};

}  // namespace

TEST_CASE("the partners of messages: all ranks, those of the host, the neighbours of a ring") {
  using profiler::partners_of;
  using Places = std::vector<int>;
  const profiler::Partners all = partners_of({}, 1, 4, 2, 3);
  CHECK(all.to == Places{0, 1, 2, 3});
  CHECK(all.from == all.to);
  CHECK(all.segment_bytes(1, 1800) == 200);  // to three others, three segments each
  const profiler::Partners near = partners_of({.on_host = true}, 4, 6, 3, 2);
  CHECK(near.to == Places{3, 5});
  CHECK(near.from == near.to);
  CHECK(near.segment_bytes(4, 800) == 200);
  CHECK(near.segment_bytes(4, 1) == 1);
  const profiler::Partners next = partners_of({.shift = 1}, 0, 4, 2, 3), second = partners_of({.shift = 2}, 3, 4, 2, 3);
  CHECK(next.to == Places{3});
  CHECK(next.from == Places{1});
  CHECK(next.segment_bytes(0, 800) == 800);  // a window is one piece
  CHECK(second.to == Places{1});
  CHECK(second.from == Places{1});
  std::array<std::byte, 16> memory;
  const auto segments = near.segments_at(memory.data(), near.to, 4);
  REQUIRE(segments.size() == 4);
  for (int i = 0; i < 4; ++i) {
    CHECK(segments[std::size_t(i)].peer == (i < 2 ? 3 : 5));
    CHECK(segments[std::size_t(i)].data == memory.data() + 4 * i);
    CHECK(segments[std::size_t(i)].bytes == 4);
  }
}

TEST_CASE("the time from a signal to its waiter: a failed measurement leaves no stream waiting") {
  NoDelays accelerator;
  const auto self = comm::make_self();
  test::HostQueueCommunicator expert(*self), reduce(*self);
  profiler::ProfilerOptions options{.accelerator = &accelerator, .world = self.get()};
  options.streams[std::size_t(ir::Stream::expert)] = comm::all_ranks(&expert);
  options.streams[std::size_t(ir::Stream::reduce)] = comm::all_ranks(&reduce);
  const auto meter = profiler::make_device_meter(options, {comm::group_of(expert), comm::group_of(reduce)}, 1);
  REQUIRE(meter.ok());
  const auto launch = (*meter)->launch_ms();
  REQUIRE_FALSE(launch.ok());
  CHECK(launch.error().message == "no delay");
  CHECK_FALSE(accelerator.freed_in_use);
}
