// Measures messages between devices by the clock of the device: a batch of calls between two events on the device
// stream. One untimed call before the first event makes the ranks meet on the device. A batch lasts about 20 ms; a time
// is the slowest rank's, and the median of three batches. The calls use the thread blocks that comm.max_ctas allows, as
// in a step.
//
// Interference is measured by running a batch on a thread of its own beside a loop of matrix products (ProductLoop):
// the batch's slowdown is the network's speed beside computation, the products' delay per call is the cost in cores.
// Both are medians of four rounds, each compared with a run alone in the same round.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <thread>

#include "lancet/base/check.h"
#include "lancet/base/clock.h"
#include "lancet/comm/collect.h"
#include "lancet/runtime/watched_stream.h"
#include "network_profile.h"
#include "replay.h"

namespace lancet::profiler {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double size_ms = 20;  // duration of one batch
constexpr int batches = 3, most_calls = 200;
constexpr double products_ms = 30;  // duration of the products beside calls that alone last about half as long
constexpr int rounds = 4;

// One communication stream: its communicator, its device stream, and memory for its calls.
class MeterStream {
 public:
  using Call = std::function<Status()>;

  MeterStream(backend::Device& device, comm::DeviceCommunicator& comm, comm::Communicator& world,
              std::chrono::milliseconds timeout)
      : device_(device), comm_(comm), world_(world), timeout_(timeout) {}

  Status open() {
    LANCET_ASSIGN(stream_, device_.make_stream(true));
    LANCET_ASSIGN(start_, device_.make_event());
    LANCET_ASSIGN(end_, device_.make_event());
    return {};
  }

  // bytes: to the partners besides this rank together.
  Result<Call> message(const Partners& partners, std::size_t bytes) {
    const std::size_t each = partners.segment_bytes(comm_.rank(), bytes), one = each * partners.segments;
    LANCET_TRY(reserve(one * (partners.to.size() + partners.from.size())));
    sends_ = partners.segments_at(memory_.start(), partners.to, each);
    receives_ = partners.segments_at(memory_.start() + one * partners.to.size(), partners.from, each);
    return Call([this] { return comm_.send_receive(*stream_, sends_, receives_); });
  }

  Result<Call> reduction(std::size_t bytes) {
    LANCET_TRY(reserve(bytes));
    return Call([this, bytes] {
      return comm_.all_reduce_sum(*stream_, memory_.memory().span<float>().first(bytes / sizeof(float)));
    });
  }

  // Milliseconds of `times` calls on this rank. Collective; callable from any thread.
  Result<double> run(const Call& call, int times) {
    LANCET_TRY(device_.bind_thread());
    LANCET_TRY(call());
    LANCET_TRY(stream_->record(*start_));
    for (int i = 0; i < times; ++i) LANCET_TRY(call());
    LANCET_TRY(stream_->record(*end_));
    LANCET_TRY(wait());
    return device_.milliseconds(*start_, *end_);
  }

  // Milliseconds of one call on the slowest rank: the median of the batches. Collective.
  Result<double> time(const Call& call) {
    LANCET_ASSIGN(const double once, together(call, 1));
    const int times = static_cast<int>(std::clamp(size_ms / std::max(once, 1e-4), 1.0, double(most_calls)));
    std::vector<double> ms;
    for (int i = 0; i < batches; ++i) {
      LANCET_ASSIGN(const double all, together(call, times));
      ms.push_back(all / times);
    }
    return median(ms);
  }

  // Milliseconds of `times` calls on the slowest rank, all ranks starting at once. Collective.
  Result<double> together(const Call& call, int times) {
    LANCET_TRY(world_.barrier());
    LANCET_ASSIGN(const double mine, run(call, times));
    return comm::largest(world_, mine);
  }

 private:
  Status reserve(std::size_t bytes) {
    if (bytes <= memory_.bytes()) return {};
    memory_ = runtime::Block();
    LANCET_ASSIGN(memory_, runtime::Block::on_device(device_, bytes));
    LANCET_TRY(stream_->zero(memory_.start(), bytes));
    return wait();
  }

  Status wait() { return runtime::wait_until_idle(*stream_, watch()); }

  // A health check for a wait that begins now: an error of the transport, or the timeout. On a timeout it aborts the
  // communicator, so that none of the stream's calls keeps running.
  std::function<Status()> watch() {
    return [this, deadline = Clock::now() + timeout_]() -> Status {
      LANCET_TRY(comm_.check());
      if (Clock::now() < deadline) return {};
      Error error = communication_error(fmt::format(
          "profile: expected messages between all {} ranks within {} s by {}, found that they did not end; {}",
          comm_.size(), double(timeout_.count()) * 1e-3, comm_.transport(), comm_.who_is_missing()));
      comm_.abort(error.message);
      return error;
    };
  }

