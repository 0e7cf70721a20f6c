// Whole training runs on the device kernels, emulated on the host: streams, flags, kernels, counts on the host, staged
// all-to-alls. They are compared with the CPU's runs within a tolerance, since the arithmetic differs.
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <mutex>
#include <optional>
#include <sstream>
#include <thread>

#include "declared_costs.h"
#include "good.h"
#include "lancet/models/generate.h"
#include "lancet/planner/from_config.h"
#include "lancet/runtime/accelerator.h"
#include "ops/device/emulated_ranks.h"
#include "train/rank_state.h"
#include "train/support.h"

using namespace lancet;

namespace {

// Work is done when it is queued, so a wait blocks the host thread of the stream until another thread signals.
class ImmediateStream final : public test::HostStream {
 public:
  Status signal(backend::Flag* flag) override {
    std::atomic_ref(*flag).store(1, std::memory_order_release);
    return {};
  }
  Status wait(backend::Flag* flag) override {
    while (std::atomic_ref(*flag).load(std::memory_order_acquire) == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    return {};
  }
};

class ImmediateDevice final : public test::HostDevice {
 public:
  Result<std::byte*> allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    return HostDevice::allocate(bytes);
  }
  void free(std::byte* memory) override {
    const std::lock_guard lock(mutex_);
    if (memory) HostDevice::free(memory);
  }
  void free_host(std::byte* memory) override { free(memory); }
  Result<std::unique_ptr<backend::Stream>> make_stream(bool) override {
    return std::unique_ptr<backend::Stream>(std::make_unique<ImmediateStream>());
  }

 private:
  std::mutex mutex_;
};

// Ranks that are threads and access each other's memory.
class InWindow final : public comm::DeviceCommunicator {
 public:
  explicit InWindow(const comm::DeviceStream& stream)
      : host_(*stream.host), staged_(std::move(comm::make_staged(stream)).value()) {}
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string transport() const override { return "windows"; }
  Status send_receive(backend::Stream& stream, std::span<const comm::Segment> sends,
                      std::span<const comm::Segment> receives) override {
    return staged_->send_receive(stream, sends, receives);
  }
  Status all_reduce_sum(backend::Stream& stream, std::span<float> values) override {
    return staged_->all_reduce_sum(stream, values);
  }
  Status check() override { return {}; }
  void abort(const std::string& why) override { host_.abort(why); }

  Result<std::span<std::byte>> make_window(std::size_t bytes) override {
    if (none) return Error{ExitCode::config, "ranks 1 have no window: no memory", true};
    constexpr int blocks = 3;
    memory_.resize(bytes / 64 + std::size_t(blocks * size()) / 16 + 2);
    window_ = {reinterpret_cast<std::byte*>(memory_.data()), bytes};
    std::vector<std::byte*> starts;
    all_.clear();
    for (int peer = 0; peer < size(); ++peer) {
      InWindow* at = this;
      LANCET_TRY(host_.broadcast(std::as_writable_bytes(std::span(&at, 1)), peer));
      all_.push_back(at);
      std::byte* start = window_.data();
      LANCET_TRY(host_.broadcast(std::as_writable_bytes(std::span(&start, 1)), peer));
      starts.push_back(start);
    }
    windows_.emplace(std::move(starts), (bytes + 63) / 64 * 64, blocks);
    return window_;
  }
  // Rank 0 runs the kernels of all ranks together, while the others wait.
  Status in_windows(backend::Stream&, const WindowLaunch& launch) override {
    ++pushed;
    ++generation_;
    launch_ = &launch;
    LANCET_TRY(host_.barrier());
    if (rank() == 0) {
      ops::device::emulated::Ranks ranks(size(), 3);
      for (InWindow* peer : all_) {
        test::RankStream stream(ranks.queue(peer->rank()));
        LANCET_TRY((*peer->launch_)(stream, windows_->of(peer->rank(), generation_)));
      }
      ranks.run();
    }
    return host_.barrier();
  }
  static inline std::atomic<int> pushed = 0;
  static inline std::atomic<bool> none = false;  // as if a rank's memory did not suffice

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  comm::Communicator& host_;
  std::unique_ptr<comm::DeviceCommunicator> staged_;
  std::vector<Line> memory_;
  std::vector<InWindow*> all_;  // by rank
  std::optional<test::HostWindows> windows_;
  const WindowLaunch* launch_ = nullptr;
  std::uint32_t generation_ = 0;
};

class EmulatedAccelerator final : public runtime::Accelerator {
 public:
  backend::Device& device() override { return device_; }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override { return test::find_emulated_kernel(op); }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) override {
    if (windows) return std::unique_ptr<comm::DeviceCommunicator>(std::make_unique<InWindow>(stream));
    return comm::make_staged(stream);
  }
  std::string build() const override { return "emulated"; }
  bool windows = false;

