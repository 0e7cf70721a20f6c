// Streams: owns a communicator for each communication stream, so that all-to-alls and all-reduces run independently.
#pragma once
#include <array>
#include <chrono>
#include <memory>
#include <string>

#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/runtime/executor.h"
#include "lancet/world/rank_device.h"

namespace lancet::world {

class Streams {
 public:
  // Collective: duplicates `world` for each stream and sets the config's timeout on all of them, `world` included. With
  // an accelerator (null: the CPU) it also makes the device communicators. purpose: prefix of the names in errors.
  static Result<Streams> make(const config::Config& config, comm::Communicator& world,
                              runtime::Accelerator* accelerator, const std::string& purpose = "");

  // Options for an executor of this rank, which has its own arena. This object outlives the executor.
  runtime::ExecutorOptions executor_options(int threads) const;
  const DeviceStreams& on_device() const { return device_; }
  void abort(const std::string& why);  // ends all waits on a stream with an error that holds `why`

 private:
  runtime::Accelerator* accelerator_ = nullptr;
  std::chrono::milliseconds timeout_{};
  std::array<std::unique_ptr<comm::Communicator>, ir::stream_count> host_;
  DeviceStreams device_;
};

}  // namespace lancet::world
