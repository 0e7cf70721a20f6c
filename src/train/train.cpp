#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cmath>
#include <csignal>
#include <filesystem>

#include "emulated.h"
#include "event_file.h"
#include "lancet/base/atomic_file.h"
#include "lancet/base/hash.h"
#include "lancet/base/log.h"
#include "lancet/ir/plan.h"
#include "lancet/train/agree.h"
#include "lancet/train/batches.h"
#include "lancet/train/learning_rate.h"
#include "lancet/train/trainer.h"
#include "saver.h"
#include "start.h"

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
  // resumed: the step that the run goes on after.
  static Result<RunFolder> create(const config::Config& config, const ir::Plan& plan,
                                  std::optional<std::int64_t> resumed) {
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
    LANCET_TRY(folder.open_records(resumed));
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
  // What stands there of steps that will run again gives way.
  Status open_records(std::optional<std::int64_t> resumed) {
    const std::filesystem::path checkpoints = path_ / "checkpoints", metrics = path_ / "metrics.jsonl";
    LANCET_TRY(checkpoint::remove_leftovers(checkpoint::disk(), checkpoints));
    if (!resumed) {
      LANCET_ASSIGN(metrics_, MetricsFile::create(metrics));
      return {};
    }
    LANCET_ASSIGN(const int aside, checkpoint::set_aside_after(checkpoint::disk(), checkpoints, *resumed));
    if (aside > 0) log::info("{}: {} later checkpoint(s) renamed to .old", checkpoints.string(), aside);
    LANCET_ASSIGN(metrics_, MetricsFile::resume(metrics, *resumed));
    return {};
  }

  std::filesystem::path path_;
  std::optional<FolderLock> lock_;
  std::optional<MetricsFile> metrics_;
  std::optional<EventFile> events_;
};

// Averages over the run; the first step, which warms caches up, is left out.
class Averages {
 public:
  void add(const StepRecord& record) {
    if (first_) {
      first_ = false;
      return;
    }
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
  bool first_ = true;
  double steps_ = 0, ms_ = 0, exposed_ = 0, tokens_ = 0;
  double predicted_ = 0;  // of a step; 0: not
};

class Run {
 public:
  Run(const config::Config& config, comm::Communicator& world, const TrainerOptions& options)
      : asked_(config), config_(config), world_(world), options_(options) {}

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
    LANCET_ASSIGN(const Start start, find_start(asked_, options_, world_));
    LANCET_TRY(begin(start));
    LANCET_TRY(agree(world_, open_folder(start)));
    log::info("{}", trainer_->banner());
    log::info("run        {}: config.json (every field, resolved), plan.ir, metrics.jsonl", config_.log.run_dir);
    announce(start);
    saver_.emplace(config_, world_, trainer_->store());
    const std::int64_t steps = config_.train.steps;
    while (position_.step < steps) {
      const std::int64_t step = position_.step;
      auto record = trainer_->step(step);
      if (!record.ok()) {
        if (record.error().code != ExitCode::numerical) return record.error();
        LANCET_TRY(report(trainer_->last_record()));
        if (record.error().agreed) LANCET_TRY(saver_->finish());  // what was copied before is worth keeping
        return record.error();
      }
      count(*record);
      LANCET_ASSIGN(bool stop, step_end());
      stop = stop && step + 1 < steps;
      if ((stop && can_save()) || save_is_due()) LANCET_TRY(save(&*record));
      LANCET_TRY(report(*record));
      if (stop) return leave();
      if (step + 1 == config_.log.trace) LANCET_TRY(trace());
      const std::int64_t interval = config_.train.eval_interval;
      if (interval > 0 && (step + 1) % interval == 0 && step + 1 < steps) {
        LANCET_TRY(evaluate(step + 1));
        LANCET_ASSIGN(stop, any(world_, signalled()));
        if (stop) return leave();
      }
    }
    LANCET_TRY(evaluate(config_.train.steps));
    for (const std::string& line : {averages_.line(), averages_.surprise()})
      if (!line.empty()) log::info("{}", line);
    LANCET_TRY(saver_->finish());
    if (const auto& failure = saver_->last_failure())
      return Error{ExitCode::data, "the run ended, but its last checkpoint was not saved: " + failure->message, true};
    return sample();
  }

