#include "lancet/train/trainer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <thread>

#include "banner.h"
#include "lancet/backend/cpu/matmul.h"
#include "lancet/base/log.h"
#include "lancet/base/random.h"
#include "lancet/runtime/peak.h"
#include "lancet/train/agree.h"
#include "lancet/train/batches.h"
#include "lancet/train/learning_rate.h"
#include "setup.h"
#include "weights.h"

namespace lancet::train {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int threads_of(const config::Config& config, int local_ranks) {
  if (config.threads > 0) return static_cast<int>(config.threads);
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / local_ranks);
}

class TrainerImpl final : public Trainer {
 public:
  TrainerImpl(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : config_(config), world_(world), options_(options), threads_(threads_of(config, options.local_ranks)) {}

  Status set_up() {
    memory_.process = resident_bytes();
    const int ranks = world_.size();
    LANCET_TRY(agree(world_, config::check(config_, ranks)));
    LANCET_TRY(agree(world_, check_place()));
    LANCET_TRY(agree(world_, open_data()));
    LANCET_TRY(make_lanes());
    LANCET_ASSIGN(wire_, comm::measure_wire(world_));
    LANCET_TRY(measure_peak());
    LANCET_ASSIGN(ir::Plan plan, share_plan(world_, plan_step(config_, ranks, true, options_.inspect)));
    arena_bytes_ = plan.arena_bytes;
    store_.add(plan.program);
    std::optional<ir::Plan> micro, evaluate;
    if (config_.train.gradient_accumulation_steps > 1) {
      LANCET_ASSIGN(micro, share_plan(world_, plan_step(config_, ranks, false, false)));
      arena_bytes_ = std::max(arena_bytes_, micro->arena_bytes);
      store_.add(micro->program);
    }
    if (evaluation_) {
      LANCET_ASSIGN(evaluate, share_plan(world_, plan_forward(config_, model::Mode::evaluate, ranks)));
      arena_bytes_ = std::max(arena_bytes_, evaluate->arena_bytes);
    }
    LANCET_TRY(agree(world_, allocate_arena()));
    LANCET_ASSIGN(executor_, bind(plan));
    if (micro) {
      LANCET_ASSIGN(micro_, bind(*micro));
    }
    if (evaluate) {
      LANCET_ASSIGN(evaluator_, bind(*evaluate));
    }
    initialize_weights(config_, world_.rank(), ranks, store_);
    flops_ = product_flops(plan.program);
    find_layers(plan.program);
    return {};
  }

  Result<StepRecord> step(std::int64_t step) override {
    const auto start = std::chrono::steady_clock::now();
    StepRecord record;
    record.step = step + 1;
    record.lr = learning_rate(config_.train, step);
    set_schedule(step, record.lr);
    Totals totals;
    const auto accumulation = static_cast<int>(config_.train.gradient_accumulation_steps);
    for (int micro = 0; micro < accumulation; ++micro) {
      runtime::Executor& executor = micro + 1 < accumulation ? *micro_ : *executor_;
      LANCET_TRY(fill(options_.batches ? *options_.batches : *batches_, executor, step, micro));
      LANCET_TRY(executor.run());
      add_up(executor, record, totals);
    }
    record.grad_norm = executor_->output("grad_norm").as<float>()[0];
    finish(record, totals, seconds_since(start));
    if (std::isfinite(record.loss) && std::isfinite(record.grad_norm)) return record;
    Error error = numerical_error(fmt::format("step {}: expected a finite loss and gradient norm, found loss {} and norm {}",
                                              record.step, record.loss, record.grad_norm));
    error.agreed = true;  // both numbers are sums over the ranks
    return error;
  }

  Result<std::optional<double>> evaluate() override {
    if (!evaluation_) return std::optional<double>();
    double sum = 0;
    for (std::int64_t i = 0; i < evaluation_->count; ++i) {
      LANCET_TRY(fill(*evaluation_->batches, *evaluator_, i, 0));
      LANCET_TRY(evaluator_->run());
      sum += evaluator_->output("loss").as<float>()[0];
    }
    return std::optional<double>(sum / double(evaluation_->count));
  }

  Result<std::vector<std::int32_t>> generate(std::vector<std::int32_t> prompt, std::int64_t count) override;

  runtime::TensorStore& store() override { return store_; }
  runtime::Executor& executor() override { return *executor_; }

  std::string banner() const override {
    MemoryPlan memory = memory_;
    memory.parameters = store_.bytes(ir::TensorKind::parameter);
    memory.state = store_.bytes(ir::TensorKind::state);
    memory.arena = arena_bytes_;
    memory.workspace = executor_->workspace_bytes() + threads_ * std::int64_t(backend::cpu::matmul_scratch_bytes());
    if (evaluator_) memory.workspace += evaluator_->workspace_bytes();
    if (micro_) memory.workspace += micro_->workspace_bytes();
    std::string text = train::banner(config_, world_.size(), threads_, wire_, memory, peak_, executor_->plan());
    if (const std::string warning = comm::slow_wire_warning(wire_); !warning.empty()) text += "\n" + warning;
    return text;
  }

 private:
  struct Totals {
    runtime::StepTimes times;
    std::vector<double> chosen, kept;  // per MoE layer and expert, over the whole batch
  };

  // What the config asks of the machine that this program or this start cannot give.
  Status check_place() const {
    if (config_.device != config::Device::cpu)
      return config_error(fmt::format("device: expected cpu, the only backend of this program, found {}", config::name(config_.device)));
    const std::string transport = world_.transport();
    const bool asks_mpi = config_.comm.transport == config::Transport::mpi, asks_self = config_.comm.transport == config::Transport::self;
    if (asks_mpi && transport == "self")
      return config_error("comm.transport: expected a start by mpirun or srun with several ranks for mpi, found one rank alone");
    if (asks_self && world_.size() > 1)
      return config_error(fmt::format("comm.transport: expected one rank for self, found {}", world_.size()));
    return {};
  }

  Status open_data() {
    if (options_.batches) return {};
    LANCET_TRY(config::check_data(config_));
    LANCET_ASSIGN(batches_, training_batches(config_, world_.rank(), world_.size()));
    LANCET_ASSIGN(evaluation_, evaluation_batches(config_, world_.rank(), world_.size()));
    return {};
  }

  // A communicator a lane: all-to-alls and all-reduces do not wait for each other's turn.
  Status make_lanes() {
    world_.set_timeout(std::chrono::milliseconds(static_cast<std::int64_t>(config_.comm.timeout_s * 1000)));
    for (ir::Lane lane : {ir::Lane::expert, ir::Lane::reduce}) {
      LANCET_ASSIGN(auto communicator, world_.duplicate());
      communicator->set_timeout(std::chrono::milliseconds(static_cast<std::int64_t>(config_.comm.timeout_s * 1000)));
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

  Status allocate_arena() {
    try {
      arena_ = backend::cpu::Buffer::raw(static_cast<std::size_t>(arena_bytes_));
    } catch (const std::bad_alloc&) {
      return config_error(fmt::format("expected {} MB of memory for the arena of a rank, found less", arena_bytes_ / 1'000'000));
    }
    return {};
  }

  Result<std::unique_ptr<runtime::Executor>> bind(const ir::Plan& plan) {
    runtime::ExecutorOptions options{.threads = threads_, .communicators = {}, .arena = &arena_};
    for (std::size_t lane = 0; lane < ir::lane_count; ++lane) options.communicators[lane] = lanes_[lane].get();
    return runtime::Executor::create(plan, store_, options);
  }

  void find_layers(const ir::Program& program) {
    for (const ir::Output& output : program.outputs) {
      if (output.name.starts_with("aux.")) aux_.push_back(output.name);
      if (output.name.starts_with("load.")) load_.push_back(output.name);
    }
  }

  void set_schedule(std::int64_t step, double lr) {
    float* schedule = executor_->input("schedule").as<float>();
    const double t = double(step + 1);
    schedule[0] = float(lr);
    schedule[1] = float(1 - std::pow(config_.train.adam_beta1, t));
    schedule[2] = float(1 - std::pow(config_.train.adam_beta2, t));
  }

  // A rank whose data cannot be read must not leave the others in a collective: it aborts them.
  Status fill(Batches& batches, runtime::Executor& executor, std::int64_t step, int micro) {
    const ops::TensorView tokens = executor.input("tokens"), targets = executor.input("targets");
    const auto size = static_cast<std::size_t>(tokens.elements());
    Status status = batches.fill(step, micro, {tokens.as<std::int32_t>(), size}, {targets.as<std::int32_t>(), size});
    if (!status.ok())
      for (auto& lane : lanes_)
        if (lane) lane->abort(status.error().message);
    return status;
  }

  void add_up(runtime::Executor& executor, StepRecord& record, Totals& totals) {
    record.loss += executor.output("loss").as<float>()[0];
    for (const std::string& name : aux_) record.aux_loss += executor.output(name).as<float>()[0];
    std::size_t at = 0;
    for (const std::string& name : load_) {
      const ops::TensorView load = executor.output(name);
      const auto experts = static_cast<std::size_t>(load.shape()[1]);
      totals.chosen.resize(std::max(totals.chosen.size(), at + experts));
      totals.kept.resize(totals.chosen.size());
      for (std::size_t e = 0; e < experts; ++e) {
        totals.chosen[at + e] += load.as<float>()[e];
        totals.kept[at + e] += load.as<float>()[experts + e];
      }
      at += experts;
    }
    const runtime::StepTimes times = executor.times();
    totals.times.compute += times.compute;
    totals.times.all_to_all += times.all_to_all;
    totals.times.all_reduce += times.all_reduce;
    totals.times.communication += times.communication;
    totals.times.exposed += times.exposed;
  }

  void finish(StepRecord& record, const Totals& totals, double seconds) const {
    const config::Train& train = config_.train;
    const double tokens = double(train.micro_batch_size * train.seq_len * train.gradient_accumulation_steps) * world_.size();
    record.step_ms = seconds * 1e3;
    record.tokens_per_s = tokens / seconds;
    record.compute_ms = totals.times.compute;
    record.a2a_ms = totals.times.all_to_all;
    record.allreduce_ms = totals.times.all_reduce;
    record.exposed_ms = totals.times.exposed;
    if (world_.size() > 1 && totals.times.communication > 0)
      record.hidden_pct = 100 * (1 - totals.times.exposed / totals.times.communication);
    double filled = 0;  // of the slots that the experts' flops were counted on
    if (!load_.empty()) filled = balance(record, totals);
    const double flops = double(train.gradient_accumulation_steps) * (flops_.dense + filled * flops_.experts);
    if (peak_.flops > 0) record.mfu = 100 * flops / seconds / peak_.flops;
  }

  // Fills in load, drops and dead experts; returns the share of slots that held a token.
  double balance(StepRecord& record, const Totals& totals) const {
    const std::size_t experts = totals.chosen.size() / load_.size();
    double chosen = 0, kept = 0, unevenness = 0;
    std::int64_t dead = 0;
    for (std::size_t layer = 0; layer < load_.size(); ++layer) {
      double most = 0, sum = 0;
      for (std::size_t e = layer * experts; e < (layer + 1) * experts; ++e) {
        most = std::max(most, totals.chosen[e]);
        sum += totals.chosen[e];
        kept += totals.kept[e];
        dead += totals.chosen[e] == 0;
      }
      chosen += sum;
      unevenness += most * double(experts) / sum;
    }
    record.load_max_over_mean = unevenness / double(load_.size());
    record.drop_pct = 100 * (1 - kept / chosen);
    record.dead_experts = dead;
    const double tokens = double(config_.train.micro_batch_size * config_.train.seq_len);
    const double slots = double(experts) * double(model::capacity(config_.model.capacity_factor, std::int64_t(tokens), std::int64_t(experts)));
    return kept / (slots * double(load_.size()) * double(world_.size()) * double(config_.train.gradient_accumulation_steps));
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
  std::unique_ptr<Batches> batches_;
  std::optional<Evaluation> evaluation_;
  runtime::TensorStore store_;
  backend::cpu::Buffer arena_;
  std::int64_t arena_bytes_ = 0;
  std::vector<std::string> aux_, load_;
  std::unique_ptr<runtime::Executor> executor_, micro_, evaluator_;
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
