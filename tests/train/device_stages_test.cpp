// Pipeline stages on device streams: training, evaluation, text and traces equal the CPU's to the bit, since the
// kernels are the CPU's; a rank that ends takes the others with it.
#include <algorithm>
#include <catch2/catch.hpp>

#include "declared_costs.h"
#include "good.h"
#include "host_accelerator.h"
#include "train/meshes.h"
#include "train/runs.h"

namespace lancet {
namespace {

using config::PipelineSchedule;
using ir::Axis;

constexpr PipelineSchedule pipeline_schedules[] = {PipelineSchedule::one_forward_one_backward,
                                                   PipelineSchedule::zero_bubble, PipelineSchedule::searched,
                                                   PipelineSchedule::interleaved};

config::Config stages_on(const ir::Mesh& mesh, PipelineSchedule schedule, int micro_batches = 4) {
  config::Config config = test::mesh_config(4);
  config.model.router_group_size = 1;
  config.model.n_layer = schedule == PipelineSchedule::interleaved ? 2 * mesh[Axis::stage] : 4;
  config.train.gradient_accumulation_steps = micro_batches;
  config.train.pipeline_schedule = schedule;
  config.mesh.stage = mesh[Axis::stage];
  config.mesh.data = mesh[Axis::data];
  config.mesh.expert = mesh[Axis::expert];
  config.comm.timeout_s = 60;  // ranks that wait for one another fail
  return config;
}

// A device whose streams start late at random, other ones on each rank. On the last rank all-to-alls wait on the host.
std::unique_ptr<test::HostAccelerator> late_device(const comm::Communicator& world) {
  auto device = std::make_unique<test::HostAccelerator>(
      test::HostQueueOptions{.pause_us = 20, .seed = std::uint64_t(world.rank()), .most_queued = 450});
  if (world.rank() + 1 == world.size()) device->wait_in("all_to_all");
  return device;
}

struct StagesRun {
  std::vector<double> numbers;                  // losses and norms, and the loss of an evaluation, where there is one
  std::vector<std::int32_t> text;               // that the model writes
  std::vector<std::vector<std::byte>> tensors;  // parameters and state of every rank, by name
  std::int64_t parts = 1;                       // the most that an instruction of the first stage is split in
};

StagesRun train_stages(const config::Config& config, bool device, int ranks, int steps) {
  StagesRun result;
  std::vector<std::vector<std::vector<std::byte>>> held(static_cast<std::size_t>(ranks));
  const test::DeclaredCosts costs;
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const auto accelerator = late_device(world);
    train::TrainerOptions options{.local_ranks = ranks, .costs = &costs};
    if (device) options.accelerator = accelerator.get();
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, options));
    StagesRun mine;
    for (int step = 0; step < steps; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      for (const double number : {record.loss, record.aux_loss, record.grad_norm, record.drop_pct.value_or(0)})
        mine.numbers.push_back(number);
    }
    LANCET_ASSIGN(const auto held_out, trainer->evaluate());
    if (held_out) {
      mine.numbers.push_back(*held_out);
      LANCET_ASSIGN(const auto text, trainer->generate({3, 1, 4}, 8));
      mine.text = text.value();
    }
    for (const auto& [name, tensor] : trainer->store().all()) {
      if (tensor.elsewhere) continue;
      auto& bytes = held[std::size_t(world.rank())].emplace_back(tensor.memory.bytes);
      LANCET_TRY(trainer->store().read(tensor, 0, bytes));
    }
    for (const ir::Instruction& at : trainer->executor().plan().program.instructions)
      mine.parts = std::max(mine.parts, at.attributes.integer("parts", 1));
    if (world.rank() == 0) result = std::move(mine);
    return {};
  }));
  for (auto& rank : held)
    for (auto& bytes : rank) result.tensors.push_back(std::move(bytes));
  return result;
}

StagesRun check_as_on_cpu(const config::Config& config, int ranks, int steps = 3) {
  const StagesRun expected = train_stages(config, false, ranks, steps),
                  found = train_stages(config, true, ranks, steps);
  REQUIRE(expected.numbers.size() >= std::size_t(4 * steps));
  CHECK(found.numbers == expected.numbers);
  CHECK(found.text == expected.text);
  REQUIRE(!expected.tensors.empty());
  CHECK((found.tensors == expected.tensors));  // too many bytes to be printed
  return found;
}

}  // namespace

TEST_CASE("stages on streams: two and four stages under every schedule equal the CPU's, bit for bit") {
  for (const int stages : {2, 4})
    for (const PipelineSchedule schedule : pipeline_schedules) {
      INFO(stages << " stages, " << config::name(schedule));
      check_as_on_cpu(stages_on({{stages, 1, 1, 1}}, schedule), stages);
    }
}

TEST_CASE("stages on streams: experts and stages, with ranges and with ZeRO, equal the CPU's, bit for bit") {
  for (const PipelineSchedule schedule : pipeline_schedules)
    for (const int zero : {0, 1}) {
      INFO(config::name(schedule) << ", train.zero " << zero);
      config::Config config = stages_on({{2, 1, 2, 1}}, schedule);
      config.train.zero = zero;
      config.overlap.policy = "lancet_paper";
      config.overlap.parts = 2;
      config.overlap.memory_factor = 10;
      CHECK(check_as_on_cpu(config, 4).parts == 2);
    }
}

