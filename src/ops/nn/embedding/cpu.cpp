#include <cstring>

#include "table_rows.h"

namespace lancet::ops {
namespace {

void zero_rows(float* data, std::int64_t rows, std::int64_t columns) {
  cpu::parallel_for(rows * columns, cpu::grain_elements, [&](std::int64_t begin, std::int64_t end) {
    std::memset(data + begin, 0, std::size_t(end - begin) * sizeof(float));
  });
}

Kernel bind(const KernelArgs& args) {
  const std::int32_t* tokens = args.operands[0].as<std::int32_t>();
  const std::int64_t count = args.operands[0].elements(), sequence = args.operands[0].shape()[1];
  const std::int64_t d = args.operands[1].shape()[1], before = args.attributes.integer("before", 0);
  const TableRows table(args.operands[1].shape()[0], args.share());
  return cpu::by_dtype(args.operands[1].dtype(), [&]<class T>(T) -> Kernel {
    const T *wte = args.operands[1].as<T>(), *wpe = args.has(2) ? args.operands[2].as<T>() : nullptr;
    T* x = args.results[0].as<T>();
    return [=]() -> Status {
      table.check(tokens, count);
      cpu::parallel_for(count, cpu::row_grain(d), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = begin; t < end; ++t)
          embed_row(d, wte, table.row(tokens[t]), wpe ? wpe + (before + t % sequence) * d : nullptr, x + t * d);
      });
      return {};
    };
  });
}

// Threads share the columns, so that the rows of one token are added in order. With an accumulator only the rows of the
// batch's tokens are read and written.
Kernel bind_dw(const KernelArgs& args) {
  const std::int32_t* tokens = args.operands[1].as<std::int32_t>();
  float* dw = args.results[0].as<float>();
  const std::int64_t d = args.results[0].shape()[1], count = args.operands[1].elements();
  const TableRows table(args.results[0].shape()[0], args.share());
  const bool accumulate = args.has(2);
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* dx = args.operands[0].as<T>();
    return [=]() -> Status {
      table.check(tokens, count);
      if (!accumulate) zero_rows(dw, table.rows, d);
      cpu::parallel_for(d, cpu::block, [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t t = 0; t < count; ++t)
          if (const std::int64_t row = table.row(tokens[t]); row >= 0)
            cpu::add_rows(1, end - begin, d, dx + t * d + begin, dw + row * d + begin, true);
      });
      return {};
    };
  });
}

Kernel bind_position_dw(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t batch = shape[0], sequence = shape[1], d = shape[2], positions = args.results[0].shape()[0];
  float* dw = args.results[0].as<float>();
  const bool accumulate = args.has(1);
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* dx = args.operands[0].as<T>();
    return [=]() -> Status {
      cpu::parallel_for(sequence, cpu::row_grain(batch * d), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t s = begin; s < end; ++s)
          cpu::add_rows(batch, d, sequence * d, dx + s * d, dw + s * d, accumulate);
      });
      if (!accumulate) zero_rows(dw + sequence * d, positions - sequence, d);
      return {};
    };
  });
}

const CpuKernel table[] = {{"embedding", bind}, {"embedding_dw", bind_dw}, {"position_dw", bind_position_dw}};

}  // namespace

std::span<const CpuKernel> embedding_cpu() { return table; }

}  // namespace lancet::ops
