// The window holds the counts, the slots to send and the buffer to receive into, in this order, each aligned to 256
// bytes. The counts are written in page-locked memory and copied to the window by the device stream.
#include "window_rows.h"

#include <algorithm>
#include <thread>

namespace lancet::profiler {
namespace {

constexpr std::size_t row_bytes = 16;  // the most that a GPU thread moves at once; the size of a token does not matter

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

std::int64_t WindowRows::rows_a_segment(std::size_t bytes) const {
  const auto segments = static_cast<std::size_t>((ranks() - 1) * local_);
  return static_cast<std::int64_t>(std::max<std::size_t>(1, bytes / (segments * row_bytes)));
}

// Counts: begin and end of each expert's slots, then, for each local expert, the first row of each source rank.
std::size_t WindowRows::count_bytes() const {
  return static_cast<std::size_t>(2 * experts() + local_ * (ranks() + 1)) * sizeof(std::int32_t);
}

Result<std::unique_ptr<WindowRows>> WindowRows::open(backend::Device& device, comm::DeviceCommunicator& comm,
                                                     std::int64_t experts, std::size_t largest) {
  auto made = std::unique_ptr<WindowRows>(new WindowRows(comm, experts));
  const std::size_t side = static_cast<std::size_t>(made->experts() * made->rows_a_segment(largest)) * row_bytes;
  const std::size_t counts = aligned(made->count_bytes());
  auto window = comm.make_window(counts + 2 * aligned(side));
  if (!window.ok() && !window.error().agreed) return window.error();
  if (!window.ok() || window->empty()) return std::unique_ptr<WindowRows>();
  made->window_ = *window;
  LANCET_ASSIGN(made->counts_, runtime::Block::page_locked(device, counts));
  LANCET_ASSIGN(made->fetched_, runtime::Block::page_locked(device, counts + sizeof(backend::Flag)));
  return made;
}

Result<comm::RowPush> WindowRows::rows_of(backend::Stream& stream, std::size_t bytes) {
  const std::int64_t rows = rows_a_segment(bytes);
  auto* filled = reinterpret_cast<std::int32_t*>(counts_.start());
  std::fill_n(filled, experts(), 0);
  std::fill_n(filled + experts(), experts(), static_cast<std::int32_t>(rows));
  for (std::int64_t e = 0; e < local_; ++e)
    for (std::int64_t source = 0; source <= ranks(); ++source)
      filled[2 * experts() + e * (ranks() + 1) + source] = static_cast<std::int32_t>(source * rows);
  LANCET_TRY(stream.copy(window_.data(), counts_.start(), count_bytes()));
  const auto* counts = reinterpret_cast<const std::int32_t*>(window_.data());
  std::byte* slots = window_.data() + aligned(count_bytes());
  const std::size_t side = static_cast<std::size_t>(experts() * rows) * row_bytes;
  return comm::RowPush{.there = true,
                       .slots = slots,
                       .buffer = slots + aligned(side),
                       .experts = experts(),
                       .ranks = ranks(),
                       .capacity = rows,
                       .buffer_rows = ranks() * rows,
                       .row_bytes = row_bytes,
                       .parts = 1,
                       .part = {{counts, counts + experts(), counts + 2 * experts()}}};
}

Status WindowRows::fetch_counts(backend::Stream& stream, const std::function<Status()>& watch) {
  auto* flag = reinterpret_cast<backend::Flag*>(fetched_.start() + aligned(count_bytes()));
  __atomic_store_n(flag, 0u, __ATOMIC_RELAXED);
  LANCET_TRY(stream.copy(fetched_.start(), window_.data(), count_bytes()));
  LANCET_TRY(stream.signal(flag));
  while (__atomic_load_n(flag, __ATOMIC_ACQUIRE) == 0) {
    LANCET_TRY(watch());
    std::this_thread::yield();
  }
  return {};
}

}  // namespace lancet::profiler