  backend::Device& device_;
  comm::DeviceCommunicator& comm_;
  comm::Communicator& world_;
  const std::chrono::milliseconds timeout_;
  std::unique_ptr<backend::Stream> stream_;
  std::unique_ptr<backend::Event> start_, end_;
  runtime::Block memory_;
  std::vector<comm::Segment> sends_, receives_;
};

template <class F>
class Finally {
 public:
  explicit Finally(F f) : f_(std::move(f)) {}
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;
  ~Finally() { f_(); }

 private:
  F f_;
};

// The effects of a call and of products on each other.
struct Beside {
  double speed = 1;    // of the call beside products; 1: as fast as alone
  double late_ms = 0;  // by which one call delays the products
};

class DeviceMeter final : public NetworkMeter {
 public:
  DeviceMeter(const ProfilerOptions& options, comm::DeviceCommunicator& expert, comm::DeviceCommunicator& reduce,
              std::int64_t segments)
      : accelerator_(*options.accelerator),
        device_(options.accelerator->device()),
        world_(*options.world),
        all_(partners_of({}, expert.rank(), expert.size(), 1, segments)),
        expert_(device_, expert, world_, options.timeout),
        reduce_(device_, reduce, world_, options.timeout) {}

  Status open() {
    LANCET_TRY(device_.bind_thread());
    LANCET_TRY(expert_.open());
    return reduce_.open();
  }

  Result<double> message_ms(const Partners& partners, std::size_t bytes) override {
    LANCET_ASSIGN(const auto call, expert_.message(partners, bytes));
    return expert_.time(call);
  }
  Result<double> all_reduce_ms(std::size_t bytes) override {
    LANCET_ASSIGN(const auto call, reduce_.reduction(bytes));
    return reduce_.time(call);
  }

  // The time from a signal of one device stream to the start of another that waits for it.
  Result<double> launch_ms() override {
    constexpr int rounds = 21;
    LANCET_ASSIGN(const auto first, device_.make_stream(false));
    LANCET_ASSIGN(const auto second, device_.make_stream(true));
    LANCET_ASSIGN(const runtime::Block memory, runtime::Block::page_locked(device_, rounds * sizeof(backend::Flag)));
    LANCET_ASSIGN(const auto signalled, device_.make_event());
    LANCET_ASSIGN(const auto started, device_.make_event());
    // On every return, also with an error: no device stream still waits when the flags' memory is freed.
    const Finally release([&] {
      for (int i = 0; i < rounds; ++i) std::atomic_ref(memory.memory().as<backend::Flag>()[i]).store(1);
      static_cast<void>(first->synchronize());
      static_cast<void>(second->synchronize());
    });
    std::vector<double> ms;
    for (int round = 0; round < rounds; ++round) {
      backend::Flag* flag = memory.memory().as<backend::Flag>() + round;
      LANCET_TRY(second->wait(flag));
      LANCET_TRY(second->record(*started));
      LANCET_TRY(first->delay(0.1));
      LANCET_TRY(first->record(*signalled));
      LANCET_TRY(first->signal(flag));
      LANCET_TRY(first->synchronize());
      LANCET_TRY(second->synchronize());
      LANCET_ASSIGN(const double took, device_.milliseconds(*signalled, *started));
      ms.push_back(took);
    }
    return std::max(0.0, median(ms));
  }

  Result<NetworkCosts> interference(const cost::NetworkTimes& times) override {
    LANCET_ASSIGN(products_, ProductLoop::make(accelerator_, &world_, products_ms));
    auto all_to_all = [&](double bytes) { return expert_.message(all_, static_cast<std::size_t>(bytes)); };
    auto all_reduce = [&](double bytes) { return reduce_.reduction(static_cast<std::size_t>(bytes)); };
    NetworkCosts costs;
    LANCET_ASSIGN(const Beside large, core_of(expert_, all_to_all, times.all_to_all, costs.all_to_all));
    LANCET_TRY(core_of(reduce_, all_reduce, times.all_reduce, costs.all_reduce));
    costs.interference.network_beside_compute = large.speed;
    LANCET_ASSIGN(costs.interference.network_beside_network, beside_each_other(times));
    costs.bytes = static_cast<std::size_t>(times.all_to_all.back().bytes);
    return costs;
  }

