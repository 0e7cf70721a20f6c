// A save passes through phases, in which all ranks are together; the training steps run on between them.
//   idle        begin() copies this rank's share, tensor by tensor, into the buffer of the BackgroundWriter, whose
//               thread writes it to a temporary folder. If the buffer is smaller, copying waits for the disk.
//   writing     each step's end sums progress() over the ranks. Once all threads have ended, all_written() agrees on
//               the result and gathers the descriptions of the files on rank 0.
//   committing  rank 0's thread writes the manifest, renames the folder and prunes old checkpoints. The ranks agree on
//               its result at a later step's end (committed()).
// Ranks wait for disks in rounds of one tick, each of which ends in an all-reduce: no rank meets comm.timeout_s because
// another one's disk is slow. An error of the disk ends the save alone: settle() warns, removes the temporary folder,
// and training continues.
#include "lancet/run/saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <mutex>
#include <new>
#include <sstream>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/clock.h"
#include "lancet/base/log.h"
#include "lancet/comm/collect.h"
#include "lancet/run/stream_communicators.h"

namespace lancet::run {
namespace {

using checkpoint::BackgroundWriter;

// The buffer of a run that saves only when it stops, where no training step has to wait.
constexpr std::uint64_t small_buffer = 64 << 20;

std::uint64_t buffer_limit(const config::Config& config) {
  return config.train.saves() ? std::uint64_t(config.train.save_buffer_mb) << 20 : small_buffer;
}

bool saves_while_training(const config::Config& config) { return config.train.saves() && config.holds_model(); }

// A range of a tensor in the store, or of a gathered one, and its destination in the buffer.
struct Fragment {
  const runtime::NamedTensor* tensor;
  std::uint64_t at;
  std::span<std::byte> to;
  const std::byte* gathered;  // null: the range is in the store
};

std::string print_files(const std::vector<checkpoint::ShardFile>& files) {
  std::string text;
  for (const auto& file : files) {
    text += fmt::format("{} {} {} {}", file.name, file.bytes, file.header_xxh3, file.tensors_xxh3.size());
    for (const std::uint64_t hash : file.tensors_xxh3) text += fmt::format(" {}", hash);
    text += "\n";
  }
  return text;
}

void parse_files(const std::string& text, std::vector<checkpoint::ShardFile>& files) {
  std::istringstream in(text);
  std::size_t tensors = 0;
  for (checkpoint::ShardFile file; in >> file.name >> file.bytes >> file.header_xxh3 >> tensors;) {
    file.tensors_xxh3.resize(tensors);
    for (std::uint64_t& hash : file.tensors_xxh3) in >> hash;
    files.push_back(file);
  }
}

// The axes that split a parameter into pieces of the tensors of a checkpoint: all but those that deal out experts.
ir::Axes axes_of_pieces(const ir::Tensor& parameter) {
  ir::Sharding experts{{}, {}};
  if (parameter.sharding && holds_experts(parameter.name)) experts.dimensions = {parameter.sharding->dimensions[0]};
  return ir::holders(experts);
}

// Whether what a rank holds of a tensor of a checkpoint is not one run of it, so that it arrives packed.
bool arrives_packed(const ir::Tensor& parameter, const ir::Mesh& mesh) {
  if (!parameter.sharding) return false;
  const ir::Axes pieces = axes_of_pieces(parameter);
  const std::vector<ir::Split>& dimensions = parameter.sharding->dimensions;
  const std::size_t outermost = holds_experts(parameter.name) ? 1 : 0;  // an expert is a tensor of its own
  for (std::size_t i = 0; i < dimensions.size(); ++i)
    if (mesh.size(ir::Axes(dimensions[i].axes) & pieces) > 1 && (i > outermost || dimensions[i].blocks > 1))
      return true;
  return false;
}

}  // namespace

std::int64_t staging_bytes(const config::Config& config, const ir::Program& program, const ir::Mesh& mesh) {
  if (!saves_while_training(config)) return 0;
  std::int64_t share = 0, gathered = 0;  // bytes of f32
  for (const ir::Tensor& parameter : program.tensors) {
    if (parameter.kind != ir::TensorKind::parameter) continue;
    const std::int64_t shard = parameter.type.shape.elements() * std::int64_t(sizeof(float));
    const ir::Axes split = parameter.sharding ? parameter.sharding->used() : ir::Axes{};
    // Of the whole, if all ranks of the stage write as much.
    const std::int64_t part = shard * mesh.size(split) / (mesh.ranks() / mesh[ir::Axis::stage]);
    const bool is_split = mesh.size(split & axes_of_pieces(parameter)) > 1;
    const bool is_packed = arrives_packed(parameter, mesh);
    using Kind = ir::StateKind;
    const auto find = [&](Kind kind) { return program.find(ir::state_name(parameter.name, kind)); };
    const ir::TensorId master = find(Kind::master);
    for (const ir::TensorId id : {master.valid() ? master : program.find(parameter.name), find(Kind::first_moment),
                                  find(Kind::second_moment)}) {
      if (!id.valid()) continue;
      share += part;
      if (is_split || !program[id].flat_shard.empty()) gathered += is_packed ? 2 * part : part;
    }
  }
  return std::min<std::int64_t>(std::int64_t(buffer_limit(config)), share) + gathered;
}

Saver::Saver(const config::Config& config, comm::Communicator& world, runtime::TensorStore& store,
             checkpoint::FileSystem& files)
    : config_(config), world_(world), store_(store), files_(files), shares_(shares_of(store)) {}

std::filesystem::path Saver::folder() const { return std::filesystem::path(config_.log.run_dir) / "checkpoints"; }

std::chrono::milliseconds Saver::tick() const { return run::turn_of(config_); }

Status Saver::reserve() { return saves_while_training(config_) ? comm::agree(world_, make_writer()) : Status(); }

Status Saver::make_writer() {
  const std::uint64_t bytes = std::min(share().bytes, buffer_limit(config_));
  try {
    writer_.emplace(files_, bytes);
  } catch (const std::bad_alloc&) {
    return config_error(
        fmt::format("train.save_buffer_mb: expected {} MB of memory for saving, found less", bytes / 1'000'000));
  }
  return {};
}

Result<bool> Saver::begin(checkpoint::Manifest manifest, bool wait) {
  LANCET_ASSIGN(const bool idle, wait_until_idle(wait ? std::nullopt : std::optional(patience_.busy)));
  if (!idle) {
    if (world_.rank() == 0)
      log::warn("step {} is not saved: step {} is still being written to the disk; a later step is saved instead",
                manifest.step, manifest_.step);
    postponed_ = true;
    return false;
  }
  postponed_ = false;
  if (!writer_) LANCET_TRY(comm::agree(world_, make_writer()));
  manifest_ = std::move(manifest);
  manifest_.files.clear();
  failure_.reset();
  LANCET_ASSIGN(gathered_, gather_parts(store_, shares_, world_));
  writer_->write(checkpoint::temporary_folder(folder(), manifest_.step), share().shards);
  const Status copied = copy();
  gathered_ = {};
  LANCET_TRY(copied);
  phase_ = Phase::writing;  // only now: of a share that was not copied, the thread would wait for the rest
  return true;
}

Status Saver::copy() {
  Cursor cursor{.left = share().bytes};
  auto moved = std::chrono::steady_clock::now();
  for (;;) {
    const auto copied = copy_some(cursor);
    if (copied.ok() && *copied) moved = std::chrono::steady_clock::now();
    const bool stuck = cursor.left > 0 && std::chrono::steady_clock::now() - moved > patience_.stuck;
    std::array<float, 3> sums{cursor.left > 0 ? 1.f : 0.f, copied.ok() ? 0.f : 1.f, stuck ? 1.f : 0.f};
    LANCET_TRY(world_.all_reduce_sum(sums));
    if (sums[1] > 0) return comm::agree(world_, copied.ok() ? Status() : Status(copied.error()));
    if (sums[2] > 0) {
      if (cursor.left > 0) writer_->abandon(fmt::format("the disk took nothing for {:.0f} s", seconds_since(moved)));
      return {};
    }
    if (sums[0] == 0) return {};
  }
}

// Copies as much as the buffer accepts in about one tick. True if it copied anything.
Result<bool> Saver::copy_some(Cursor& cursor) {
  const auto start = std::chrono::steady_clock::now();
  bool some = false;
  while (cursor.left > 0 && std::chrono::steady_clock::now() - start < tick()) {
    const auto blocks =
        writer_->take((cursor.left + BackgroundWriter::block_bytes - 1) / BackgroundWriter::block_bytes, tick());
    if (blocks.empty()) break;
    LANCET_TRY(fill(cursor, blocks));
    some = true;
  }
  return some;
}

// Fills `blocks` with the shards' tensors, one after the other, on all threads.
Status Saver::fill(Cursor& cursor, std::span<const std::span<std::byte>> blocks) {
  std::vector<Fragment> fragments;
  std::vector<std::size_t> filled;
  for (const std::span<std::byte> block : blocks) {
    std::size_t full = 0;
    while (full < block.size() && cursor.source < share().sources.size()) {
      const Source& from = share().sources[cursor.source];
      const std::size_t count = std::min<std::uint64_t>(block.size() - full, from.bytes - cursor.at);
      const std::byte* gathered = from.gathered ? gathered_.data() + *from.gathered + cursor.at : nullptr;
      fragments.push_back({&store_[from.name], from.at + cursor.at, block.subspan(full, count), gathered});
      full += count;
      cursor.at += count;
      if (cursor.at == from.bytes) ++cursor.source, cursor.at = 0;
    }
    filled.push_back(full);
    cursor.left -= full;
  }
  std::mutex mutex;
  Status status;
  auto copy_fragments = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Fragment& fragment = fragments[std::size_t(i)];
      if (fragment.gathered) {
        std::memcpy(fragment.to.data(), fragment.gathered, fragment.to.size());
        continue;
      }
      if (Status read = read_f32(store_, *fragment.tensor, fragment.at, fragment.to); !read.ok()) {
        const std::lock_guard lock(mutex);
        status = std::move(read);
      }
    }
  };
  const auto count = std::int64_t(fragments.size());
  if (config_.device == config::Device::cpu)
    backend::cpu::parallel_for(count, 1, copy_fragments);
  else
    copy_fragments(0, count);
  writer_->give(filled);
  return status;
}

