// A step of pipeline stages that is not finite: the search for its cause, which every rank reports alike.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "declared_costs.h"
#include "train/meshes.h"

namespace lancet {
namespace {

using config::PipelineSchedule;

// An element of a parameter that is bad from the second step on, on the ranks of one coordinate along data and expert.
struct BadElement {
  std::string name;
  float value = 0;
};

config::Config searched_step(int stages, int experts, PipelineSchedule schedule) {
  config::Config config = test::mesh_config(experts);
  config.model.capacity_factor = 4;
  config.train.gradient_accumulation_steps = 4;
  config.train.micro_batch_size = 4 / experts;
  config.model.router_group_size = 1;
  config.train.pipeline_schedule = schedule;
  config.mesh.stage = stages;
  config.mesh.expert = experts;
  return config;
}

// The message of a step after which an element is bad, the same on all ranks.
std::string cause_of(const config::Config& config, int ranks, const BadElement& bad) {
  const test::DeclaredCosts costs;
  std::vector<Error> errors(std::size_t(ranks), Error{ExitCode::done, "", false});
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks, .costs = &costs}));
    LANCET_TRY(trainer->step(0));
    const runtime::NamedTensor* tensor = trainer->store().find(bad.name);
    REQUIRE(tensor != nullptr);
    if (!tensor->elsewhere) tensor->memory.as<float>()[7] = bad.value;
    const auto record = trainer->step(1);
    if (!record.ok()) errors[std::size_t(world.rank())] = record.error();
    return {};
  });
  if (!status.ok()) FAIL(status.error().message);
  for (const Error& error : errors) {
    CHECK(error.code == ExitCode::numerical);
    CHECK(error.agreed);
    CHECK(error.message == errors[0].message);
  }
  return errors[0].message;
}

// What is found, without the rank and the number of the tensor.
std::string found_in(const std::string& message) {
  CHECK(message.starts_with("step 2: expected a finite loss and gradient norm, found loss "));
  return message.substr(std::min(message.find(" in micro batch "), message.size()));
}

}  // namespace

TEST_CASE("stages: a parameter that is not finite is named with a rank that has it") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const PipelineSchedule schedule : {PipelineSchedule::one_forward_one_backward, PipelineSchedule::zero_bubble,
                                          PipelineSchedule::searched, PipelineSchedule::interleaved}) {
    INFO(config::name(schedule));
    config::Config config = searched_step(2, 1, schedule);
    const bool interleaved = schedule == PipelineSchedule::interleaved;
    config.mesh.stage_blocks = interleaved ? std::vector<std::int64_t>{1, 1, 1, 1} : std::vector<std::int64_t>{2, 2};
    for (const auto& [name, rank] : {std::pair("h.0.ln_1.bias", 0), std::pair("h.1.ln_1.bias", interleaved ? 1 : 0),
                                     std::pair("h.3.ln_1.bias", 1), std::pair("ln_f.bias", 1)}) {
      INFO(name);
      CHECK(cause_of(config, 2, {name, nan})
                .ends_with(fmt::format("first not finite on rank {} in micro batch 0: @{} : f32[32], element 7 is nan",
                                       rank, name)));
    }
  }
}

TEST_CASE("stages: the instruction that overflows is the one that does so on one rank") {
  constexpr float largest = 3e38f;
  for (const char* name : {"h.1.mlp.c_fc.weight", "h.3.mlp.c_fc.weight", "h.3.attn.c_attn.weight", "ln_f.weight"}) {
    INFO(name);
    const auto made = [](const std::string& message) {
      return message.substr(std::min(message.find(" = "), message.size()));
    };
    const std::string expected =
        cause_of(searched_step(1, 1, PipelineSchedule::one_forward_one_backward), 1, {name, largest});
    INFO(expected);
    REQUIRE(found_in(expected).starts_with(" in micro batch 0: %"));
    REQUIRE(made(expected).starts_with(" = "));
    for (const PipelineSchedule schedule :
         {PipelineSchedule::one_forward_one_backward, PipelineSchedule::zero_bubble}) {
      const std::string found = cause_of(searched_step(4, 1, schedule), 4, {name, largest});
      CHECK(found_in(found).starts_with(" in micro batch 0: %"));
      CHECK(made(found) == made(expected));
    }
    const std::string of_experts =
        cause_of(searched_step(2, 2, PipelineSchedule::one_forward_one_backward), 4, {name, largest});
    CHECK(made(of_experts).substr(0, made(of_experts).find(',')) == made(expected).substr(0, made(expected).find(',')));
  }
}

}  // namespace lancet
