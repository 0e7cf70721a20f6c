// Whole training runs on device streams: equal to the CPU's to the bit, since the kernels are the CPU's.
#include <algorithm>
#include <array>
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "good.h"
#include "host_accelerator.h"
#include "lancet/base/files.h"
#include "lancet/cost/hardware.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/step_costs.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {
namespace {

struct Trained {
  std::vector<run::StepRecord> records;
  std::vector<std::vector<std::byte>> tensors;  // parameters and state of every rank, by name
};

Trained train_on(const config::Config& config, bool streams, int steps, int ranks = 2,
                 const test::HostQueueOptions& queue = {.pause_us = 20}) {
  Trained result;
  std::vector<std::vector<std::vector<std::byte>>> held(static_cast<std::size_t>(ranks));
  const test::DeclaredCosts costs;
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    test::HostQueueOptions of_rank = queue;
    of_rank.seed = std::uint64_t(world.rank());
    test::HostAccelerator accelerator(of_rank);
    if (world.rank() + 1 == ranks) accelerator.wait_in("all_to_all");
    train::TrainerOptions options{.local_ranks = ranks, .costs = &costs};
    if (streams) options.accelerator = &accelerator;
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, options));
    for (int step = 0; step < steps; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (world.rank() == 0) result.records.push_back(record);
    }
    for (const auto& [name, tensor] : trainer->store().all()) {
      auto& bytes = held[std::size_t(world.rank())].emplace_back(tensor.memory.bytes);
      LANCET_TRY(trainer->store().read(tensor, 0, bytes));
    }
    return {};
  }));
  for (auto& rank : held)
    for (auto& bytes : rank) result.tensors.push_back(std::move(bytes));
  return result;
}

void check_same(const config::Config& config, int steps = 4) {
  const Trained expected = train_on(config, false, steps), found = train_on(config, true, steps);
  REQUIRE(found.records.size() == expected.records.size());
  for (std::size_t i = 0; i < expected.records.size(); ++i) {
    CHECK(found.records[i].loss == expected.records[i].loss);
    CHECK(found.records[i].grad_norm == expected.records[i].grad_norm);
  }
  REQUIRE(!expected.tensors.empty());
  CHECK(found.tensors == expected.tensors);
}

}  // namespace

TEST_CASE("training on streams equals training on the CPU, bit for bit, under every policy") {
  auto config = test::small_config();
  config.overlap.policy = GENERATE("sequential", "tutel", "dw", "partition", "lancet", "auto");
  INFO(config.overlap.policy);
  check_same(config);
}

// The compute stream's thread is far ahead of its device stream when the expert stream's thread, which waits for
// counts, puts the all-to-all that the compute stream waits for.
TEST_CASE("training on streams: steps that put more commands than a driver's queue holds, traced or not recorded") {
  auto config = test::small_config();
  config.model.n_layer = 24;
  const bool records = GENERATE(true, false);
  if (records) config.log.trace = 3;
  test::HostQueueOptions queue{.pause_us = 100, .most_queued = 450, .records = records};
  const Trained expected = train_on(config, false, 4), found = train_on(config, true, 4, 2, queue);
  REQUIRE(found.records.size() == expected.records.size());
  for (std::size_t i = 0; i < expected.records.size(); ++i) CHECK(found.records[i].loss == expected.records[i].loss);
  CHECK(found.tensors == expected.tensors);
}

TEST_CASE("training on streams: bf16, micro batches, drops, batch-prioritized gates") {
  auto config = test::small_config();
  config.overlap.policy = "lancet";
  config.train.gradient_accumulation_steps = 2;
  config.train.dtype = DType::bf16;
  config.model.capacity_factor = 0.75;
  config.model.router = config::Router::batch_prioritized;
  check_same(config);
}

TEST_CASE("training on streams: rounds of layers that drop nothing") {
  auto config = test::small_config();
  config.overlap.policy = GENERATE("sequential", "lancet");
  config.overlap.memory_factor = 10;
  if (config.overlap.policy == "lancet") config.overlap.parts = 2;
  config.model.capacity_factor.reset();
  config.model.dropless_imbalance = 0.5;
  check_same(config);
}

