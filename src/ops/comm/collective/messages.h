// The memory and the messages of the collectives, which are the same on all devices. Each has up to three steps: the
// operand's pieces for the ranks are put one after the other (unless they are so already), every rank sends one piece
// to every rank, itself included, and what has come is put in its place or summed.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/comm/communicator.h"
#include "lancet/ops/kernel.h"
#include "lancet/ops/peer_parts.h"
#include "ops/shards.h"

namespace lancet::ops {

struct Messages {
  std::vector<comm::Segment> sends, receives;

  // Adds the messages between this rank and `peer`.
  void add(std::int64_t peer, std::byte* send, std::int64_t send_bytes, std::byte* receive,
           std::int64_t receive_bytes) {
    sends.push_back({int(peer), send, std::size_t(send_bytes)});
    receives.push_back({int(peer), receive, std::size_t(receive_bytes)});
  }
};

// Bytes of the workspace: for pieces that come, and behind them for pieces to send.
struct Stages {
  std::size_t in = 0, out = 0;
  std::size_t out_begin() const { return (in + 255) / 256 * 256; }
  std::size_t bytes() const { return out_begin() + out; }
};

inline std::size_t bytes_of(const TensorView& view) { return std::size_t(ir::bytes(view.type)); }

// What all collectives read from their arguments. Each says by stages() what memory it needs.
struct CollectiveCall {
  std::int64_t shards, place, unit;  // unit: bytes of an element
  std::byte *x, *y;                  // operand and result
  std::byte *in, *out;               // the stages

  CollectiveCall(const KernelArgs& args, const Stages& stages)
      : shards(args.attributes.integer("shards")),
        place(args.group.place),
        unit(size_of(args.operands[0].dtype())),
        x(args.operands[0].as<std::byte>()),
        y(args.results[0].as<std::byte>()),
        in(args.workspace),
        out(args.workspace + stages.out_begin()) {
    LANCET_CHECK(args.group.size == shards, "{} is planned for {} ranks, its group has {}", args.op, shards,
                 args.group.size);
  }

  // A piece of equal size to every rank and from every rank.
  Messages all_to_all(std::byte* send, std::byte* receive, std::int64_t piece) const {
    Messages messages;
    for (std::int64_t peer = 0; peer < shards; ++peer)
      messages.add(peer, send + peer * piece, piece, receive + peer * piece, piece);
    return messages;
  }
};

// The layout of the dimension that the attributes name, where `whole` has the whole of it.
inline ShardLayout layout_of(const KernelArgs& args, const TensorView& whole, std::string_view axis,
                             std::string_view blocks) {
  return ShardedDimension(args.attributes, axis, blocks).layout(whole.shape(), args.attributes.integer("shards"));
}

struct AllGather : CollectiveCall {
  ShardLayout layout;
  bool joins;  // shards come to `in`, and are copied to the result
  Messages messages;

  explicit AllGather(const KernelArgs& args)
      : CollectiveCall(args, stages(args)), layout(layout_in(args)), joins(!layout.is_contiguous()) {
    const std::int64_t piece = layout.shard() * unit;
    for (std::int64_t r = 0; r < shards; ++r) messages.add(r, x, piece, (joins ? in : y) + r * piece, piece);
  }
  static Stages stages(const KernelArgs& args) {
    return {layout_in(args).is_contiguous() ? 0 : bytes_of(args.results[0]), 0};
  }

 private:
  static ShardLayout layout_in(const KernelArgs& args) { return layout_of(args, args.results[0], "axis", "blocks"); }
};

struct ReduceScatter : CollectiveCall {
  ShardLayout layout;
  bool splits;  // shards of the operand are copied to `out`, and sent from there
  Messages messages;

  explicit ReduceScatter(const KernelArgs& args)
      : CollectiveCall(args, stages(args)), layout(layout_in(args)), splits(!layout.is_contiguous()) {
    messages = all_to_all(splits ? out : x, in, layout.shard() * unit);
  }
  static Stages stages(const KernelArgs& args) {
    const std::size_t bytes = bytes_of(args.operands[0]);
    return {bytes, layout_in(args).is_contiguous() ? 0 : bytes};
  }

 private:
  static ShardLayout layout_in(const KernelArgs& args) { return layout_of(args, args.operands[0], "axis", "blocks"); }
};

// Each rank sums its piece of the elements, and sends the sum to all.
struct SumShards : CollectiveCall {
  std::int64_t first, mine;  // this rank's piece: its first element, and its length
  Messages parts, sums;

  explicit SumShards(const KernelArgs& args) : CollectiveCall(args, stages(args)) {
    const std::int64_t n = args.operands[0].elements();
    const auto begin = [&](std::int64_t rank) { return piece_begin(n, shards, rank); };
    first = begin(place);
    mine = begin(place + 1) - first;
    for (std::int64_t r = 0; r < shards; ++r) {
      const std::int64_t at = begin(r) * unit, theirs = begin(r + 1) * unit - at, own = mine * unit;
      parts.add(r, x + at, theirs, in + r * own, own);
      if (r != place) sums.add(r, y + first * unit, own, y + at, theirs);
    }
  }
  static Stages stages(const KernelArgs& args) {
    const std::int64_t ranks = args.attributes.integer("shards"), n = args.operands[0].elements();
    return {std::size_t(ranks * piece_begin(n, ranks, 1) * size_of(args.operands[0].dtype())), 0};
  }
};

struct SwapShards : CollectiveCall {
  ShardLayout to, from;
  bool splits, joins;
  Messages messages;

  explicit SwapShards(const KernelArgs& args)
      : CollectiveCall(args, stages(args)),
        to(layout_to(args)),
        from(layout_from(args)),
        splits(!to.is_contiguous()),
        joins(!from.is_contiguous()) {
    messages = all_to_all(splits ? out : x, joins ? in : y, to.shard() * unit);
  }
  static Stages stages(const KernelArgs& args) {
    const std::size_t bytes = bytes_of(args.operands[0]);
    return {layout_from(args).is_contiguous() ? 0 : bytes, layout_to(args).is_contiguous() ? 0 : bytes};
  }

 private:
  static ShardLayout layout_to(const KernelArgs& args) { return layout_of(args, args.operands[0], "to", "to_blocks"); }
  static ShardLayout layout_from(const KernelArgs& args) {
    return layout_of(args, args.results[0], "from", "from_blocks");
  }
};

// Each rank sends its first operand `shift` places back in the group, and its second one as many places on.
struct PermuteShards {
  Messages messages;

  explicit PermuteShards(const KernelArgs& args) {
    const std::int64_t ranks = args.group.size, shift = args.attributes.integer(ring_shift);
    LANCET_CHECK(ranks == args.attributes.integer("shards"), "{} is planned for {} ranks, its group has {}", args.op,
                 args.attributes.integer("shards"), ranks);
    for (std::size_t i = 0; i < args.operands.size(); ++i) {
      const std::int64_t from = i == 0 ? shift : -shift;
      const std::size_t bytes = bytes_of(args.operands[i]);
      messages.sends.push_back({peer(args, -from), args.operands[i].as<std::byte>(), bytes});
      messages.receives.push_back({peer(args, from), args.results[i].as<std::byte>(), bytes});
    }
  }

 private:
  // The rank that many places on in the group.
  static int peer(const KernelArgs& args, std::int64_t places) {
    const std::int64_t ranks = args.group.size;
    return int(((args.group.place + places) % ranks + ranks) % ranks);
  }
};

template <class Call>
std::size_t collective_workspace(const KernelArgs& args) {
  return Call::stages(args).bytes();
}

}  // namespace lancet::ops
