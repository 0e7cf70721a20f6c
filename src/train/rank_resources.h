// RankResources: a rank's share of a host, and where it computes.
#pragma once
#include "lancet/runtime/accelerator.h"
#include "lancet/runtime/emulated_device.h"

namespace lancet::train {

struct RankResources {
  int threads = 1;                              // of the compute stream
  int local_ranks = 1;                          // ranks on this host
  runtime::Accelerator* accelerator = nullptr;  // null: the CPU
  runtime::EmulatedDevice* emulated = nullptr;  // null: the ranks compute
};

}  // namespace lancet::train