 private:
  ImmediateDevice device_;
};

std::vector<run::StepRecord> train_on(config::Config config, bool device, int ranks, int steps, bool windows = false,
                                      std::string* banner = nullptr) {
  if (!device) config.device = config::Device::cpu;
  std::vector<run::StepRecord> records;
  const test::DeclaredCosts costs;
  const Status status = comm::run_inproc(
      ranks,
      [&](comm::Communicator& world) -> Status {
        EmulatedAccelerator accelerator;
        accelerator.windows = windows;
        train::TrainerOptions options{.local_ranks = ranks, .costs = &costs};
        if (device) options.accelerator = &accelerator;
        LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, options));
        if (banner && world.rank() == 0) *banner = trainer->banner();
        for (int step = 0; step < steps; ++step) {
          LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
          if (world.rank() == 0) records.push_back(record);
        }
        return {};
      },
      std::chrono::minutes(5));  // ranks wait for the one that runs all of their emulated kernels
  if (!status.ok()) FAIL(status.error().message);
  return records;
}

void check_close(const std::vector<run::StepRecord>& found, const std::vector<run::StepRecord>& expected,
                 double epsilon) {
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO("step " << i + 1);
    CHECK(found[i].loss == Approx(expected[i].loss).epsilon(epsilon));
    CHECK(found[i].grad_norm == Approx(expected[i].grad_norm).epsilon(20 * epsilon));
  }
}

}  // namespace

TEST_CASE("training on emulated device kernels follows the CPU's, on one rank and under lancet on two") {
  auto config = test::small_config();
  config.model.n_layer = 2;
  const int ranks = GENERATE(1, 2);
  config.overlap.policy = ranks == 2 ? "lancet" : "sequential";
  config.device = ranks == 2 ? config::Device::cuda : config::Device::cpu;  // GELU fused into the products or separate
  check_close(train_on(config, true, ranks, 4), train_on(config, false, ranks, 4), 1e-4);
}

TEST_CASE("training on emulated device kernels: bf16, drops, batch-prioritized gates, accumulation, SGD") {
  auto config = test::small_config();
  config.model.n_layer = 2;
  config.model.capacity_factor = 1;
  config.model.router = config::Router::batch_prioritized;
  config.train.dtype = DType::bf16;
  config.train.optimizer = config::Optimizer::sgd;
  config.train.gradient_accumulation_steps = 2;
  config.overlap.policy = "lancet";
  config.device = config::Device::cuda;
  check_close(train_on(config, true, 2, 2), train_on(config, false, 2, 2), 1e-2);
}

TEST_CASE("training on emulated device kernels: rounds of layers that drop nothing") {
  auto config = test::small_config();
  config.model.n_layer = 2;
  config.model.capacity_factor.reset();
  config.model.dropless_imbalance = 0.5;
  const int ranks = GENERATE(1, 2);
  if (ranks == 2) config.overlap = {.policy = "lancet", .parts = 2, .memory_factor = 10};
  config.device = config::Device::cuda;  // GELU fused into the products
  check_close(train_on(config, true, ranks, 2), train_on(config, false, ranks, 2), 1e-4);
}

