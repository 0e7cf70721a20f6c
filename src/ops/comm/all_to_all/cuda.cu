// All-to-alls of tokens between GPUs, in one of two ways.
//
// By messages: only filled slots are sent, so the host must know their number when it queues the messages. It learns
// the counts once per layer and part: all_to_all_counts copies them to page-locked memory (HostCounts) as soon as the
// device has them, and the all-to-alls of that layer, forward and backward, read the copy. The host thread of the
// stream may have to wait for the copy; work that is already queued does not.
//
// Through windows: if the GPUs reach each other's memory and all tensors are in the stream's window, a kernel reads the
// counts on the device and writes the rows into the peers' memory (push_rows.h); the host does not need the counts.
#include <algorithm>
#include <memory>
#include <vector>

#include "lancet/backend/device.h"
#include "ops/device/launch.h"
#include "push_rows.h"
#include "segments.h"

namespace lancet::ops {
namespace {

using comm::Segment;

// The counts of a part in page-locked host memory, copied by its all_to_all_counts in every step.
class HostCounts {
 public:
  HostCounts(backend::Device& device, std::int64_t experts, std::int64_t rows)
      : device_(device), experts_(experts), rows_(rows) {
    auto memory = device.allocate_host(64 + std::size_t(2 * experts + rows) * sizeof(std::int32_t));
    LANCET_CHECK(memory.ok(), "{}", memory.error().message);
    memory_ = *memory;
  }
  HostCounts(const HostCounts&) = delete;
  HostCounts& operator=(const HostCounts&) = delete;
  ~HostCounts() { device_.free_host(memory_); }

  // Queues the copy of the filled slots and of the rows, as they are when the device stream gets there.
  Status copy(backend::Stream& stream, const std::int32_t* filled, const std::int32_t* rows) {
    __atomic_store_n(ready(), 0, __ATOMIC_RELAXED);
    LANCET_TRY(stream.copy(values(), filled, std::size_t(2 * experts_) * sizeof(std::int32_t)));
    LANCET_TRY(stream.copy(values() + 2 * experts_, rows, std::size_t(rows_) * sizeof(std::int32_t)));
    return stream.signal(ready());
  }
  // Blocks until the copy has arrived; fails if the device stream has failed.
  Result<ExchangePart> wait(backend::Stream& stream) {
    LANCET_TRY(backend::wait_for_flag(ready(), stream));
    return ExchangePart{values(), values() + 2 * experts_};
  }

 private:
  backend::Flag* ready() const { return reinterpret_cast<backend::Flag*>(memory_); }
  std::int32_t* values() const { return reinterpret_cast<std::int32_t*>(memory_ + 64); }

  backend::Device& device_;
  const std::int64_t experts_, rows_;
  std::byte* memory_ = nullptr;
};

// Sends to all ranks, this one included. Without a communicator there is one rank, as in the ops' samples; a model's
// plan for one rank has no all-to-alls.
Status send_receive(const KernelArgs& args, std::span<const Segment> sends, std::span<const Segment> receives) {
  if (args.group.device_comm) return args.group.device_comm->send_receive(*args.stream, sends, receives);
  std::vector<backend::Copy> copies;
  for (std::size_t i = 0; i < sends.size(); ++i)
    backend::append_copy(copies, {receives[i].data, sends[i].data, sends[i].bytes});
  return args.stream->copy_all(copies);
}

// The words of the messages, [W, words] by receiving rank: for each of its experts the number of slots that are filled,
// and then, if the op takes windows, this rank's number of them.
struct CountSlots {
  static constexpr int threads = 256;
  const std::int32_t *filled, *windows;  // [E, 2]; [1], or null
  std::int64_t ranks, local, words;
  std::int32_t* counts;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = std::int64_t(block.index()) * threads + block.thread();
    if (i >= ranks * words) return;
    const std::int32_t at = std::int32_t(i) % std::int32_t(words), rank = std::int32_t(i) / std::int32_t(words);
    const std::int64_t e = rank * local + at;
    counts[i] = at < local ? filled[2 * e + 1] - filled[2 * e] : *windows;
  }
};

// rows[e, s+1] = rows[e, s] + number of rows that source rank s sends to the local expert e. rows[e, 0] is where the
// part before ended, or 0.
struct LayRows {
  static constexpr int threads = 64;
  const std::int32_t *counts, *before;  // [W, words]; rows of the part before, or null
  std::int64_t ranks, local, words;
  std::int32_t *rows, *windows;  // [E/W, W+1]; [1], the most of a rank, or null

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = std::int64_t(block.index()) * threads + block.thread();
    if (e == 0 && windows) {
      std::int32_t most = 1;
      for (std::int64_t s = 0; s < ranks; ++s) most = device::Larger{}(most, counts[s * words + local]);
      *windows = most;
    }
    if (e >= local) return;
    std::int32_t* row = rows + e * (ranks + 1);
    std::int32_t at = before ? before[e * (ranks + 1) + ranks] : 0;
    row[0] = at;
    for (std::int64_t s = 0; s < ranks; ++s) row[s + 1] = at += counts[s * words + e];
  }
};

