// The messages in which ranks send each other packed shards (packed.h), and their memory, the same on all devices.
//
// The workspace has a message to each rank, and behind them one from each rank. A round handles the same positions of
// all shards, and bounds how long another stream waits.
#pragma once
#include <algorithm>
#include <vector>

#include "lancet/comm/communicator.h"
#include "packed.h"

namespace lancet::ops {

// Wire: the type in which values travel. round_bytes: what a rank sends at most in a round.
template <class Wire, std::int64_t round_bytes>
class ShardMessages {
 public:
  // workspace: workspace_bytes() of them. A single rank needs no group.
  ShardMessages(const comm::Group& group, std::int64_t ranks, std::int64_t length, std::byte* workspace)
      : place_(ranks > 1 ? group.place : 0),
        ranks_(int(ranks)),
        message_length_(positions(ranks, length)),
        length_(length),
        sent_(reinterpret_cast<Wire*>(workspace)),
        received_(sent_ + ranks * message_length_) {}

  static std::size_t workspace_bytes(std::int64_t ranks, std::int64_t length) {
    return std::size_t(2 * ranks * positions(ranks, length)) * sizeof(Wire);
  }

  int place() const { return place_; }

  // Calls body(from, to) for each round.
  template <class F>
  Status rounds(F body) const {
    for (std::int64_t from = 0; from < length_; from += message_length_)
      LANCET_TRY(body(from, std::min(from + message_length_, length_)));
    return {};
  }

 protected:
  Wire* sent_of(std::int64_t rank) const { return sent_ + rank * message_length_; }
  Wire* received_of(std::int64_t rank) const { return received_ + rank * message_length_; }

  // Calls send_receive(sends, receives) with the first `count` values of the messages to the other ranks. each: every
  // rank gets its own message; else all get message 0.
  template <class F>
  Status transfer(bool each, std::int64_t count, F send_receive) const {
    sends_.clear();
    receives_.clear();
    for (int peer = 0; peer < ranks_; ++peer) {
      if (peer == place_) continue;
      const std::size_t bytes = std::size_t(count) * sizeof(Wire);
      sends_.push_back({peer, reinterpret_cast<std::byte*>(sent_of(each ? peer : 0)), bytes});
      receives_.push_back({peer, reinterpret_cast<std::byte*>(received_of(peer)), bytes});
    }
    return send_receive(sends_, receives_);
  }

  int place_, ranks_;
  std::int64_t message_length_;  // elements of a message

 private:
  static std::int64_t positions(std::int64_t ranks, std::int64_t length) {
    return positions_of_round(length, ranks, sizeof(Wire), round_bytes);
  }

  std::int64_t length_;
  Wire *sent_, *received_;
  mutable std::vector<comm::Segment> sends_, receives_;  // kept, so that a step allocates nothing
};

}  // namespace lancet::ops
