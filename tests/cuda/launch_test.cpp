// What the host cannot try: clusters, blocks that wait for each other, instructions and tensor maps, on a GPU.
#include <chrono>
#include <string>
#include <thread>
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

// Blocks that wait hold all places but those of a few multiprocessors, which the other stream's kernel needs.
TEST_CASE("a full GPU waits on one stream for rows that a kernel of another stream announces, step after step") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  using test::Arrival;
  backend::Device& device = gpu->device();
  done(device.bind_thread());
  done(test::load_kernels());  // the second one's first launch would wait for the end of the first
  const auto compute = made(device.make_stream(false)), urgent = made(device.make_stream(true));
  const int waiting = test::most_arriving_blocks() * (device.traits().multiprocessors - 4);
  REQUIRE(waiting > 0);
  const std::size_t rows = 8 * std::size_t(waiting), groups = rows / Arrival::rows_per_signal;
  const std::size_t inputs = rows * Arrival::depth, products = rows * Arrival::columns;
  constexpr std::size_t weights = Arrival::columns * Arrival::depth;
  // sent, weight, filled, step; arrived, product, signals
  const std::size_t given = inputs + weights + 3, words = given + inputs + products + groups;
  std::byte* const memory = made(device.allocate(words * sizeof(float)));
  auto* const floats = reinterpret_cast<float*>(memory);
  auto* const numbers = reinterpret_cast<std::uint32_t*>(memory);
  const Words host(device, given), found(device, products), stop(device, 1);
  const Arrival arrival{.rows = std::int64_t(rows),
                        .sent = floats,
                        .arrived = floats + given,
                        .signals = numbers + given + inputs + products,
                        .weight = floats + inputs,
                        .product = floats + given + inputs,
                        .filled = reinterpret_cast<std::int32_t*>(numbers) + inputs + weights,
                        .step = numbers + inputs + weights + 2,
                        .stop = stop.at<std::uint32_t>(0)};
  const auto weight = [](std::size_t c, std::size_t k) { return float((c * 5 + k * 3) % 7) - 3; };
  const auto value = [](std::uint32_t step, std::size_t r, std::size_t k) {
    return float((step * 7 + r * 13 + k) % 17) - 8;
  };
  for (std::size_t c = 0; c < Arrival::columns; ++c)
    for (std::size_t k = 0; k < Arrival::depth; ++k) *host.at<float>(inputs + c * Arrival::depth + k) = weight(c, k);
  *host.at(inputs + weights) = 0;
  *host.at(inputs + weights + 1) = std::int32_t(rows);
  done(compute->zero(memory, words * sizeof(float)));
  for (std::uint32_t step = 1; step <= 20; ++step) {
    INFO("step " << step);
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t k = 0; k < Arrival::depth; ++k) *host.at<float>(r * Arrival::depth + k) = value(step, r, k);
    *host.at<std::uint32_t>(inputs + weights + 2) = step;
    done(compute->copy(memory, host.at(0), given * sizeof(float)));
    done(compute->synchronize());
    done(test::run_arriving_product(*compute, waiting, arrival));
    done(test::run_push(*urgent, 4, arrival));
    const auto most = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!made(compute->idle()) && std::chrono::steady_clock::now() < most) std::this_thread::yield();
    const bool ended = made(compute->idle());
    __atomic_store_n(stop.at<std::uint32_t>(0), ended ? 0u : 1u, __ATOMIC_RELEASE);
    done(urgent->synchronize());
    done(compute->copy(found.at(0), arrival.product, products * sizeof(float)));
    done(compute->synchronize());
    REQUIRE(ended);
    std::size_t wrong = 0;
    for (std::size_t r = 0; r < rows; ++r)
      for (std::size_t c = 0; c < Arrival::columns; ++c) {
        float sum = 0;
        for (std::size_t k = 0; k < Arrival::depth; ++k) sum += value(step, r, k) * weight(c, k);
        wrong += *found.at<float>(r * Arrival::columns + c) != sum;
      }
    REQUIRE(wrong == 0);
  }
  device.free(memory);
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