TEST_CASE("training on emulated device kernels: pipeline stages, alone and with experts") {
  auto config = test::small_config();
  config.model.n_layer = 2;
  config.mesh.stage = 2;
  config.train.gradient_accumulation_steps = 2;
  config.train.pipeline_schedule = config::PipelineSchedule::zero_bubble;
  config.train.micro_batch_size = 4;
  const int ranks = GENERATE(2, 4);
  if (ranks == 4) config.overlap = {.policy = "lancet_paper", .parts = 2, .memory_factor = 10};
  if (ranks == 4) config.train.zero = 1;
  const bool windows = ranks == 4;
  config.device = config::Device::cuda;  // GELU fused into the products
  InWindow::pushed = 0;
  check_close(train_on(config, true, ranks, 2, windows), train_on(config, false, ranks, 2), 1e-4);
  CHECK((InWindow::pushed > 0) == windows);  // of the two ranks that share a stage
}

TEST_CASE("on one rank a step with MoE layers is a single stretch that one graph records") {
  const auto plan = test::good(planner::plan_step({test::small_config(), 1}, {}));
  int products = 0;
  for (const ir::Instruction& at : plan->program.instructions) {
    INFO(at.op << " at " << at.label);
    CHECK(at.stream == ir::Stream::compute);
    CHECK(test::find_emulated_kernel(at.op)->recordable);
    products += at.op == "expert_linear";
  }
  CHECK(products > 0);
  for (const auto& waits : plan->waits) CHECK(waits.empty());
}

TEST_CASE("two runs on emulated device kernels are the same, bit for bit") {
  auto config = test::small_config();
  config.model.n_layer = 2;
  config.overlap.policy = "lancet";
  const auto first = train_on(config, true, 2, 2), second = train_on(config, true, 2, 2);
  for (std::size_t i = 0; i < first.size(); ++i) {
    CHECK(first[i].loss == second[i].loss);
    CHECK(first[i].grad_norm == second[i].grad_norm);
  }
}

TEST_CASE("emulated device kernels read text as the CPU does, a prompt at once or token by token") {
  auto config = test::small_config();
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  config.model.initializer_range = 0.2;
  const std::vector<std::int32_t> tokens{3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5};
  std::vector<std::vector<float>> logits;  // per token on the CPU and on the device; at once on the device
  for (int run = 0; run < 3; ++run) {
    EmulatedAccelerator accelerator;
    runtime::TensorStore store;
    const auto world = comm::make_self();
    auto streams = test::good(run::Streams::make(config, *world, run > 0 ? &accelerator : nullptr));
    if (run > 0) store.place_on(accelerator.device());
    store.add(planner::rank_forward(config, model::Mode::generate, 1).value());
    REQUIRE(train::initialize_weights(config, store).ok());
    const auto decoder = test::good(models::Decoder::create(config, *world, store, *streams, 1));
    const std::size_t step = run == 2 ? tokens.size() : 1;
    for (std::size_t at = 0; at < tokens.size(); at += step) {
      const auto found = test::good((*decoder)->read(std::span(tokens).subspan(at, step)));
      logits.emplace_back(found->begin(), found->end());
    }
  }
  const std::size_t n = tokens.size();
  REQUIRE(logits.size() == 2 * n + 1);
  const double margin = config.train.dtype == DType::f32 ? 1e-5 : 0.05;
  for (std::size_t t = 0; t < n; ++t)
    for (std::size_t v = 0; v < logits[t].size(); ++v) {
      INFO("token " << t << ", logit " << v);
      REQUIRE(logits[n + t][v] == Approx(logits[t][v]).margin(margin));
      if (t + 1 == n) REQUIRE(logits[2 * n][v] == Approx(logits[t][v]).margin(margin));
    }
}

TEST_CASE("tokens sent directly to the peers' memory change no bit of a step") {
  auto config = test::small_config();
  config.model.n_layer = 2;
  config.model.capacity_factor = 1;
  // The emulated kernels of all ranks run one after another, which takes time.
  int ranks = 0, steps = 0;
  std::tie(config.overlap.policy, ranks, steps) =
      GENERATE(table<std::string, int, int>({{"sequential", 2, 2}, {"lancet", 4, 1}}));
  InWindow::pushed = 0;
  const auto counted = train_on(config, true, ranks, steps), pushed = train_on(config, true, ranks, steps, true);
  REQUIRE(pushed.size() == counted.size());
  CHECK(InWindow::pushed >= ranks * steps * 4);  // dispatch and return, forward and backward
  for (std::size_t i = 0; i < counted.size(); ++i) {
    CHECK(pushed[i].loss == counted[i].loss);
    CHECK(pushed[i].grad_norm == counted[i].grad_norm);
  }
  config.comm.device_all_to_all = config::DeviceAllToAll::counted;
  InWindow::pushed = 0;
  CHECK(train_on(config, true, ranks, 1, true)[0].loss == counted[0].loss);
  CHECK(InWindow::pushed == 0);
}