float Saver::progress() const {
  const bool takes_part = phase_ == Phase::writing || (phase_ == Phase::committing && world_.rank() == 0);
  return takes_part && writer_->finished() ? 1 : 0;
}

Status Saver::proceed(float sum) {
  if (phase_ == Phase::writing && sum == float(world_.size())) return all_written();
  if (phase_ == Phase::committing && sum == 1) return committed();
  return {};
}

Status Saver::finish() {
  const auto idle = wait_until_idle({});
  return idle.ok() ? Status() : Status(idle.error());
}

void Saver::finish_commit() const {
  const auto start = std::chrono::steady_clock::now();
  while (phase_ == Phase::committing && world_.rank() == 0 && !writer_->wait_finished(tick()))
    if (seconds_since(start) > config_.comm.timeout_s) break;
}

// Collective. Waits until no save is under way, or until `most` has passed on any rank. True if no save is under way.
Result<bool> Saver::wait_until_idle(std::optional<std::chrono::milliseconds> most) {
  const auto start = std::chrono::steady_clock::now();
  double logged_at = 0;  // seconds
  while (phase_ != Phase::idle) {
    if (phase_ == Phase::writing || world_.rank() == 0) writer_->wait_finished(tick());
    const bool late = most && std::chrono::steady_clock::now() - start > *most;
    std::array<float, 2> sums{progress(), late ? 1.f : 0.f};
    LANCET_TRY(world_.all_reduce_sum(sums));
    LANCET_TRY(proceed(sums[0]));
    if (sums[1] > 0) break;
    if (world_.rank() == 0 && seconds_since(start) > logged_at + 60) {
      logged_at = seconds_since(start);
      log::warn("still writing step {} to the disk after {:.0f} s", manifest_.step, logged_at);
    }
  }
  return phase_ == Phase::idle;
}

