#include "lancet/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "banner.h"
#include "lancet/backend/cpu/matmul.h"
#include "lancet/base/log.h"
#include "lancet/base/random.h"
#include "lancet/runtime/peak.h"
#include "lancet/runtime/trace.h"
#include "lancet/train/agree.h"
#include "lancet/train/batches.h"
#include "lancet/train/learning_rate.h"
#include "lancet/train/plan.h"
#include "lancet/train/profile.h"
#include "memory.h"
#include "setup.h"
#include "weights.h"

namespace lancet::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Every rank's spans, by rank. Collective.
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
  LANCET_TRY(world.exchange(std::span(&send, 1), receives));
  return all;
}

class TrainerImpl final : public Trainer {
 public:
  TrainerImpl(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : config_(config), world_(world), options_(options), threads_(threads_of(config, options.local_ranks)) {}

  Status set_up() {
    memory_.process = resident_bytes();
    LANCET_TRY(agree(world_, config::check(config_, world_.size())));
    LANCET_TRY(check_same_config());
    LANCET_TRY(agree(world_, check_place()));
    LANCET_TRY(agree(world_, open_data()));
    LANCET_TRY(make_lanes());
    LANCET_ASSIGN(wire_, comm::measure_wire(world_));
    LANCET_TRY(measure_peak());
    LANCET_TRY(make_plans());
    LANCET_TRY(agree(world_, allocate()));
    LANCET_TRY(bind());
    initialize_weights(config_, world_.rank(), world_.size(), store_);
    flops_ = product_flops(update_.executor->plan().program);
    return {};
  }

  Result<StepRecord> step(std::int64_t step) override {
    const auto start = std::chrono::steady_clock::now();
    StepRecord record;
    record.step = step + 1;
    record.lr = learning_rate(config_.train, step);
    set_schedule(step, record.lr);
    totals_.clear();
    const auto accumulation = static_cast<int>(config_.train.gradient_accumulation_steps);
    for (int micro = 0; micro < accumulation; ++micro) {
      BoundPlan& plan = plan_of(micro);
      LANCET_TRY(fill(batches(), plan, step, micro));
      const bool traced = micro + 1 == accumulation && step + 1 == config_.log.trace;
      if (traced) LANCET_TRY(world_.barrier());  // the ranks' clocks start together
      LANCET_TRY(plan.executor->run());
      add_up(plan, record);
    }
    record.grad_norm = *update_.grad_norm;
    finish(record, seconds_since(start));
    last_record_ = record;
    if (std::isfinite(record.loss) && std::isfinite(record.grad_norm)) return record;
    const auto cause = find_cause(step);
    Error error = numerical_error(
        fmt::format("step {}: expected a finite loss and gradient norm, found loss {} and norm {}; {}", record.step,
                    record.loss, record.grad_norm, cause.ok() ? *cause : "no cause found: " + cause.error().message));
    error.agreed = cause.ok();  // both numbers are sums over the ranks
    return error;
  }

  Result<std::optional<double>> evaluate() override {
    if (!evaluation_) return std::optional<double>();
    double sum = 0;  // over tokens; a plan's loss is divided by the tokens of a full batch
    const double batch_tokens = double(config_.train.micro_batch_size * config_.train.seq_len) * world_.size();
    for (std::int64_t i = 0; i < evaluation_->count; ++i) {
      LANCET_TRY(fill(*evaluation_->batches, evaluate_, i, 0));
      LANCET_TRY(evaluate_.executor->run());
      sum += double(*evaluate_.loss) * batch_tokens;
    }
    return std::optional<double>(sum / double(evaluation_->sequences * config_.train.seq_len));
  }

  Result<std::vector<std::int32_t>> generate(std::vector<std::int32_t> prompt, std::int64_t count) override;

  Result<std::string> trace() override {
    LANCET_ASSIGN(const auto spans, gather_spans(world_, update_.executor->spans()));
    if (world_.rank() != 0) return std::string();
    return runtime::trace_json(update_plan_, spans);
  }

  const StepRecord& last_record() const override { return last_record_; }
  std::span<const LayerLoad> last_layers() const override { return layers_; }
  const std::optional<data::Tokenizer>& tokenizer() const override { return tokenizer_; }
  runtime::TensorStore& store() override { return store_; }
  runtime::Executor& executor() override { return *update_.executor; }

  std::string banner() const override {
    std::string text = train::banner(config_, world_.size(), threads_, wire_, memory_, peak_) + "\n" +
                       describe_plan(update_plan_, report_);
    if (const std::string warning = comm::slow_wire_warning(wire_); !warning.empty()) text += "\n" + warning;
    return text;
  }

 private:
  // A plan bound to memory, with what a step reads and writes looked up once. Null where the plan has no such output.
  struct BoundPlan {
    std::unique_ptr<runtime::Executor> executor;
    std::span<std::int32_t> tokens, targets;
    const float* loss = nullptr;
    const float* grad_norm = nullptr;
    float* schedule = nullptr;
    std::vector<const float*> aux;
    std::vector<std::span<const float>> load;  // [2,E] each
  };

  // Of one step, over its micro batches.
  struct Totals {
    runtime::StepTimes times;
    std::vector<double> chosen, kept;  // per MoE layer and expert, over the whole batch
    void clear() {
      times = {};
      std::fill(chosen.begin(), chosen.end(), 0);
      std::fill(kept.begin(), kept.end(), 0);
    }
  };

  // Each rank reads its own copy of the file; they must say the same.
  Status check_same_config() {
    const std::string mine = config::to_json(config_);
    LANCET_ASSIGN(const std::string first, broadcast_text(world_, mine, 0));
    return agree(world_,
                 mine == first
                     ? Status()
                     : Status(config_error("expected the same config on all ranks, found another than rank 0's")));
  }

  // What the config asks of the machine that this program or this start cannot give.
  Status check_place() const {
    if (config_.device != config::Device::cpu)
      return config_error(fmt::format("device: expected cpu, the only backend of this program, found {}",
                                      config::name(config_.device)));
    const std::string transport = world_.transport();
    const bool asks_mpi = config_.comm.transport == config::Transport::mpi,
               asks_self = config_.comm.transport == config::Transport::self;
    if (asks_mpi && transport == "self")
      return config_error(
          "comm.transport: expected a start by mpirun or srun with several ranks for mpi, found one rank alone");
    if (asks_self && world_.size() > 1)
      return config_error(fmt::format("comm.transport: expected one rank for self, found {}", world_.size()));
    return {};
  }

  Status open_data() {
    if (options_.batches) return {};
    LANCET_TRY(config::check_data(config_));
    LANCET_ASSIGN(tokenizer_, load_tokenizer(config_));
    LANCET_ASSIGN(batches_, training_batches(config_, tokenizer_, world_.rank(), world_.size()));
    LANCET_ASSIGN(evaluation_, evaluation_batches(config_, tokenizer_, world_.rank(), world_.size()));
    return {};
  }

  // A communicator a lane: all-to-alls and all-reduces do not wait for each other's turn.
  Status make_lanes() {
    world_.set_timeout(std::chrono::milliseconds(static_cast<std::int64_t>(config_.comm.timeout_s * 1000)));
    for (ir::Lane lane : {ir::Lane::expert, ir::Lane::reduce}) {
      LANCET_ASSIGN(auto communicator, world_.duplicate());
      communicator->set_timeout(std::chrono::milliseconds(static_cast<std::int64_t>(config_.comm.timeout_s * 1000)));
      communicator->set_name(std::string(ir::name(lane)));
      lanes_[static_cast<std::size_t>(lane)] = std::move(communicator);
    }
    return {};
  }

  Status measure_peak() {
    if (config_.log.peak_tflops) {
      peak_ = {*config_.log.peak_tflops * 1e12, true};
      return {};
    }
    LANCET_TRY(world_.barrier());  // all ranks of a host at once, as in a step
    peak_ = {runtime::measure_product_peak(config_.train.dtype, threads_), false};
    return world_.barrier();
  }

  Status make_plans() {
    const int ranks = world_.size();
    if (!options_.plan_file.empty()) {
      LANCET_ASSIGN(update_plan_, read_same_plan(options_.plan_file, config_, world_));
      report_.chosen = report_.asked = update_plan_.header.text("policy");
      return make_evaluate_plan();
    }
    std::optional<cost::Profile> profile;
    const cost::Costs* costs = options_.costs;
    if (config_.overlap.policy != config::Policy::sequential && ranks > 1 && !costs) {
      LANCET_ASSIGN(profile,
                    ensure_profile(config_, world_, step_programs(config_, ranks),
                                   {.local_ranks = options_.local_ranks, .default_path = options_.default_profile}));
      costs = &*profile;
    }
    if (!costs && world_.rank() == 0) {
      profile = known_costs();
      if (profile) costs = &*profile;
    }
    const bool chooses = config_.overlap.policy != config::Policy::sequential;
    LANCET_ASSIGN(update_plan_, plan_on_first(true, costs, chooses ? &report_ : nullptr));
    if (config_.train.gradient_accumulation_steps > 1) {
      LANCET_ASSIGN(micro_plan_, plan_on_first(false, costs, nullptr));
    }
    return make_evaluate_plan();
  }

  // Of a run that needs no costs: those that the file happens to hold, so that its step is predicted, too.
  std::optional<cost::Profile> known_costs() const {
    const std::string path = config_.overlap.profile.empty() ? options_.default_profile : config_.overlap.profile;
    if (path.empty()) return {};
    auto held = cost::read_profile(path, place_of(config_, world_, options_.local_ranks));
    if (!held.ok()) return {};
    const bool accumulates = config_.train.gradient_accumulation_steps > 1;
    for (const bool update : {true, false})
      if ((update || accumulates) && !plan_step(config_, world_.size(), update, false, &*held).ok()) return {};
    return *std::move(held);
  }

  // Planning is rank 0's; the others learn what it found.
  Result<ir::Plan> plan_on_first(bool update, const cost::Costs* costs, planner::PlanReport* report) {
    if (world_.rank() != 0) return share_plan(world_, ir::Plan());
    const bool inspect = update && options_.inspect;
    return share_plan(world_, plan_step(config_, world_.size(), update, inspect, costs, report));
  }

  Status make_evaluate_plan() {
    if (evaluation_) {
      LANCET_ASSIGN(evaluate_plan_, share_plan(world_, plan_forward(config_, model::Mode::evaluate, world_.size())));
    }
    return {};
  }

  // Refuses at start what would not fit; then takes the memory.
  Status allocate() {
    for (const ir::Tensor& tensor : update_plan_.program.tensors) {
      if (tensor.kind == ir::TensorKind::parameter) memory_.parameters += ir::bytes(tensor.type);
      if (tensor.kind == ir::TensorKind::state) memory_.state += ir::bytes(tensor.type);
    }
    memory_.arena = update_plan_.arena_bytes;
    if (micro_plan_) memory_.arena = std::max(memory_.arena, micro_plan_->arena_bytes);
    if (evaluate_plan_) memory_.arena = std::max(memory_.arena, evaluate_plan_->arena_bytes);
    const std::int64_t needed = memory_.parameters + memory_.state + memory_.arena;
    const auto available = available_bytes();
    if (available && needed > *available / options_.local_ranks)
      return config_error(
          fmt::format("expected {} MB of free memory a rank ({} parameters, {} optimizer, {} activations), found {} MB",
                      needed / 1'000'000, memory_.parameters / 1'000'000, memory_.state / 1'000'000,
                      memory_.arena / 1'000'000, *available / options_.local_ranks / 1'000'000));
    try {
      arena_ = backend::cpu::Buffer::raw(static_cast<std::size_t>(memory_.arena));
      store_.add(update_plan_.program);
      if (micro_plan_) store_.add(micro_plan_->program);
    } catch (const std::bad_alloc&) {
      return config_error(fmt::format("expected {} MB of memory a rank, found less", needed / 1'000'000));
    }
    return {};
  }

  Status bind() {
    LANCET_ASSIGN(update_, bind(update_plan_));
    if (micro_plan_) {
      LANCET_ASSIGN(micro_, bind(*micro_plan_));
    }
    if (evaluate_plan_) {
      LANCET_ASSIGN(evaluate_, bind(*evaluate_plan_));
    }
    std::size_t experts = 0;
    for (const auto& load : update_.load) experts += load.size() / 2;
    totals_.chosen.resize(experts);
    totals_.kept.resize(experts);
    layers_.resize(update_.load.size());
    memory_.workspace = threads_ * std::int64_t(backend::cpu::matmul_scratch_bytes());
    for (const BoundPlan* plan : {&update_, &micro_, &evaluate_})
      if (plan->executor) memory_.workspace += plan->executor->workspace_bytes();
    return {};
  }

  Result<BoundPlan> bind(const ir::Plan& plan) {
    runtime::ExecutorOptions options{.threads = threads_, .communicators = {}, .arena = &arena_};
    for (std::size_t lane = 0; lane < ir::lane_count; ++lane) options.communicators[lane] = lanes_[lane].get();
    BoundPlan bound;
    LANCET_ASSIGN(bound.executor, runtime::Executor::create(plan, store_, options));
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
      if (output.name.starts_with("aux.")) bound.aux.push_back(view.as<float>());
      if (output.name.starts_with("load."))
        bound.load.emplace_back(view.as<float>(), static_cast<std::size_t>(view.elements()));
    }
    return bound;
  }

