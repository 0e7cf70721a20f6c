// Ranks and the GPUs that they find: an impossible combination ends all ranks with one line.
#include <catch2/catch.hpp>

#include "good.h"
#include "lancet/comm/communicator.h"
#include "lancet/run/rank_device.h"
#include "log_capture.h"
#include "train/support.h"

using namespace lancet;

namespace {

// The GPUs of a host by number.
struct Machine {
  std::vector<std::string> gpus;  // identities
  Error broken;                   // the error of counting them, if it has a message
  std::string libraries{};        // the accelerator's own words
};
Machine machine;

class NamedAccelerator final : public runtime::Accelerator {
 public:
  explicit NamedAccelerator(const std::string& identity) : device_(test::make_host_queue({.identity = identity})) {}
  backend::Device& device() override { return *device_; }
  const ops::DeviceKernel* find_kernel(std::string_view) const override { return nullptr; }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream&) override {
    return internal_error("a call that the test does not expect");
  }
  std::string build() const override { return "named"; }
  std::string libraries() const override { return machine.libraries; }

 private:
  std::unique_ptr<backend::Device> device_;
};

const runtime::AcceleratorModule module_of_test = {
    "test",
    []() -> Result<int> {
      if (!machine.broken.message.empty()) return machine.broken;
      return static_cast<int>(machine.gpus.size());
    },
    [](int index) -> Result<std::unique_ptr<runtime::Accelerator>> {
      return std::unique_ptr<runtime::Accelerator>(
          std::make_unique<NamedAccelerator>(machine.gpus.at(static_cast<std::size_t>(index))));
    }};

// Returns the result of each of `ranks` on one host: the identity of its device, or the error.
std::vector<Result<std::string>> open_on(int ranks, config::Transport transport = config::Transport::automatic,
                                         int broken_rank = -1) {
  auto config = test::small_config();
  config.device = config::Device::cuda;
  config.comm.transport = transport;
  std::vector<Result<std::string>> found(static_cast<std::size_t>(ranks), std::string());
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const run::DeviceSource source{
        .load = [&]() -> Result<const runtime::AcceleratorModule*> {
          if (world.rank() == broken_rank) return config_error("device: expected a module, found none");
          return &module_of_test;
        },
        .launch = {.rank = world.rank(), .size = ranks, .local_rank = world.rank(), .local_size = ranks}};
    auto mine = run::open_accelerator(config, world, source);
    auto& result = found[static_cast<std::size_t>(world.rank())];
    if (mine.ok())
      result = (*mine)->device().identity();
    else
      result = mine.error();
    return {};
  }));
  return found;
}

void check_all(const std::vector<Result<std::string>>& found, const std::string& message) {
  for (const auto& result : found) {
    REQUIRE_FALSE(result.ok());
    CHECK(result.error().code == ExitCode::config);
    CHECK(result.error().agreed);  // all ranks exit, one of them prints it
    CHECK(result.error().message == message);
  }
}

}  // namespace

TEST_CASE("each rank takes the GPU of its number on the host") {
  machine = {{"a", "b", "c"}, {}};
  const auto found = open_on(3);
  for (std::size_t rank = 0; rank < 3; ++rank) {
    REQUIRE(found[rank].ok());
    CHECK(*found[rank] == machine.gpus[rank]);
  }
}

TEST_CASE("the log says what the plugin was built with, and what it was built without") {
  machine = {{"a"}, {}, "CUDA 13.0, attention on the tree's own kernels: cuDNN not found"};
  const test::LogCapture log;
  REQUIRE(open_on(1)[0].ok());
  CHECK(log.count("libraries  CUDA 13.0, attention on the tree's own kernels: cuDNN not found") == 1);
}

TEST_CASE("more ranks than GPUs are an error") {
  machine = {{"a", "b"}, {}};
  check_all(open_on(4), "device: expected 4 GPUs for the 4 ranks of this host, found 2");
}

TEST_CASE("two ranks on one GPU by mistake are reported with the ranks and the GPU") {
  machine = {{"2a2a at 0000:17:00.0"}, {}};
  check_all(open_on(2),
            "device: expected a GPU for each rank, found ranks 0 and 1 on the same host queue (2a2a at 0000:17:00.0)");
  machine = {{"a", "b", "a"}, {}};  // a mask that names one GPU twice
  check_all(open_on(3), "device: expected a GPU for each rank, found ranks 0 and 2 on the same host queue (a)");
}

TEST_CASE("ranks may share a GPU if the config chooses communication through the host") {
  machine = {{"a"}, {}};
  for (const auto& result : open_on(2, config::Transport::mpi)) CHECK(result.ok());
}

TEST_CASE("one GPU serves all ranks of a mirrored world") {
  machine = {{"a"}, {}};
  auto config = test::small_config();
  config.device = config::Device::cuda;
  config.comm.transport = config::Transport::mirrored;
  const auto no_time = [](std::span<const int>, double) { return 0.0; };
  const auto world = comm::make_mirrored_world(4, {"network of the test", no_time, no_time});
  const auto mine =
      test::good(run::open_accelerator(config, *world, {.load = [] { return &module_of_test; }, .launch = {}}));
  CHECK((*mine)->device().identity() == "a");
}

TEST_CASE("one rank without a GPU ends all, and is named") {
  machine = {{"a", "b"}, {}};
  check_all(open_on(2, config::Transport::automatic, 1), "rank 1: device: expected a module, found none");
}

TEST_CASE("a missing driver on every rank is reported once") {
  machine = {{"a", "b"}, config_error("device: expected an NVIDIA driver for CUDA 13.0, found none")};
  check_all(open_on(2), "device: expected an NVIDIA driver for CUDA 13.0, found none");
}
