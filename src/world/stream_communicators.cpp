#include "lancet/world/stream_communicators.h"

namespace lancet::world {

Result<Streams> Streams::make(const config::Config& config, comm::Communicator& world,
                              runtime::Accelerator* accelerator, const std::string& purpose) {
  Streams streams;
  streams.accelerator_ = accelerator;
  streams.timeout_ = std::chrono::milliseconds(static_cast<std::int64_t>(config.comm.timeout_s * 1000));
  world.set_timeout(streams.timeout_);
  for (const ir::Stream stream : {ir::Stream::expert, ir::Stream::reduce}) {
    LANCET_ASSIGN(auto communicator, world.duplicate());
    communicator->set_timeout(streams.timeout_);
    communicator->set_name(purpose + std::string(ir::name(stream)));
    streams.host_[static_cast<std::size_t>(stream)] = std::move(communicator);
  }
  if (accelerator) {
    LANCET_ASSIGN(streams.device_, make_device_streams(config, *accelerator, streams.host_));
  }
  return streams;
}

runtime::ExecutorOptions Streams::executor_options(int threads) const {
  runtime::ExecutorOptions options{.threads = threads, .communicators = {}};
  options.accelerator = accelerator_;
  options.timeout = timeout_;
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
    options.communicators[stream] = host_[stream].get();
    options.device_communicators[stream] = device_[stream].get();
  }
  return options;
}

void Streams::abort(const std::string& why) {
  for (auto& stream : host_)
    if (stream) stream->abort(why);
  std::vector<comm::DeviceCommunicator*> streams;
  for (auto& stream : device_) streams.push_back(stream.get());
  comm::abort_all(streams, why);
}

}  // namespace lancet::world