  Batches& batches() { return options_.batches ? *options_.batches : *batches_; }
  BoundPlan& plan_of(int micro) { return micro + 1 < config_.train.gradient_accumulation_steps ? micro_ : update_; }

  // Where a step that failed first left the finite numbers: runs its micro batches again, on the same weights. Of
  // several ranks the one that came to it first is named: from there it travelled. Collective.
  Result<std::string> find_cause(std::int64_t step) {
    for (int micro = 0; micro < config_.train.gradient_accumulation_steps; ++micro) {
      BoundPlan& plan = plan_of(micro);
      LANCET_TRY(fill(batches(), plan, step, micro));
      LANCET_ASSIGN(const auto found, plan.executor->find_non_finite());
      constexpr std::int64_t nowhere = std::numeric_limits<std::int64_t>::max();
      LANCET_ASSIGN(const auto places, gather(world_, found ? found->place : nowhere));
      const auto first = std::min_element(places.begin(), places.end());
      if (*first == nowhere) continue;
      const int rank = static_cast<int>(first - places.begin());
      std::string mine = found ? runtime::to_string(plan.executor->plan().program, *found) : "";
      if (found && !found->instruction.valid() && config_.train.clip_grad == 0)
        mine += "; it may be a consequence: without train.clip_grad the step's updates do not wait for the norm";
      LANCET_ASSIGN(const std::string text, broadcast_text(world_, mine, rank));
      return fmt::format("first not finite on rank {} in micro batch {}: {}", rank, micro, text);
    }
    return std::string("every tensor is finite when the step is run again");
  }