  // The first checkpoint of the start's that is whole, or none. Collective.
  Status begin(const Start& start) {
    if (start.kind == Start::Kind::anew) {
      LANCET_ASSIGN(trainer_, Trainer::create(config_, world_, options_));
      return {};
    }
    Error damage;
    for (const std::filesystem::path& folder : start.folders) {
      LANCET_ASSIGN(const bool begun, begin_at(folder, start.kind, damage));
      if (begun) return {};
      if (leads() && start.folders.size() > 1) log::warn("not whole, left out: {}", damage.message);
    }
    if (start.folders.size() > 1 || !start.asked)
      damage.message = fmt::format(
          "expected a whole checkpoint among the {} in {}, found none; to begin anew, rename that "
          "folder. The last one: {}",
          start.folders.size(), start.folders[0].parent_path().string(), damage.message);
    return damage;
  }

  // False, with the error in `damage`, where the checkpoint is not whole.
  Result<bool> begin_at(const std::filesystem::path& folder, Start::Kind kind, Error& damage) {
    auto found = checkpoint::Checkpoint::open(folder);
    if (const Status all = agree(world_, found.ok() ? Status() : Status(found.error())); !all.ok()) {
      if (!all.error().agreed || all.error().code != ExitCode::data) return all.error();
      damage = all.error();
      return false;
    }
    notes_.clear();
    const int ranks = world_.size();
    auto adapted = adapt(asked_, *found, kind, ranks, notes_);
    LANCET_TRY(agree(world_, adapted.ok() ? Status() : Status(adapted.error())));
    config_ = *std::move(adapted);
    position_ = {};
    if (kind == Start::Kind::resume) position_ = position_of(found->manifest(), config_, ranks);
    TrainerOptions options = options_;
    options.sample_offset = position_.sample_offset;
    trainer_.reset();
    LANCET_ASSIGN(trainer_, Trainer::create(config_, world_, options));
    const Take take = kind == Start::Kind::resume ? Take::all : Take::weights;
    const Status loaded = agree(world_, load_tensors(trainer_->store(), *found, world_.rank(), ranks, take));
    if (loaded.ok()) {
      if (kind == Start::Kind::resume && found->manifest().plan != plan_hash() && found->manifest().ranks == ranks)
        notes_.push_back("another plan than the one saved under: sums may round otherwise in the last bits");
      from_ = folder;
      saved_on_ = found->manifest().ranks;
      saved_step_ = found->manifest().step;
      return true;
    }
    if (!loaded.error().agreed || loaded.error().code != ExitCode::data) return loaded.error();
    damage = loaded.error();
    return false;
  }

  void announce(const Start& start) const {
    if (start.kind == Start::Kind::resume)
      log::info("resume     after step {} from {}, saved on {} rank{}", position_.step, from_.string(), saved_on_,
                saved_on_ == 1 ? "" : "s");
    if (start.kind == Start::Kind::weights) log::info("weights    of step {} from {}", saved_step_, from_.string());
    for (const std::string& note : notes_) log::info("           {}", note);
    const config::Train& train = config_.train;
    if (train.save_interval == 0) {
      log::info("saving     nothing but where the run is stopped (train.save_interval = 0)");
      return;
    }
    log::info("saving     every {} steps into {}/checkpoints, {} kept{}", train.save_interval, config_.log.run_dir,
              train.keep_last == 0 ? "all" : fmt::format("the newest {}", train.keep_last),
              train.keep_every > 0 ? fmt::format(", and those of every {} steps", train.keep_every) : "");
  }

  std::string plan_hash() const { return hex(hash64(ir::print(trainer_->executor().plan()))); }

  void count(StepRecord& record) {
    ++position_.step;
    position_.tokens += rows_of(config_, world_.size()) * config_.train.seq_len;
    position_.skipped_steps += record.skipped;
    record.skipped_steps = position_.skipped_steps;
  }

  // Why this rank would stop now; empty: it would not.
  std::string why_stop() const {
    const config::Train& train = config_.train;
    const int signal = options_.stop ? options_.stop->load() : 0;
    if (signal != 0)
      return signal == SIGINT ? "SIGINT" : signal == SIGTERM ? "SIGTERM" : signal == SIGUSR1 ? "SIGUSR1" : "a signal";
    const std::chrono::duration<double> run = std::chrono::steady_clock::now() - begun_;
    if (train.max_minutes > 0 && run.count() >= train.max_minutes * 60) return "train.max_minutes";
    if (train.stop_after > 0 && position_.step == train.stop_after) return "train.stop_after";
    return "";
  }
  bool signalled() const { return options_.stop && options_.stop->load() != 0; }

