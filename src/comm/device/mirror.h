// The other ranks as mirrors of this one: the bytes sent to a peer are the bytes received from it.
#pragma once
#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "../operation.h"
#include "lancet/backend/copy_list.h"
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
  return internal_error("a mirrored rank must send back as many bytes as it receives");
}

// Returns the copies in place of messages: the bytes sent to each of `ranks` peers, this rank included, are those
// received from it. In a ring, where the rank sends to one peer and receives from another, the unmatched send feeds the
// unmatched receive.
inline Result<std::vector<backend::Copy>> mirror(std::span<const Segment> sends, std::span<const Segment> receives,
                                                 int ranks) {
  std::vector<backend::Copy> copies;
  int to_peer = -1, from_peer = -1;
  for (int peer = 0; peer < ranks; ++peer) {
    PeerBytes from(sends, peer), to(receives, peer);
    const bool sends_any = !from.ended(), receives_any = !to.ended();
    if (sends_any && !receives_any && to_peer < 0) {
      to_peer = peer;
    } else if (!sends_any && receives_any && from_peer < 0) {
      from_peer = peer;
    } else {
      LANCET_TRY(move_bytes(from, to, copies));
    }
  }
  if (to_peer < 0 && from_peer < 0) return copies;
  PeerBytes from(sends, to_peer), to(receives, from_peer);
  LANCET_TRY(move_bytes(from, to, copies));
  return copies;
}

}  // namespace lancet::comm
