// Kernels of the tests of launches on a GPU. Results are in device memory.
#pragma once
#include <cstdint>

#include "lancet/backend/device.h"
#include "ops/references/instructions.h"

namespace lancet::test {

// Loads the kernels below onto the calling thread's device, as opening a GPU does with those of the plugin.
Status load_kernels();

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

// Rows that one stream's kernel writes and announces to a kernel of another stream, which multiplies them meanwhile.
// rows: a multiple of 8. All arrays are in device memory but `stop`, which is in page-locked host memory.
struct Arrival {
  static constexpr int depth = 16, columns = 32, rows_per_signal = 4;
  std::int64_t rows;
  const float* sent;           // [rows, depth]
  float* arrived;              // [rows, depth]
  std::uint32_t* signals;      // [rows / rows_per_signal]
  const float* weight;         // [columns, depth]
  float* product;              // [rows, columns]
  const std::int32_t* filled;  // [2]: 0, rows
  const std::uint32_t *step, *stop;
};
// product = arrived weight^T by `blocks` blocks: each takes its tiles of 8 rows in the order of arrival and waits for
// their signals. Ends early once *stop is not 0.
Status run_arriving_product(backend::Stream& stream, std::int64_t blocks, const Arrival& arrival);
// Blocks of that product which a multiprocessor holds at once.
int most_arriving_blocks();
// arrived = sent, rows_per_signal rows at a time, each announced by its signal, which is set to *step.
Status run_push(backend::Stream& stream, std::int64_t blocks, const Arrival& arrival);

}  // namespace lancet::test