std::int64_t ranks_of(const KernelArgs& args, std::int64_t planned) {
  const std::int64_t ranks = args.group.device_comm ? args.group.size : 1;
  LANCET_CHECK(ranks == planned, "{} is planned for {} ranks, its communicator has {}", args.op, planned, ranks);
  return ranks;
}

template <bool has_windows>
std::size_t counts_workspace(const KernelArgs& args) {
  const std::int64_t windows = has_windows ? args.attributes.integer("ranks") : 0;
  return 2 * std::size_t(args.operands[0].shape()[0] + windows) * sizeof(std::int32_t);
}

template <bool has_windows>
Kernel bind_counts(const KernelArgs& args) {
  const std::int64_t experts = args.operands[0].shape()[0], ranks = ranks_of(args, args.attributes.integer("ranks"));
  const std::int64_t local = experts / ranks, words = local + has_windows;
  auto* mine = reinterpret_cast<std::int32_t*>(args.workspace);  // [W, words] by receiving rank
  std::int32_t* theirs = mine + ranks * words;                   // [W, words] by source rank
  std::vector<Segment> sends, receives;
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    const std::size_t bytes = std::size_t(words) * sizeof(std::int32_t);
    sends.push_back({int(rank), reinterpret_cast<std::byte*>(mine + rank * words), bytes});
    receives.push_back({int(rank), reinterpret_cast<std::byte*>(theirs + rank * words), bytes});
  }
  constexpr int last = 1 + has_windows;  // the operand with the rows of the part before
  const std::int32_t* filled = args.operands[0].as<std::int32_t>();
  const std::int32_t* windows = has_windows ? args.operands[1].as<std::int32_t>() : nullptr;
  const std::int32_t* before = args.has(last) ? args.operands[last].as<std::int32_t>() : nullptr;
  std::int32_t* rows = args.results[0].as<std::int32_t>();
  std::int32_t* most_windows = has_windows ? args.results[1].as<std::int32_t>() : nullptr;
  const auto host = std::make_shared<HostCounts>(*args.device, experts, args.results[0].elements());
  if (args.notes) (*args.notes)[args.instruction->results[0].value] = host;
  return [=]() -> Status {
    LANCET_TRY(device::launch(*args.stream, device::divide_up(ranks * words, CountSlots::threads),
                              CountSlots{filled, windows, ranks, local, words, mine}));
    LANCET_TRY(send_receive(args, sends, receives));
    LANCET_TRY(device::launch(*args.stream, device::divide_up(local, LayRows::threads),
                              LayRows{theirs, before, ranks, local, words, rows, most_windows}));
    return host->copy(*args.stream, filled, rows);
  };
}

// The counts of one pair of filled slots and rows, copied by all_to_all_counts or (made_here) by the all-to-all itself.
struct PartCounts {
  std::shared_ptr<HostCounts> host;
  const std::int32_t *filled, *rows;
  bool made_here;
};