TEST_CASE("training on streams: hundreds of rounds, whose numbers share words of the host") {
  auto config = test::small_config();
  config.train.micro_batch_size = 64;
  config.model.capacity_factor.reset();
  config.model.dropless_imbalance = 1e-6;  // one slot an expert
  const Trained expected = train_on(config, false, 2, 1), found = train_on(config, true, 2, 1);
  CHECK(expected.records[0].rounds.value() > 256);
  CHECK(found.records[0].loss == expected.records[0].loss);
  CHECK((found.tensors == expected.tensors));  // too many bytes to be printed
}

TEST_CASE("training on streams: ZeRO-1, and gradients in bf16") {
  auto config = test::small_config();
  config.train.zero = GENERATE(0, 1);
  config.train.reduce_dtype = DType::bf16;
  check_same(config);
  config.train.reduce_dtype = DType::f32;
  config.train.dtype = DType::bf16;
  config.train.master_weights = GENERATE(true, false);
  check_same(config);
}

TEST_CASE("training on streams: a model that does not fit is refused with the required memory") {
  auto config = test::small_config();
  test::HostAccelerator accelerator({.bytes = 1'000'000});
  const auto self = comm::make_self();
  const Error trainer = test::refused(train::Trainer::create(config, *self, {.accelerator = &accelerator}));
  CHECK(trainer.code == ExitCode::config);
  CHECK(trainer.message.find(" MB of free memory a rank on host queue (") != std::string::npos);
}

namespace {

// Layer norms that request 300 MB of scratch.
class WantsScratch final : public runtime::Accelerator {
 public:
  explicit WantsScratch(std::int64_t bytes) : host_({.bytes = bytes}) {
    kernel_ = *host_.find_kernel("layer_norm");
    kernel_.workspace = [](const ops::KernelArgs&) { return std::size_t{300'000'000}; };
  }
  backend::Device& device() override { return host_.device(); }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override {
    return op == "layer_norm" ? &kernel_ : host_.find_kernel(op);
  }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) override {
    return host_.make_communicator(stream);
  }
  std::string build() const override { return host_.build(); }

 private:
  test::HostAccelerator host_;
  ops::DeviceKernel kernel_;
};

}  // namespace

TEST_CASE("training on streams: scratch that does not fit on any one rank is refused at the start by all") {
  const auto config = test::small_config();
  std::array<std::string, 2> errors;
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    WantsScratch accelerator(world.rank() == 0 ? 400'000'000 : 200'000'000);
    const auto trainer = train::Trainer::create(config, world, {.accelerator = &accelerator});
    if (!trainer.ok()) errors[std::size_t(world.rank())] = trainer.error().message;
    return {};
  }));
  for (const std::string& error : errors) {
    CHECK(error.find(" MB of free memory a rank on host queue (") != std::string::npos);
    CHECK(error.find(" 300 scratch of kernels, ") != std::string::npos);
    CHECK(error.find("found 200 MB") != std::string::npos);
  }
}

namespace {

// Messages through host memory, so that calls work on any device memory.
class StagedAccelerator final : public runtime::Accelerator {
 public:
  backend::Device& device() override { return host_.device(); }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override { return host_.find_kernel(op); }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) override {
    ctas = stream.max_ctas;
    return comm::make_staged(stream);
  }
  std::string build() const override { return "staged"; }
  int ctas = -1;

 private:
  test::HostAccelerator host_;
};

void check_network(const cost::NetworkTimes& network) {
  for (const auto* points : {&network.all_to_all, &network.all_reduce}) {
    REQUIRE(points->size() >= 3);
    CHECK(points->front().bytes == 1024);
    for (const cost::Point& point : *points) CHECK(point.ms > 0);
  }
  CHECK(network.launch_ms >= 0);
  CHECK(network.interference.network_beside_compute >= 0.1);
  CHECK(network.interference.network_beside_compute <= 1);
  CHECK(network.interference.network_beside_network >= 0.1);
  CHECK(network.interference.network_beside_network <= 1);
  CHECK(network.all_to_all_core.ms(1e6) >= 0);
}

}  // namespace

