// Products over experts' filled rows on the CPU.
#pragma once
#include <memory>
#include <vector>

#include "lancet/backend/cpu/matmul.h"
#include "ops/cpu.h"

namespace lancet::ops::cpu {

using backend::cpu::GroupedMatmul;
using backend::cpu::GroupedMatmulDesc;
using backend::cpu::GroupedRows;

// A product over the experts' filled rows, one range of rows per expert; the ranges are read when it runs.
struct ExpertProduct {
  ExpertProduct(const GroupedMatmulDesc& desc, FilledRows filled)
      : matmul(backend::cpu::make_grouped_matmul(desc)),
        filled(filled),
        begin(std::size_t(desc.groups)),
        end(std::size_t(desc.groups)) {}

  void run(const void* a, const void* b, const void* bias, void* c) {
    for (std::int64_t e = 0; e < filled.experts(); ++e) {
      begin[std::size_t(e)] = filled.begin(e);
      end[std::size_t(e)] = filled.end(e);
    }
    matmul->run(begin, end, a, b, bias, c);
  }

  std::unique_ptr<GroupedMatmul> matmul;
  FilledRows filled;
  std::vector<std::int64_t> begin, end;
};

// m, n and k of one expert's product; `rows` says which of m and k is replaced by the number of filled rows.
inline GroupedMatmulDesc extents(GroupedRows rows, std::int64_t experts, std::int64_t m, std::int64_t n, std::int64_t k,
                                 DType operands, DType result) {
  return {
      .rows = rows, .product = {.m = m, .n = n, .k = k, .a = operands, .b = operands, .c = result}, .groups = experts};
}

inline Kernel product(const GroupedMatmulDesc& desc, const FilledRows& filled, const void* a, const void* b,
                      const void* bias, void* c) {
  const auto state = std::make_shared<ExpertProduct>(desc, filled);
  return [=]() -> Status {
    state->run(a, b, bias, c);
    return {};
  };
}

// The address of the element number `first`.
inline const void* from_element(const TensorView& view, std::int64_t first) {
  return view.as<const std::byte>() + first * size_of(view.dtype());
}

}  // namespace lancet::ops::cpu
