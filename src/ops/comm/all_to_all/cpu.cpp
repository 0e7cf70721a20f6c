// All-to-alls on the CPU. all_to_all_counts sends each rank the number of filled slots of its experts, and turns the
// counts that arrive into rows: for each local expert the offset of each source rank's rows in the expert's buffer,
// without gaps. all_to_all then sends the filled slots of each expert as one message to the rank of the
// expert, which receives it at these rows; all_to_all_back swaps sends and receives.
#include <algorithm>
#include <memory>
#include <vector>

#include "lancet/ops/kernel.h"
#include "segments.h"

namespace lancet::ops {
namespace {

using comm::Segment;

// State of the three kernels, made by bind so that a step allocates nothing. Without a communicator there is one rank.
struct AllToAllState {
  std::unique_ptr<comm::Communicator> self;
  comm::Communicator* comm;
  std::int64_t ranks, experts, local;  // local: experts of one rank

  AllToAllState(const KernelArgs& args, std::int64_t ranks_of_types, std::int64_t experts)
      : self(args.group.comm ? nullptr : comm::make_self()),
        comm(args.group.comm ? args.group.comm : self.get()),
        ranks(comm->size()),
        experts(experts),
        local(experts / ranks) {
    LANCET_CHECK(ranks == ranks_of_types, "{} is planned for {} ranks, its communicator has {}", args.op,
                 ranks_of_types, ranks);
  }
};

// A message has the counts of the receiver's experts and, if the op takes windows, the sender's number of them.
struct Counts : AllToAllState {
  const bool has_windows;
  const std::int64_t words;    // of a message
  const std::int32_t* filled;  // [E, 2]
  std::vector<Segment> sends, receives;
  const std::int32_t *windows, *before;    // [1]; rows of the part before; null without them
  std::int32_t *rows, *most_windows;       // [E/W, W+1]; [1], or null
  std::vector<std::int32_t> mine, theirs;  // [W, words] by receiver; by sender

  Counts(const KernelArgs& args, bool has_windows)
      : AllToAllState(args, args.attributes.integer("ranks"), args.operands[0].shape()[0]),
        has_windows(has_windows),
        words(local + has_windows),
        filled(args.operands[0].as<std::int32_t>()),
        windows(has_windows ? args.operands[1].as<std::int32_t>() : nullptr),
        before(args.has(1 + has_windows) ? args.operands[std::size_t(1 + has_windows)].as<std::int32_t>() : nullptr),
        rows(args.results[0].as<std::int32_t>()),
        most_windows(has_windows ? args.results[1].as<std::int32_t>() : nullptr),
        mine(std::size_t(ranks * words)),
        theirs(std::size_t(ranks * words)) {
    auto segment = [&](std::vector<std::int32_t>& counts, std::int64_t rank) {
      return Segment{int(rank), reinterpret_cast<std::byte*>(counts.data() + rank * words),
                     std::size_t(words) * sizeof(std::int32_t)};
    };
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      sends.push_back(segment(mine, rank));
      receives.push_back(segment(theirs, rank));
    }
  }

  Status run() {
    for (std::int64_t e = 0; e < experts; ++e)
      mine[std::size_t(e / local * words + e % local)] = filled[2 * e + 1] - filled[2 * e];
    for (std::int64_t rank = 0; has_windows && rank < ranks; ++rank) mine[std::size_t(rank * words + local)] = *windows;
    LANCET_TRY(comm->send_receive(sends, receives));
    for (std::int64_t e = 0; e < local; ++e) {
      std::int32_t* row = rows + e * (ranks + 1);
      row[0] = before ? before[e * (ranks + 1) + ranks] : 0;
      for (std::int64_t s = 0; s < ranks; ++s) row[s + 1] = row[s] + theirs[std::size_t(s * words + e)];
    }
    if (!has_windows) return {};
    std::int32_t most = 1;
    for (std::int64_t s = 0; s < ranks; ++s) most = std::max(most, theirs[std::size_t(s * words + local)]);
    *most_windows = most;
    return {};
  }
};

struct Rows : AllToAllState {
  std::vector<ExchangePart> parts;
  ExchangeSegments segments;

  Rows(const KernelArgs& args, bool there)
      : AllToAllState(args, args.operands[2].shape()[1] - 1, args.operands[1].shape()[0]),
        segments(args, there, ranks, (args.operands.size() - 1) / 2) {
    for (std::size_t i = 1; i < args.operands.size(); i += 2)
      parts.push_back({args.operands[i].as<std::int32_t>(), args.operands[i + 1].as<std::int32_t>()});
  }

  Status run() {
    for (std::size_t p = 0; p < parts.size(); ++p) segments.lay_out(p, parts[p]);
    return comm->send_receive(segments.sends, segments.receives);
  }
};

template <bool has_windows>
Kernel bind_counts(const KernelArgs& args) {
  return [state = std::make_shared<Counts>(args, has_windows)] { return state->run(); };
}
template <bool there>
Kernel bind_rows(const KernelArgs& args) {
  return [state = std::make_shared<Rows>(args, there)] { return state->run(); };
}

const CpuKernel table[] = {
    {"all_to_all_counts", bind_counts<false>},
    {"all_to_all_counts_windows", bind_counts<true>},
    {"all_to_all", bind_rows<true>},
    {"all_to_all_back", bind_rows<false>},
};

}  // namespace

std::span<const CpuKernel> all_to_all_cpu() { return table; }

}  // namespace lancet::ops
