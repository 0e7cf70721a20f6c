#include "lancet/planner/from_config.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/base/check.h"
#include "lancet/base/hash.h"
#include "lancet/comm/collect.h"
#include "lancet/passes/passes.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/step.h"

namespace lancet::planner {

model::BuildOptions build_options(const config::Config& config, model::Mode mode, int ranks) {
  const bool generate = mode == model::Mode::generate || mode == model::Mode::decode;
  const ir::Mesh mesh = config::mesh_of(config, ranks);
  const std::int64_t shares = generate ? 1 : mesh.size(ir::batch_axes);
  return {.mode = mode,
          .batch = generate ? 1 : shares * config.train.micro_batch_size,
          .sequence = config.train.seq_len,
          .cache = std::min(config.model.n_positions, config.train.seq_len),
          .dtype = config.train.dtype,
          .groups = generate ? 1 : shares * config.train.micro_batch_size / config.group_sequences(),
          .loads = shares,
          .seed = config.train.seed,
          .accumulation = mode == model::Mode::train ? config.train.gradient_accumulation_steps : 1,
          .inspect = false,
          .keep_all = false,
          .deterministic =
              mode != model::Mode::train || config.train.deterministic || config.device != config::Device::cuda,
          .tensor_ranks = mesh[ir::Axis::tensor],
          .sequence_parallel = config.train.sequence_parallel};
}

namespace {

// The logical Program that the config's model is on that many ranks.
ir::Program build_forward(const config::Config& config, const model::BuildOptions& options, int ranks) {
  return model::build_forward(config.model.on(config::mesh_of(config, ranks)), options);
}

// The share that one rank has of a program of all.
Result<ir::Program> rank_program(const ir::Program& logical, const config::Config& config, int ranks) {
  const ir::Mesh mesh = config::mesh_of(config, ranks);
  LANCET_ASSIGN(const ir::Program sharded, passes::shard(logical, mesh));
  return passes::partition_spmd(sharded, mesh);
}

// How far a step of 4 hosts on 2 cores was from its prediction. A smaller predicted gain of an overlapped schedule may
// be a loss there.
constexpr double crowded_error = 0.28;

Result<std::vector<int>> first_blocks_of(const config::Config& config, int ranks, const ir::Program& forward) {
  std::vector<int> first{0};
  if (config.mesh.stage == 1) return first;
  const std::vector<std::int64_t>& blocks = config.mesh.stage_blocks;
  for (std::size_t chunk = 0; chunk + 1 < blocks.size(); ++chunk) first.push_back(first.back() + int(blocks[chunk]));
  if (!blocks.empty()) return first;
  LANCET_ASSIGN(const ir::Program step, rank_program(passes::autodiff(forward), config, ranks));
  return passes::balanced_chunks(step, {int(config.mesh.stage), int(config::chunks_of_stage(config))});
}

constexpr std::int64_t most_of_pipeline = 64;

std::int64_t largest_divisor(std::int64_t number, std::int64_t most) {
  std::int64_t divisor = std::min(number, most);
  while (number % divisor != 0) --divisor;
  return divisor;
}

ir::Program build_step(const config::Config& config, int ranks, bool inspect) {
  model::BuildOptions options = build_options(config, model::Mode::train, ranks);
  options.inspect = inspect;
  return build_forward(config, options, ranks);
}

}  // namespace

Result<ir::Program> rank_forward(const config::Config& config, model::Mode mode, int ranks) {
  return rank_program(build_forward(config, build_options(config, mode, ranks), ranks), config, ranks);
}

StepModel::StepModel(const config::Config& of, int on_ranks, bool inspected)
    : config(of),
      ranks(on_ranks),
      inspect(inspected),
      forward(build_step(of, on_ranks, inspected)),
      first_blocks(first_blocks_of(of, on_ranks, forward)) {}

Result<PlanRequest> StepModel::request() const {
  const config::Train& train = config.train;
  PlanRequest request;
  LANCET_ASSIGN(request.first_blocks, first_blocks);
  request.overlap = config.overlap;
  if (ranks == 1) request.overlap.policy = "sequential";  // a rank alone has no all-to-all to hide
  request.mesh = config::mesh_of(config, ranks);
  request.accumulate = train.gradient_accumulation_steps > 1;
  request.micro_batches = micro_batches_in_plan(config);
  request.memory_limit = train.memory_limit_mb * 1'000'000;
  request.pipeline_schedule = train.pipeline_schedule;
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
  request.optimizer.keep_gradients = inspect;
  return request;
}

std::string LeastMemory::parts() const {
  return fmt::format("{} parameters, {} optimizer, {} gradients, besides activations", parameters / 1'000'000,
                     state / 1'000'000, gradients / 1'000'000);
}

Result<std::vector<LeastMemory>> least_memory(const StepModel& model) {
  LANCET_ASSIGN(const PlanRequest request, model.request());
  LANCET_ASSIGN(const std::vector<ir::Program> stages, stage_programs(model.forward, request));
  std::vector<LeastMemory> of_stages;
  for (const ir::Program& step : stages) {
    LeastMemory& least = of_stages.emplace_back();
    for (const ir::Tensor& tensor : step.tensors) {
      const std::int64_t bytes = ir::bytes(tensor.type);
      if (tensor.state == ir::StateKind::gradient_sum)
        least.gradients += bytes;
      else if (tensor.kind == ir::TensorKind::state)
        least.state += bytes;
      if (tensor.kind != ir::TensorKind::parameter) continue;
      least.parameters += bytes;
      if (!request.accumulate) least.gradients += bytes;  // else the sums of micro batches are the gradients
    }
  }
  return of_stages;
}

int micro_batches_in_plan(const config::Config& config) {
  return int(largest_divisor(config.train.gradient_accumulation_steps, config.mesh.stage > 1 ? most_of_pipeline : 8));
}

std::string short_runs_warning(const config::Config& config) {
  const std::int64_t all = config.train.gradient_accumulation_steps;
  const auto run_of = [](std::int64_t micro_batches) { return largest_divisor(micro_batches, most_of_pipeline); };
  const auto is_long = [&](std::int64_t micro_batches) { return 2 * run_of(micro_batches) >= most_of_pipeline; };
  if (config.mesh.stage == 1 || all <= most_of_pipeline || is_long(all)) return "";
  std::int64_t distance = 1;
  while (!is_long(all - distance) && !is_long(all + distance)) ++distance;
  const std::int64_t near = is_long(all + distance) ? all + distance : all - distance;
  return fmt::format(
      "train.gradient_accumulation_steps: the pipeline drains after every {} micro batch{} of a step's {}, since no "
      "number from {} to {} divides {}; of {}, it drains after every {}",
      run_of(all), run_of(all) == 1 ? "" : "es", all, most_of_pipeline / 2, most_of_pipeline, all, near, run_of(near));
}

namespace {

Result<PlanRequest> step_request(const StepModel& model, const StepOptions& options) {
  LANCET_ASSIGN(PlanRequest request, model.request());
  request.costs = options.costs;
  request.device_bytes = options.device_bytes;
  request.costs_may_lack_ops = options.costs_may_lack_ops;
  if (options.crowded && model.config.overlap.policy == "auto") request.least_gain = crowded_error;
  request.compare = options.compare;
  request.skip = options.skip;
  request.keep_texts = options.keep_texts;
  return request;
}

}  // namespace

Result<ir::Plan> plan_step(const StepModel& model, const StepOptions& options, PlanReport* report) {
  const config::Config& config = model.config;
  if (config.mesh.stage > 1)  // what takes a single plan for all ranks has none for stages
    return config_error(fmt::format("mesh.stage: expected 1 here, found {}: lancet train and lancet plan know stages",
                                    config.mesh.stage));
  LANCET_ASSIGN(const PlanRequest request, step_request(model, options));
  auto plan = make_plan(model.forward, request, report);
  if (report && model.ranks == 1 && config.overlap.policy != request.overlap.policy) {
    report->requested = config.overlap.policy;
    report->why = fmt::format("{} runs sequential: one rank, nothing to overlap", report->requested);
  }
  return plan;
}

Result<std::vector<ir::Plan>> plan_stages(const StepModel& model, const StepOptions& options, PlanReport* report,
                                          StageReport* stages) {
  if (model.config.mesh.stage == 1) {
    LANCET_ASSIGN(ir::Plan plan, plan_step(model, options, report));
    return std::vector{std::move(plan)};
  }
  LANCET_ASSIGN(const PlanRequest request, step_request(model, options));
  return make_stage_plans(model.forward, request, report, stages);
}

Result<std::vector<ir::Program>> programs_to_profile(const StepModel& model, int hosts) {
  LANCET_ASSIGN(const PlanRequest request, model.request());
  if (model.config.mesh.stage == 1) return programs_to_profile(model.forward, request, hosts);
  LANCET_ASSIGN(std::vector<ir::Program> programs, stage_programs(model.forward, request));
  for (std::size_t stage = 0, stages = programs.size(); request.budget() > 0 && stage < stages; ++stage) {
    const passes::Recomputation values(programs[stage]);
    programs.push_back(values.run(values.candidates()));
  }
  if (request.overlap.policy == "sequential") return programs;
  std::vector<ir::Program> all;
  for (const ir::Program& program : programs)
    for (ir::Program& variant :
         schedule::variants(program, request.overlap, cost::Layout{model.ranks, hosts, request.mesh}))
      all.push_back(std::move(variant));
  return all;
}

Result<std::vector<ir::Plan>> plan_forward(const config::Config& config, const model::BuildOptions& options, int ranks,
                                           std::span<const int> first_blocks) {
  return make_forward_plans(build_forward(config, options, ranks), config::mesh_of(config, ranks), first_blocks);
}

namespace {

Result<ir::Plan> share_plan(comm::Communicator& world, const Result<ir::Plan>& mine) {
  LANCET_TRY(comm::agree(world, mine.ok() ? Status() : Status(mine.error())));
  LANCET_ASSIGN(const std::string text, broadcast_text(world, world.rank() == 0 ? ir::print(*mine) : "", 0));
  auto plan = ir::parse_plan(text);
  Status status = plan.ok() ? ir::verify(*plan) : Status(plan.error());
  if (status.ok() && hash64(ir::print(*plan)) != hash64(text))
    status =
        internal_error(fmt::format("expected plan {}, found {}", hex(hash64(text)), hex(hash64(ir::print(*plan)))));
  LANCET_TRY(comm::agree(world, status));
  return plan;
}

}  // namespace

Result<std::vector<ir::Plan>> share_plans(comm::Communicator& world, Result<std::vector<ir::Plan>> mine,
                                          std::size_t count) {
  std::vector<ir::Plan> shared;
  LANCET_CHECK(!mine.ok() || mine->size() == count || world.rank() != 0, "expected the plans of {} stages", count);
  for (std::size_t stage = 0; stage < count; ++stage) {
    Result<ir::Plan> one = ir::Plan();
    if (!mine.ok()) one = mine.error();
    if (mine.ok() && world.rank() == 0) one = std::move((*mine)[stage]);
    LANCET_ASSIGN(ir::Plan plan, share_plan(world, one));
    shared.push_back(std::move(plan));
  }
  return shared;
}

}  // namespace lancet::planner
