#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "lancet/base/log.h"
#include "lancet/comm/device_communicator.h"

namespace lancet::comm {
namespace {

// Shared with the threads, which may outlive the call.
struct Left {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
};

}  // namespace

void abort_all(std::span<DeviceCommunicator* const> communicators, const std::string& why,
               std::chrono::milliseconds most) {
  const auto left = std::make_shared<Left>();
  for (DeviceCommunicator* communicator : communicators) left->count += communicator != nullptr;
  for (DeviceCommunicator* communicator : communicators) {
    if (!communicator) continue;
    std::thread([communicator, why, left] {
      communicator->abort(why);
      const std::lock_guard lock(left->mutex);
      if (--left->count == 0) left->changed.notify_all();
    }).detach();
  }
  std::unique_lock lock(left->mutex);
  if (left->changed.wait_for(lock, most, [&] { return left->count == 0; })) return;
  log::error("{}; expected the driver to give up what this rank waits for within {:.3g} s, found that it did not", why,
             double(most.count()) * 1e-3);
  std::_Exit(static_cast<int>(ExitCode::communication));
}

}  // namespace lancet::comm
