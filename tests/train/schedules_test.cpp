// A schedule changes the time of computations, not their results: the same weights, bit for bit.
#include <catch2/catch.hpp>

#include <algorithm>
#include <chrono>
#include <map>

#include "lancet/ir/dependencies.h"
#include "lancet/model/gpt2_moe.h"
#include "lancet/passes/passes.h"
#include "lancet/runtime/executor.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "steps/fake_costs.h"
#include "steps/support.h"
#include "train/support.h"

namespace lancet {
namespace {

using Bytes = std::vector<std::byte>;

ir::Program whole_step(const config::Config& config, int ranks) {
  const ir::Program forward =
      model::build_forward(config.model.on(ir::of_experts(ranks)), {.batch = ranks * config.train.micro_batch_size,
                                                                    .sequence = config.train.seq_len,
                                                                    .dtype = config.train.dtype,
                                                                    .groups = ranks,
                                                                    .loads = ranks});
  passes::OptimizeOptions optimizer;
  optimizer.weight_decay = 0.1;
  optimizer.clip_grad = config.train.clip_grad;
  optimizer.mesh = ir::of_experts(ranks);
  return passes::optimize(
      passes::sync(test::of_rank(passes::autodiff(forward), ir::of_experts(ranks)), ir::of_experts(ranks), 25 << 20),
      optimizer);
}

ir::Plan planned(const schedule::Ordered& ordered) {
  schedule::Dependencies needed = ir::dependencies(ordered.program);
  for (std::size_t i = 0; i < ordered.extra.size(); ++i) {
    needed[i].insert(needed[i].end(), ordered.extra[i].begin(), ordered.extra[i].end());
    std::sort(needed[i].begin(), needed[i].end());
  }
  return schedule::plan_memory(ordered.program, needed);
}

// dW under all-to-alls, and all-reduces in chunks that wait for all-to-alls: on a network that makes both worthwhile.
ir::Plan scheduled(const ir::Program& program) {
  test::FakeCosts costs;
  costs.flops_per_ms = costs.bytes_per_ms = 2e6;
  costs.reduce_bytes_per_ms = 8e4;
  schedule::DwReport dw;
  const ir::Program moved = schedule::dw_schedule(program, test::loads_of(program, costs), costs.beside, 0, &dw);
  schedule::ReduceReport reduce;
  const schedule::Ordered ordered = schedule::reduce_schedule(moved, test::loads_of(moved, costs), costs, &reduce);
  CHECK(dw.covered_ms > 0.3 * dw.slack_ms);
  CHECK(reduce.chunk_bytes > 0);
  return planned(ordered);
}

// All parameters and state of each rank, and the metrics of the steps, after some steps.
std::vector<std::map<std::string, Bytes>> trained(const config::Config& config, const ir::Plan& plan, int ranks) {
  std::vector<std::map<std::string, Bytes>> results(static_cast<std::size_t>(ranks));
  if (const Status sound = ir::verify(plan); !sound.ok()) throw InternalError(sound.error().message);
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto expert, world.duplicate());
    LANCET_ASSIGN(const auto reduce, world.duplicate());
    runtime::TensorStore store;
    store.set_rank(ir::of_experts(ranks), world.rank());
    store.add(plan.program);
    for (const model::Parameter& parameter : model::parameters(config.model.on(ir::of_experts(ranks)))) {
      const runtime::NamedTensor& tensor = store[parameter.name];
      std::vector<float> values(std::size_t(tensor.type.shape.elements()));
      model::initialize(parameter, 7, store.held(parameter.name), values);
      if (tensor.type.dtype == DType::f32) {
        std::copy(values.begin(), values.end(), tensor.memory.as<float>());
      } else {
        for (std::size_t i = 0; i < values.size(); ++i) tensor.memory.as<bf16>()[i] = from_f32<bf16>(values[i]);
        const std::string master = ir::state_name(parameter.name, ir::StateKind::master);
        std::copy(values.begin(), values.end(), store[master].memory.as<float>());
      }
    }
    LANCET_ASSIGN(
        const auto executor,
        runtime::Executor::create(
            plan, store,
            {.threads = 1, .groups = {comm::Groups(), comm::all_ranks(expert.get()), comm::all_ranks(reduce.get())}}));
    auto& result = results[std::size_t(world.rank())];
    for (int step = 0; step < 4; ++step) {
      for (const char* name : {"tokens", "targets"}) {
        const ops::TensorView view = executor->input(name);
        for (std::int64_t i = 0; i < view.elements(); ++i)
          view.as<std::int32_t>()[i] = std::int32_t((i * 31 + step * 7 + world.rank() * 13 + (name[1] == 'a')) % 67);
      }
      float* schedule = executor->input("schedule").as<float>();
      schedule[0] = 1e-3F;
      schedule[1] = schedule[2] = 0.5F;
      schedule[3] = float(step + 1);
      LANCET_TRY(executor->run());
      for (const char* name : {"loss", "grad_norm"}) {
        const auto* data = static_cast<const std::byte*>(executor->output(name).data);
        result[name + std::to_string(step)] = Bytes(data, data + sizeof(float));
      }
    }
    for (const auto& [name, tensor] : store.all()) {
      const auto* data = tensor.memory.as<std::byte>();
      result[name] = Bytes(data, data + ir::bytes(tensor.type));
    }
    return {};
  });
  if (!status.ok()) throw InternalError(status.error().message);
  return results;
}

}  // namespace

