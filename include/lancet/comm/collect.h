// Small collectives over values and text, for measurements and for decisions that all ranks must make alike.
#pragma once
#include <string>
#include <type_traits>
#include <vector>

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

}  // namespace lancet::comm
