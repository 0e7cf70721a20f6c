// Whom measured messages go to, and messages between devices that fail while they are measured.
#include <array>
#include <catch2/catch.hpp>
#include <mutex>
#include <set>

#include "doubles/device_traits.h"
#include "doubles/inproc.h"
#include "good.h"
#include "host_accelerator.h"
#include "lancet/comm/communicator.h"
#include "lancet/profiler/profiler.h"
#include "profiler/network_profile.h"

namespace lancet {
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
  std::int64_t memory_bytes() const override { return 0; }
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
  const auto meter =
      test::good(profiler::make_device_meter(options, {comm::group_of(expert), comm::group_of(reduce)}, 1));
  const Error launch = test::refused((*meter)->launch_ms());
  CHECK(launch.message == "no delay");
  CHECK_FALSE(accelerator.freed_in_use);
}

}  // namespace lancet

namespace lancet::profiler {

TEST_CASE("the cost of a network is measured with equal results on all ranks") {
  std::mutex mutex;
  std::vector<NetworkCosts> found;
  const Status status = comm::run_inproc(2, [&](comm::Communicator& expert) -> Status {
    LANCET_ASSIGN(const auto reduce, expert.duplicate());
    LANCET_ASSIGN(const NetworkCosts costs, measure_interference(expert, *reduce, 1));
    std::lock_guard lock(mutex);
    found.push_back(costs);
    return {};
  });
  REQUIRE((status.ok() ? "" : status.error().message) == "");
  REQUIRE(found.size() == 2);
  // Decisions depend on them, so they must not differ.
  CHECK(found[0].bytes == found[1].bytes);
  CHECK(found[0].all_to_all == found[1].all_to_all);
  CHECK(found[0].all_reduce == found[1].all_reduce);
  CHECK(found[0].interference.network_beside_compute == found[1].interference.network_beside_compute);
  CHECK(found[0].interference.network_beside_network == found[1].interference.network_beside_network);
}

TEST_CASE("the measured message is one that takes 60 ms alone, whatever the load of the machine") {
  // 60 ms per MB, latency included, and more if others load the machine: at most a MB then.
  const auto ms = [](double bytes) { return bytes * 60 / (1 << 20); };
  const auto of_ranks = [&](std::span<const int>, double bytes) { return ms(bytes); };
  const auto expert = comm::make_mirrored_world(2, {"known", of_ranks, of_ranks});
  const auto reduce = test::good(expert->duplicate());
  const auto costs = test::good(measure_interference(*expert, **reduce, 1));
  CHECK(costs->bytes <= 1 << 20);
  CHECK(costs->bytes > 64 << 10);
  CHECK(costs->seconds >= 16 * ms(double(costs->bytes)) * 1e-3);  // each stream's 4 rounds, alone and beside compute
}

TEST_CASE("a message's cost to compute is a line through two sizes, within the processor time") {
  const auto stream = [](double core_ms, double cpu_ms) { return CallCost{.core_ms = core_ms, .cpu_ms = cpu_ms}; };
  using cost::CoreCost;
  CHECK(core_cost(stream(2, 9), 1e6, stream(5, 9), 4e6) == CoreCost{1, 1});
  CHECK(core_cost(stream(20, 2), 1e6, stream(50, 5), 4e6) == CoreCost{1, 1});
  CHECK(core_cost(stream(-1, 9), 1e6, stream(3, 9), 4e6) == CoreCost{0, 1});  // noise yields no gain
  CHECK(core_cost(stream(5, 9), 1e6, stream(2, 9), 4e6) == CoreCost{5, 0});
}

TEST_CASE("a single rank has no network cost") {
  const auto self = comm::make_self();
  const auto costs = test::good(measure_interference(*self, *self, 1));
  CHECK(costs->all_to_all.ms(1e6) == 0);
  CHECK(costs->bytes == 0);
}

TEST_CASE("a call that fails beside computation ends the measurement with its error") {
  const auto self = comm::make_self();
  ComputeLoop loop(1);
  int calls = 0;
  const Error cost = test::refused(loop.measure(
      *self, [&]() -> Status { return ++calls < 4 ? Status() : Status(communication_error("network down")); }, 1e-9));
  CHECK(cost.message == "network down");
  CHECK(calls == 4);  // warm-up, trial, alone, beside
}

}  // namespace lancet::profiler
