#include "lancet/world/stream_communicators.h"

namespace lancet::world {

Result<Lanes> Lanes::make(const config::Config& config, comm::Communicator& world, runtime::Accelerator* accelerator,
                          const std::string& purpose) {
  Lanes lanes;
  lanes.accelerator_ = accelerator;
  lanes.timeout_ = std::chrono::milliseconds(static_cast<std::int64_t>(config.comm.timeout_s * 1000));
  world.set_timeout(lanes.timeout_);
  for (const ir::Lane lane : {ir::Lane::expert, ir::Lane::reduce}) {
    LANCET_ASSIGN(auto communicator, world.duplicate());
    communicator->set_timeout(lanes.timeout_);
    communicator->set_name(purpose + std::string(ir::name(lane)));
    lanes.host_[static_cast<std::size_t>(lane)] = std::move(communicator);
  }
  if (accelerator) {
    LANCET_ASSIGN(lanes.device_, make_device_lanes(config, *accelerator, lanes.host_));
  }
  return lanes;
}

runtime::ExecutorOptions Lanes::executor_options(int threads) const {
  runtime::ExecutorOptions options{.threads = threads, .communicators = {}};
  options.accelerator = accelerator_;
  options.timeout = timeout_;
  for (std::size_t lane = 0; lane < ir::lane_count; ++lane) {
    options.communicators[lane] = host_[lane].get();
    options.device_communicators[lane] = device_[lane].get();
  }
  return options;
}

void Lanes::abort(const std::string& why) {
  for (auto& lane : host_)
    if (lane) lane->abort(why);
  std::vector<comm::DeviceCommunicator*> lanes;
  for (auto& lane : device_) lanes.push_back(lane.get());
  comm::abort_all(lanes, why);
}

}  // namespace lancet::world
