#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "event_file.h"
#include "lancet/base/atomic_file.h"
#include "lancet/base/log.h"
#include "lancet/ir/plan.h"
#include "lancet/train/agree.h"
#include "lancet/train/batches.h"
#include "lancet/train/trainer.h"

namespace lancet::train {
namespace {

// Held while a run writes into a folder; the system lets go of it when the process ends, however it ends.
class FolderLock {
 public:
  static Result<FolderLock> take(const std::filesystem::path& folder) {
    FolderLock lock;
    lock.fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock.fd_ < 0)
      return data_error(fmt::format("log.run_dir: expected a folder that can be opened at {}", folder.string()));
    if (::flock(lock.fd_, LOCK_EX | LOCK_NB) != 0)
      return data_error(fmt::format(
          "log.run_dir: expected a folder that no other run writes to, found one at work in {}", folder.string()));
    return lock;
  }
  FolderLock(FolderLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  FolderLock& operator=(FolderLock&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~FolderLock() {
    if (fd_ >= 0) ::close(fd_);
  }

 private:
  FolderLock() = default;
  int fd_ = -1;
};

// The run folder, written by rank 0 only.
class RunFolder {
 public:
  static Result<RunFolder> create(const config::Config& config, const ir::Plan& plan) {
    RunFolder folder;
    folder.path_ = config.log.run_dir;
    std::error_code error;
    std::filesystem::create_directories(folder.path_, error);
    if (error)
      return data_error(fmt::format("log.run_dir: expected a folder that can be made at {}, found: {}",
                                    folder.path_.string(), error.message()));
    LANCET_ASSIGN(folder.lock_, FolderLock::take(folder.path_));
    LANCET_TRY(write_file(folder.path_ / "config.json", config::to_json(config)));
    LANCET_TRY(write_file(folder.path_ / "plan.ir", ir::print(plan)));
    LANCET_ASSIGN(folder.metrics_, MetricsFile::create(folder.path_ / "metrics.jsonl"));
    if (config.log.tensorboard) {
      LANCET_ASSIGN(folder.events_, EventFile::create(folder.path_));
    }
    return folder;
  }
  Status record(const StepRecord& record, std::span<const LayerLoad> layers, bool expert_tokens) {
    LANCET_TRY(metrics_->write(record, layers, expert_tokens));
    return events_ ? events_->write(record.step, scalars(record, layers)) : Status();
  }
  Status held_out(std::int64_t step, double loss) {
    const Scalar scalar{"held_out/loss", loss};
    return events_ ? events_->write(step, std::span(&scalar, 1)) : Status();
  }
  Status trace(const std::string& text) const { return write_file(path_ / "trace.json", text); }

 private:
  std::filesystem::path path_;
  std::optional<FolderLock> lock_;
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
};

// Averages over the run; the first step, which warms caches up, is left out.
class Averages {
 public:
  void add(const StepRecord& record) {
    if (record.step == 1) return;
    ++steps_;
    ms_ += record.step_ms;
    exposed_ += record.exposed_ms;
    tokens_ += record.tokens_per_s * record.step_ms;
    predicted_ = record.predicted_ms.value_or(0);
  }
  std::string line() const {
    if (steps_ == 0) return "";
    return fmt::format("average over {} steps: {:.1f} ms a step, {:.0f} tok/s, exposed {:.1f} ms", steps_, ms_ / steps_,
                       tokens_ / ms_, exposed_ / steps_);
  }
  // Empty where the prediction held.
  std::string surprise() const {
    if (steps_ == 0 || predicted_ <= 0 || ms_ / steps_ < far_off * predicted_) return "";
    return fmt::format(
        "steps took {:.1f} times the predicted {:.1f} ms: the machine or its network is busier or slower than "
        "when it was profiled (lancet profile --renew all measures anew)",
        ms_ / steps_ / predicted_, predicted_);
  }
  // What `steps` more take.
  std::optional<double> seconds(std::int64_t steps) const {
    if (steps == 0) return 0;
    return steps_ > 0 ? std::optional(ms_ / steps_ * 1e-3 * double(steps)) : std::nullopt;
  }

 private:
  static constexpr double far_off = 1.5;
  double steps_ = 0, ms_ = 0, exposed_ = 0, tokens_ = 0;
  double predicted_ = 0;  // of a step; 0: not
};

class Run {
 public:
  Run(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : config_(config), world_(world), options_(options) {}

  // An error that the ranks have not agreed on may leave messages under way to or from this rank's memory, which must
  // then last as long as the process (communicator.h).
  Status operator()() {
    Status status;
    try {
      status = run();
    } catch (...) {
      static_cast<void>(trainer_.release());
      throw;
    }
    if (!status.ok() && !status.error().agreed) static_cast<void>(trainer_.release());
    return status;
  }

 private:
  Status run() {
    LANCET_ASSIGN(trainer_, Trainer::create(config_, world_, options_));
    LANCET_TRY(agree(world_, open_folder()));
    log::info("{}", trainer_->banner());
    log::info("run        {}: config.json (every field, resolved), plan.ir, metrics.jsonl", config_.log.run_dir);
    for (std::int64_t step = 0; step < config_.train.steps; ++step) {
      const auto record = trainer_->step(step);
      if (!record.ok()) {
        if (record.error().code == ExitCode::numerical) LANCET_TRY(report(trainer_->last_record()));
        return record.error();
      }
      LANCET_TRY(report(*record));
      if (step + 1 == config_.log.trace) LANCET_TRY(trace());
      const std::int64_t interval = config_.train.eval_interval;
      if (interval > 0 && (step + 1) % interval == 0 && step + 1 < config_.train.steps) LANCET_TRY(evaluate(step + 1));
    }
    LANCET_TRY(evaluate(config_.train.steps));
    for (const std::string& line : {averages_.line(), averages_.surprise()})
      if (!line.empty()) log::info("{}", line);
    return sample();
  }

  bool leads() const { return world_.rank() == 0; }

  Status open_folder() {
    if (!leads()) return {};
    LANCET_ASSIGN(folder_, RunFolder::create(config_, trainer_->executor().plan()));
    return {};
  }

  Status report(const StepRecord& record) {
    averages_.add(record);
    if (!leads()) return {};
    const std::int64_t steps = config_.train.steps;
    const bool has_line = record.step % config_.log.interval == 0 || record.step == 1 || record.step == steps;
    const auto layers = trainer_->last_layers();
    const std::size_t counts = layers.empty() ? 0 : layers.size() * layers[0].expert_tokens.size();
    LANCET_TRY(folder_->record(record, layers, has_line || counts <= most_counts));
    if (has_line) log::info("{}", step_line(record, steps, averages_.seconds(steps - record.step)));
    return {};
  }

  Status trace() {
    LANCET_ASSIGN(const std::string text, trainer_->trace());
    return agree(world_, leads() ? folder_->trace(text) : Status());
  }

  Status evaluate(std::int64_t step) {
    LANCET_ASSIGN(const std::optional<double> loss, trainer_->evaluate());
    if (!loss) return {};
    log::info("step {} | held-out loss {:.4f} | perplexity {:.2f}", step, *loss, std::exp(*loss));
    return leads() ? folder_->held_out(step, *loss) : Status();
  }

  Status sample() {
    const std::optional<data::Tokenizer>& tokenizer = trainer_->tokenizer();
    if (config_.train.sample_tokens == 0 || !tokenizer) return {};
    LANCET_ASSIGN(std::vector<std::int32_t> prompt, tokenizer->encode(config_.train.sample_prompt));
    if (prompt.empty()) prompt.push_back(std::max(tokenizer->eos(), 0));
    LANCET_ASSIGN(const std::vector<std::int32_t> ids, trainer_->generate(prompt, config_.train.sample_tokens));
    LANCET_ASSIGN(const std::string text, tokenizer->decode(ids));
    log::info("sample: {}", text);
    return {};
  }

  const config::Config& config_;
  comm::Communicator& world_;
  const TrainerOptions& options_;
  std::unique_ptr<Trainer> trainer_;
  std::optional<RunFolder> folder_;
  Averages averages_;
};

}  // namespace

Status train(const config::Config& config, comm::Communicator& world, const TrainerOptions& options) {
  return Run(config, world, options)();
}

}  // namespace lancet::train
