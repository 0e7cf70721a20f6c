// A training run whose ranks are threads, for tests/faults/kill.py (`lancet train` has one process per rank):
// inproc_train RANKS CONFIG RUN_DIR
#include <charconv>
#include <cstdio>
#include <mutex>
#include <string_view>

#include "doubles/inproc.h"
#include "lancet/base/log.h"
#include "lancet/comm/communicator.h"
#include "lancet/train/trainer.h"

using namespace lancet;

namespace {

int report(const Error& error) {
  log::error("{}", error.message);
  return static_cast<int>(error.code);
}

int train_with_threads(int ranks, const char* file, const char* run_dir) {
  auto config = config::load(file);
  if (!config.ok()) return report(config.error());
  config->log.run_dir = run_dir;
  int code = 0;
  std::mutex mutex;
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const Status mine = train::train(*config, world, {.local_ranks = ranks});
    if (mine.ok() || world.rank() != 0) return mine.ok() || mine.error().agreed ? Status() : mine;
    const std::lock_guard lock(mutex);
    code = report(mine.error());
    return {};
  });
  return status.ok() ? code : report(status.error());
}

}  // namespace

int main(int argc, char** argv) {
  int ranks = 0;
  if (argc == 4) std::from_chars(argv[1], argv[1] + std::string_view(argv[1]).size(), ranks);
  if (ranks < 1) {
    std::fprintf(stderr, "usage: inproc_train RANKS CONFIG RUN_DIR\n");
    return 2;
  }
  log::set_up(0, 1);
  return train_with_threads(ranks, argv[2], argv[3]);
}
