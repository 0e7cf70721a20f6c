#include "lancet/planning/from_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/base/hash.h"
#include "lancet/planner/planner.h"
#include "lancet/world/agree.h"

namespace lancet::planning {

model::BuildOptions build_options(const config::Config& config, model::Mode mode, int ranks) {
  const bool generate = mode == model::Mode::generate || mode == model::Mode::decode;
  const mesh::Mesh mesh = config::mesh_of(config, ranks);
  const std::int64_t shares = generate ? 1 : mesh.size(mesh::batch_axes);
  return {.mode = mode,
          .batch = generate ? 1 : shares * config.train.micro_batch_size,
          .sequence = config.train.seq_len,
          .dtype = config.train.dtype,
          .groups = generate ? 1 : shares * config.train.micro_batch_size / config.group_sequences(),
          .loads = shares,
          .seed = config.train.seed,
          .accumulation = mode == model::Mode::train ? config.train.gradient_accumulation_steps : 1,
          .inspect = false,
          .keep_all = false,
          .deterministic =
              mode != model::Mode::train || config.train.deterministic || config.device != config::Device::cuda,
          .vocabulary_shards = mesh[mesh::Axis::tensor],
          .sequence_parallel = config.train.sequence_parallel};
}

ir::Program build_forward(const config::Config& config, const model::BuildOptions& options, int ranks) {
  return model::build_forward(config.model.on(config::mesh_of(config, ranks)), options);
}

Result<ir::Program> rank_forward(const config::Config& config, model::Mode mode, int ranks) {
  const mesh::Mesh mesh = config::mesh_of(config, ranks);
  LANCET_ASSIGN(const ir::Program sharded,
                passes::shard(build_forward(config, build_options(config, mode, ranks), ranks), mesh));
  return passes::partition_spmd(sharded, mesh);
}

namespace {

// How far a step of 4 hosts on 2 cores was from its prediction (docs/performance.md). A smaller predicted gain of an
// overlapped schedule may be a loss there.
constexpr double crowded_error = 0.28;

}  // namespace

planner::PlanRequest plan_request(const config::Config& config, int ranks) {
  const config::Train& train = config.train;
  planner::PlanRequest request;
  request.overlap = config.overlap;
  if (ranks == 1) request.overlap.policy = "sequential";  // a rank alone has no all-to-all to hide
  request.mesh = config::mesh_of(config, ranks);
  request.accumulate = train.gradient_accumulation_steps > 1;
  request.micro_batches = micro_batches_in_plan(config);
  request.memory_limit = train.memory_limit_mb * 1'000'000;
  request.fuse = train.fuse_gelu && config.device == config::Device::cuda;
  request.gradient_sums = {.shards = train.zero > 0, .message = train.reduce_dtype};
  using Kind = passes::OptimizeOptions::Kind;
  request.optimizer = {.kind = train.optimizer == config::Optimizer::adamw ? Kind::adamw : Kind::sgd,
                       .beta1 = train.adam_beta1,
                       .beta2 = train.adam_beta2,
                       .eps = train.adam_eps,
                       .momentum = train.sgd_momentum,
                       .weight_decay = train.weight_decay,
                       .clip_grad = train.clip_grad,
                       .balance_rate = config.model.router_bias_update_rate,
                       .guard = train.on_non_finite == config::OnNonFinite::skip,
                       .masters = train.master_weights || train.dtype == DType::f32,
                       .seed = train.seed,
                       .mesh = request.mesh};
  return request;
}

std::string LeastMemory::parts() const {
  return fmt::format("{} parameters, {} optimizer, {} gradients, besides activations", parameters / 1'000'000,
                     state / 1'000'000, gradients / 1'000'000);
}

Result<LeastMemory> least_memory(const config::Config& config, int ranks) {
  planner::PlanRequest request = plan_request(config, ranks);
  request.accumulate = false;  // the sums of micro batches are gradients
  const model::BuildOptions options = build_options(config, model::Mode::train, ranks);
  LANCET_ASSIGN(const ir::Program step, planner::step_program(build_forward(config, options, ranks), request));
  LeastMemory least;
  for (const ir::Tensor& tensor : step.tensors) {
    if (tensor.kind == ir::TensorKind::state) least.state += ir::bytes(tensor.type);
    if (tensor.kind != ir::TensorKind::parameter) continue;
    least.parameters += ir::bytes(tensor.type);
    least.gradients += ir::bytes(tensor.type);
  }
  return least;
}

int micro_batches_in_plan(const config::Config& config) {
  constexpr std::int64_t most = 8;
  const std::int64_t all = config.train.gradient_accumulation_steps;
  std::int64_t count = std::min(all, most);
  while (all % count != 0) --count;
  return int(count);
}

Result<ir::Plan> plan_step(const config::Config& config, int ranks, const StepOptions& options,
                           planner::PlanReport* report) {
  planner::PlanRequest request = plan_request(config, ranks);
  request.costs = options.costs;
  request.costs_may_lack_ops = options.costs_may_lack_ops;
  if (options.crowded) request.least_gain = crowded_error;
  request.compare = options.compare;
  request.skip = options.skip;
  request.keep_texts = options.keep_texts;
  request.bounds = options.bounds;
  request.optimizer.keep_gradients = options.inspect;
  model::BuildOptions build = build_options(config, model::Mode::train, ranks);
  build.inspect = options.inspect;
  auto plan = planner::make_plan(build_forward(config, build, ranks), request, report);
  if (report && ranks == 1 && config.overlap.policy != request.overlap.policy) {
    report->requested = config.overlap.policy;
    report->why = fmt::format("{} runs sequential: one rank, nothing to overlap", report->requested);
  }
  return plan;
}

Result<std::vector<ir::Program>> programs_to_profile(const config::Config& config, int ranks) {
  const model::BuildOptions options = build_options(config, model::Mode::train, ranks);
  return planner::programs_to_profile(build_forward(config, options, ranks), plan_request(config, ranks));
}

Result<ir::Plan> plan_forward(const config::Config& config, const model::BuildOptions& options, int ranks) {
  return planner::make_forward_plan(build_forward(config, options, ranks), config::mesh_of(config, ranks));
}

Result<ir::Plan> plan_decode(const config::Config& config, std::int64_t rows, int ranks) {
  model::BuildOptions options = build_options(config, model::Mode::decode, ranks);
  options.sequence = rows;
  return plan_forward(config, options, ranks);
}

Result<ir::Plan> share_plan(comm::Communicator& world, const Result<ir::Plan>& mine) {
  LANCET_TRY(world::agree(world, mine.ok() ? Status() : Status(mine.error())));
  LANCET_ASSIGN(const std::string text, broadcast_text(world, world.rank() == 0 ? ir::print(*mine) : "", 0));
  auto plan = ir::parse_plan(text);
  Status status = plan.ok() ? ir::verify(*plan) : Status(plan.error());
  if (status.ok() && hash64(ir::print(*plan)) != hash64(text))
    status =
        internal_error(fmt::format("expected plan {}, found {}", hex(hash64(text)), hex(hash64(ir::print(*plan)))));
  LANCET_TRY(world::agree(world, status));
  return plan;
}

}  // namespace lancet::planning