Status Saver::all_written() {
  const Status mine = writer_->collect();
  const Status all = comm::agree(world_, mine);
  if (!all.ok()) return settle(all);
  LANCET_ASSIGN(const auto texts, comm::gather_texts(world_, print_files(writer_->shard_files()), 0));
  phase_ = Phase::committing;
  if (world_.rank() != 0) return {};
  for (const std::string& text : texts) parse_files(text, manifest_.files);
  writer_->run([this, last = config_.train.keep_last, at = folder()]() -> Status {
    LANCET_TRY(checkpoint::commit(files_, at, manifest_));
    if (const Status pruned = checkpoint::prune(files_, at, last); !pruned.ok())
      log::warn("old checkpoints stay: {}", pruned.error().message);
    return {};
  });
  return {};
}

Status Saver::committed() {
  const Status mine = world_.rank() == 0 ? writer_->collect() : Status();
  return settle(comm::agree(world_, mine));
}

// Ends the save. agreed: its result, from agree().
Status Saver::settle(const Status& agreed) {
  phase_ = Phase::idle;
  if (agreed.ok()) return {};
  if (!agreed.error().agreed) return agreed;  // the ranks can no longer communicate
  failure_ = agreed.error();
  if (world_.rank() != 0) return {};
  log::warn("step {} was not saved, older checkpoints stay: {}", manifest_.step, failure_->message);
  if (const Status removed = files_.remove(checkpoint::temporary_folder(folder(), manifest_.step)); !removed.ok())
    log::warn("{}", removed.error().message);
  return {};
}

}  // namespace lancet::run
