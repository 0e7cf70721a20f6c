// set_up() goes from what is cheap to check to what is costly: config, transport, data, the least memory, the cores,
// streams, the network check, the peak for MFU, the plans, memory, the executors and the initial weights. The plans of
// the step and of evaluation share one store of weights and one arena, as only one of them runs at a time. Work that
// can fail on one rank alone ends in comm::agree(), so that all ranks return the same error. step() runs the plan,
// which has all micro batches of the step or, if these are many, several (planner/from_config.h); then it runs several
// times, and all runs but the last leave out what closes the step. Where the plan lists the end of the step before
// (ir/dependencies.h), the first run executes it; settle() runs it alone. What a run reads is read before it: the ranks
// agree on an error of the data, and none is left in a collective. step() sums up losses and times, and then, where the
// load of the experts has left the planned one (Replanning), makes new plans and binds them to the same weights. If the
// loss or the norm is not finite, it runs the micro batches again on the same weights to name the first tensor with
// such a number. With train.on_non_finite = skip the step is then skipped, since its update was guarded.
#include "lancet/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <limits>

#include "after_step.h"
#include "lancet/base/clock.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/plan.h"
#include "lancet/models/generate.h"
#include "lancet/ops/schedule_layout.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/rank_device.h"
#include "lancet/run/step_costs.h"
#include "lancet/run/stream_communicators.h"
#include "rank_state.h"

