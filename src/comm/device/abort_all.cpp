// Each communicator is aborted on a detached thread of its own; the caller waits until all have returned or the time is
// over. The threads share ownership of their counter, since they may outlive the call.
#include <condition_variable>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "lancet/base/log.h"
#include "lancet/comm/device_communicator.h"

namespace lancet::comm {
namespace {

// Number of aborts that have not returned.
struct Pending {
  std::mutex mutex;
  std::condition_variable changed;
  int count = 0;
};

}  // namespace

void abort_all(std::span<DeviceCommunicator* const> communicators, const std::string& why,
               std::chrono::milliseconds most) {
  const auto pending = std::make_shared<Pending>();
  for (DeviceCommunicator* communicator : communicators) pending->count += communicator != nullptr;
  for (DeviceCommunicator* communicator : communicators) {
    if (!communicator) continue;
    std::thread([communicator, why, pending] {
      communicator->abort(why);
      const std::lock_guard lock(pending->mutex);
      if (--pending->count == 0) pending->changed.notify_all();
    }).detach();
  }
  std::unique_lock lock(pending->mutex);
  if (pending->changed.wait_for(lock, most, [&] { return pending->count == 0; })) return;
  log::error("{}; the driver did not abort this rank's pending calls within {:.3g} s", why,
             double(most.count()) * 1e-3);
  std::_Exit(static_cast<int>(ExitCode::communication));
}

}  // namespace lancet::comm