// True if a kernel can move the rows through windows: all operands and results are in the stream's window.
bool in_window(const KernelArgs& args) {
  const auto has_window = [&](const TensorView& view) {
    return args.group.device_comm->in_window(view.data, std::size_t(ir::bytes(view.type)));
  };
  return args.group.device_comm && std::ranges::all_of(args.operands, has_window) &&
         std::ranges::all_of(args.results, has_window) && args.operands.size() / 2 <= device::RowPush::most_parts;
}

Kernel bind_in_window(const KernelArgs& args, bool there, std::int64_t ranks) {
  const TensorView &slots = there ? args.operands[0] : args.results[0],
                   &buffer = there ? args.results[0] : args.operands[0];
  device::RowPush push{.there = there,
                       .slots = slots.as<std::byte>(),
                       .buffer = buffer.as<std::byte>(),
                       .experts = slots.shape()[0],
                       .ranks = ranks,
                       .capacity = slots.shape()[1],
                       .buffer_rows = buffer.shape()[1],
                       .row_bytes = slots.shape()[2] * size_of(slots.dtype()),
                       .parts = int(args.operands.size() / 2),
                       .part = {}};
  for (int p = 0; p < push.parts; ++p) {
    const TensorView &filled = args.operands[std::size_t(2 * p + 1)], &rows = args.operands[std::size_t(2 * p + 2)];
    push.part[p] = {filled.as<std::int32_t>(), rows.as<std::int32_t>()};
  }
  return [comm = args.group.device_comm, stream = args.stream, push] {
    return comm->in_windows(*stream, [&push](backend::Stream& on, const comm::Window& window) {
      return device::launch(on, window.blocks, device::PushRows{push, window});
    });
  };
}

template <bool there>
Kernel bind_all_to_all_rows(const KernelArgs& args) {
  if (in_window(args)) return bind_in_window(args, there, ranks_of(args, args.operands[2].shape()[1] - 1));
  const std::int64_t experts = args.operands[1].shape()[0];
  const std::int64_t ranks = ranks_of(args, args.operands[2].shape()[1] - 1);
  std::vector<PartCounts> parts;
  for (std::size_t i = 1; i < args.operands.size(); i += 2) {
    PartCounts part{{}, args.operands[i].as<std::int32_t>(), args.operands[i + 1].as<std::int32_t>(), false};
    if (args.notes)
      if (const auto it = args.notes->find(args.instruction->operands[i + 1].value); it != args.notes->end())
        part.host = std::static_pointer_cast<HostCounts>(it->second);
    if (!part.host) {
      part.host = std::make_shared<HostCounts>(*args.device, experts, args.operands[i + 1].elements());
      part.made_here = true;
    }
    parts.push_back(std::move(part));
  }
  const auto segments = std::make_shared<ExchangeSegments>(args, there, ranks, parts.size());
  return [=]() -> Status {
    for (const PartCounts& part : parts)
      if (part.made_here) LANCET_TRY(part.host->copy(*args.stream, part.filled, part.rows));
    for (std::size_t p = 0; p < parts.size(); ++p) {
      LANCET_ASSIGN(const ExchangePart counts, parts[p].host->wait(*args.stream));
      segments->lay_out(p, counts);
    }
    return send_receive(args, segments->sends, segments->receives);
  };
}

}  // namespace

std::span<const DeviceKernel> all_to_all_cuda() {
  static const DeviceKernel table[] = {
      {"all_to_all_counts", bind_counts<false>, counts_workspace<false>, false},  // its call resets the copy's flag
      {"all_to_all_counts_windows", bind_counts<true>, counts_workspace<true>, false},
      {"all_to_all", bind_all_to_all_rows<true>, nullptr, false},
      {"all_to_all_back", bind_all_to_all_rows<false>, nullptr, false},
  };
  return table;
}

}  // namespace lancet::ops
