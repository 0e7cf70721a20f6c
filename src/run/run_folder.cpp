#include "lancet/run/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lancet/base/files.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/checkpoint/checkpoint.h"

namespace lancet::run {

namespace fs = std::filesystem;

void Lasting::note(const Status& written) {
  if (!written.ok()) {
    if (lost_++ == 0)
      log::warn("{}; the run continues without it and logs when it works again", written.error().message);
    return;
  }
  if (lost_ > 0) log::warn("{} is written again; {} record{} missing", name_, lost_, lost_ == 1 ? " is" : "s are");
  lost_ = 0;
}

RunFolder::~RunFolder() {
  std::error_code ignored;
  // Folders that are not empty stay. The lock is released last, so that no other run starts in a folder that is about
  // to be removed.
  for (; !made_.empty(); made_.pop_back()) fs::remove(made_.back(), ignored);
}

Result<RunFolder> RunFolder::take(const config::Config& config) {
  RunFolder folder(config.log.run_dir);
  if (const std::string text = folder.path_.string(); cut(text, text.size()) != text)  // it would break log lines
    return config_error(fmt::format("log.run_dir: expected a name without control characters, found {}", shown(text)));
  LANCET_TRY(folder.make());
  LANCET_TRY(folder.lock());
  return folder;
}

Status RunFolder::make() {
  std::error_code error;
  fs::path at = fs::absolute(path_ / "", error).parent_path();
  for (; at.has_relative_path() && !fs::exists(at, error) && !error; at = at.parent_path()) made_.push_back(at);
  std::reverse(made_.begin(), made_.end());
  fs::create_directories(path_, error);
  if (error)
    return data_error(fmt::format("log.run_dir: expected a folder that can be created, found {}: {}", path_.string(),
                                  error.message()));
  return {};
}

Status RunFolder::lock() {
  lock_ = Descriptor(::open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_.is_open())
    return data_error(fmt::format("log.run_dir: cannot open {}: {}", path_.string(), std::strerror(errno)));
  const bool locked = ::flock(lock_.get(), LOCK_EX | LOCK_NB) == 0;
  if (!locked && errno != EWOULDBLOCK) {  // a file system without locks
    log::warn("{}: cannot be locked ({}); no other run may write there", path_.string(), std::strerror(errno));
    return {};
  }
  // A run that failed to start may have removed the folder between open and flock.
  if (locked && is_in_place()) return {};
  made_.clear();  // the folder belongs to the other run
  return data_error(fmt::format("log.run_dir: expected a folder that no other run writes to, found one at work in {}",
                                path_.string()));
}

// True if the path names the folder that is open as `lock_`. While it is open, no new folder gets its number. A path
// that the system cannot look up at the moment counts as unchanged: an error of the disk does not end a run.
bool RunFolder::is_in_place() const {
  struct stat opened {
  }, named{};
  if (::stat(path_.c_str(), &named) != 0) return errno != ENOENT && errno != ENOTDIR;
  return ::fstat(lock_.get(), &opened) == 0 && opened.st_ino == named.st_ino && opened.st_dev == named.st_dev;
}

Status RunFolder::check_in_place() const {
  if (is_in_place()) return {};
  return data_error(
      fmt::format("{}: expected the folder in which the run began, found that it was removed, renamed or replaced; the "
                  "run ends and saves nothing more",
                  path_.string()));
}

Status RunFolder::begin(checkpoint::FileSystem& files, const config::Config& config, const ir::Plan& plan,
                        const std::string& memory, std::optional<std::int64_t> resumed) {
  made_.clear();
  LANCET_TRY(write_file(path_ / "config.json", config::to_json(config)));
  LANCET_TRY(write_file(path_ / "plan.ir", ir::print(plan)));
  LANCET_TRY(write_file(path_ / "memory.json", memory));
  LANCET_TRY(open_records(files, resumed));
  if (config.log.tensorboard) {
    LANCET_ASSIGN(events_, EventFile::create(path_, resumed));
  }
  return {};
}

Status RunFolder::open_records(checkpoint::FileSystem& files, std::optional<std::int64_t> resumed) {
  const fs::path checkpoints = path_ / "checkpoints", metrics = path_ / "metrics.jsonl";
  LANCET_TRY(checkpoint::remove_leftovers(files, checkpoints));
  if (!resumed) {
    LANCET_ASSIGN(metrics_, MetricsFile::create(metrics));
    return {};
  }
  LANCET_ASSIGN(const int aside, checkpoint::set_aside_after(files, checkpoints, *resumed));
  if (aside > 0) log::info("{}: {} later checkpoint(s) renamed to .old", checkpoints.string(), aside);
  LANCET_ASSIGN(metrics_, MetricsFile::resume(metrics, *resumed));
  return {};
}

void RunFolder::record(const StepRecord& record, std::span<const LayerLoad> layers, bool expert_tokens) {
  metrics_state_.note(metrics_->write(record, layers, expert_tokens));
  if (events_) events_state_.note(events_->write(record.step, scalars(record, layers)));
}

void RunFolder::held_out(std::int64_t step, double loss) {
  metrics_state_.note(metrics_->write_held_out(step, loss));
  const Scalar scalar{"held_out/loss", loss};
  if (events_) events_state_.note(events_->write(step, std::span(&scalar, 1)));
}

void RunFolder::plan(const ir::Plan& plan) { plan_state_.note(write_file(path_ / "plan.ir", ir::print(plan))); }

void RunFolder::trace(const std::string& text) { trace_state_.note(write_file(path_ / "trace.json", text)); }

}  // namespace lancet::run
