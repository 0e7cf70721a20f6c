// Kernels of the tests of launches on a GPU. Results are in device memory.
#pragma once
#include <cstdint>

#include "lancet/backend/device.h"
#include "ops/references/instructions.h"

namespace lancet::test {

inline constexpr int cluster_blocks = 4;
// ranks[b] = the place of block b in its cluster. Error on GPUs below sm_90.
Status run_in_clusters(backend::Stream& stream, std::int64_t blocks, std::int32_t* ranks);
// Each block adds 1 to *word, which is 0, and waits for all; then sums[b] = blocks * (blocks + 1) / 2, from values that
// the other blocks wrote into values[blocks].
Status run_meeting(backend::Stream& stream, std::int64_t blocks, std::uint32_t* word, std::int32_t* values,
                   std::int32_t* sums);
// Every block waits for *word until *stop, in page-locked host memory, is not 0; then stopped[b] = 1.
Status run_until_stopped(backend::Stream& stream, std::int64_t blocks, std::uint32_t* word, std::uint32_t* stop,
                         std::int32_t* stopped);

// Runs the device instructions on *io, in device memory.
Status run_instructions(backend::Stream& stream, Instructions* io);

}  // namespace lancet::test
