#include <memory>
#include <vector>

#include "lancet/ir/route_layout.h"
#include "lancet/ops/kernel.h"

namespace lancet::ops {
namespace {

using comm::Segment;

// What the three kernels share. Made at bind, so that a step allocates nothing; without a communicator a rank is alone.
struct Exchange {
  std::unique_ptr<comm::Communicator> self;
  comm::Communicator* comm;
  std::int64_t ranks, experts, local;  // local: experts of one rank
  std::vector<Segment> sends, receives;

  Exchange(const KernelArgs& args, std::int64_t ranks_of_types, std::int64_t experts)
      : self(args.comm ? nullptr : comm::make_self()),
        comm(args.comm ? args.comm : self.get()),
        ranks(comm->size()),
        experts(experts),
        local(experts / ranks) {
    LANCET_CHECK(ranks == ranks_of_types, "{} is planned for {} ranks, its communicator has {}", args.op,
                 ranks_of_types, ranks);
  }
};

struct Counts : Exchange {
  ir::RouteLayout layout;
  const void* route;
  const std::int32_t* before;              // rows of the part before, or null
  std::int32_t* rows;                      // [E/W, W+1]
  std::vector<std::int32_t> mine, theirs;  // [E] by expert; [W, E/W] by source rank

  explicit Counts(const KernelArgs& args)
      : Exchange(args, args.attributes.integer("ranks"), args.operands[0].shape()[1]),
        layout{args.operands[0].shape()[0], experts},
        route(args.operands[0].data),
        before(args.has(1) ? args.operands[1].as<std::int32_t>() : nullptr),
        rows(args.results[0].as<std::int32_t>()),
        mine(std::size_t(experts)),
        theirs(std::size_t(experts)) {
    auto segment = [&](std::vector<std::int32_t>& counts, std::int64_t rank) {
      return Segment{int(rank), reinterpret_cast<std::byte*>(counts.data() + rank * local),
                     std::size_t(local) * sizeof(std::int32_t)};
    };
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      sends.push_back(segment(mine, rank));
      receives.push_back(segment(theirs, rank));
    }
  }

  Status run() {
    const std::int32_t *begin = layout.begin(route), *end = layout.end(route);
    for (std::int64_t e = 0; e < experts; ++e) mine[std::size_t(e)] = end[e] - begin[e];
    LANCET_TRY(comm->exchange(sends, receives));
    for (std::int64_t e = 0; e < local; ++e) {
      std::int32_t* row = rows + e * (ranks + 1);
      row[0] = before ? before[e * (ranks + 1) + ranks] : 0;
      for (std::int64_t s = 0; s < ranks; ++s) row[s + 1] = row[s] + theirs[std::size_t(s * local + e)];
    }
    return {};
  }
};

// Both ways: the slots of expert e on one side are rows of rank e / local on the other. A pair of ranks exchanges its
// experts in rising order, so that sends and receives match.
struct Rows : Exchange {
  struct Part {
    ir::RouteLayout layout;
    const void* route;
    const std::int32_t* rows;  // [E/W, W+1]
  };
  std::vector<Part> parts;
  std::byte *slots, *buffer;                          // [E, C, D], [E/W, W*C, D]
  std::size_t slot_stride, buffer_stride, row_bytes;  // bytes of an expert, and of a row
  bool there;

  Rows(const KernelArgs& args, bool there)
      : Exchange(args, args.operands[2].shape()[1] - 1, args.operands[1].shape()[1]), there(there) {
    for (std::size_t i = 1; i < args.operands.size(); i += 2)
      parts.push_back(
          {{args.operands[i].shape()[0], experts}, args.operands[i].data, args.operands[i + 1].as<std::int32_t>()});
    const TensorView &slots_view = there ? args.operands[0] : args.results[0],
                     &rows_view = there ? args.results[0] : args.operands[0];
    slots = slots_view.as<std::byte>();
    buffer = rows_view.as<std::byte>();
    row_bytes = std::size_t(slots_view.shape()[2]) * std::size_t(size_of(slots_view.dtype()));
    slot_stride = std::size_t(slots_view.shape()[1]) * row_bytes;
    buffer_stride = std::size_t(rows_view.shape()[1]) * row_bytes;
    sends.resize(std::size_t(experts) * parts.size());
    receives.resize(std::size_t(experts) * parts.size());
  }

  Status run() {
    for (std::size_t p = 0; p < parts.size(); ++p) lay_out(parts[p], p * std::size_t(experts));
    return comm->exchange(sends, receives);
  }

  // The segments of one part, from the `first` on.
  void lay_out(const Part& part, std::size_t first) {
    const std::int32_t *begin = part.layout.begin(part.route), *end = part.layout.end(part.route);
    std::vector<Segment>&at_slots = there ? sends : receives, &at_buffer = there ? receives : sends;
    for (std::int64_t e = 0; e < experts; ++e)
      at_slots[first + std::size_t(e)] = {int(e / local),
                                          slots + std::size_t(e) * slot_stride + std::size_t(begin[e]) * row_bytes,
                                          std::size_t(end[e] - begin[e]) * row_bytes};
    for (std::int64_t s = 0; s < ranks; ++s)
      for (std::int64_t e = 0; e < local; ++e) {
        const std::int32_t* row = part.rows + e * (ranks + 1) + s;
        at_buffer[first + std::size_t(s * local + e)] = {
            int(s), buffer + std::size_t(e) * buffer_stride + std::size_t(row[0]) * row_bytes,
            std::size_t(row[1] - row[0]) * row_bytes};
      }
  }
};

Kernel bind_counts(const KernelArgs& args) {
  return [state = std::make_shared<Counts>(args)] { return state->run(); };
}
template <bool there>
Kernel bind_rows(const KernelArgs& args) {
  return [state = std::make_shared<Rows>(args, there)] { return state->run(); };
}

const CpuKernel table[] = {
    {"exchange_counts", bind_counts},
    {"all_to_all", bind_rows<true>},
    {"all_to_all_back", bind_rows<false>},
};

}  // namespace

std::span<const CpuKernel> all_to_all_cpu() { return table; }

}  // namespace lancet::ops
