// Small collectives over values and text, for measurements and for decisions that all ranks must make alike.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"

namespace lancet::comm {

// Collective: returns the values of all ranks, indexed by rank, on every rank.
template <class T>
Result<std::vector<T>> collect(Communicator& communicator, T value) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all(static_cast<std::size_t>(communicator.size()));
  std::vector<Segment> sends, receives;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    sends.push_back({peer, reinterpret_cast<std::byte*>(&value), sizeof value});
    receives.push_back({peer, reinterpret_cast<std::byte*>(&all[static_cast<std::size_t>(peer)]), sizeof value});
  }
  LANCET_TRY(communicator.send_receive(sends, receives));
  return all;
}
// Collective: the largest value, or the mean, on every rank.
Result<double> largest(Communicator& communicator, double value);
Result<double> mean(Communicator& communicator, double value);
// Collective: returns root's text on every rank.
Result<std::string> broadcast_text(Communicator& communicator, const std::string& text, int root);

// An all-to-all in which every rank sends the same number of bytes to every other rank, with its buffers.
class AllToAll {
 public:
  // `bytes`: sent by each rank in total; rounded down to a multiple of the number of other ranks, at least 1 for each.
  AllToAll(const Communicator& communicator, std::size_t bytes);
  Status operator()(Communicator& communicator) { return communicator.send_receive(sends_, receives_); }
  std::size_t bytes() const { return out_.size(); }  // sent by each rank

 private:
  std::vector<std::byte> out_, in_;
  std::vector<Segment> sends_, receives_;
};

// Collective agreement on errors and small values, so that no rank continues, or waits, alone.

// Collective. Success if all ranks pass success; otherwise all ranks return the error of the first rank that failed,
// which the message names unless every rank failed.
Status agree(comm::Communicator& world, const Status& mine);

// Collective. An error, on all ranks, if a rank's text differs from rank 0's. what: "the same options".
Status agree_on(comm::Communicator& world, std::string_view what, std::string_view mine,
                ExitCode code = ExitCode::config);

// Collective: returns root's status on all ranks. The message names no rank, since only root did the work.
Status broadcast_status(comm::Communicator& world, const Status& mine, int root);

// Collective: true if `mine` is true on any rank.
Result<bool> any(comm::Communicator& world, bool mine);

// Adds the phase to a communication error: messages between the runs of a plan belong to no instruction that the error
// could name.
Error during(std::string_view phase, Error error);

// Collective: returns every rank's text, by rank, on root; an empty list on the other ranks.
Result<std::vector<std::string>> gather_texts(comm::Communicator& world, const std::string& mine, int root);

// Collective: returns root's texts on all ranks. A text may hold any character, a newline too, except '\0'.
Result<std::vector<std::string>> broadcast_texts(comm::Communicator& world, const std::vector<std::string>& texts,
                                                 int root);

}  // namespace lancet::comm
