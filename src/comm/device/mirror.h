// The other ranks as mirrors of this one: the bytes sent to a peer are the bytes received from it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "../operation.h"
#include "lancet/backend/device.h"
#include "lancet/comm/communicator.h"

namespace lancet::comm {

// The bytes sent to (or received from) one peer, in order.
class PeerBytes {
 public:
  PeerBytes(std::span<const Segment> segments, int peer) : segments_(segments), peer_(peer) { next(); }

  bool ended() const { return segment_ == nullptr; }
  std::size_t left() const { return segment_->bytes - used_; }
  std::byte* data() const { return segment_->data + used_; }
  void advance(std::size_t bytes) {
    used_ += bytes;
    if (left() == 0) next();
  }

 private:
  void next() {
    used_ = 0;
    segment_ = next_of_peer(segments_, peer_, at_);
  }

  std::span<const Segment> segments_;
  const int peer_;
  std::size_t at_ = 0, used_ = 0;
  const Segment* segment_ = nullptr;
};

// Lists the copies of all bytes; both sides must have the same number.
inline Status move_bytes(PeerBytes& from, PeerBytes& to, std::vector<backend::Copy>& copies) {
  while (!from.ended() && !to.ended()) {
    const std::size_t count = std::min(from.left(), to.left());
    backend::append_copy(copies, {to.data(), from.data(), count});
    from.advance(count);
    to.advance(count);
  }
  if (from.ended() && to.ended()) return {};
  return internal_error("a mirrored rank must send as many bytes as it receives");
}

inline std::size_t bytes_of(std::span<const Segment> segments, int peer) {
  std::size_t bytes = 0;
  for (const Segment& segment : segments) bytes += segment.peer == peer ? segment.bytes : 0;
  return bytes;
}

// Returns the copies in place of messages: the bytes sent to each of `ranks` peers, this rank included, are those
// received from it. Where they differ in number, the peers are other parts of the pattern that this rank, the first,
// is in: in a ring the one unmatched send feeds the one unmatched receive; where all ranks send to this one, what comes
// from a peer is what this rank sends to itself, and what it sends to the peers is received by none.
inline Result<std::vector<backend::Copy>> mirror(std::span<const Segment> sends, std::span<const Segment> receives,
                                                 int ranks) {
  constexpr int self = 0;
  std::vector<backend::Copy> copies;
  std::vector<int> to_peers, from_peers;  // of unmatched messages
  for (int peer = 0; peer < ranks; ++peer) {
    const std::size_t sent = bytes_of(sends, peer), received = bytes_of(receives, peer);
    if (sent == received) {
      PeerBytes from(sends, peer), to(receives, peer);
      LANCET_TRY(move_bytes(from, to, copies));
      continue;
    }
    if (sent > 0) to_peers.push_back(peer);
    if (received > 0) from_peers.push_back(peer);
  }
  const bool ring = to_peers.size() == 1 && from_peers.size() == 1 && to_peers != from_peers;
  for (const int peer : from_peers) {
    PeerBytes from(sends, ring ? to_peers[0] : self), to(receives, peer);
    LANCET_TRY(move_bytes(from, to, copies));
  }
  return copies;
}

}  // namespace lancet::comm
