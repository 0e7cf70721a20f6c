// set_up() goes from what is cheap to check to what is costly: config, transport, data, the least memory, the cores,
// streams, the network check, the peak for MFU, the plans, memory, the executors and the initial weights. All plans
// (the updating one, that of micro batches before it, and that of evaluation) share one store of weights and one arena,
// as only one of them runs at a time. Work that can fail on one rank alone ends in world::agree(), so that all ranks
// return the same error.
// step() runs the plan of each micro batch and sums up losses and times. If the loss or the norm is not finite, it runs
// the micro batches again on the same weights to name the first tensor with such a number. With train.on_non_finite =
// skip the step is then skipped, since its update was guarded.
#include "lancet/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "banner.h"
#include "lancet/world/rank_device.h"
#include "lancet/backend/cpu/matmul.h"
#include "lancet/base/clock.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/ops/schedule_layout.h"
#include "lancet/profiler/peak.h"
#include "lancet/runtime/trace.h"
#include "lancet/runtime/workspace.h"
#include "lancet/world/agree.h"
#include "lancet/data/batches.h"
#include "lancet/inference/decoder.h"
#include "lancet/inference/generate.h"
#include "lancet/train/learning_rate.h"
#include "lancet/planning/step_costs.h"
#include "lancet/world/stream_communicators.h"
#include "lancet/world/memory.h"
#include "lancet/world/shared_cores.h"
#include "lancet/run/saver.h"
#include "lancet/planning/from_config.h"
#include "lancet/planning/run_plans.h"
#include "step_tally.h"
#include "weights.h"