TEST_CASE("stages on streams: data, experts and stages; layers that drop nothing; several runs of a plan a step") {
  check_as_on_cpu(stages_on({{2, 2, 2, 1}}, PipelineSchedule::zero_bubble), 8);
  config::Config rounds = stages_on({{2, 1, 2, 1}}, PipelineSchedule::one_forward_one_backward);
  rounds.model.capacity_factor.reset();
  rounds.model.dropless_imbalance = 0.5;
  check_as_on_cpu(rounds, 4);
  const config::Config runs = stages_on({{3, 1, 1, 1}}, PipelineSchedule::zero_bubble, 65);  // five runs of 13
  check_as_on_cpu(runs, 3, 2);
}

TEST_CASE("stages on streams: evaluation and text equal the CPU's, bit for bit") {
  const test::TemporaryFolder folder;
  for (const PipelineSchedule schedule : {PipelineSchedule::searched, PipelineSchedule::interleaved}) {
    config::Config config = stages_on({{2, 1, 2, 1}}, schedule);
    config.data = test::config_with_files(folder, "run").data;
    config.model.initializer_range = 0.2;
    check_as_on_cpu(config, 4, 2);
  }
}

TEST_CASE("stages on streams: a run is saved, and resumes bit for bit") {
  const test::TemporaryFolder folder;
  const test::DeclaredCosts costs;
  config::Config config = stages_on({{2, 1, 2, 1}}, PipelineSchedule::zero_bubble);
  config.train.zero = 1;
  const auto run = [&](const std::string& name, bool device, int stop) {
    config.log.run_dir = folder / name;
    config.train.stop_after = stop;
    test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
      const auto accelerator = late_device(world);
      const Status mine = train::train(
          config, world, {.local_ranks = 4, .costs = &costs, .accelerator = device ? accelerator.get() : nullptr});
      const bool saved = !mine.ok() && mine.error().code == ExitCode::saved;
      return saved == (stop > 0) && (saved || mine.ok()) ? Status() : internal_error("another end");
    }));
    return test::losses(folder / name);
  };
  const std::vector<double> expected = run("cpu", false, 0);
  REQUIRE(expected.size() == 6);
  CHECK(run("whole", true, 0) == expected);
  run("stopped", true, 3);
  CHECK(run("stopped", true, 0) == expected);
}

TEST_CASE("stages on streams: a number that is not finite is found at the instruction that made it on the CPU") {
  config::Config config = stages_on({{3, 1, 1, 1}}, PipelineSchedule::zero_bubble);
  config.train.lr = 1e30;
  config.train.clip_grad = 0;
  std::string messages[2];
  for (const bool device : {false, true})
    test::good(comm::run_inproc(3, [&](comm::Communicator& world) -> Status {
      const auto accelerator = late_device(world);
      train::TrainerOptions options{.local_ranks = 3};
      if (device) options.accelerator = accelerator.get();
      LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, options));
      for (int step = 0; step < 4; ++step)
        if (const auto record = trainer->step(step); !record.ok()) {
          if (world.rank() == 0) messages[device] = record.error().message;
          return {};
        }
      return internal_error("expected a step that is not finite");
    }));
  CHECK(messages[0].find("first not finite on rank ") != std::string::npos);
  CHECK(messages[1] == messages[0]);
}

// In the first step each rank runs one instruction at a time; in later ones its streams run by themselves.
TEST_CASE("stages on streams: a rank that ends takes all others with it, whose errors name an instruction") {
  const int left = GENERATE(0, 1, 3), steps = GENERATE(0, 2);
  INFO("rank " << left << " ends after " << steps << " steps");
  const config::Config config = stages_on({{4, 1, 1, 1}}, PipelineSchedule::zero_bubble);
  std::vector<Error> errors(4, Error{ExitCode::done, "", false});
  static_cast<void>(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    const auto accelerator = late_device(world);
    LANCET_ASSIGN(const auto trainer,
                  train::Trainer::create(config, world, {.local_ranks = 4, .accelerator = accelerator.get()}));
    for (int step = 0; step < steps; ++step) LANCET_TRY(trainer->step(step));
    if (world.rank() == left) return {};
    LANCET_TRY(trainer->read(steps));
    const Status ended = trainer->executor().run();
    if (!ended.ok()) errors[std::size_t(world.rank())] = ended.error();
    return {};
  }));
  for (int rank = 0; rank < 4; ++rank) {
    if (rank == left) continue;
    const Error& error = errors[std::size_t(rank)];
    INFO("rank " << rank << ": " << error.message);
    CHECK(error.code == ExitCode::communication);
    CHECK(error.message.starts_with("stream "));
  }
  const auto names_rank = [&](const Error& error) {
    return error.message.find(fmt::format("waited for rank {}, which ended without it", left)) != std::string::npos;
  };
  CHECK(std::ranges::any_of(errors, names_rank));
}

}  // namespace lancet
