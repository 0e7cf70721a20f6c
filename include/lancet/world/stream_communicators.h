// The communicators of a plan's streams: all-to-alls and all-reduces do not wait for each other's turn.
#pragma once
#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "lancet/world/rank_device.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/runtime/executor.h"

namespace lancet::world {

class Streams {
 public:
  // Collective: duplicates of `world`, which gets the config's timeout, too; on an accelerator (null: the CPU) also
  // those of its streams. purpose: before their names in errors.
  static Result<Streams> make(const config::Config& config, comm::Communicator& world, runtime::Accelerator* accelerator,
                            const std::string& purpose = "");

  // What an executor of this rank runs with; the streams outlive it. The arena is its own.
  runtime::ExecutorOptions executor_options(int threads) const;
  const DeviceStreams& on_device() const { return device_; }
  void abort(const std::string& why);  // whoever waits on a stream is told

 private:
  runtime::Accelerator* accelerator_ = nullptr;
  std::chrono::milliseconds timeout_{};
  std::array<std::unique_ptr<comm::Communicator>, ir::stream_count> host_;
  DeviceStreams device_;
};

}  // namespace lancet::world