TEST_CASE("messages between devices are profiled, and a plan uses the measured times") {
  auto config = test::small_config();
  config.overlap.policy = "lancet";
  config.comm.max_ctas = 3;
  std::vector<cost::Profile> profiles(2);
  std::string policy;
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    StagedAccelerator accelerator;
    LANCET_ASSIGN(const run::MeasuredStep step,
                  run::measure_step(config, world, {.local_ranks = 2, .seconds = 0, .accelerator = &accelerator}));
    if (accelerator.ctas != 3) return internal_error("expected comm.max_ctas in the streams");
    profiles[std::size_t(world.rank())] = step.profile;
    LANCET_TRY(cost::op_costs(step.profile, step.programs.front()).ok() ? Status()
                                                                        : internal_error("an op is missing"));
    train::TrainerOptions options{.local_ranks = 2, .costs = &step.profile};
    test::HostAccelerator trains;
    options.accelerator = &trains;
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, options));
    LANCET_ASSIGN(const run::StepRecord record, trainer->step(0));
    if (world.rank() == 0 && !record.predicted_ms) return internal_error("expected a predicted step");
    if (world.rank() == 0) policy = trainer->executor().plan().header.text("policy");
    return {};
  }));
  CHECK((policy == "lancet" || policy == "sequential"));
  CHECK(profiles[0].machine.cluster == cost::Cluster{"nccl with 3 CTAs", 2, 1});
  CHECK(profiles[0].machine.device.build == "staged");
  CHECK(profiles[0].ops == profiles[1].ops);
  CHECK(profiles[0].network.all_to_all == profiles[1].network.all_to_all);
  CHECK(profiles[0].network.all_reduce == profiles[1].network.all_reduce);
  CHECK(profiles[0].network.launch_ms == profiles[1].network.launch_ms);
  CHECK(profiles[0].network.interference.network_beside_network ==
        profiles[1].network.interference.network_beside_network);
  check_network(profiles[0].network);
}

TEST_CASE("ops of stages on devices are profiled, for a search over all stages") {
  auto config = test::small_config();
  config.mesh.stage = 2;
  config.train.gradient_accumulation_steps = 2;
  config.train.pipeline_schedule = config::PipelineSchedule::searched;
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    StagedAccelerator accelerator;
    LANCET_ASSIGN(const run::MeasuredStep step,
                  run::measure_step(config, world, {.local_ranks = 2, .seconds = 0, .accelerator = &accelerator}));
    test::HostAccelerator trains;
    LANCET_ASSIGN(
        const auto trainer,
        train::Trainer::create(config, world, {.local_ranks = 2, .costs = &step.profile, .accelerator = &trains}));
    LANCET_ASSIGN(const run::StepRecord record, trainer->step(0));
    return record.predicted_ms ? Status() : Status(internal_error("expected a predicted step"));
  }));
}

TEST_CASE("messages of mirrored ranks between devices take the network's time") {
  auto config = test::small_config();
  config.overlap.policy = "lancet";
  config.comm.transport = config::Transport::mirrored;
  config.comm.network = LANCET_SOURCE_DIR "/configs/hardware/ethernet-10g-cpu.json";
  config.comm.mirrored_ranks = 4;
  const auto self = comm::make_self();
  test::HostAccelerator accelerator;
  const auto step = test::good(run::measure_step(config, *self, {.seconds = 0, .accelerator = &accelerator}));
  CHECK(step->profile.machine.cluster.transport == "mirrored ethernet-10g-cpu");
  CHECK(step->profile.machine.cluster.ranks == 4);
  check_network(step->profile.network);
  const auto hardware = test::good(cost::read_hardware(LANCET_SOURCE_DIR "/configs/hardware/ethernet-10g-cpu.json"));
  const cost::Layout layout{4, hardware->nodes(4)};
  for (const cost::Point& point : step->profile.network.all_to_all)
    CHECK(point.ms >= 0.9 * cost::all_to_all_ms(*hardware, layout, point.bytes));
}

TEST_CASE("training on streams: an overflow is named as on the CPU") {
  auto config = test::small_config();
  config.train.lr = 1e30;
  config.train.clip_grad = 0;
  std::string messages[2];
  for (int streams = 0; streams < 2; ++streams) {
    test::HostAccelerator accelerator;
    const auto self = comm::make_self();
    train::TrainerOptions options;
    if (streams) options.accelerator = &accelerator;
    auto trainer = test::good(train::Trainer::create(config, *self, options));
    for (int step = 0; step < 3 && messages[streams].empty(); ++step)
      if (const auto record = (*trainer)->step(step); !record.ok()) messages[streams] = record.error().message;
    CHECK(messages[streams].find("first not finite on rank 0") != std::string::npos);
  }
  CHECK(messages[0] == messages[1]);
}