namespace lancet::train {
namespace {

// What the emulated device's ranks would measure.
comm::NetworkReport in_time_of(const runtime::EmulatedDevice& device, comm::NetworkReport report) {
  report.megabytes_per_second *= device.options().scale * device.options().dilation;
  report.round_trip_us /= device.options().dilation;
  return report;
}

class TrainerImpl final : public Trainer {
 public:
  TrainerImpl(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : config_(config),
        world_(world),
        options_(options),
        resources_{run::threads_of(config, options.local_ranks), options.local_ranks, options.accelerator},
        replanning_(config, {world.size(), cost::hosts_of(world.size(), options.local_ranks)},
                    !options.plan_file.empty(), options.load),
        skipped_steps_(options.skipped_steps) {}

  // Ranks on hosts without a common file system may have other files at the same paths.
  Status agree_on_data() {
    if (config_.data.synthetic || options_.batches) return {};
    const std::string paths[] = {config_.data.train, config_.data.eval};
    LANCET_ASSIGN(const std::string files, data::fingerprint_of(paths));
    return comm::agree_on(world_, "the same data.train and data.eval", files, ExitCode::data);
  }

  Status set_up() {
    LANCET_TRY(comm::agree(world_, config::check(config_, world_.size())));
    LANCET_TRY(check_same_config());
    LANCET_TRY(comm::agree(world_, run::check_transport(config_, world_)));
    if (!resources_.accelerator) {
      LANCET_ASSIGN(owned_accelerator_, run::open_accelerator(config_, world_));
      resources_.accelerator = owned_accelerator_.get();
    }
    LANCET_ASSIGN(emulated_, run::open_emulated_device(config_, world_, options_.local_ranks));
    resources_.emulated = emulated_.get();
    runtime::Accelerator* const accelerator = resources_.accelerator;
    LANCET_TRY(comm::agree(world_, data_.open(config_, world_.rank(), world_.size(), options_.sample_offset)));
    LANCET_TRY(agree_on_data());
    training_order_ = data::training_order(config_, world_.rank(), world_.size(), options_.sample_offset);
    evaluation_order_ = data::evaluation_order(config_, world_.rank(), world_.size());
    model_.emplace(config_, world_.size(), options_.inspect);
    LANCET_TRY(comm::agree(world_, check_least_memory(*model_, world_.rank(), resources_)));
    LANCET_ASSIGN(const bool crowded, warn_of_crowded_cores());
    if (const std::string warning = planner::short_runs_warning(config_); !warning.empty() && world_.rank() == 0)
      log::warn("{}", warning);
    LANCET_ASSIGN(streams_, run::Streams::make(config_, world_, accelerator));
    LANCET_ASSIGN(network_, comm::measure_network(world_));
    if (emulated_) network_ = in_time_of(*emulated_, network_);
    LANCET_TRY(speed_.measure_peak(world_, resources_, options_.profile_folder));
    planning_ = {.profile = {.local_ranks = options_.local_ranks,
                             .profile_folder = options_.profile_folder,
                             .accelerator = accelerator},
                 .costs = emulated_ ? &emulated_->slowest_costs() : options_.costs,
                 .loads = replanning_.planned(),
                 .plan_file = options_.plan_file,
                 .crowded = crowded};
    LANCET_TRY(agree_on_memory());
    if (options_.interrupted || options_.stop) planning_.profile.interrupted = [this] { return is_asked_to_stop(); };
    LANCET_ASSIGN(plans_, run::make_step_plans(*model_, world_, planning_, data_.evaluation().has_value()));
    LANCET_TRY(open_groups());
    speed_.set_plans(plans_);
    memory_.store().set_rank(config::mesh_of(config_, world_.size()), world_.rank());
    LANCET_TRY(comm::agree(world_, memory_.allocate(config_, plans_, world_.size(), resources_)));
    LANCET_TRY(fit_and_bind());
    if (const std::size_t layers = step_.micro_batches[0].layers.load.size(); layers > 0)
      tally_ = StepTally(layers, std::size_t(experts_of_layer()));
    if (emulated_) {
      LANCET_TRY(comm::agree(world_, emulated_->check(plans_.step())));
      return emulated_->try_links(world_, plans_.step());
    }
    return initialize_weights(config_, memory_.store());
  }

  Result<run::StepRecord> step(std::int64_t step, Border border) override {
    LANCET_ASSIGN(run::StepRecord record, run_step(step, border));
    if (record.skipped || tally_.layers().empty()) return record;
    LANCET_ASSIGN(const auto departure, replanning_.after_step(record.step, tally_, plans_, world_));
    if (departure && record.step == config_.log.trace) {  // other plans forget the spans of this one
      LANCET_ASSIGN(trace_, trace());
    }
    if (departure) LANCET_TRY(replan(*departure, record));
    record.grad_norm = last_record_.grad_norm;
    record.is_norm_known = last_record_.is_norm_known;
    return record;
  }

  Status read(std::int64_t step) override {
    const auto start = std::chrono::steady_clock::now();
    const Status status = read(step, 0);
    read_seconds_ = seconds_since(start);
    return status;
  }
  void time_next_step() override { time_step_ = true; }
  bool is_open() const override { return open_; }
  Status settle() override {
    if (!open_) return {};
    LANCET_TRY(run_end());
    return complete();
  }
  double norm_before() const override { return norm_before_; }

  std::int64_t evaluation_sequences() const override { return data_.evaluation() ? data_.evaluation()->sequences : 0; }
  Result<std::optional<double>> evaluate() override {
    const std::optional<data::Evaluation>& evaluation = data_.evaluation();
    if (!evaluation) return std::optional<double>();
    LANCET_TRY(settle());
    double sum = 0;  // over tokens; a plan's loss is divided by the tokens of a full batch
    const double batch_tokens =
        double(config_.train.micro_batch_size * config_.train.seq_len) * config::batch_ranks(config_, world_.size());
    for (std::int64_t i = 0; i < evaluation->count; ++i) {
      BoundMicroBatch& micro = evaluate_.micro_batches[0];
      evaluation_order_.fill(i, 0, micro.sequence);
      const bool reads = !micro.tokens.empty();  // not a stage between the first and the last one
      const Status mine = reads ? evaluation->batches->fill(i, 0, micro.tokens, micro.targets) : Status();
      std::array<float, 2> sums{is_asked_to_stop() ? 1.f : 0.f, mine.ok() ? 0.f : 1.f};
      LANCET_TRY(world_.all_reduce_sum(sums));
      if (sums[1] > 0) return comm::agree(world_, mine).error();
      if (sums[0] > 0) return std::optional<double>();
      LANCET_TRY(evaluate_.executor->run());
      sum += double(*micro.loss) * batch_tokens;
    }
    return std::optional<double>(sum / double(evaluation->sequences * config_.train.seq_len));
  }

  Result<std::optional<std::vector<std::int32_t>>> generate(std::vector<std::int32_t> prompt,
                                                            std::int64_t count) override {
    LANCET_TRY(settle());
    LANCET_ASSIGN(const std::vector<int> first_blocks, model_->first_blocks);
    LANCET_ASSIGN(const auto decoder, models::Decoder::create(config_, world_, memory_.store(), streams_,
                                                              resources_.threads, first_blocks));
    models::GenerateOptions options{
        .sampling = {.seed = static_cast<std::uint64_t>(config_.train.seed)}, .max_tokens = count, .slide = true};
    if (const auto& tokenizer = data_.tokenizer()) options.ends = {tokenizer->ends().begin(), tokenizer->ends().end()};
    std::vector<std::int32_t> ids = prompt;
    const auto start = std::span<const std::int32_t>(prompt).last(
        std::min(prompt.size(), static_cast<std::size_t>(decoder->window())));
    bool stopped = false;
    const auto ending = models::generate(*decoder, start, options, [&](std::int32_t token) -> Status {
      ids.push_back(token);
      LANCET_ASSIGN(stopped, interrupted());
      return stopped ? Status(Error{ExitCode::saved, "interrupted", true}) : Status();
    });
    if (stopped) return std::optional<std::vector<std::int32_t>>();
    if (!ending.ok()) return ending.error();
    return std::optional(std::move(ids));
  }

  Result<std::string> trace() override {
    if (trace_) return *std::exchange(trace_, std::nullopt);
    return trace_ranks(config_, world_, plans_.steps, step_.executor->spans());
  }

  const run::StepRecord& last_record() const override { return last_record_; }
  std::span<const run::LayerLoad> last_layers() const override { return tally_.layers(); }
  double kept_share() const override { return speed_.kept_share(tally_); }
  std::int64_t device_bytes() const override { return planning_.device_bytes; }
  const checkpoint::LoadHistory& load() const override { return replanning_.history(); }
  const std::optional<data::Tokenizer>& tokenizer() const override { return data_.tokenizer(); }
  runtime::TensorStore& store() override { return memory_.store(); }
  runtime::Executor& executor() override { return *step_.executor; }

  std::span<const ir::Plan> stage_plans() const override { return plans_.steps; }

  std::string memory_json() const override { return train::memory_json(memory_.plan()); }
  std::string banner() const override {
    std::string text = train::banner(config_, world_.size(), resources_, network_, memory_.plan(), speed_.peak()) +
                       "\n" + describe_plan(plans_.step(), plans_.report, runs_a_step());
    if (memory_.has_window()) text += "\n" + run::describe_all_to_alls(config_);
    if (const std::string warning = comm::slow_network_warning(network_); !warning.empty()) text += "\n" + warning;
    return text;
  }

 private:
  // Each rank reads its own copy of the config file; the copies must be equal.
  Status check_same_config() {
    const std::string mine = config::to_json(config_);
    LANCET_ASSIGN(const std::string first, broadcast_text(world_, mine, 0));
    return comm::agree(
        world_, mine == first
                    ? Status()
                    : Status(config_error("expected the same config on all ranks, found another than rank 0's")));
  }

  // Collective: true if the ranks compute with more threads than there are cores.
  Result<bool> warn_of_crowded_cores() const {
    const bool mirrored = config_.comm.transport == config::Transport::mirrored;  // the other ranks do not exist
    if (resources_.accelerator || resources_.emulated) return false;
    LANCET_ASSIGN(const run::SharedCores shared,
                  run::shared_cores(mirrored ? *comm::make_self() : world_, resources_.threads));
    if (shared.crowded() && world_.rank() == 0)
      log::warn("{} threads compute on {} core{}: steps are slow, and their predicted times do not hold",
                shared.threads, shared.cores, shared.cores == 1 ? "" : "s");
    return shared.crowded();
  }

  // Collective: the communicators of the groups of ranks that the plans name, and their latencies on an emulated
  // device.
  Status open_groups() {
    const ir::Mesh mesh = config::mesh_of(config_, world_.size());
    std::vector<const ir::Program*> stages;  // of all pipeline stages
    for (const auto* plans : {&plans_.steps, &plans_.evaluations})
      for (const ir::Plan& plan : *plans) stages.push_back(&plan.program);
    LANCET_TRY(streams_.open_groups(mesh, stages));
    return emulated_ ? emulated_->calibrate(world_, stages) : Status();
  }

  // Collective.
  Status fit_and_bind() {
    comm::DeviceCommunicator* const expert =
        streams_.on_device(ir::Stream::expert, config::mesh_of(config_, world_.size()), {ir::Axis::expert});
    LANCET_TRY(comm::agree(world_, memory_.fit_arena(config_, plans_, expert, resources_)));
    return comm::agree(world_, bind());
  }

  Status bind() {
    LANCET_ASSIGN(step_, BoundStep::bind(plans_.step(), memory_.store(), executor_options(plans_.steps)));
    if (!plans_.evaluations.empty()) {
      LANCET_ASSIGN(evaluate_, BoundStep::bind(plans_.evaluations[plans_.stage], memory_.store(),
                                               executor_options(plans_.evaluations)));
    }
    return {};
  }

  // stages: the plans of all pipeline stages; they outlive the executor. All executors share one arena.
  runtime::ExecutorOptions executor_options(const std::vector<ir::Plan>& stages) const {
    runtime::ExecutorOptions options = streams_.executor_options(resources_.threads);
    options.arena = memory_.arena();
    options.emulated = resources_.emulated;
    if (stages.size() > 1) options.order = [&stages, own = plans_.stage] { return ir::order_of_stage(stages, own); };
    return options;
  }

  // Collective, so that no rank continues alone.
  Result<bool> interrupted() {
    if (!options_.interrupted && !options_.stop) return false;
    return comm::any(world_, is_asked_to_stop());
  }
  bool is_asked_to_stop() const {
    return (options_.stop && options_.stop->load() != 0) || (options_.interrupted && options_.interrupted());
  }

  int micro_batches_a_run() const { return int(step_.micro_batches.size()); }
  int runs_a_step() const { return int(config_.train.gradient_accumulation_steps) / micro_batches_a_run(); }
  // The first run of a step executes what the step before has left.
  runtime::Executor::Run which(int run) const {
    return {.before = run == 0 && open_, .body = true, .closing = run + 1 == runs_a_step()};
  }

  // Runs what the last step has left.
  Status run_end() {
    LANCET_TRY(step_.executor->run({.before = true, .body = false, .closing = false}));
    open_ = false;
    return {};
  }

  // Collective, once what the last step had left has run. Numerical error: its norm is not finite.
  Status complete() {
    open_ = false;
    if (std::exchange(last_record_.is_norm_known, true) || emulated_) return {};
    last_record_.grad_norm = unsigned_nan(*step_.grad_norm);
    return std::isfinite(last_record_.grad_norm) ? Status() : Status(not_finite(last_record_).error);
  }

  // Runs the micro batches of a step, and names the cause if the loss or the norm is not finite.
  Result<run::StepRecord> run_step(std::int64_t step, Border border) {
    const auto start = std::chrono::steady_clock::now();
    run::StepRecord record;
    record.step = step + 1;
    record.lr = learning_rate(config_.train, step);
    record.skipped_steps = skipped_steps_;
    set_schedule(step, record.lr);
    tally_.clear();
    const bool timed = std::exchange(time_step_, false) || step + 1 == config_.log.trace;
    for (int run = 0; run < runs_a_step(); ++run) {
      LANCET_TRY(fill_inputs(step, run));
      const bool traced = timed && run + 1 == runs_a_step();
      if (traced) step_.executor->time_next_run();
      if (traced) LANCET_TRY(world_.barrier());  // the ranks' clocks start together
      LANCET_TRY(step_.executor->run(which(run)));
      if (run == 0 && open_) {
        LANCET_TRY(complete());
        norm_before_ = last_record_.grad_norm;
      }
      add_up(record);
    }
    if (step_.schedule_before) std::copy_n(step_.schedule, std::size_t(ops::schedule::plain), step_.schedule_before);
    open_ = step_.crosses_steps;
    double seconds = (std::exchange(read_seconds_, 0) + seconds_since(start)) / config_.dilation();
    // The step of several stages ends with the last of them. On an emulated device it is compared with a prediction.
    if (emulated_) {
      LANCET_ASSIGN(seconds, comm::largest(world_, seconds));
    }
    speed_.fill(record, seconds, tally_);
    if (open_ && border == Border::closed) LANCET_TRY(run_end());  // counts to no step's time: a run has one end
    record.is_norm_known = !open_ || !step_.norm_crosses;
    record.grad_norm = record.is_norm_known ? *step_.grad_norm : std::numeric_limits<double>::quiet_NaN();
    for (double* value : {&record.loss, &record.aux_loss, &record.grad_norm}) *value = unsigned_nan(*value);
    tally_.fill(record, world_.size() == 1, speed_.tokens());
    if (emulated_) return of_no_model(record);
    last_record_ = record;
    if (std::isfinite(record.loss) && (!record.is_norm_known || std::isfinite(record.grad_norm))) return record;
    if (open_ && record.is_norm_known) LANCET_TRY(run_end());  // so that the search begins with sums that are zero
    const NotFinite found = not_finite(record);
    // If the norm is finite, the update has happened and the step cannot be skipped.
    if (config_.train.on_non_finite == config::OnNonFinite::skip && found.searched && !std::isfinite(record.grad_norm))
      return skip(std::move(record), found.error.message);
    return found.error;
  }

  struct NotFinite {
    Error error;
    bool searched = false;
  };
  // Collective: runs the micro batches of the step again on the weights as they are.
  NotFinite not_finite(const run::StepRecord& record) {
    const auto search = [&](int run) -> Result<std::optional<runtime::NonFinite>> {
      LANCET_TRY(fill_inputs(record.step - 1, run));
      const bool last = run + 1 == runs_a_step();
      return step_.executor->find_non_finite({.before = last, .body = true, .closing = last});
    };
    const auto cause = find_non_finite_cause(config_, world_, plans_.step().program, runs_a_step(), search);
    const std::string norm = record.is_norm_known ? fmt::format("{}", record.grad_norm) : "not known yet";
    Error error = numerical_error(
        fmt::format("step {}: expected a finite loss and gradient norm, found loss {} and norm {}; {}", record.step,
                    record.loss, norm, cause.ok() ? *cause : "no cause found: " + cause.error().message));
    error.agreed = cause.ok() || cause.error().agreed;  // both numbers are sums over the ranks
    return {std::move(error), cause.ok()};
  }

  // The least of all ranks, and of the run before. The memory of an emulated device is declared.
  Status agree_on_memory() {
    if (emulated_) return {};
    const backend::Device* const device = resources_.accelerator ? &resources_.accelerator->device() : nullptr;
    LANCET_ASSIGN(std::vector<std::int64_t> bytes,
                  comm::collect(world_, run::bytes_for_plans(options_.local_ranks, device)));
    bytes.push_back(options_.device_bytes);
    for (const std::int64_t of : bytes)
      if (of > 0 && (planning_.device_bytes == 0 || of < planning_.device_bytes)) planning_.device_bytes = of;
    return {};
  }

  // Collective: makes plans for the recorded loads, runs them from the next step on if their predicted step is shorter,
  // and records both predictions.
  Status replan(const Replanning::Departure& departure, run::StepRecord& record) {
    const auto start = std::chrono::steady_clock::now();
    planning_.costs = plans_.costs;
    planning_.loads = departure.loads;
    LANCET_ASSIGN(run::StepPlans plans, run::make_step_plans(*model_, world_, planning_, false));
    LANCET_ASSIGN(const double ms,
                  run::predicted_ms(plans, config_.train.gradient_accumulation_steps, departure.loads));
    const bool faster = ms < departure.predicted_ms;
    if (faster) LANCET_TRY(take(std::move(plans)));
    replanning_.set_planned(faster);
    record.replan = {departure.predicted_ms, ms, seconds_since(start) * 1e3};
    const cost::RoundLoad load = departure.loads->mean().first;
    const double beyond = 100 * (1 - load.kept * even_share());
    if (world_.rank() == 0)
      log::info(
          "plan       {} after step {}: the fullest rank has {:.2f} times an even load, {:.1f}% of the choices {}; "
          "predicted step {:.1f} ms, {:.1f} ms with a new plan; planned in {:.1f} s",
          faster ? "replaced" : "kept", record.step, load.fullest, beyond,
          config_.model.capacity_factor ? "are dropped" : "find no slot in the first round", departure.predicted_ms, ms,
          record.replan->planning_ms / 1e3);
    return {};
  }

  int expert_ranks() const { return config::mesh_of(config_, world_.size())[ir::Axis::expert]; }
  std::int64_t experts_of_layer() const { return config_.model.experts(expert_ranks()); }

  double even_share() const { return train::even_share(config_, std::int64_t(tally_.experts())); }

  // Collective: binds other plans of the training step to the same weights.
  Status take(run::StepPlans plans) {
    LANCET_TRY(settle());
    plans.measured = std::move(plans_.measured);
    plans.evaluations = std::move(plans_.evaluations);
    plans_ = std::move(plans);
    speed_.set_plans(plans_);
    for (BoundStep* bound : {&step_, &evaluate_}) *bound = {};  // no executor keeps the old arena
    if (const Status bound = fit_and_bind(); !bound.ok())
      return Error{bound.error().code, "overlap.replan: " + bound.error().message, bound.error().agreed};
    return {};
  }

  // Collective: the record of a step on an emulated device, which has no loss.
  Result<run::StepRecord> of_no_model(run::StepRecord record) {
    constexpr double none = std::numeric_limits<double>::quiet_NaN();
    record.loss = record.aux_loss = record.grad_norm = none;
    LANCET_ASSIGN(const double late_ms, comm::largest(world_, tally_.late_ms()));
    record.late_pct = 100 * late_ms / record.step_ms;
    last_record_ = record;
    return record;
  }

  // The step's update changed nothing. Zeroes the sums that find_non_finite_cause() has left.
  Result<run::StepRecord> skip(run::StepRecord record, const std::string& why) {
    if (world_.rank() == 0) log::warn("skipped: {}", why);
    for (const auto& [name, tensor] : memory_.store().all())
      if (ir::is_sum(tensor.state) && !tensor.elsewhere)
        LANCET_TRY(
            memory_.store().write(tensor, 0, std::vector<std::byte>(static_cast<std::size_t>(ir::bytes(tensor.type)))));
    record.skipped = true;
    record.skipped_steps = ++skipped_steps_;
    last_record_ = record;
    return record;
  }

  // Whether the step before was skipped is known by now: updates that may be skipped wait for a norm that is of their
  // own step (planning.md, the border between steps).
  void set_schedule(std::int64_t step, double lr) {
    const double updates = double(step + 1 - skipped_steps_);
    step_.schedule[ops::schedule::lr] = float(lr);
    step_.schedule[ops::schedule::correction1] = float(1 - std::pow(config_.train.adam_beta1, updates));
    step_.schedule[ops::schedule::correction2] = float(1 - std::pow(config_.train.adam_beta2, updates));
    step_.schedule[ops::schedule::step] = float(step + 1);
  }

  // Reads this rank's share of a run's micro batches.
  Status read(std::int64_t step, int run) {
    read_ = {-1, 0};
    const std::size_t each = step_.micro_batches[0].tokens.size();  // 0: a stage between the first and the last one
    tokens_.resize(each * step_.micro_batches.size());
    targets_.resize(tokens_.size());
    int number = run * micro_batches_a_run();
    for (std::size_t at = 0; at < tokens_.size(); at += each)
      LANCET_TRY(data_.batches().fill(step, number++, std::span(tokens_).subspan(at, each),
                                      std::span(targets_).subspan(at, each)));
    read_ = {step, run};
    return {};
  }

  // Gives a run of the plan its micro batches. Collective, unless they are read already on all ranks.
  Status fill_inputs(std::int64_t step, int run) {
    if (read_ != std::pair(step, run)) {
      const Status mine = read(step, run);
      const Result<bool> failed = comm::any(world_, !mine.ok());
      if (!failed.ok()) return comm::during(fmt::format("the inputs of step {}", step + 1), failed.error());
      if (*failed) return comm::agree(world_, mine);
    }
    int number = run * micro_batches_a_run();
    std::size_t at = 0;
    for (BoundMicroBatch& micro : step_.micro_batches) {
      training_order_.fill(step, number++, micro.sequence);
      std::copy_n(tokens_.data() + at, micro.tokens.size(), micro.tokens.data());
      std::copy_n(targets_.data() + at, micro.targets.size(), micro.targets.data());
      at += micro.tokens.size();
    }
    return {};
  }

  void add_up(run::StepRecord& record) {
    for (const BoundMicroBatch& micro : step_.micro_batches) {
      record.loss += *micro.loss;
      for (const float* aux : micro.layers.aux) record.aux_loss += aux[0];
      tally_.add(micro.layers);
    }
    tally_.add(step_.executor->times());
  }

  const config::Config config_;
  comm::Communicator& world_;
  const TrainerOptions options_;
  RankResources resources_;
  comm::NetworkReport network_;
  StepSpeed speed_{config_, world_.size()};
  // Declared before the streams, the memory and the executors, which are destroyed first. Null: the CPU, or another's.
  std::unique_ptr<runtime::Accelerator> owned_accelerator_;
  std::unique_ptr<runtime::EmulatedDevice> emulated_;  // null: the ranks compute
  run::Streams streams_;
  TrainingData data_{options_.batches};
  data::SequenceOrder training_order_, evaluation_order_;
  TrainerMemory memory_;
  Replanning replanning_;
  std::int64_t skipped_steps_;               // so far
  std::optional<planner::StepModel> model_;  // set once the config is known to fit the ranks
  run::RunPlanOptions planning_;
  run::StepPlans plans_;
  BoundStep step_, evaluate_;
  StepTally tally_;
  run::StepRecord last_record_;
  std::optional<std::string> trace_;  // of the last step, if it was planned again after it
  bool open_ = false;                 // the last step has left its end to the next one
  double norm_before_ = 0;
  bool time_step_ = false;  // the next step times its instructions
  // This rank's share of the micro batches of a step's run.
  std::vector<std::int32_t> tokens_, targets_;
  std::pair<std::int64_t, int> read_{-1, 0};  // the step and run that they are of; a step of -1: none
  double read_seconds_ = 0;                   // before the step that they are of
};

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(const config::Config& config, comm::Communicator& world,
                                                 const TrainerOptions& options) {
  auto trainer = std::make_unique<TrainerImpl>(config, world, options);
  LANCET_TRY(trainer->set_up());
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace lancet::train