namespace lancet::train {
namespace {

// Collective: the spans of all ranks, indexed by rank, on rank 0.
Result<std::vector<std::vector<runtime::Span>>> gather_spans(comm::Communicator& world,
                                                             std::span<const runtime::Span> mine) {
  std::vector<std::vector<runtime::Span>> all(std::size_t(world.size()), std::vector<runtime::Span>(mine.size()));
  std::vector<runtime::Span> sent(mine.begin(), mine.end());
  const std::size_t bytes = mine.size() * sizeof(runtime::Span);
  std::vector<comm::Segment> receives;
  const comm::Segment send{0, reinterpret_cast<std::byte*>(sent.data()), bytes};
  if (world.rank() == 0)
    for (int rank = 0; rank < world.size(); ++rank)
      receives.push_back({rank, reinterpret_cast<std::byte*>(all[std::size_t(rank)].data()), bytes});
  LANCET_TRY(world.send_receive(std::span(&send, 1), receives));
  return all;
}

class TrainerImpl final : public Trainer {
 public:
  TrainerImpl(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : config_(config),
        world_(world),
        options_(options),
        threads_(planning::threads_of(config, options.local_ranks)) {}

  Status set_up() {
    memory_.process = world::resident_bytes();
    LANCET_TRY(world::agree(world_, config::check(config_, world_.size())));
    LANCET_TRY(check_same_config());
    LANCET_TRY(world::agree(world_, world::check_transport(config_, world_)));
    if (!options_.accelerator) {
      LANCET_ASSIGN(owned_accelerator_, world::open_accelerator(config_, world_));
    }
    accelerator_ = options_.accelerator ? options_.accelerator : owned_accelerator_.get();
    LANCET_TRY(world::agree(world_, open_data()));
    LANCET_TRY(world::agree(world_, check_least_memory()));
    LANCET_ASSIGN(const bool crowded, warn_of_crowded_cores());
    LANCET_ASSIGN(streams_, world::Streams::make(config_, world_, accelerator_));
    LANCET_ASSIGN(network_, comm::measure_network(world_));
    LANCET_TRY(measure_peak());
    const planning::RunPlanOptions planning{.local_ranks = options_.local_ranks,
                                            .costs = options_.costs,
                                            .profile_folder = options_.profile_folder,
                                            .plan_file = options_.plan_file,
                                            .accelerator = accelerator_,
                                            .crowded = crowded,
                                            .inspect = options_.inspect};
    LANCET_ASSIGN(plans_, planning::make_step_plans(config_, world_, planning, evaluation_.has_value()));
    predicted_ms_ = predicted_ms();
    LANCET_TRY(world::agree(world_, allocate()));
    LANCET_TRY(take_device_arena());
    LANCET_TRY(world::agree(world_, bind()));
    LANCET_TRY(initialize_weights(config_, world_.rank(), world_.size(), store_));
    flops_ = product_flops(update_.executor->plan().program);
    return {};
  }

  Result<run::StepRecord> step(std::int64_t step) override {
    const auto start = std::chrono::steady_clock::now();
    run::StepRecord record;
    record.step = step + 1;
    record.lr = learning_rate(config_.train, step);
    set_schedule(step, record.lr);
    tally_.clear();
    const auto accumulation = static_cast<int>(config_.train.gradient_accumulation_steps);
    for (int micro = 0; micro < accumulation; ++micro) {
      BoundPlan& plan = plan_of(micro);
      LANCET_TRY(fill(batches(), plan, step, micro));
      const bool traced = micro + 1 == accumulation && step + 1 == config_.log.trace;
      if (traced) plan.executor->time_next_run();
      if (traced) LANCET_TRY(world_.barrier());  // the ranks' clocks start together
      LANCET_TRY(plan.executor->run());
      add_up(plan, record);
    }
    record.grad_norm = *update_.grad_norm;
    for (double* value : {&record.loss, &record.aux_loss, &record.grad_norm}) *value = unsigned_nan(*value);
    finish(record, seconds_since(start));
    last_record_ = record;
    if (std::isfinite(record.loss) && std::isfinite(record.grad_norm)) return record;
    const auto cause = find_cause(step);
    Error error = numerical_error(
        fmt::format("step {}: expected a finite loss and gradient norm, found loss {} and norm {}; {}", record.step,
                    record.loss, record.grad_norm, cause.ok() ? *cause : "no cause found: " + cause.error().message));
    error.agreed = cause.ok();  // both numbers are sums over the ranks
    // If the norm is finite, the update has happened and the step cannot be skipped.
    if (config_.train.on_non_finite == config::OnNonFinite::skip && cause.ok() && !std::isfinite(record.grad_norm))
      return skip(std::move(record), error.message);
    return error;
  }

  std::int64_t evaluation_sequences() const override { return evaluation_ ? evaluation_->sequences : 0; }
  Result<std::optional<double>> evaluate() override {
    if (!evaluation_) return std::optional<double>();
    double sum = 0;  // over tokens; a plan's loss is divided by the tokens of a full batch
    const double batch_tokens = double(config_.train.micro_batch_size * config_.train.seq_len) * world_.size();
    for (std::int64_t i = 0; i < evaluation_->count; ++i) {
      LANCET_ASSIGN(const bool stop, interrupted());
      if (stop) return std::optional<double>();
      LANCET_TRY(fill(*evaluation_->batches, evaluate_, i, 0));
      LANCET_TRY(evaluate_.executor->run());
      sum += double(*evaluate_.loss) * batch_tokens;
    }
    return std::optional<double>(sum / double(evaluation_->sequences * config_.train.seq_len));
  }

  Result<std::optional<std::vector<std::int32_t>>> generate(std::vector<std::int32_t> prompt,
                                                            std::int64_t count) override {
    LANCET_ASSIGN(const auto decoder, inference::Decoder::create(config_, world_, store_, executor_options({})));
    inference::GenerateOptions options{
        .sampling = {.seed = static_cast<std::uint64_t>(config_.train.seed)}, .max_tokens = count, .slide = true};
    std::vector<std::int32_t> ids = prompt;
    const auto start = std::span<const std::int32_t>(prompt).last(
        std::min(prompt.size(), static_cast<std::size_t>(decoder->window())));
    bool stopped = false;
    const auto ending = inference::generate(*decoder, start, options, [&](std::int32_t token) -> Status {
      ids.push_back(token);
      LANCET_ASSIGN(stopped, interrupted());
      return stopped ? Status(Error{ExitCode::saved, "interrupted", true}) : Status();
    });
    if (stopped) return std::optional<std::vector<std::int32_t>>();
    if (!ending.ok()) return ending.error();
    return std::optional(std::move(ids));
  }

  Result<std::string> trace() override {
    const auto mine = update_.executor->spans();
    if (config_.comm.transport == config::Transport::emulated) {  // other ranks do not exist
      const std::vector<runtime::Span> one(mine.begin(), mine.end());
      return runtime::trace_json(plans_.update, std::span(&one, 1));
    }
    LANCET_ASSIGN(const auto spans, gather_spans(world_, mine));
    if (world_.rank() != 0) return std::string();
    return runtime::trace_json(plans_.update, spans);
  }

  const run::StepRecord& last_record() const override { return last_record_; }
  std::span<const run::LayerLoad> last_layers() const override { return tally_.layers(); }
  const std::optional<data::Tokenizer>& tokenizer() const override { return tokenizer_; }
  runtime::TensorStore& store() override { return store_; }
  runtime::Executor& executor() override { return *update_.executor; }

  std::string memory_json() const override { return train::memory_json(memory_); }
  std::string banner() const override {
    std::string text = train::banner(config_, world_.size(), threads_, network_, memory_, peak_, accelerator_) + "\n" +
                       describe_plan(plans_.update, plans_.report);
    if (!all_to_alls_.empty()) text += "\n" + all_to_alls_;
    if (const std::string warning = comm::slow_network_warning(network_); !warning.empty()) text += "\n" + warning;
    return text;
  }

 private:
  // A plan bound to memory, with its inputs and outputs looked up once. Null: the plan has no such output.
  struct BoundPlan {
    std::unique_ptr<runtime::Executor> executor;
    std::span<std::int32_t> tokens, targets;
    const float* loss = nullptr;
    const float* grad_norm = nullptr;
    float* schedule = nullptr;
    std::vector<const float*> aux;             // per MoE layer: auxiliary loss, router entropy
    std::vector<std::span<const float>> load;  // per MoE layer: [2,E]
  };

  // Each rank reads its own copy of the config file; the copies must be equal.
  Status check_same_config() {
    const std::string mine = config::to_json(config_);
    LANCET_ASSIGN(const std::string first, broadcast_text(world_, mine, 0));
    return world::agree(world_,
                 mine == first
                     ? Status()
                     : Status(config_error("expected the same config on all ranks, found another than rank 0's")));
  }

  Status open_data() {
    if (options_.batches) return {};
    LANCET_TRY(config::check_data(config_));
    LANCET_ASSIGN(tokenizer_, data::load_tokenizer(config_));
    data::TokenizerId expected;
    if (tokenizer_) expected = {tokenizer_->hash(), config_.data.tokenizer};
    LANCET_ASSIGN(batches_,
                  data::training_batches(config_, expected, world_.rank(), world_.size(), options_.sample_offset));
    LANCET_ASSIGN(expected, data::tokenizer_of_training(config_));
    LANCET_ASSIGN(evaluation_, data::evaluation_batches(config_, expected, world_.rank(), world_.size()));
    return {};
  }

  Status measure_peak() {
    if (config_.log.peak_tflops) {
      peak_ = {*config_.log.peak_tflops * 1e12, true};
      return {};
    }
    if (accelerator_) {  // without a measured peak, MFU is left out
      const auto flops = profiler::measure_product_peak(*accelerator_, config_.train.dtype);
      if (!flops.ok()) log::warn("peak: not measured: {}", flops.error().message);
      peak_ = {largest_peak(flops.ok() ? *flops : 0), false};
      return world_.barrier();
    }
    LANCET_TRY(world_.barrier());  // all ranks of a host at once, as in a step
    peak_ = {largest_peak(profiler::measure_product_peak(config_.train.dtype, threads_)), false};
    return world_.barrier();
  }

  // The largest FLOP/s that were measured on this machine. Only rank 0 reports MFU.
  double largest_peak(double measured) const {
    if (world_.rank() != 0) return measured;
    const cost::Machine machine = planning::machine_of(config_, world_, options_.local_ranks, accelerator_);
    return 1e12 * planning::largest_peak_tflops(config_, machine, options_.profile_folder, measured * 1e-12);
  }

  // Collective: true if the ranks compute with more threads than there are cores.
  Result<bool> warn_of_crowded_cores() const {
    const bool emulated = config_.comm.transport == config::Transport::emulated;  // the other ranks do not exist
    if (accelerator_) return false;
    LANCET_ASSIGN(const world::SharedCores shared,
                  world::shared_cores(emulated ? *comm::make_self() : world_, threads_));
    if (shared.crowded() && world_.rank() == 0)
      log::warn("{} threads compute on {} core{}: steps are slow, and their predicted times do not hold",
                shared.threads, shared.cores, shared.cores == 1 ? "" : "s");
    return shared.crowded();
  }

  // Refuses what cannot fit before it is planned, since planning takes minutes for thousands of layers.
  Status check_least_memory() const {
    const planning::LeastMemory least = planning::least_memory(config_, world_.size());
    return check_memory(least.total(), fmt::format("{} parameters, {} optimizer, {} gradients, besides activations",
                                                   least.parameters / 1'000'000, least.state / 1'000'000,
                                                   least.gradients / 1'000'000));
  }

  // Config error: `needed` bytes, whose parts in MB are `parts`, are more than this rank's share of the free memory.
  Status check_memory(std::int64_t needed, const std::string& parts) const {
    auto available = world::available_bytes();
    if (available) *available /= options_.local_ranks;
    if (accelerator_) available = accelerator_->device().free_bytes();
    if (!available || needed <= *available) return {};
    return config_error(fmt::format("expected {} MB of free memory a rank{} ({}), found {} MB", needed / 1'000'000,
                                    accelerator_ ? " on " + accelerator_->device().name() : "", parts,
                                    *available / 1'000'000));
  }

  static const ir::Plan* plan_or_null(const std::optional<ir::Plan>& plan) { return plan ? &*plan : nullptr; }

  // Refuses a config that does not fit the memory; then allocates it.
  Status allocate() {
    for (const ir::Tensor& tensor : plans_.update.program.tensors) {
      if (tensor.kind == ir::TensorKind::parameter) memory_.parameters += ir::bytes(tensor.type);
      if (tensor.kind == ir::TensorKind::state) memory_.state += ir::bytes(tensor.type);
    }
    memory_.arena = plans_.update.arena_bytes;
    if (plans_.micro) memory_.arena = std::max(memory_.arena, plans_.micro->arena_bytes);
    if (plans_.evaluate) memory_.arena = std::max(memory_.arena, plans_.evaluate->arena_bytes);
    memory_.staging = run::staging_bytes(config_, plans_.update.program, world_.size());
    memory_.workspace = accelerator_ ? 0 : threads_ * std::int64_t(backend::cpu::matmul_scratch_bytes());
    const ir::Plan* const plans[] = {&plans_.update, plan_or_null(plans_.micro), plan_or_null(plans_.evaluate)};
    for (const ir::Plan* plan : plans) {
      if (!plan) continue;
      LANCET_ASSIGN(const auto bytes, runtime::planned_workspace(*plan, accelerator_, threads_));
      memory_.workspace += bytes;
    }
    // Checkpoints are staged on the host, whatever the device.
    const std::int64_t needed =
        memory_.parameters + memory_.state + memory_.arena + memory_.workspace + (accelerator_ ? 0 : memory_.staging);
    LANCET_TRY(check_memory(
        needed, fmt::format("{} parameters, {} optimizer, {} activations, {} scratch of kernels, {} for saving",
                            memory_.parameters / 1'000'000, memory_.state / 1'000'000, memory_.arena / 1'000'000,
                            memory_.workspace / 1'000'000, accelerator_ ? 0 : memory_.staging / 1'000'000)));
    try {
      if (accelerator_)
        store_.place_on(accelerator_->device());
      else
        arena_ = runtime::Block::on_host(static_cast<std::size_t>(memory_.arena));
      store_.add(plans_.update.program);
      if (plans_.micro) store_.add(plans_.micro->program);
    } catch (const std::bad_alloc&) {
      return config_error(fmt::format("expected {} MB of memory a rank, found less", needed / 1'000'000));
    }
    return {};
  }

  // Collective: allocates the arena on an accelerator, as a window if the ranks can reach each other's memory.
  Status take_device_arena() {
    if (!accelerator_) return {};
    const auto bytes = std::size_t(memory_.arena);
    LANCET_ASSIGN(const auto window, world::make_arena_window(config_, streams_.on_device(), bytes));
    if (!window.empty()) {
      all_to_alls_ = world::describe_all_to_alls(config_);
      arena_window_ = {window.data(), window.size()};
      return {};
    }
    auto arena = runtime::Block::on_device(accelerator_->device(), bytes);
    LANCET_TRY(world::agree(world_, arena.ok() ? Status() : Status(arena.error())));
    arena_ = std::move(*arena);
    return {};
  }
  runtime::Memory arena() const { return arena_window_.start ? arena_window_ : arena_.memory(); }

  Status bind() {
    LANCET_ASSIGN(update_, bind(plans_.update));
    if (plans_.micro) {
      LANCET_ASSIGN(micro_, bind(*plans_.micro));
    }
    if (plans_.evaluate) {
      LANCET_ASSIGN(evaluate_, bind(*plans_.evaluate));
    }
    if (!update_.load.empty()) tally_ = StepTally(update_.load.size(), update_.load[0].size() / 2);
    return {};
  }

  // arena: shared with other executors; empty: the executor's own.
  runtime::ExecutorOptions executor_options(const runtime::Memory& arena) const {
    runtime::ExecutorOptions options = streams_.executor_options(threads_);
    options.arena = arena;
    return options;
  }

  Result<BoundPlan> bind(const ir::Plan& plan) {
    BoundPlan bound;
    LANCET_ASSIGN(bound.executor, runtime::Executor::create(plan, store_, executor_options(arena())));
    runtime::Executor& executor = *bound.executor;
    auto ids = [&](const char* name) {
      const ops::TensorView view = executor.input(name);
      return std::span(view.as<std::int32_t>(), static_cast<std::size_t>(view.elements()));
    };
    bound.tokens = ids("tokens");
    bound.targets = ids("targets");
    bound.loss = executor.output("loss").as<float>();
    if (executor.has_output("grad_norm")) {
      bound.grad_norm = executor.output("grad_norm").as<float>();
      bound.schedule = executor.input("schedule").as<float>();
    }
    for (const ir::Output& output : plan.program.outputs) {
      const ops::TensorView view = executor.output(output.name);
      if (output.kind == ir::OutputKind::aux) bound.aux.push_back(view.as<float>());
      if (output.kind == ir::OutputKind::load)
        bound.load.emplace_back(view.as<float>(), static_cast<std::size_t>(view.elements()));
    }
    return bound;
  }

  // Collective, so that no rank continues alone.
  Result<bool> interrupted() {
    if (!options_.interrupted && !options_.stop) return false;
    return world::any(world_,
               (options_.stop && options_.stop->load() != 0) || (options_.interrupted && options_.interrupted()));
  }

  data::Batches& batches() { return options_.batches ? *options_.batches : *batches_; }
  BoundPlan& plan_of(int micro) { return micro + 1 < config_.train.gradient_accumulation_steps ? micro_ : update_; }

  // Collective: names the first tensor of a failed step that is not finite, by running its micro batches again on the
  // same weights. If several ranks have one, the earliest in the plan is named, since it spread from there to the
  // others.
  Result<std::string> find_cause(std::int64_t step) {
    for (int micro = 0; micro < config_.train.gradient_accumulation_steps; ++micro) {
      BoundPlan& plan = plan_of(micro);
      LANCET_TRY(fill(batches(), plan, step, micro));
      LANCET_ASSIGN(const auto found, plan.executor->find_non_finite());
      constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::max();
      LANCET_ASSIGN(const auto places, world::gather(world_, found ? found->place : nowhere));
      const auto first = std::min_element(places.begin(), places.end());
      if (*first == nowhere) continue;
      const int rank = static_cast<int>(first - places.begin());
      std::string mine = found ? runtime::to_string(plan.executor->plan().program, *found) : "";
      if (found && !found->instruction.valid() && config_.train.clip_grad == 0 &&
          config_.train.on_non_finite == config::OnNonFinite::stop)
        mine += "; it may be a consequence: without train.clip_grad the step's updates do not wait for the norm";
      LANCET_ASSIGN(const std::string text, broadcast_text(world_, mine, rank));
      return fmt::format("first not finite on rank {} in micro batch {}: {}", rank, micro, text);
    }
    return std::string("every tensor is finite when the step is run again");
  }

  // The step's update changed nothing. Zeroes the gradient sums that find_cause() has left.
  Result<run::StepRecord> skip(run::StepRecord record, const std::string& why) {
    if (world_.rank() == 0) log::warn("skipped: {}", why);
    for (const auto& [name, tensor] : store_.all())
      if (tensor.state == ir::StateKind::gradient_sum)
        LANCET_TRY(store_.write(tensor, 0, std::vector<std::byte>(static_cast<std::size_t>(ir::bytes(tensor.type)))));
    record.skipped = true;
    last_record_ = record;
    return record;
  }

  void set_schedule(std::int64_t step, double lr) {
    const double t = double(step + 1);
    update_.schedule[ops::schedule::lr] = float(lr);
    update_.schedule[ops::schedule::correction1] = float(1 - std::pow(config_.train.adam_beta1, t));
    update_.schedule[ops::schedule::correction2] = float(1 - std::pow(config_.train.adam_beta2, t));
    update_.schedule[ops::schedule::step] = float(t);
  }

  // A rank whose data cannot be read must not leave its own streams in a collective: it aborts them.
  Status fill(data::Batches& batches, BoundPlan& plan, std::int64_t step, int micro) {
    Status status = batches.fill(step, micro, plan.tokens, plan.targets);
    if (!status.ok()) streams_.abort(status.error().message);
    return status;
  }

  void add_up(const BoundPlan& plan, run::StepRecord& record) {
    record.loss += *plan.loss;
    for (const float* aux : plan.aux) record.aux_loss += aux[0];
    tally_.add(plan.aux, plan.load, plan.executor->times());
  }

  // The predicted time of a whole step, from the plans' headers.
  std::optional<double> predicted_ms() const {
    auto of = [](const ir::Plan& plan) { return plan.header.real("predicted_ms", 0); };
    double ms = of(plans_.update);
    if (ms <= 0) return {};
    if (plans_.micro) ms += double(config_.train.gradient_accumulation_steps - 1) * of(*plans_.micro);
    return ms;
  }

  void finish(run::StepRecord& record, double seconds) {
    const config::Train& train = config_.train;
    const double tokens =
        double(train.micro_batch_size * train.seq_len * train.gradient_accumulation_steps) * world_.size();
    record.step_ms = seconds * 1e3;
    record.predicted_ms = predicted_ms_;
    record.tokens_per_s = tokens / seconds;
    tally_.fill(record, world_.size() == 1);
    const double flops = double(train.gradient_accumulation_steps) * (flops_.dense + kept_share() * flops_.experts);
    if (peak_.flops > 0) record.mfu = 100 * flops / seconds / peak_.flops;
  }

  // The share of the rows counted in flops_.experts that hold kept tokens.
  double kept_share() const {
    if (update_.load.empty()) return 0;
    const auto layers = double(update_.load.size()), micro_batches = double(config_.train.gradient_accumulation_steps);
    const auto experts = std::int64_t(update_.load[0].size() / 2);
    const std::int64_t tokens = config_.train.micro_batch_size * config_.train.seq_len;
    const std::int64_t slots = experts * model::capacity(config_.model.capacity_factor, tokens, experts);
    return tally_.kept() / (double(std::min(tokens, slots)) * double(world_.size()) * layers * micro_batches);
  }

  const config::Config config_;
  comm::Communicator& world_;
  const TrainerOptions options_;
  const int threads_;
  MemoryPlan memory_;
  comm::NetworkReport network_;
  Peak peak_;
  ProductFlops flops_;
  // Null: the CPU. Declared before the streams, the store, the arena and the executors, which are destroyed first.
  std::unique_ptr<runtime::Accelerator> owned_accelerator_;
  runtime::Accelerator* accelerator_ = nullptr;
  world::Streams streams_;
  std::optional<data::Tokenizer> tokenizer_;
  std::unique_ptr<data::Batches> batches_;
  std::optional<data::Evaluation> evaluation_;
  runtime::TensorStore store_;
  runtime::Block arena_;
  runtime::Memory arena_window_;  // if set, replaces arena_: the expert stream's window
  planning::StepPlans plans_;
  std::string all_to_alls_;               // for the banner
  std::optional<double> predicted_ms_;  // of a whole step
  BoundPlan update_, micro_, evaluate_;
  StepTally tally_;
  run::StepRecord last_record_;
};

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(const config::Config& config, comm::Communicator& world,
                                                 const TrainerOptions& options) {
  auto trainer = std::make_unique<TrainerImpl>(config, world, options);
  LANCET_TRY(trainer->set_up());
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace lancet::train
