// The same share of a product as gemm.h's, by oneDNN: for machines with a matrix unit (AMX), which oneDNN's generated
// code drives and ours does not. Elsewhere our own tiles are as fast or faster and need no primitive per shape.
#pragma once
#include <span>

#include "gemm.h"

namespace lancet::backend::cpu {

// Whether oneDNN would compute bf16 products on a matrix unit here.
bool onednn_has_matrix_unit();

// As gemm(). fixed: the extents recur from call to call, so a primitive of exactly these pays; otherwise one primitive
// takes its number of rows (or the length of its sum) when it runs.
void onednn_gemm(const MatmulDesc& desc, bool fixed, std::span<const Range> rows, Range columns,
                 std::span<const Range> reduction, const void* a, const void* b, const void* bias, void* c);

}  // namespace lancet::backend::cpu
