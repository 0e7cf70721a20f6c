#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "lancet/ops/schedule_layout.h"
#include "math.h"
#include "ops/cpu.h"

namespace lancet::ops {
namespace {

// One thread sums a piece in double, and the pieces are added in order: the sum is the same for any number of threads.
constexpr std::int64_t piece_elements = 1 << 16;
struct Piece {
  const float* data;
  std::int64_t count;
};

std::vector<Piece> cut(const std::vector<TensorView>& tensors) {
  std::vector<Piece> pieces;
  for (const TensorView& tensor : tensors)
    for (std::int64_t i = 0; i < tensor.elements(); i += piece_elements)
      pieces.push_back({tensor.as<float>() + i, std::min(piece_elements, tensor.elements() - i)});
  return pieces;
}

double squares(const Piece& piece) {
  constexpr std::int64_t width = 32;
  alignas(64) double sums[width] = {};
  std::int64_t i = 0;
  for (; i + width <= piece.count; i += width) {
#pragma omp simd
    for (std::int64_t j = 0; j < width; ++j) sums[j] += double(piece.data[i + j]) * double(piece.data[i + j]);
  }
  for (std::int64_t j = 0; i + j < piece.count; ++j) sums[j] += double(piece.data[i + j]) * double(piece.data[i + j]);
  double total = 0;
  for (double sum : sums) total += sum;
  return total;
}

Kernel bind_norm(const KernelArgs& args) {
  const auto pieces = std::make_shared<const std::vector<Piece>>(cut(args.operands));
  double* sums = reinterpret_cast<double*>(args.workspace);
  float* result = args.results[0].as<float>();
  return [=]() -> Status {
    const std::int64_t count = std::int64_t(pieces->size());
    cpu::parallel_for(count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) sums[i] = squares((*pieces)[std::size_t(i)]);
    });
    double total = 0;
    for (std::int64_t i = 0; i < count; ++i) total += sums[i];
    *result = float(total);
    return {};
  };
}
std::size_t workspace(const KernelArgs& args) { return cut(args.operands).size() * sizeof(double); }

Kernel bind_scale(const KernelArgs& args) {
  std::vector<const float*> sums;
  for (const TensorView& sum : args.operands) sums.push_back(sum.as<float>());
  const auto shared = std::make_shared<const std::vector<const float*>>(std::move(sums));
  const float max_norm = float(args.attributes.real("max_norm"));
  float* result = args.results[0].as<float>();
  return [=]() -> Status {
    double total = 0;
    for (const float* sum : *shared) total += *sum;
    result[0] = float(std::sqrt(total));
    result[1] = clip_factor(result[0], max_norm);
    return {};
  };
}

Kernel bind_schedule(const KernelArgs& args) {
  const float *numbers = args.operands[0].as<float>(), *clip = args.operands[1].as<float>();
  float* result = args.results[0].as<float>();
  return [=]() -> Status {
    std::copy_n(numbers, int(schedule::plain), result);
    result[schedule::factor] = clip[1];
    return {};
  };
}

const CpuKernel table[] = {
    {"squared_norm", bind_norm, workspace}, {"clip_scale", bind_scale}, {"clipped_schedule", bind_schedule}};

}  // namespace

std::span<const CpuKernel> clip_cpu() { return table; }

}  // namespace lancet::ops