  // Collective: whether a rank would stop; a save under way takes its next turn.
  Result<bool> step_end() {
    std::array<float, 2> sums{why_stop().empty() ? 0.f : 1.f, saver_->progress()};
    LANCET_TRY(world_.all_reduce_sum(sums));
    LANCET_TRY(saver_->proceed(sums[1]));
    return sums[0] > 0;
  }

  // One rank of many has a part of the model's experts, and nobody has the others.
  bool can_save() const { return config_.comm.transport != config::Transport::emulated; }
  bool save_is_due() const {
    const config::Train& train = config_.train;
    return can_save() && train.save_interval > 0 &&
           (position_.step % train.save_interval == 0 || position_.step == train.steps);
  }

  // record: of this step; it learns what saving took.
  Status save(StepRecord* record) {
    const auto start = std::chrono::steady_clock::now();
    const double lr = learning_rate(config_.train, position_.step - 1);
    LANCET_TRY(saver_->begin(manifest_of(config_, asked_, position_, world_.size(), lr, plan_hash())));
    saved_step_ = position_.step;
    const std::chrono::duration<double, std::milli> taken = std::chrono::steady_clock::now() - start;
    if (record) record->save_ms = taken.count();
    return {};
  }

  // Saved, unless this step is, and stopped.
  Status leave() {
    if (!can_save())
      return Error{ExitCode::data,
                   fmt::format("stopped after step {}, and it was not saved: the ranks are emulated", position_.step),
                   true};
    if (saved_step_ != position_.step) LANCET_TRY(save(nullptr));
    LANCET_TRY(saver_->finish());
    const std::string mine = why_stop(), why = mine.empty() ? "another rank's signal" : mine;
    if (const auto& failure = saver_->last_failure())
      return Error{
          ExitCode::data,
          fmt::format("stopped after step {} ({}), and it was not saved: {}", position_.step, why, failure->message),
          true};
    return Error{ExitCode::saved,
                 fmt::format("saved and stopped after step {} of {} ({}); the same command again goes on from there",
                             position_.step, config_.train.steps, why),
                 true};
  }

  bool leads() const { return world_.rank() == 0; }

  Status open_folder(const Start& start) {
    if (!leads()) return {};
    const bool resumes = start.kind == Start::Kind::resume;
    LANCET_ASSIGN(folder_, RunFolder::create(config_, trainer_->executor().plan(),
                                             resumes ? std::optional(position_.step) : std::nullopt));
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
    if (config_.train.sample_tokens == 0 || !tokenizer || !can_save()) return {};  // emulated ranks know no text
    LANCET_ASSIGN(std::vector<std::int32_t> prompt, tokenizer->encode(config_.train.sample_prompt));
    if (prompt.empty()) prompt.push_back(std::max(tokenizer->eos(), 0));
    LANCET_ASSIGN(const std::vector<std::int32_t> ids, trainer_->generate(prompt, config_.train.sample_tokens));
    LANCET_ASSIGN(const std::string text, tokenizer->decode(ids));
    log::info("sample: {}", text);
    return {};
  }

  const std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
  const config::Config asked_;  // by the user
  config::Config config_;       // as it runs
  comm::Communicator& world_;
  const TrainerOptions& options_;
  Position position_;
  std::vector<std::string> notes_;
  std::filesystem::path from_;  // the checkpoint that the run began with
  int saved_on_ = 0;
  std::int64_t saved_step_ = -1;  // the last that saving was begun of, or that the run began with
  std::unique_ptr<Trainer> trainer_;
  std::optional<Saver> saver_;  // after what it saves
  std::optional<RunFolder> folder_;
  Averages averages_;
};

}  // namespace

Status train(const config::Config& config, comm::Communicator& world, const TrainerOptions& options) {
  LANCET_ASSIGN(const auto emulated, emulated_world(config, world));
  return Run(config, emulated ? *emulated : world, options)();
}

}  // namespace lancet::train
