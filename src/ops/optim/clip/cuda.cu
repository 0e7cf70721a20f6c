// The gradient norm on a GPU, in a fixed order of additions. squared_norm has up to hundreds of tensors of any size: a
// launch takes the addresses of 96 as arguments and cuts them in pieces of 2^14 elements, one block each (Squares). A
// block finds its tensor by binary search (device/tensor_table.h) and writes one partial sum; a single block adds the
// partial sums of all launches (AddUp). clip_scale adds the few results of several squared_norms on one thread.
#include <memory>
#include <vector>

#include "lancet/ops/schedule_layout.h"
#include "math.h"
#include "ops/device/partial_sums.h"
#include "ops/device/tensor_table.h"

namespace lancet::ops {
namespace {

using namespace device;

constexpr int tensors_per_launch = 96;
static_assert(tensors_per_launch <= most_entries);
constexpr std::int64_t norm_piece = 1 << 14;  // elements per block: 16 packs per thread

std::int64_t pieces_of(const TensorView& tensor) { return divide_up(tensor.elements(), norm_piece); }

// The sum of squares of each piece of the tensors. Bytes: each tensor once.
struct Squares {
  static constexpr int threads = 256;
  struct Tensor {
    const float* data;
    std::int64_t elements, first_piece;  // first_piece: number of pieces of the tensors before it in the launch
  };
  Tensor tensors[tensors_per_launch];
  int count;
  float* parts;  // [pieces]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const Tensor tensor = tensors[entry_of_piece(tensors, count, block.index())];
    const std::int64_t begin = (block.index() - tensor.first_piece) * norm_piece,
                       end = begin + norm_piece < tensor.elements ? begin + norm_piece : tensor.elements;
    const bool wide = reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
    float sums[4] = {};
#pragma unroll 4
    for (std::int64_t start = begin + block.thread() * 4; start < end; start += threads * 4) {
      const Pack<float> x = load(tensor.data + start, part_of_row<float>(start, end), wide);
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[i] += x.v[i] * x.v[i];
    }
    const float sum = block.sum((sums[0] + sums[2]) + (sums[1] + sums[3]));
    if (block.thread() == 0) parts[block.index()] = sum;
  }
};

std::size_t workspace_norm(const KernelArgs& args) {
  std::int64_t pieces = 0;
  for (const TensorView& tensor : args.operands) pieces += pieces_of(tensor);
  Scratch scratch(nullptr);
  scratch.take<float>(pieces);
  return scratch.bytes();
}

Kernel bind_norm(const KernelArgs& args) {
  struct Part {
    Squares kernel;
    std::int64_t pieces;
  };
  std::vector<Part> launches;
  float* parts = reinterpret_cast<float*>(args.workspace);
  std::int64_t all = 0;
  for (std::size_t i = 0; i < args.operands.size(); ++i) {
    if (i % tensors_per_launch == 0) launches.push_back({{{}, 0, parts + all}, 0});
    auto& [kernel, pieces] = launches.back();
    const TensorView& tensor = args.operands[i];
    kernel.tensors[kernel.count++] = {tensor.as<float>(), tensor.elements(), pieces};
    pieces += pieces_of(tensor);
    all += pieces_of(tensor);
  }
  const AddUp add{parts, all, 1.f, args.results[0].as<float>()};
  backend::Stream* stream = args.stream;
  return [stream, add, launches = std::make_shared<const std::vector<Part>>(std::move(launches))]() -> Status {
    for (const Part& part : *launches) LANCET_TRY(launch(*stream, part.pieces, part.kernel));
    return launch(*stream, 1, add);
  };
}

// clip[0] = (or +=, after the first launch) the sums; the last launch turns it into norm and factor.
struct Scale {
  static constexpr int threads = 32;
  const float* sums[tensors_per_launch];
  int count;
  bool first, last;
  float max_norm;
  float* clip;  // [2]: norm, factor

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    if (block.thread() > 0) return;
    float total = first ? 0.f : clip[0];
    for (int i = 0; i < count; ++i) total += *sums[i];
    if (last) {
      total = __builtin_sqrtf(total);
      clip[1] = clip_factor(total, max_norm);
    }
    clip[0] = total;
  }
};

Kernel bind_scale(const KernelArgs& args) {
  std::vector<Scale> launches;
  for (std::size_t i = 0; i < args.operands.size(); ++i) {
    if (i % tensors_per_launch == 0)
      launches.push_back({{}, 0, i == 0, false, float(args.attributes.real("max_norm")), args.results[0].as<float>()});
    Scale& kernel = launches.back();
    kernel.sums[kernel.count++] = args.operands[i].as<float>();
  }
  launches.back().last = true;
  backend::Stream* stream = args.stream;
  return [stream, launches = std::make_shared<const std::vector<Scale>>(std::move(launches))]() -> Status {
    for (const Scale& kernel : *launches) LANCET_TRY(launch(*stream, 1, kernel));
    return {};
  };
}

struct Schedule {
  static constexpr int threads = 32;
  const float *numbers, *clip;
  float* out;  // [5]

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    if (const int i = block.thread(); i < schedule::clipped) out[i] = i < schedule::plain ? numbers[i] : clip[1];
  }
};

Kernel bind_schedule(const KernelArgs& args) {
  const Schedule kernel{args.operands[0].as<float>(), args.operands[1].as<float>(), args.results[0].as<float>()};
  return run_steps(args.stream, Step{1, kernel});
}

}  // namespace

std::span<const DeviceKernel> clip_cuda() {
  static const DeviceKernel table[] = {
      {"squared_norm", bind_norm, workspace_norm}, {"clip_scale", bind_scale}, {"clipped_schedule", bind_schedule}};
  return table;
}

}  // namespace lancet::ops
