// The tables of ops and CPU kernels, one per folder; the build generates the functions (tables.cpp.in).
#pragma once
#include <span>
#include <vector>

#include "lancet/ops/kernel.h"
#include "lancet/ops/op.h"

namespace lancet::ops {

std::vector<std::span<const OpDef>> op_folders();
std::vector<std::span<const CpuKernel>> cpu_folders();

}  // namespace lancet::ops
