// The parts of streams between GPUs that one GPU can test: rows through the NCCL window of a single rank, and the
// transport over host memory between ranks that share the GPU.
#include <cstring>

#include "all_to_all_values.h"
#include "doubles/inproc.h"
#include "lancet/comm/communicator.h"
#include "module.h"

namespace lancet {
namespace {

using test::done, test::made;

constexpr std::int64_t experts = 3, capacity = 40;
constexpr int parts = 2;
// The slots of each expert that a part fills, and their rows in its buffer: full, empty in one part, and few.
constexpr std::int32_t filled[parts][experts][2] = {{{0, 25}, {0, 0}, {3, 4}}, {{25, 40}, {0, 17}, {4, 9}}};
constexpr std::int32_t rows[parts][experts][2] = {{{0, 25}, {0, 0}, {0, 1}}, {{25, 40}, {0, 17}, {1, 6}}};

// Byte offsets in the window: slots, buffer, and for each part its filled slots and rows.
struct Layout {
  std::int64_t row_bytes;
  std::size_t tensor() const { return std::size_t(experts * capacity * row_bytes + 255) / 256 * 256; }
  std::size_t buffer() const { return tensor(); }
  std::size_t filled(int part) const { return 2 * tensor() + std::size_t(part) * 512; }
  std::size_t rows(int part) const { return filled(part) + 256; }
  std::size_t bytes() const { return filled(parts); }
  std::size_t slot(std::int64_t e, std::int64_t i) const { return std::size_t((e * capacity + i) * row_bytes); }
};

ops::Kernel all_to_all_of(const Layout& layout, runtime::Accelerator& gpu, backend::Stream& stream,
                          comm::DeviceCommunicator& nccl, std::byte* window, bool there) {
  const ir::TensorType tokens{DType::bf16, {experts, capacity, layout.row_bytes / 2}};
  const ops::TensorView slots{window, tokens}, buffer{window + layout.buffer(), tokens};
  const ir::Attributes none;
  const std::string op = there ? "all_to_all" : "all_to_all_back";
  ops::KernelArgs args{.op = op, .operands = {}, .results = {}, .attributes = none};
  args.operands = {there ? slots : buffer};
  args.results = {there ? buffer : slots};
  for (int p = 0; p < parts; ++p) {
    args.operands.push_back({window + layout.filled(p), {DType::i32, {experts, 2}}});
    args.operands.push_back({window + layout.rows(p), {DType::i32, {experts, 2}}});
  }
  args.device = &gpu.device(), args.stream = &stream, args.group = comm::group_of(nccl);
  return gpu.find_kernel(op)->bind(args);
}

// The expected content of the window after an all-to-all.
void move_rows(const Layout& layout, std::byte* window, bool there) {
  for (int p = 0; p < parts; ++p)
    for (std::int64_t e = 0; e < experts; ++e) {
      std::byte *slots = window + layout.slot(e, filled[p][e][0]),
                *buffer = window + layout.buffer() + layout.slot(e, rows[p][e][0]);
      const auto bytes = std::size_t((filled[p][e][1] - filled[p][e][0]) * layout.row_bytes);
      std::memcpy(there ? buffer : slots, there ? slots : buffer, bytes);
    }
}

void check_rows(runtime::Accelerator& gpu, backend::Stream& stream, comm::DeviceCommunicator& nccl,
                std::span<std::byte> window, const Layout& layout) {
  backend::Device& device = gpu.device();
  REQUIRE(window.size() >= layout.bytes());
  std::byte* const page = made(device.allocate_host(layout.bytes()));
  for (std::size_t i = 0; i < layout.bytes(); ++i) page[i] = std::byte(i * 31 >> 3);
  for (int p = 0; p < parts; ++p) {
    std::memcpy(page + layout.filled(p), filled[p], sizeof filled[p]);
    std::memcpy(page + layout.rows(p), rows[p], sizeof rows[p]);
  }
  std::vector<std::byte> expected(page, page + layout.bytes());
  done(stream.copy(window.data(), page, layout.bytes()));
  for (const bool there : {true, false, true}) {
    if (!there) {  // cleared, so that the rows that come back are seen
      done(stream.zero(window.data(), layout.tensor()));
      std::memset(expected.data(), 0, layout.tensor());
    }
    done(all_to_all_of(layout, gpu, stream, nccl, window.data(), there)());
    move_rows(layout, expected.data(), there);
    done(stream.copy(page, window.data(), layout.bytes()));
    done(stream.synchronize());
    CHECK(std::memcmp(page, expected.data(), layout.bytes()) == 0);
  }
  device.free_host(page);
}

}  // namespace

TEST_CASE("rows pass the NCCL window of a single rank") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  done(device.bind_thread());
  const auto stream = made(device.make_stream(true));
  const auto self = comm::make_self();
  const auto nccl = gpu->make_communicator({.device = &device, .host = self.get(), .max_ctas = 3});
  if (!nccl.ok() && nccl.error().code == ExitCode::config) {
    std::cout << "SKIPPED: " << nccl.error().message << std::endl;
    return;
  }
  if (!nccl.ok()) FAIL(nccl.error().message);
  const auto window = (*nccl)->make_window(1 << 16);
  if (!window.ok()) {
    CHECK((*nccl)->check().ok());  // the communicator still works without a window
    std::cout << "SKIPPED: " << window.error().message << std::endl;
    return;
  }
  CHECK((*nccl)->in_window(window->data(), 1 << 16));
  check_rows(*gpu, *stream, **nccl, *window, {48});
  check_rows(*gpu, *stream, **nccl, *window, {10});  // rows that are not multiples of 16 bytes
  CHECK((*nccl)->check().ok());
  const ops::Kernel after = all_to_all_of({48}, *gpu, *stream, **nccl, window->data(), true);
  (*nccl)->abort("the test's end");
  CHECK_FALSE(after().ok());
  done(stream->synchronize());
}

TEST_CASE("ranks that share a GPU send and sum over the host") {
  const auto gpu = test::open_gpu();
  if (!gpu) return;
  backend::Device& device = gpu->device();
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_TRY(device.bind_thread());
    LANCET_ASSIGN(const auto stream, device.make_stream(true));
    LANCET_ASSIGN(const auto staged, comm::make_staged({.device = &device, .host = &world}));
    for (int turn = 0; turn < 2; ++turn)
      LANCET_TRY(test::check_values(device, *stream, *staged));  // the second turn allocates memory again
    return {};
  });
  done(status);
}

}  // namespace lancet
