// What the host cannot try: clusters, blocks that wait for each other, instructions and tensor maps, on a GPU.
#include <string>
#include <vector>

#include "lancet/backend/cuda/tensor_map.h"
#include "launch_kernels.h"
#include "module.h"

namespace lancet {
namespace {

using test::done, test::made;

// A page that the GPU and the host reach, of 4-byte words.
class Words {
 public:
  Words(backend::Device& device, std::size_t count)
      : device_(device), memory_(made(device.allocate_host(count * sizeof(std::uint32_t)))) {}
  ~Words() { device_.free_host(memory_); }
  template <class T = std::int32_t>
  T* at(std::size_t i) const {
    return reinterpret_cast<T*>(memory_) + i;
  }

 private:
  backend::Device& device_;
  std::byte* memory_;
};

bool has_clusters(const backend::Device& device) { return std::stoi(device.architecture().substr(3)) >= 90; }

}  // namespace

// tests/ops/device/instructions_test.cpp runs them on the host.
TEST_CASE("device instructions on a GPU have the values that PTX states") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  done(device.bind_thread());
  const auto stream = made(device.make_stream(false));
  std::byte* const memory = made(device.allocate(sizeof(test::Instructions)));
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    const auto given = std::make_unique<test::Instructions>(test::instruction_operands(seed));
    const auto found = std::make_unique<test::Instructions>();
    done(stream->copy(memory, given.get(), sizeof *given));
    done(test::run_instructions(*stream, reinterpret_cast<test::Instructions*>(memory)));
    done(stream->copy(found.get(), memory, sizeof *found));
    done(stream->synchronize());
    CHECK(test::instruction_faults(*given, *found) == std::vector<std::string>{});
  }
  device.free(memory);
}

TEST_CASE("blocks of a cluster on a GPU") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  done(device.bind_thread());
  const auto stream = made(device.make_stream(false));
  constexpr int blocks = 8 * test::cluster_blocks;
  const Words ranks(device, blocks);
  const Status status = test::run_in_clusters(*stream, blocks, ranks.at(0));
  if (!has_clusters(device)) {
    CHECK_FALSE(status.ok());
    return;
  }
  done(status);
  done(stream->synchronize());
  for (int b = 0; b < blocks; ++b) CHECK(*ranks.at(std::size_t(b)) == b % test::cluster_blocks);
}

TEST_CASE("blocks that wait for each other on a GPU see what the others wrote") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  done(device.bind_thread());
  const auto stream = made(device.make_stream(false));
  constexpr std::int32_t blocks = 64;  // far fewer than a GPU holds
  auto* memory = reinterpret_cast<std::uint32_t*>(made(device.allocate((2 * blocks + 1) * sizeof(std::uint32_t))));
  auto* values = reinterpret_cast<std::int32_t*>(memory + 1);
  const Words found(device, blocks);
  for (int turn = 0; turn < 100; ++turn) {
    done(stream->zero(memory, (2 * blocks + 1) * sizeof(std::uint32_t)));
    done(test::run_meeting(*stream, blocks, memory, values, values + blocks));
    done(stream->copy(found.at(0), values + blocks, blocks * sizeof(std::int32_t)));
    done(stream->synchronize());
    for (std::int32_t b = 0; b < blocks; ++b) REQUIRE(*found.at(std::size_t(b)) == blocks * (blocks + 1) / 2);
  }
  device.free(reinterpret_cast<std::byte*>(memory));
}

TEST_CASE("the host stops a kernel on a GPU that waits for a word") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  done(device.bind_thread());
  const auto stream = made(device.make_stream(false));
  const Words words(device, 2), stopped(device, 4);
  done(test::run_until_stopped(*stream, 4, words.at<std::uint32_t>(0), words.at<std::uint32_t>(1), stopped.at(0)));
  __atomic_store_n(words.at<std::uint32_t>(1), 1u, __ATOMIC_RELEASE);
  done(stream->synchronize());
  for (std::size_t b = 0; b < 4; ++b) CHECK(*stopped.at(b) == 1);
}

TEST_CASE("the driver accepts a tensor map") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  done(device.bind_thread());
  std::byte* memory = made(device.allocate(1280 * 2304 * 2));
  backend::cuda::TensorMap map{};
  if (has_clusters(device)) done(backend::cuda::encode({memory, DType::bf16, 1280, 768, 2304, 128, 64}, map));
  device.free(memory);
}

}  // namespace lancet