 private:
  // Sets `cost` to the line through the smallest and the largest message; returns the measurement of the largest.
  template <class CallOf>
  Result<Beside> core_of(MeterStream& stream, const CallOf& call_of, const std::vector<cost::Point>& points,
                         cost::CoreCost& cost) {
    LANCET_ASSIGN(const Beside few, beside_products(stream, call_of, points.front()));
    LANCET_ASSIGN(const Beside many, beside_products(stream, call_of, points.back()));
    const double fewer = points.front().bytes, more = points.back().bytes;
    const double slope = std::max(0.0, (many.late_ms - few.late_ms) / (more - fewer));
    cost = {std::max(0.0, few.late_ms - slope * fewer), slope * 1e6};
    return many;
  }

  template <class CallOf>
  Result<Beside> beside_products(MeterStream& stream, const CallOf& call_of, const cost::Point& message) {
    LANCET_ASSIGN(const MeterStream::Call call, call_of(message.bytes));
    const int times =
        static_cast<int>(std::clamp(products_ms / 2 / std::max(message.ms, 1e-4), 1.0, double(most_calls)));
    std::vector<double> speeds, late;
    for (int round = 0; round < rounds; ++round) {
      LANCET_ASSIGN(const double quiet, products_->run());
      LANCET_ASSIGN(const double alone, stream.together(call, times));
      LANCET_TRY(world_.barrier());
      Result<double> calls = 0.0;
      std::jthread thread([&] { calls = stream.run(call, times); });
      const auto busy = products_->run();
      thread.join();
      LANCET_TRY(calls.ok() ? Status() : Status(calls.error()));
      LANCET_ASSIGN(const double products, busy);
      LANCET_ASSIGN(const double beside, comm::largest(world_, *calls));
      LANCET_ASSIGN(const double lateness, comm::mean(world_, products - quiet));
      speeds.push_back(alone / std::max(beside, 1e-6));
      late.push_back(lateness / (times + 1));  // run() makes one untimed call more
    }
    return Beside{std::clamp(median(speeds), 0.1, 1.0), std::max(0.0, median(late))};
  }

  // The average speed of both streams when both are busy, relative to each alone.
  Result<double> beside_each_other(const cost::NetworkTimes& times) {
    const cost::Point &mine = times.all_to_all.back(), &theirs = times.all_reduce.back();
    LANCET_ASSIGN(const auto on_expert, expert_.message(all_, static_cast<std::size_t>(mine.bytes)));
    LANCET_ASSIGN(const auto on_reduce, reduce_.reduction(static_cast<std::size_t>(theirs.bytes)));
    const double longer = std::max({mine.ms, theirs.ms, 1e-4}), goal = std::max(longer, size_ms / 2);
    auto count = [&](double ms) {
      return static_cast<int>(std::clamp(goal / std::max(ms, 1e-4), 1.0, double(most_calls)));
    };
    const double alone = (count(mine.ms) * mine.ms + count(theirs.ms) * theirs.ms) / 2;
    std::vector<double> speeds;
    for (int round = 0; round < rounds; ++round) {
      LANCET_TRY(world_.barrier());
      Result<double> reduced = 0.0;
      std::jthread thread([&] { reduced = reduce_.run(on_reduce, count(theirs.ms)); });
      const auto sent = expert_.run(on_expert, count(mine.ms));
      thread.join();
      LANCET_TRY(sent.ok() ? Status() : Status(sent.error()));
      LANCET_TRY(reduced.ok() ? Status() : Status(reduced.error()));
      LANCET_ASSIGN(const double both, comm::largest(world_, std::max(*sent, *reduced)));
      speeds.push_back(alone / std::max(both, 1e-6));
    }
    return std::clamp(median(speeds), 0.1, 1.0);
  }

  runtime::Accelerator& accelerator_;
  backend::Device& device_;
  comm::Communicator& world_;
  const Partners all_;  // of an all-to-all
  MeterStream expert_, reduce_;
  std::unique_ptr<ProductLoop> products_;
};

}  // namespace

Result<std::unique_ptr<NetworkMeter>> make_device_meter(const ProfilerOptions& options, const MeasuredGroup& group,
                                                        std::int64_t segments) {
  comm::DeviceCommunicator *expert = group.expert.device_comm, *reduce = group.reduce.device_comm;
  LANCET_CHECK(expert && reduce, "the profiler needs a communicator for each stream of the accelerator");
  auto meter = std::make_unique<DeviceMeter>(options, *expert, *reduce, segments);
  LANCET_TRY(meter->open());
  return std::unique_ptr<NetworkMeter>(std::move(meter));
}

}  // namespace lancet::profiler
