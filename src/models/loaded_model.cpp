#include "lancet/models/loaded_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <new>

#include "lancet/base/shown.h"
#include "lancet/comm/collect.h"
#include "lancet/config/hugging_face.h"
#include "lancet/data/batches.h"
#include "lancet/models/hugging_face.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/run_folder.h"
#include "lancet/run/step_costs.h"

namespace lancet::models {
namespace {

// Tokens of a rank's batch: enough for fast products, and few enough that logits take about 200 MB.
constexpr std::int64_t batch_tokens = 1024;

// Of the weights and, in decode mode, of the KV cache.
Status check_fits(const ir::Program& program, int local_ranks, runtime::Accelerator* accelerator) {
  std::int64_t needed = 0, cache = 0;
  for (const ir::Tensor& tensor : program.tensors) {
    if (tensor.kind == ir::TensorKind::parameter) needed += ir::bytes(tensor.type);
    if (tensor.kind == ir::TensorKind::state) cache += ir::bytes(tensor.type);
  }
  needed += cache;
  const std::string what =
      cache ? fmt::format("the weights and {} MB of keys and values", cache / 1'000'000) : "the weights";
  if (!accelerator) return run::check_memory(needed, local_ranks, what);
  const std::int64_t available = accelerator->device().free_bytes();
  if (needed <= available) return {};
  return config_error(fmt::format("expected {} MB of free memory a rank on {} for {}, found {} MB", needed / 1'000'000,
                                  accelerator->device().name(), what, available / 1'000'000));
}

}  // namespace

LoadedModel::LoadedModel() = default;
LoadedModel::~LoadedModel() = default;

Result<std::unique_ptr<LoadedModel>> LoadedModel::load(const std::filesystem::path& from, comm::Communicator& world,
                                                       const LoadOptions& options) {
  auto model = std::make_unique<LoadedModel>();
  const auto load = [&](const run::ModelFolder& found) -> Status {
    model->describe(found);
    LANCET_TRY(comm::agree(world, model->adapt(world, options)));
    if (!model->accelerator_) LANCET_TRY(model->take_device(world, options));
    LANCET_TRY(model->make_store(world, options));
    return run::load_parameters(found.checkpoint, model->store_);
  };
  LANCET_ASSIGN(const bool is_folder, comm::any(world, config::is_hugging_face(from)));
  if (is_folder)
    LANCET_TRY(model->load_folder(from, world, options));
  else
    LANCET_TRY(run::load_newest(from, world, load));
  LANCET_ASSIGN(run::Streams streams, run::Streams::make(model->config_, world, model->accelerator_));
  model->streams_ = std::move(streams);
  return model;
}

Status LoadedModel::load_folder(const std::filesystem::path& from, comm::Communicator& world,
                                const LoadOptions& options) {
  LANCET_ASSIGN(HuggingFaceFolder opened, HuggingFaceFolder::open_on_all(from, world, options.accepted));
  config_ = opened.config();
  name_ = from.string();
  if (const auto tokenizer = opened.tokenizer()) {
    tokenizer_ = tokenizer->folder;
    tokenizer_hash_ = tokenizer->tokenizer.hash();
  }
  auto bounds = opened.bounds(tokenizer_.has_value());
  LANCET_TRY(comm::agree(world, bounds.ok() ? Status() : Status(bounds.error())));
  bounds_ = *std::move(bounds);
  LANCET_TRY(comm::agree(world, adapt(world, options)));
  LANCET_TRY(take_device(world, options));
  Status loaded = make_store(world, options);
  if (loaded.ok() && world.rank() == 0) loaded = opened.check_head();
  if (loaded.ok()) loaded = load_parameters(opened, store_);
  return comm::agree(world, loaded);
}

void LoadedModel::describe(const run::ModelFolder& folder) {
  config_ = folder.config;
  name_ = folder.name();
  step_ = folder.checkpoint.manifest().step;
  tokenizer_hash_ = folder.checkpoint.manifest().tokenizer_hash;
  tokenizer_ = folder.tokenizer;
  bounds_ = folder.bounds;
}

Status LoadedModel::adapt(comm::Communicator& world, const LoadOptions& options) {
  if (options.dtype) config_.train.dtype = *options.dtype;
  if (options.device) config_.device = *options.device;
  // The run's transport need not suit these ranks; only the choice to send through the host (mpi) is kept.
  if (config_.comm.transport != config::Transport::mpi) config_.comm.transport = config::Transport::automatic;
  config_.comm.device_all_to_all = config::DeviceAllToAll::automatic;
  config_.threads = options.threads;
  LANCET_TRY(config::check(config_, world.size()));
  threads_ = run::threads_of(config_, options.local_ranks);
  return {};
}

Status LoadedModel::take_device(comm::Communicator& world, const LoadOptions& options) {
  if (!options.accelerator) {
    LANCET_ASSIGN(owned_accelerator_, run::open_accelerator(config_, world));
  }
  accelerator_ = options.accelerator ? options.accelerator : owned_accelerator_.get();
  return {};
}

Status LoadedModel::make_store(comm::Communicator& world, const LoadOptions& options) {
  const model::Mode mode = options.generates ? model::Mode::decode : model::Mode::generate;
  LANCET_ASSIGN(const ir::Program program, planner::rank_forward(config_, mode, world.size()));
  LANCET_TRY(check_fits(program, options.local_ranks, accelerator_));
  const ir::Mesh mesh = config::mesh_of(config_, world.size());
  store_ = {};
  store_.set_rank(mesh, world.rank());
  if (accelerator_) store_.place_on(accelerator_->device());
  try {
    store_.add(program);
  } catch (const std::bad_alloc&) {
    return config_error("expected memory for the weights, found less");
  }
  for (const model::Parameter& parameter : model::parameters(config_.model.on(mesh), mesh[ir::Axis::tensor]))
    store_.set_padding(parameter.name, parameter.extra_rows);
  return {};
}

double EvaluateResult::perplexity() const { return std::exp(loss); }

Result<EvaluateResult> evaluate(LoadedModel& model, comm::Communicator& world, const EvaluateOptions& options) {
  config::Config config = model.config();
  config.data.eval = options.data;
  config.data.synthetic = false;
  config.data.eval_sequences =
      options.max_sequences > 0 ? options.max_sequences : std::numeric_limits<std::int64_t>::max();
  // Groups of the size that the model was trained with, since experts may choose among the tokens of a group.
  const std::int64_t group = config.model.experts_choose() ? config.group_sequences() : 1;
  config.train.micro_batch_size = group * std::max<std::int64_t>(1, batch_tokens / config.train.seq_len / group);
  config.model.router_group_size.reset();
  if (config.model.experts_choose()) config.model.router_group_size = group;
  auto batches = data::evaluation_batches(config, model.tokenizer_id(), world.rank(), world.size());
  LANCET_TRY(comm::agree(world, batches.ok() ? Status() : Status(batches.error())));
  LANCET_ASSIGN(const std::string files, data::fingerprint_of({&options.data, 1}));
  LANCET_TRY(comm::agree_on(world, "the same " + options.data, files, ExitCode::data));
  data::Evaluation& evaluation = **batches;
  model::BuildOptions build = planner::build_options(config, model::Mode::evaluate, world.size());
  build.keep_all = config.model.capacity_factor.has_value();  // rounds keep all choices in smaller buffers
  LANCET_ASSIGN(const std::vector<ir::Plan> stages,
                planner::share_plans(world, planner::plan_forward(config, build, world.size()), 1));
  const ir::Plan& plan = stages.front();
  LANCET_TRY(model.streams().open_groups(config::mesh_of(config, world.size()), plan.program));
  LANCET_ASSIGN(const auto executor,
                runtime::Executor::create(plan, model.store(), model.streams().executor_options(model.threads())));
  auto ids = [&](const char* name) {
    const ops::TensorView view = executor->input(name);
    return std::span(view.as<std::int32_t>(), static_cast<std::size_t>(view.elements()));
  };
  const bool draws = plan.program.find("sequence").valid();
  const data::SequenceOrder order = data::evaluation_order(config, world.rank(), world.size());
  const float* loss = executor->output("loss").as<float>();
  // A plan's loss is divided by the tokens of a full batch.
  const double batch =
      double(config.train.micro_batch_size * config.train.seq_len) * config::batch_ranks(config, world.size());
  double sum = 0;
  for (std::int64_t i = 0; i < evaluation.count; ++i) {
    LANCET_TRY(comm::agree(world, evaluation.batches->fill(i, 0, ids("tokens"), ids("targets"))));
    if (draws) order.fill(i, 0, ids("sequence"));
    LANCET_TRY(executor->run());
    sum += double(*loss) * batch;
  }
  EvaluateResult result{.sequences = evaluation.sequences, .tokens = evaluation.sequences * config.train.seq_len};
  result.loss = sum / double(result.tokens);
  if (std::isfinite(result.loss)) return result;
  return Error{
      ExitCode::numerical,  // agreed, as the loss is a sum over the ranks
      fmt::format("{} on {}: expected a finite loss, found {}", model.name(), options.data, unsigned_nan(result.loss)),
      true};
}

}  // namespace lancet::models