  void set_schedule(std::int64_t step, double lr) {
    const double t = double(step + 1);
    update_.schedule[0] = float(lr);
    update_.schedule[1] = float(1 - std::pow(config_.train.adam_beta1, t));
    update_.schedule[2] = float(1 - std::pow(config_.train.adam_beta2, t));
  }

  // A rank whose data cannot be read must not leave its own lanes in a collective: it aborts them.
  Status fill(Batches& batches, BoundPlan& plan, std::int64_t step, int micro) {
    Status status = batches.fill(step, micro, plan.tokens, plan.targets);
    if (!status.ok())
      for (auto& lane : lanes_)
        if (lane) lane->abort(status.error().message);
    return status;
  }

  void add_up(const BoundPlan& plan, StepRecord& record) {
    record.loss += *plan.loss;
    for (const float* aux : plan.aux) record.aux_loss += *aux;
    std::size_t at = 0;
    for (const std::span<const float> load : plan.load) {
      const std::size_t experts = load.size() / 2;
      for (std::size_t e = 0; e < experts; ++e, ++at) {
        totals_.chosen[at] += load[e];
        totals_.kept[at] += load[experts + e];
      }
    }
    const runtime::StepTimes times = plan.executor->times();
    totals_.times.compute += times.compute;
    totals_.times.all_to_all += times.all_to_all;
    totals_.times.all_reduce += times.all_reduce;
    totals_.times.communication += times.communication;
    totals_.times.exposed += times.exposed;
  }

