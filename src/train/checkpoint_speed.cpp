#include "lancet/train/checkpoint_speed.h"

#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "lancet/base/median.h"
#include "lancet/checkpoint/input_file.h"
#include "lancet/run/checkpoint_tensors.h"
#include "lancet/run/model_folder.h"
#include "lancet/run/resume_point.h"
#include "lancet/run/saver.h"
#include "lancet/train/trainer.h"
#include "lancet/world/agree.h"

namespace lancet::train {
namespace {

namespace fs = std::filesystem;

// Collective: does `work` on all ranks and returns the seconds of the slowest.
template <class Work>
Result<double> slowest(comm::Communicator& world, const Work& work) {
  LANCET_TRY(world.barrier());
  const auto start = std::chrono::steady_clock::now();
  const Status mine = work();
  const std::chrono::duration<double, std::nano> taken = std::chrono::steady_clock::now() - start;
  LANCET_TRY(world::agree(world, mine));
  LANCET_ASSIGN(const auto all, world::gather(world, std::int64_t(taken.count())));
  return double(*std::max_element(all.begin(), all.end())) * 1e-9;
}

// Reads this rank's share of the checkpoint's files in large chunks and discards them.
Status read_plainly(const checkpoint::Checkpoint& from, int rank, int ranks) {
  std::vector<std::byte> chunk(8 << 20);
  const auto& files = from.manifest().files;
  for (std::size_t i = std::size_t(rank); i < files.size(); i += std::size_t(ranks)) {
    LANCET_ASSIGN(const auto file, checkpoint::InputFile::open(from.path() / files[i].name, "a shard"));
    for (std::uint64_t at = 0; at < file.size(); at += chunk.size())
      LANCET_TRY(file.read(at, std::span(chunk).first(std::min<std::uint64_t>(chunk.size(), file.size() - at))));
  }
  return {};
}

// Drops the files, which are on the disk already, from the page cache. False if the system refuses the hint.
bool drop_cached(const checkpoint::Checkpoint& from) {
  bool taken = true;
  for (const auto& file : from.manifest().files) {
    const Descriptor opened(::open((from.path() / file.name).c_str(), O_RDONLY | O_CLOEXEC));
    taken &= opened.is_open() && ::posix_fadvise(opened.get(), 0, 0, POSIX_FADV_DONTNEED) == 0;
  }
  return taken;
}

class Bench {
 public:
  Bench(const config::Config& config, comm::Communicator& world, const CheckpointSpeedOptions& options)
      : config_(config), world_(world), options_(options) {}

  Result<CheckpointSpeed> run() {
    LANCET_ASSIGN(trainer_, Trainer::create(config_, world_, {.local_ranks = options_.local_ranks}));
    LANCET_TRY(steps());
    LANCET_TRY(saves());
    LANCET_TRY(loads());
    return speed_;
  }

 private:
  Status steps() {
    std::vector<double> ms;
    for (int step = 0; step <= options_.steps; ++step) {
      LANCET_ASSIGN(const run::StepRecord record, trainer_->step(step));
      if (step > 0) ms.push_back(record.step_ms);  // the first step warms up caches
    }
    speed_.step_ms = median(ms);
    return {};
  }

  Status saves() {
    run::Saver saver(config_, world_, trainer_->store());
    LANCET_TRY(saver.reserve());
    std::vector<double> held_up, written;
    for (int round = 0; round < options_.rounds; ++round) {
      const auto manifest = run::manifest_of(config_, config_, {.step = 1}, world_.size(), 0, "");
      double blocked = 0;
      LANCET_ASSIGN(const double all, slowest(world_, [&]() -> Status {
                      const auto start = std::chrono::steady_clock::now();
                      LANCET_ASSIGN(const bool begun, saver.begin(manifest, true));
                      blocked = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
                      return begun ? saver.finish() : Status(internal_error("a save did not begin"));
                    }));
      if (saver.last_failure()) return *saver.last_failure();
      LANCET_ASSIGN(const auto blocks, world::gather(world_, std::int64_t(blocked * 1e9)));
      held_up.push_back(double(*std::max_element(blocks.begin(), blocks.end())) * 1e-6);
      written.push_back(all);
    }
    speed_.save_ms = median(held_up);
    speed_.write_s = median(written);
    return {};
  }

  // Alternates the two measurements, so that both see the machine in the same state.
  Status loads() {
    const fs::path folder = fs::path(config_.log.run_dir) / "checkpoints" / checkpoint::folder_name(1);
    auto opened = checkpoint::Checkpoint::open(folder);
    LANCET_TRY(world::agree(world_, opened.ok() ? Status() : Status(opened.error())));
    double bytes = 0;
    for (const auto& file : opened->manifest().files) bytes += double(file.bytes);
    std::vector<double> read_s, load_s;
    for (int round = 0; round < options_.rounds; ++round) {
      LANCET_TRY(drop(*opened));
      LANCET_ASSIGN(const double plain,
                    slowest(world_, [&] { return read_plainly(*opened, world_.rank(), world_.size()); }));
      LANCET_TRY(drop(*opened));
      LANCET_ASSIGN(const double load, slowest(world_, [&]() -> Status {
                      LANCET_ASSIGN(const auto from, checkpoint::Checkpoint::open(folder));
                      return run::load_tensors(trainer_->store(), from, run::LoadScope::all);
                    }));
      read_s.push_back(plain);
      load_s.push_back(load);
    }
    speed_.gigabytes = bytes * 1e-9;
    speed_.read_gb_s = bytes * 1e-9 / median(read_s);
    speed_.load_gb_s = bytes * 1e-9 / median(load_s);
    return {};
  }

  Status drop(const checkpoint::Checkpoint& from) {
    if (options_.cached) speed_.dropped = false;
    if (!options_.cached && world_.rank() == 0) speed_.dropped &= drop_cached(from);
    return world_.barrier();
  }

  const config::Config& config_;
  comm::Communicator& world_;
  const CheckpointSpeedOptions& options_;
  CheckpointSpeed speed_;
  std::unique_ptr<Trainer> trainer_;
};

}  // namespace

Result<CheckpointSpeed> measure_checkpoint(config::Config config, comm::Communicator& world,
                                           const CheckpointSpeedOptions& options) {
  if (!config.holds_model()) return config_error("expected ranks that hold a model, found mirrored or emulated ones");
  if (config.data.train.empty()) config.data.synthetic = true;
  config.data.eval.clear();
  config.train.save_interval = 1;
  config.train.sample_tokens = 0;
  // Never committed, so it is removed at the end; if this process is killed, the next one removes it.
  std::optional<run::NewFolder> made;
  Status status;
  if (world.rank() == 0) {
    auto folder = run::NewFolder::create(options.folder / "lancet-bench-checkpoint");
    if (folder.ok())
      made.emplace(std::move(*folder));
    else
      status = folder.error();
  }
  LANCET_TRY(world::broadcast_status(world, status, 0));
  LANCET_ASSIGN(config.log.run_dir, broadcast_text(world, made ? made->path().string() : "", 0));
  return Bench(config, world, options).run();
}

}  // namespace lancet::train