TEST_CASE("GELU fused into the products changes no bit of a step, and only plans for a GPU have it") {
  auto config = test::small_config();
  config.overlap.policy = GENERATE("sequential", "lancet");
  const Trained expected = train_on(config, false, 3);
  config.device = config::Device::cuda;
  const Trained found = train_on(config, true, 3);
  REQUIRE(found.records.size() == expected.records.size());
  for (std::size_t i = 0; i < expected.records.size(); ++i)
    CHECK(found.records[i].loss == Approx(expected.records[i].loss).epsilon(1e-5));
  if (config.overlap.policy == "sequential") {            // else the numbers of parts may differ
    const bool same = found.tensors == expected.tensors;  // separate, since a failing CHECK would print the tensors
    CHECK(same);
  }
  const test::DeclaredCosts costs;
  const auto fused = planner::plan_step({config, 2}, {.costs = &costs});
  config.train.fuse_gelu = false;
  const auto apart = planner::plan_step({config, 2}, {.costs = &costs});
  REQUIRE((fused.ok() && apart.ok()));
  const auto count = [](const ir::Plan& plan, std::string_view op) {
    return std::ranges::count_if(plan.program.instructions, [&](const auto& at) { return at.op == op; });
  };
  for (const char* op : {"gelu", "gelu_dx"}) {
    CHECK(count(*fused, op) == 0);
    CHECK(count(*apart, op) > 0);
  }
  for (const char* op : {"linear_gelu", "linear_dx_gelu", "expert_linear_gelu", "expert_linear_dx_gelu"}) {
    CHECK(count(*fused, op) > 0);
    CHECK(count(*apart, op) == 0);
  }
}

TEST_CASE("product algorithms are measured once, on rank 0, kept in the profile, and used by every rank") {
  auto config = test::small_config();
  const test::TemporaryFolder folder;
  config.overlap.profile = folder / "profile.json";
  config.overlap.policy = "sequential";
  const auto programs =
      planner::programs_to_profile({config, 1}, 1).value();  // its kernels do not support made-up messages
  struct Seen {
    runtime::ProductChoices profile, device;
    int measured = 0;
  };
  const auto run = [&](bool measures, std::array<Seen, 2>& seen) {
    return comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
      test::HostAccelerator accelerator;
      accelerator.choice = world.rank() == 0 ? "the first" : "the second";
      Seen& mine = seen[std::size_t(world.rank())];
      if (measures) {
        if (world.rank() == 0) {  // communication between GPUs cannot be measured
          cost::Profile profile(run::machine_of(config, world, 2, &accelerator));
          profile.network.all_to_all = profile.network.all_reduce = {{1, 1}, {1e12, 2}};
          LANCET_TRY(cost::write_profile(config.overlap.profile, profile));
        }
        LANCET_TRY(world.barrier());
        LANCET_ASSIGN(const auto profile,
                      run::ensure_profile(config, world, programs,
                                          {.local_ranks = 2, .seconds = 0, .accelerator = &accelerator}));
        mine.profile = profile.products;
      } else {
        LANCET_ASSIGN(const auto trainer,
                      train::Trainer::create(config, world, {.local_ranks = 2, .accelerator = &accelerator}));
      }
      mine.device = accelerator.choices;
      mine.measured = accelerator.measured;
      return {};
    });
  };
  const runtime::ProductChoices expected{{"a product", "the first"}};
  for (const bool measures : {true, false}) {
    std::array<Seen, 2> seen;
    test::good(run(measures, seen));
    for (const Seen& mine : seen) {
      CHECK(mine.device == expected);
      CHECK(mine.profile == (measures ? expected : runtime::ProductChoices{}));
    }
    CHECK(seen[0].measured == measures);
    CHECK(seen[1].measured == 0);
  }
  // Damage is reported with the file.
  auto text = test::good(read_file(config.overlap.profile, "a profile"));
  const auto at = text->find("the first");
  REQUIRE(at != std::string::npos);
  REQUIRE(write_file(config.overlap.profile, text->replace(at, 9, "none")).ok());
  std::array<Seen, 2> seen;
  const Error status = test::refused(run(false, seen));
  CHECK(status.code == ExitCode::config);
  CHECK(status.message.find("profile.json: products: expected an algorithm") != std::string::npos);
}

}  // namespace lancet
