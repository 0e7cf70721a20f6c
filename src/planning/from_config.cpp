#include "lancet/planning/from_config.h"

#include <fmt/format.h>

#include "lancet/base/flat_shard.h"
#include "lancet/base/hash.h"
#include "lancet/planner/planner.h"
#include "lancet/world/agree.h"

namespace lancet::planning {

model::BuildOptions build_options(const config::Config& config, model::Mode mode, int ranks) {
  const bool generate = mode == model::Mode::generate || mode == model::Mode::decode;
  return {.mode = mode,
          .mesh = config::mesh_of(config, ranks),
          .batch = generate ? 1 : config.train.micro_batch_size,
          .sequence = config.train.seq_len,
          .dtype = config.train.dtype,
          .groups = generate ? 1 : config.train.micro_batch_size / config.group_sequences(),
          .accumulation = mode == model::Mode::train ? config.train.gradient_accumulation_steps : 1,
          .inspect = false,
          .keep_all = false,
          .deterministic =
              mode != model::Mode::train || config.train.deterministic || config.device != config::Device::cuda};
}

namespace {

// How far a step of 4 hosts on 2 cores was from its prediction (docs/performance.md). A smaller predicted gain of an
// overlapped schedule may be a loss there.
constexpr double crowded_error = 0.28;

planner::PlanRequest plan_request(const config::Config& config, int ranks, bool update) {
  const config::Train& train = config.train;
  planner::PlanRequest request;
  request.overlap = config.overlap;
  if (ranks == 1) request.overlap.policy = "sequential";  // a rank alone has no all-to-all to hide
  request.mesh = config::mesh_of(config, ranks);
  request.accumulate = train.gradient_accumulation_steps > 1;
  request.update = update;
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
                       .guard = train.on_non_finite == config::OnNonFinite::skip,
                       .masters = train.master_weights || train.dtype == DType::f32,
                       .seed = train.seed,
                       .mesh = request.mesh};
  return request;
}

}  // namespace

std::string LeastMemory::parts() const {
  return fmt::format("{} parameters, {} optimizer, {} gradients, besides activations", parameters / 1'000'000,
                     state / 1'000'000, gradients / 1'000'000);
}

LeastMemory least_memory(const config::Config& config, int ranks) {
  const config::Train& train = config.train;
  const ir::Program forward = model::build_forward(config.model, build_options(config, model::Mode::train, ranks));
  const int moments = train.optimizer == config::Optimizer::adamw ? 2 : 1;
  const mesh::Mesh mesh = config::mesh_of(config, ranks);
  LeastMemory least;
  for (const ir::Tensor& tensor : forward.tensors) {
    if (tensor.kind != ir::TensorKind::parameter) continue;
    const bool master = tensor.type.dtype != DType::f32 && train.master_weights;
    least.parameters += ir::bytes(tensor.type);
    const std::int64_t elements = tensor.type.shape.elements();
    const int shards = train.zero > 0 ? mesh.size(mesh::holders(tensor.sharding)) : 1;
    least.state += 4 * (moments + master) * (shards > 1 ? flat_shard_elements(elements, shards) : elements);
    least.gradients += ir::bytes(tensor.type);
  }
  return least;
}

Result<ir::Plan> plan_step(const config::Config& config, int ranks, const StepOptions& options,
                           planner::PlanReport* report) {
  planner::PlanRequest request = plan_request(config, ranks, options.update);
  request.costs = options.costs;
  request.costs_may_lack_ops = options.costs_may_lack_ops;
  if (options.crowded) request.least_gain = crowded_error;
  request.compare = options.compare;
  request.skip = options.skip;
  request.keep_texts = options.keep_texts;
  request.optimizer.keep_gradients = options.inspect;
  model::BuildOptions build = build_options(config, model::Mode::train, ranks);
  build.inspect = options.inspect;
  auto plan = planner::make_plan(model::build_forward(config.model, build), request, report);
  if (report && ranks == 1 && config.overlap.policy != request.overlap.policy) {
    report->requested = config.overlap.policy;
    report->why = fmt::format("{} runs sequential: one rank, nothing to overlap", report->requested);
  }
  return plan;
}

std::vector<ir::Program> programs_to_profile(const config::Config& config, int ranks, bool update) {
  const ir::Program forward = model::build_forward(config.model, build_options(config, model::Mode::train, ranks));
  return planner::programs_to_profile(forward, plan_request(config, ranks, update));
}

ir::Plan plan_forward(const config::Config& config, model::Mode mode, int ranks) {
  const model::BuildOptions options = build_options(config, mode, ranks);
  return planner::make_forward_plan(model::build_forward(config.model, options), options.mesh);
}

ir::Plan plan_decode(const config::Config& config, std::int64_t rows, int ranks) {
  model::BuildOptions options = build_options(config, model::Mode::decode, ranks);
  options.sequence = rows;
  return planner::make_forward_plan(model::build_forward(config.model, options), options.mesh);
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
