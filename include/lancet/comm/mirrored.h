// A single rank that trains as one of N ranks, whose peers do not exist: calls last as long as a declared network would
// need.
//
// Every other rank mirrors this one: it returns the bytes that it is sent, and contributes the same gradients. So each
// expert gets as many rows as under an even distribution of tokens, and training stays valid: it is that of a model
// whose ranks share their experts.
#pragma once
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lancet/comm/communicator.h"

namespace lancet::comm {

// Duration of a call among `ranks`, in milliseconds. all_to_all_ms: by the bytes that the rank sends to others;
// all_reduce_ms: by the bytes of the vector.
struct Network {
  std::string name;  // of the declared hardware
  std::function<double(std::span<const int> ranks, double bytes)> all_to_all_ms, all_reduce_ms;
};

// Rank 0 of `ranks`. Its duplicates and groups serve the streams.
std::unique_ptr<Communicator> make_mirrored_world(int ranks, Network network);

}  // namespace lancet::comm