  // Of the whole step, as the plans' headers say.
  std::optional<double> predicted_ms() const {
    auto of = [](const ir::Plan& plan) { return plan.header.real("predicted_ms", 0); };
    double ms = of(update_plan_);
    if (ms <= 0) return {};
    if (micro_plan_) ms += double(config_.train.gradient_accumulation_steps - 1) * of(*micro_plan_);
    return ms;
  }

  void finish(StepRecord& record, double seconds) {
    const config::Train& train = config_.train;
    const double tokens =
        double(train.micro_batch_size * train.seq_len * train.gradient_accumulation_steps) * world_.size();
    record.step_ms = seconds * 1e3;
    record.predicted_ms = predicted_ms();
    record.tokens_per_s = tokens / seconds;
    record.compute_ms = totals_.times.compute;
    record.a2a_ms = totals_.times.all_to_all;
    record.allreduce_ms = totals_.times.all_reduce;
    if (world_.size() > 1) {  // a rank alone only copies
      record.exposed_ms = totals_.times.exposed;
      if (totals_.times.communication > 0)
        record.hidden_pct = 100 * (1 - totals_.times.exposed / totals_.times.communication);
    }
    double filled = 0;  // of the slots that the experts' flops were counted on
    if (!update_.load.empty()) filled = balance(record);
    const double flops = double(train.gradient_accumulation_steps) * (flops_.dense + filled * flops_.experts);
    if (peak_.flops > 0) record.mfu = 100 * flops / seconds / peak_.flops;
  }