TEST_CASE("the arena of an accelerator grows with the plans, in a window as well") {
  auto config = test::small_config();
  const bool windows = GENERATE(false, true);
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    EmulatedAccelerator accelerator;
    accelerator.windows = windows;
    LANCET_ASSIGN(const auto expert, accelerator.make_communicator({.device = &accelerator.device(), .host = &world}));
    train::TrainerMemory memory;
    run::StepPlans plans;
    plans.steps.resize(1);
    std::byte* start = nullptr;
    for (const std::int64_t bytes : {1024, 512, 1024, 1 << 20}) {
      plans.steps[0].arena_bytes = bytes;
      LANCET_TRY(memory.fit_arena(config, plans, expert.get(), {.accelerator = &accelerator}));
      const std::size_t held = bytes > 1024 ? std::size_t(bytes) : 1024;
      const bool fits = memory.arena().bytes == held && memory.plan().arena == std::int64_t(held);
      const bool stays = start == nullptr || bytes > 1024 || memory.arena().start == start;
      start = memory.arena().start;
      if (!fits || !stays || expert->in_window(start, held) != windows) return internal_error("another arena");
      std::fill_n(start, held, std::byte(1));
      LANCET_TRY(world.barrier());
    }
    return {};
  }));
}

TEST_CASE("the banner says that tokens travel through windows") {
  auto config = test::small_config();
  config.model.n_layer = 2;
  config.device = config::Device::cuda;
  std::string banner;
  InWindow::pushed = 0;
  train_on(config, true, 2, 1, true, &banner);
  CHECK(InWindow::pushed > 0);
  CHECK(banner.find("\nall-to-alls  through windows: the ranks reach each other's memory") != std::string::npos);
  train_on(config, true, 2, 1, false, &banner);
  CHECK(banner.find("all-to-alls  ") == std::string::npos);
}

TEST_CASE("without a window on all ranks the tokens are counted, unless windows are requested") {
  auto config = test::small_config();
  config.model.n_layer = 2;
  const auto counted = train_on(config, true, 2, 1);
  InWindow::none = true;
  InWindow::pushed = 0;
  const auto without = train_on(config, true, 2, 1, true);
  InWindow::none = false;
  CHECK(InWindow::pushed == 0);
  REQUIRE(without.size() == counted.size());
  CHECK(without.back().loss == counted.back().loss);
}

TEST_CASE("a start logs once that attention uses the slow path, and why") {
  auto config = test::small_config();
  config.train.seq_len = 13;  // a shape that no other test uses
  std::ostringstream text;
  const auto before = spdlog::default_logger();
  spdlog::set_default_logger(
      std::make_shared<spdlog::logger>("test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text)));
  for (int run = 0; run < 2; ++run) train_on(config, true, 1, 0);
  spdlog::set_default_logger(before);
  const std::string line = "attention over f32[8,13,3,";
  const auto at = text.str().find(line);
  REQUIRE(at != std::string::npos);
  CHECK(text.str().find("by plain kernels, which are slow, since cuDNN's engines take bf16", at) != std::string::npos);
  CHECK(text.str().find(line, at + 1) == std::string::npos);
}

TEST_CASE("windows that are requested but unavailable are refused") {
  auto config = test::small_config();
  config.device = config::Device::cuda;
  config.comm.device_all_to_all = config::DeviceAllToAll::windows;
  const Error status = test::refused(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    EmulatedAccelerator accelerator;
    const auto trainer = train::Trainer::create(config, world, {.local_ranks = 2, .accelerator = &accelerator});
    return trainer.ok() ? Status() : Status(trainer.error());
  }));
  CHECK(status.code == ExitCode::config);
  CHECK(status.message.find("comm.device_all_to_all: expected GPUs that reach each other's memory") !=
        std::string::npos);
}
