#include "lancet/comm/collect.h"

#include <algorithm>
#include <numeric>
#include <span>

namespace lancet::comm {

Result<double> largest(Communicator& communicator, double value) {
  LANCET_ASSIGN(const auto all, collect(communicator, value));
  return *std::max_element(all.begin(), all.end());
}

Result<double> mean(Communicator& communicator, double value) {
  LANCET_ASSIGN(const auto all, collect(communicator, value));
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

Result<std::string> broadcast_text(Communicator& communicator, const std::string& text, int root) {
  std::uint64_t size = text.size();
  LANCET_TRY(communicator.broadcast(std::as_writable_bytes(std::span(&size, 1)), root));
  std::string result = communicator.rank() == root ? text : std::string(size, '\0');
  LANCET_TRY(communicator.broadcast(std::as_writable_bytes(std::span(result)), root));
  return result;
}

AllToAll::AllToAll(const Communicator& communicator, std::size_t bytes) {
  const auto others = static_cast<std::size_t>(std::max(communicator.size() - 1, 1));
  const std::size_t each = communicator.size() > 1 ? std::max<std::size_t>(bytes / others, 1) : 0;
  out_.resize(each * others);
  in_.resize(out_.size());
  std::size_t at = 0;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    if (peer == communicator.rank()) continue;
    sends_.push_back({peer, out_.data() + at, each});
    receives_.push_back({peer, in_.data() + at, each});
    at += each;
  }
}

}  // namespace lancet::comm
