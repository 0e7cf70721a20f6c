#include "lancet/run/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/base/utf8.h"
#include "lancet/comm/collect.h"
#include "lancet/config/hugging_face.h"
#include "lancet/data/tokenizer.h"
#include "lancet/run/checkpoint_tensors.h"
#include "lancet/run/resume_point.h"

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

Status check_run_name(std::string_view field, const std::string& run) {
  if (cut(run, run.size()) == run && first_invalid_utf8(run) == run.size()) return {};
  return config_error(
      fmt::format("{}: expected a name in UTF-8 without control characters, found {}", field, shown(run)));
}

Result<RunFolder> RunFolder::take(const config::Config& config) {
  RunFolder folder(config.log.run_dir);
  LANCET_TRY(check_run_name("log.run_dir (--run-dir)", config.log.run_dir));
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

// Loading: rank 0 lists the checkpoints that `from` names, newest first, and all ranks try them in this order. Opening
// and loading end in an agreed status; a data error (a damaged checkpoint) moves all ranks to the next older one, any
// other error ends the search.
// Writing: NewFolder fills a temporary folder beside the target (base/files.h) and renames it at the end, so no
// incomplete folder ever has the target's name.
namespace {

using checkpoint::Checkpoint;

constexpr std::string_view own_tokenizer = "tokenizer";  // in a run folder

Result<std::vector<fs::path>> checkpoints_of(const fs::path& from) {
  std::error_code ignored;
  if (fs::exists(from / "manifest.json", ignored)) return std::vector<fs::path>{from};
  const fs::path checkpoints = from / "checkpoints";
  LANCET_ASSIGN(const auto steps, checkpoint::list_steps(checkpoints));
  if (!fs::is_directory(checkpoints, ignored)) return no_model_in(from);
  std::vector<fs::path> folders;
  for (const std::int64_t step : steps) folders.push_back(checkpoints / checkpoint::folder_name(step));
  if (folders.empty())
    return data_error(fmt::format("{}: expected a whole checkpoint, found none", checkpoints.string()));
  return folders;
}

// Rank 0's list on all ranks. Their own lists could differ, since a run may write a checkpoint meanwhile.
Result<std::vector<fs::path>> agreed_checkpoints(const fs::path& from, comm::Communicator& world) {
  const auto mine = world.rank() == 0 ? checkpoints_of(from) : Result<std::vector<fs::path>>(std::vector<fs::path>{});
  LANCET_TRY(comm::broadcast_status(world, mine.ok() ? Status() : Status(mine.error()), 0));
  LANCET_ASSIGN(const auto texts,
                comm::broadcast_texts(world, std::vector<std::string>(mine->begin(), mine->end()), 0));
  return std::vector<fs::path>(texts.begin(), texts.end());
}

std::optional<fs::path> find_tokenizer(const config::Config& config, const fs::path& run) {
  std::error_code ignored;
  for (const fs::path& folder : {fs::path(config.data.tokenizer), run / own_tokenizer, run / config::source_folder})
    for (const char* file : {"tokenizer.json", "vocab.json"})
      if (!folder.empty() && fs::exists(folder / file, ignored)) return folder;
  return {};
}

Status append(const Source& source, const ReadParameter& read, checkpoint::SafetensorsWriter& writer,
              const std::function<void(std::size_t)>& count) {
  constexpr std::int64_t most = 1 << 20;
  std::vector<float> values;
  for (std::int64_t at = source.elements.begin; at < source.elements.end; at += std::ssize(values)) {
    values.resize(std::size_t(std::min(most, source.elements.end - at)));
    LANCET_TRY(read(source.name, {at, at + std::ssize(values)}, values, 1));
    LANCET_TRY(writer.append(std::as_bytes(std::span(values))));
    count(4 * values.size());
  }
  return {};
}

Status write_weights(const fs::path& run, const config::Config& config, const RankShare& weights,
                     const ReadParameter& read, std::uint64_t tokenizer_hash,
                     const std::function<void(std::int64_t, std::int64_t)>& progress) {
  checkpoint::FileSystem& files = checkpoint::disk();
  const fs::path checkpoints = run / "checkpoints", folder = checkpoint::temporary_folder(checkpoints, 0);
  LANCET_TRY(files.make_folder(folder));
  checkpoint::ShardFile shard{.name = "model.safetensors"};
  LANCET_ASSIGN(auto writer,
                checkpoint::SafetensorsWriter::create(files, folder / shard.name, weights.shards.front().tensors));
  std::size_t done = 0;
  const auto count = [&](std::size_t some) { progress(std::int64_t(done += some), std::int64_t(weights.bytes)); };
  for (const Source& source : weights.sources) LANCET_TRY(append(source, read, writer, count));
  LANCET_TRY(writer.finish());
  shard.bytes = writer.bytes();
  shard.header_xxh3 = writer.header_hash();
  shard.tensors_xxh3 = writer.tensor_hashes();
  checkpoint::Manifest manifest = manifest_of(config, config, {}, 1, 0, "");
  manifest.optimizer = "none";
  manifest.lr_schedule.clear();
  manifest.tokenizer_hash = tokenizer_hash;
  manifest.files = {shard};
  return checkpoint::commit(files, checkpoints, manifest);
}

// The checkpoint alone decides whether a model can be read: a damaged file of the run beside it is a warning.
Result<ModelFolder> open_model(const fs::path& folder, comm::Communicator& world) {
  LANCET_ASSIGN(Checkpoint opened, Checkpoint::open(folder));
  const checkpoint::Manifest& manifest = opened.manifest();
  const std::string where = (folder / "manifest.json").string();
  auto config = config::parse_saved(manifest.config, where);
  if (!config.ok()) return data_error(config.error().message);
  if (config->model.has_moe()) {
    config->model.num_local_experts = manifest.experts;
    config->model.experts_per_rank.reset();
  }
  config::Config alone = *config;
  alone.mesh = {};
  if (const Status status = config::check(alone, 1); !status.ok())
    return data_error(fmt::format("{}: {}", where, status.error().message));
  config->mesh.stage = 1;  // a loaded model is on all ranks at once; the other axes may take those of the stages
  config->mesh.stage_blocks.clear();
  if (!config::make_mesh(*config, world.size()).ok()) config->mesh = {};
  const fs::path run = fs::absolute(folder / "").parent_path().parent_path().parent_path();
  std::optional<fs::path> source;
  if (std::error_code error; fs::is_directory(run / config::source_folder, error)) source = run / config::source_folder;
  auto bounds = data::bounds_in(run / "generation_config.json", int(config->model.vocab_size));
  if (!bounds.ok() && world.rank() == 0) log::warn("{}; the ids that it names are left out", bounds.error().message);
  auto tokenizer = find_tokenizer(*config, run);
  return ModelFolder{std::move(opened), std::move(*config), std::move(tokenizer),
                     bounds.ok() ? *std::move(bounds) : data::TextBounds(), std::move(source)};
}

}  // namespace

Result<bool> is_removed(const fs::path& checkpoint, comm::Communicator& world) {
  std::error_code error;
  const bool gone = fs::symlink_status(checkpoint, error).type() == fs::file_type::not_found;  // a link is not removed
  return comm::any(world, world.rank() == 0 && gone);
}

Status agree_on_checkpoint(comm::Communicator& world, const Checkpoint& checkpoint) {
  return comm::agree_on(world, "the same checkpoint " + checkpoint.path().string(),
                        checkpoint::to_json(checkpoint.manifest()), ExitCode::data);
}

Result<ModelFolder> load_newest(const fs::path& from, comm::Communicator& world,
                                const std::function<Status(const ModelFolder&)>& load) {
  LANCET_ASSIGN(const std::vector<fs::path> folders, agreed_checkpoints(from, world));
  Error damage;
  for (const fs::path& folder : folders) {
    auto opened = open_model(folder, world);
    Status all = comm::agree(world, opened.ok() ? Status() : Status(opened.error()));
    if (all.ok()) {
      LANCET_TRY(agree_on_checkpoint(world, opened->checkpoint));
      all = comm::agree(world, load(*opened));
    }
    if (all.ok()) {
      if (folder != folders.front() && world.rank() == 0) log::warn("{}: taken in their place", folder.string());
      return opened;
    }
    damage = all.error();
    if (!damage.agreed || damage.code != ExitCode::data) return damage;
    LANCET_ASSIGN(const bool removed, is_removed(folder, world));
    if (removed) return load_newest(from, world, load);  // by the run that writes them, which has a newer one
    if (folder != folders.back() && world.rank() == 0) log::warn("not whole, left out: {}", damage.message);
  }
  if (folders.size() > 1)
    damage.message = fmt::format("expected a whole checkpoint among the {} in {}, found none. The oldest: {}",
                                 folders.size(), folders[0].parent_path().string(), damage.message);
  return damage;
}

// The config comes from the checkpoint itself, so a tensor that does not fit it is damage and no config error.
Status load_parameters(const Checkpoint& checkpoint, runtime::TensorStore& store) {
  const Status loaded = load_tensors(store, checkpoint, LoadScope::weights);
  if (!loaded.ok() && loaded.error().code == ExitCode::config) return data_error(loaded.error().message);
  return loaded;
}

Status write_bounds(const fs::path& folder, const data::TextBounds& bounds) {
  if (bounds.ends.empty()) return {};
  nlohmann::ordered_json config = nlohmann::ordered_json::object();
  const std::string name = (folder / "generation_config.json").string();
  if (std::error_code error; fs::exists(name, error)) {
    LANCET_ASSIGN(const std::string text, read_file(name, "a model's config"));
    auto parsed = parse_json<nlohmann::ordered_json>(text, name, ExitCode::data, JsonComments::ignored);
    if (parsed.ok() && parsed->is_object()) config = *std::move(parsed);
  }
  if (bounds.begin >= 0) config["bos_token_id"] = bounds.begin;
  config["eos_token_id"] = bounds.ends;
  if (bounds.ends.size() == 1) config["eos_token_id"] = bounds.ends.front();
  return checkpoint::write_file(checkpoint::disk(), name, json_text(config, {.indent = 2}) + "\n");
}

Status save_model(const fs::path& run, config::Config config, const RankShare& weights, const ReadParameter& read,
                  const std::optional<ModelTokenizer>& tokenizer,
                  const std::function<void(std::int64_t, std::int64_t)>& progress, const data::TextBounds& bounds,
                  const std::function<Status(const fs::path&)>& keep_source) {
  LANCET_TRY(check_new_folder(run, std::int64_t(weights.bytes)));
  LANCET_ASSIGN(NewFolder folder, NewFolder::create(run));
  config.log.run_dir = run.string();
  if (keep_source) {
    LANCET_TRY(keep_source(folder.path() / config::source_folder));
    if (tokenizer) config.data.tokenizer = (run / config::source_folder).string();
  } else if (tokenizer) {
    LANCET_TRY(copy_tokenizer(*tokenizer, folder.path() / own_tokenizer));
    config.data.tokenizer = (run / own_tokenizer).string();
  }
  LANCET_TRY(checkpoint::write_file(checkpoint::disk(), folder.path() / "config.json", config::to_json(config)));
  LANCET_TRY(write_bounds(folder.path(), bounds));
  LANCET_TRY(
      write_weights(folder.path(), config, weights, read, tokenizer ? tokenizer->tokenizer.hash() : 0, progress));
  return folder.commit();
}

namespace {

// The folder that a rename makes or replaces: without links, since a rename would replace the link, and without ".".
fs::path target_of(const fs::path& out) {
  std::error_code error;
  const fs::path target = fs::weakly_canonical(fs::absolute(out), error);
  return ((error ? fs::absolute(out) : target) / "").parent_path();
}

}  // namespace

Status check_new_folder(const fs::path& out, std::int64_t bytes) {
  std::error_code error;
  const bool there = fs::symlink_status(out, error).type() != fs::file_type::not_found;
  if (there && !(fs::is_directory(out, error) && fs::is_empty(out, error)))
    return config_error(fmt::format("{}: expected no such folder yet, or an empty one, found {}", out.string(),
                                    fs::is_directory(out, error) ? "files in it" : "something else"));
  struct stat folder = {}, above = {};
  if (there && ::stat(out.c_str(), &folder) == 0 && ::stat((out / "..").c_str(), &above) == 0 &&
      folder.st_dev != above.st_dev)
    return config_error(fmt::format(
        "{}: expected a folder that a rename can replace, such as a new one in this one, found a mount point",
        out.string()));
  const fs::path target = target_of(out);
  LANCET_TRY(check_writable(target));
  const fs::space_info disk = fs::space(nearest_above(target), error);
  if (error || disk.available >= std::uintmax_t(bytes)) return {};
  return data_error(fmt::format("{}: expected {} MB free on its disk, found {} MB", out.string(),
                                bytes / 1'000'000 + (bytes % 1'000'000 > 0), disk.available / 1'000'000));
}

Result<NewFolder> NewFolder::create(const fs::path& out) {
  LANCET_TRY(check_new_folder(out, 0));
  fs::path target = target_of(out);
  fs::path temporary = temporary_beside(target);
  LANCET_TRY(checkpoint::disk().make_folder(temporary));
  return NewFolder(std::move(target), std::move(temporary));
}

NewFolder::NewFolder(NewFolder&& other) noexcept
    : target_(std::move(other.target_)), temporary_(std::exchange(other.temporary_, {})) {}

NewFolder::~NewFolder() {
  if (!temporary_.empty()) static_cast<void>(checkpoint::disk().remove(temporary_));
}

Status NewFolder::commit() {
  checkpoint::FileSystem& files = checkpoint::disk();
  LANCET_TRY(files.sync_folder(temporary_));
  if (const Status renamed = files.rename(temporary_, target_); !renamed.ok()) {
    LANCET_TRY(check_new_folder(target_, 0));  // another command may have made it meanwhile
    return renamed;
  }
  temporary_.clear();
  return files.sync_folder(target_.parent_path());
}

Status copy_tokenizer(const ModelTokenizer& from, const fs::path& to) {
  checkpoint::FileSystem& files = checkpoint::disk();
  LANCET_TRY(files.make_folder(to));
  const auto copy = [&](const char* file_name) -> Status {
    LANCET_ASSIGN(const auto file, checkpoint::InputFile::open(from.folder / file_name, "a tokenizer's file"));
    std::string text(file.size(), '\0');
    LANCET_TRY(file.read(0, std::as_writable_bytes(std::span(text))));
    return checkpoint::write_file(files, to / file_name, text);
  };
  const auto is_there = [&](const char* file_name) {
    std::error_code error;
    return fs::exists(from.folder / file_name, error);
  };
  for (const char* file_name : {"vocab.json", "merges.txt"})
    if (is_there(file_name) || !is_there("tokenizer.json")) LANCET_TRY(copy(file_name));
  for (const char* file_name : data::kDescriptions)
    if (is_there(file_name)) LANCET_TRY(copy(file_name));
  const std::span<const data::TokenId> ends = from.tokenizer.ends();
  LANCET_TRY(write_bounds(to, {from.tokenizer.bos(), {ends.begin(), ends.end()}}));
  return files.sync_folder(to);
}

}  // namespace lancet::run
