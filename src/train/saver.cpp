#include "saver.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <sstream>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/log.h"
#include "lancet/train/agree.h"

namespace lancet::train {
namespace {

using checkpoint::BackgroundWriter;

// Where nothing is saved but at a stop, nobody waits for the step.
constexpr std::uint64_t small_buffer = 64 << 20;

std::uint64_t buffer_limit(const config::Config& config) {
  return config.train.save_interval > 0 ? std::uint64_t(config.train.save_buffer_mb) << 20 : small_buffer;
}

// A stretch of the store and where it goes in the buffer.
struct Piece {
  const runtime::NamedTensor* tensor;
  std::uint64_t at;
  std::span<std::byte> to;
};

std::string print_files(const std::vector<checkpoint::ShardFile>& files) {
  std::string text;
  for (const auto& file : files) text += fmt::format("{} {} {}\n", file.name, file.bytes, file.xxh3);
  return text;
}

void parse_files(const std::string& text, std::vector<checkpoint::ShardFile>& files) {
  std::istringstream in(text);
  for (checkpoint::ShardFile file; in >> file.name >> file.bytes >> file.xxh3;) files.push_back(file);
}

}  // namespace

std::int64_t staging_bytes(const config::Config& config, const ir::Program& program, int ranks) {
  if (config.train.save_interval == 0) return 0;
  std::int64_t shared = 0, local = 0;
  for (const ir::Tensor& tensor : program.tensors) {
    const bool state = tensor.kind == ir::TensorKind::state;
    if ((!state && tensor.kind != ir::TensorKind::parameter) || tensor.name.ends_with(".master")) continue;
    (tensor.local ? local : shared) += tensor.type.shape.elements() * std::int64_t(sizeof(float));
  }
  return std::min<std::int64_t>(std::int64_t(buffer_limit(config)), local + shared / ranks);
}

Saver::Saver(const config::Config& config, comm::Communicator& world, runtime::TensorStore& store,
             checkpoint::FileSystem& files)
    : config_(config),
      world_(world),
      store_(store),
      files_(files),
      share_(share_of(store, world.rank(), world.size())) {
  if (config.train.save_interval > 0) writer_.emplace(files_, std::min(share_.bytes, buffer_limit(config_)));
}

std::filesystem::path Saver::folder() const { return std::filesystem::path(config_.log.run_dir) / "checkpoints"; }

Status Saver::begin(checkpoint::Manifest manifest) {
  LANCET_TRY(finish());
  if (!writer_) writer_.emplace(files_, std::min(share_.bytes, buffer_limit(config_)));
  manifest_ = std::move(manifest);
  manifest_.files.clear();
  failure_.reset();
  writer_->write(checkpoint::temporary_folder(folder(), manifest_.step), share_.shards);
  phase_ = Phase::writing;
  return copy();
}

// The shards' tensors, one after the other, into blocks: as many at once as there are, over the threads.
Status Saver::copy() {
  std::size_t source = 0;
  std::uint64_t at = 0, left = share_.bytes;
  while (left > 0) {
    const auto blocks = writer_->take((left + BackgroundWriter::block_bytes - 1) / BackgroundWriter::block_bytes);
    std::vector<Piece> pieces;
    std::vector<std::size_t> filled;
    for (const std::span<std::byte> block : blocks) {
      std::size_t full = 0;
      while (full < block.size() && source < share_.sources.size()) {
        const Source& from = share_.sources[source];
        const std::size_t count = std::min<std::uint64_t>(block.size() - full, from.bytes - at);
        pieces.push_back({&store_[from.name], from.at + at, block.subspan(full, count)});
        full += count;
        at += count;
        if (at == from.bytes) ++source, at = 0;
      }
      filled.push_back(full);
      left -= full;
    }
    std::mutex mutex;
    Status status;
    auto copy_pieces = [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const Piece& piece = pieces[std::size_t(i)];
        if (Status read = store_.read(*piece.tensor, piece.at, piece.to); !read.ok()) {
          const std::lock_guard lock(mutex);
          status = std::move(read);
        }
      }
    };
    const auto count = std::int64_t(pieces.size());
    if (config_.device == config::Device::cpu)
      backend::cpu::parallel_for(count, 1, copy_pieces);
    else
      copy_pieces(0, count);
    writer_->give(filled);
    LANCET_TRY(status);
  }
  return {};
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
  while (phase_ != Phase::idle) {
    const bool waits = phase_ == Phase::writing || world_.rank() == 0;
    // Not for longer than the others wait for this rank.
    if (waits) writer_->wait_finished(std::chrono::milliseconds(200));
    float sum = progress();
    LANCET_TRY(world_.all_reduce_sum(std::span(&sum, 1)));
    LANCET_TRY(proceed(sum));
  }
  return {};
}

Status Saver::all_written() {
  const Status mine = writer_->collect();
  const Status all = agree(world_, mine);
  if (!all.ok()) return settle(all);
  for (int rank = 0; rank < world_.size(); ++rank) {
    const bool me = rank == world_.rank();
    LANCET_ASSIGN(const std::string text, broadcast_text(world_, me ? print_files(writer_->shard_files()) : "", rank));
    parse_files(text, manifest_.files);
  }
  phase_ = Phase::committing;
  if (world_.rank() != 0) return {};
  const checkpoint::KeepRule rule{config_.train.keep_last, config_.train.keep_every};
  writer_->run([this, rule, at = folder()]() -> Status {
    LANCET_TRY(checkpoint::commit(files_, at, manifest_));
    if (const Status pruned = checkpoint::prune(files_, at, rule); !pruned.ok())
      log::warn("old checkpoints stay: {}", pruned.error().message);
    return {};
  });
  return {};
}

Status Saver::committed() {
  const Status mine = world_.rank() == 0 ? writer_->collect() : Status();
  return settle(agree(world_, mine));
}

// agreed: how the save ended, from agree().
Status Saver::settle(const Status& agreed) {
  phase_ = Phase::idle;
  if (agreed.ok()) return {};
  if (!agreed.error().agreed) return agreed;  // the ranks do not hear each other
  failure_ = agreed.error();
  if (world_.rank() != 0) return {};
  log::warn("step {} was not saved, older checkpoints stay: {}", manifest_.step, failure_->message);
  if (const Status removed = files_.remove(checkpoint::temporary_folder(folder(), manifest_.step)); !removed.ok())
    log::warn("{}", removed.error().message);
  return {};
}

}  // namespace lancet::train