TEST_CASE("schedules of dWs and all-reduces change no bit") {
  config::Config config = test::small_config();
  config.train.micro_batch_size = 4;
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  config.train.clip_grad = GENERATE(0.0, 1.0);
  config.model.router_aux_loss_coef = 0.01;
  const ir::Program program = whole_step(config, 2);
  const auto plain = trained(config, schedule::plan_memory_sequentially(program), 2);
  const auto moved = trained(config, scheduled(program), 2);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    REQUIRE(plain[rank].size() > 100);
    REQUIRE(plain[rank].size() == moved[rank].size());
    for (const auto& [name, bytes] : plain[rank]) {
      INFO("rank " << rank << ", " << name);
      CHECK((moved[rank].at(name) == bytes));
    }
    const auto& before = plain[rank].at("loss0");
    CHECK((plain[rank].at("loss3") != before));  // the loss fell
  }
}

TEST_CASE("scheduling 24 blocks on 64 ranks") {
  config::Config config;
  config.model = {.n_layer = 24,
                  .n_head = 16,
                  .n_embd = 1024,
                  .n_positions = 512,
                  .vocab_size = 50257,
                  .n_inner = {},
                  .experts_per_rank = {},
                  .num_local_experts = 128,
                  .moe_intermediate_size = {},
                  .router_group_size = {},
                  .router_topk_groups = {}};
  config.train.micro_batch_size = 8;
  config.train.seq_len = 512;
  const ir::Program program = whole_step(config, 64);
  test::FakeCosts costs;  // about one A100 and 12.5 GB/s
  costs.flops_per_ms = 5e10;
  costs.bytes_per_ms = 1e9;
  costs.network_bytes_per_ms = 1.25e7;
  costs.reduce_bytes_per_ms = 6e6;
  costs.network_start_ms = 0.05;
  costs.core = 0.002;
  const auto start = std::chrono::steady_clock::now();
  auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  schedule::DwReport dw;
  const ir::Program moved = schedule::dw_schedule(program, test::loads_of(program, costs), costs.beside, 0.01, &dw);
  const double dw_seconds = seconds();
  schedule::ReduceReport reduce;
  const schedule::Ordered ordered = schedule::reduce_schedule(moved, test::loads_of(moved, costs), costs, &reduce);
  const double all_seconds = seconds();
  const ir::Plan plan = planned(ordered);
  const std::int64_t plain_bytes = planned({program, {}}).arena_bytes;
  WARN("24 blocks, 64 ranks: " << program.instructions.size() << " instructions, step " << dw.before_ms << " ms, dW "
                               << dw.after_ms << " ms (" << dw.covered_ms << " of " << dw.slack_ms
                               << " ms covered), all-reduces " << reduce.after_ms << " ms in chunks of "
                               << reduce.chunk_bytes << ", " << ordered.program.instructions.size()
                               << " instructions; planned in " << dw_seconds << " and " << all_seconds - dw_seconds
                               << " s; arena " << double(plan.arena_bytes) / double(plain_bytes) << " of what it was");
  CHECK(dw.after_ms < dw.before_ms);
  CHECK(reduce.after_ms < dw.after_ms);
  CHECK(double(plan.arena_bytes) < 1.1 * double(plain_bytes));  // delayed dWs keep their operands alive
  if (const Status sound = ir::verify(plan); !sound.ok()) FAIL(sound.error().message);
}

}  // namespace lancet
