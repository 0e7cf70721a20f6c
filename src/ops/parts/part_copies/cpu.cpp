#include <cstring>
#include <vector>

#include "filled.h"
#include "ops/cpu.h"

namespace lancet::ops {
namespace {

// All threads share the bytes.
void copy_bytes(const std::byte* from, std::int64_t bytes, std::byte* to) {
  cpu::parallel_for(bytes, 4 * cpu::grain_elements, [&](std::int64_t begin, std::int64_t end) {
    std::memcpy(to + begin, from + begin, std::size_t(end - begin));
  });
}

Kernel bind_concat(const KernelArgs& args) {
  std::vector<const std::byte*> parts;
  for (const TensorView& part : args.operands) parts.push_back(static_cast<const std::byte*>(part.data));
  auto* whole = static_cast<std::byte*>(args.results[0].data);
  const std::int64_t bytes = args.operands[0].elements() * size_of(args.operands[0].dtype());
  return [=]() -> Status {
    for (std::size_t p = 0; p < parts.size(); ++p) copy_bytes(parts[p], bytes, whole + std::int64_t(p) * bytes);
    return {};
  };
}

Kernel bind_merge_slots(const KernelArgs& args) {
  struct Part {
    const std::byte* buffer;
    Filled filled;
  };
  std::vector<Part> parts;
  for (std::size_t i = 0; i < args.operands.size(); i += 2)
    parts.push_back({static_cast<const std::byte*>(args.operands[i].data), Filled(args.operands[i + 1])});
  auto* whole = static_cast<std::byte*>(args.results[0].data);
  const Shape& shape = args.results[0].shape();
  const std::int64_t experts = shape[0], row = shape[2] * size_of(args.results[0].dtype()), expert = shape[1] * row;
  return [=]() -> Status {
    for (const Part& part : parts)
      cpu::parallel_for(experts, 1, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t e = first; e < last; ++e) {
          const std::int64_t begin = e * expert + part.filled.begin(e) * row,
                             end = e * expert + part.filled.end(e) * row;
          std::memcpy(whole + begin, part.buffer + begin, std::size_t(end - begin));
        }
      });
    return {};
  };
}

Kernel bind_place_columns(const KernelArgs& args) {
  const Shape &tile = args.operands[0].shape(), &whole = args.results[0].shape();
  const std::int64_t element = size_of(args.results[0].dtype()), bytes = tile[2] * element, to_row = whole[2] * element;
  const cpu::FilledRows filled(args.operands[1], tile[1]);
  const auto* from = args.operands[0].as<std::byte>();
  auto* to = args.results[0].as<std::byte>() + args.attributes.integer("part", 0) * bytes;
  return [=, grain = cpu::row_grain(tile[2])]() -> Status {
    filled.parallel(grain, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) std::memcpy(to + r * to_row, from + r * bytes, std::size_t(bytes));
    });
    return {};
  };
}

const CpuKernel table[] = {{"copy", bind_concat},
                           {"concat", bind_concat},
                           {"merge_slots", bind_merge_slots},
                           {"place_columns", bind_place_columns}};

}  // namespace

std::span<const CpuKernel> part_copies_cpu() { return table; }

}  // namespace lancet::ops
