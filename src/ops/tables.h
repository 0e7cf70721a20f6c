// The tables that the build collects from the folders.
#pragma once
#include <span>
#include <vector>

#include "lancet/ops/kernel.h"
#include "lancet/ops/op.h"

namespace lancet::ops {

std::vector<std::span<const OpDef>> op_folders();
std::vector<std::span<const CpuKernel>> cpu_folders();

}  // namespace lancet::ops