  // Fills in load, drops and dead experts; returns the share of slots that held a token.
  double balance(StepRecord& record) {
    const std::size_t layers = update_.load.size(), experts = totals_.chosen.size() / layers;
    double chosen = 0, kept = 0, unevenness = 0;
    std::int64_t dead = 0;
    for (std::size_t layer = 0; layer < layers; ++layer) {
      double most = 0, sum = 0, fitted = 0;
      for (std::size_t e = layer * experts; e < (layer + 1) * experts; ++e) {
        most = std::max(most, totals_.chosen[e]);
        sum += totals_.chosen[e];
        fitted += totals_.kept[e];
        dead += totals_.chosen[e] == 0;
      }
      chosen += sum;
      kept += fitted;
      layers_[layer] = {most * double(experts) / sum, 100 * (1 - fitted / sum)};
      unevenness += layers_[layer].max_over_mean;
    }
    record.load_max_over_mean = unevenness / double(layers);
    record.drop_pct = 100 * (1 - kept / chosen);
    record.dead_experts = dead;
    const std::int64_t tokens = config_.train.micro_batch_size * config_.train.seq_len;
    const double slots =
        double(experts) * double(model::capacity(config_.model.capacity_factor, tokens, std::int64_t(experts)));
    return kept / (slots * double(layers) * double(world_.size()) * double(config_.train.gradient_accumulation_steps));
  }

  const config::Config config_;
  comm::Communicator& world_;
  const TrainerOptions options_;
  const int threads_;
  MemoryPlan memory_;
  comm::WireReport wire_;
  Peak peak_;
  ProductFlops flops_;
  std::array<std::unique_ptr<comm::Communicator>, ir::lane_count> lanes_;
  std::optional<data::Tokenizer> tokenizer_;
  std::unique_ptr<Batches> batches_;
  std::optional<Evaluation> evaluation_;
  runtime::TensorStore store_;
  backend::cpu::Buffer arena_;
  ir::Plan update_plan_;
  planner::PlanReport report_;  // on rank 0
  std::optional<ir::Plan> micro_plan_, evaluate_plan_;
  BoundPlan update_, micro_, evaluate_;
  Totals totals_;
  StepRecord last_record_;
  std::vector<LayerLoad> layers_;
};

Result<std::vector<std::int32_t>> TrainerImpl::generate(std::vector<std::int32_t> ids, std::int64_t count) {
  LANCET_ASSIGN(const ir::Plan plan, share_plan(world_, plan_forward(config_, model::Mode::generate, world_.size())));
  runtime::ExecutorOptions options{.threads = threads_, .communicators = {}, .arena = nullptr};
  for (std::size_t lane = 0; lane < ir::lane_count; ++lane) options.communicators[lane] = lanes_[lane].get();
  LANCET_ASSIGN(const auto executor, runtime::Executor::create(plan, store_, options));
  const ops::TensorView tokens = executor->input("tokens"), logits = executor->output("logits");
  const std::int64_t window = tokens.shape()[1], vocabulary = config_.model.vocab_size;
  const Philox random(static_cast<std::uint64_t>(config_.train.seed), stream_of("sample"));
  std::vector<double> cumulative(static_cast<std::size_t>(vocabulary));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = std::min<std::int64_t>(std::int64_t(ids.size()), window);
    std::fill_n(tokens.as<std::int32_t>(), window, 0);  // later positions do not reach earlier ones
    std::copy(ids.end() - length, ids.end(), tokens.as<std::int32_t>());
    LANCET_TRY(executor->run());
    auto logit = [&](std::int64_t v) {
      const std::int64_t at = (length - 1) * logits.shape()[2] + v;
      return logits.dtype() == DType::bf16 ? to_f32(logits.as<bf16>()[at]) : logits.as<float>()[at];
    };
    float top = logit(0);
    for (std::int64_t v = 1; v < vocabulary; ++v) top = std::max(top, logit(v));
    double sum = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) cumulative[std::size_t(v)] = sum += std::exp(double(logit(v)) - top);
    const double drawn = double(random.uniform(static_cast<std::uint64_t>(i))) * sum;
    const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), drawn) - cumulative.begin();
    ids.push_back(static_cast<std::int32_t>(std::min<std::int64_t>(at, vocabulary - 1)));
  }
  return ids;
}

}  // namespace

Result<std::unique_ptr<Trainer>> Trainer::create(const config::Config& config, comm::Communicator& world,
                                                 const TrainerOptions& options) {
  auto trainer = std::make_unique<TrainerImpl>(config, world, options);
  LANCET_TRY(trainer->set_up());
  return std::unique_ptr<Trainer>(std::move(trainer));
}

}  // namespace lancet::train
