// One rank that takes itself for one of many: calls take as long as a declared network would need.
//
// Every other rank is a mirror of this one: what goes to it comes back from it, and it brings the same gradients. So
// experts get as many rows as where the gate spreads tokens evenly, and training stays sound: that of a model whose
// ranks share their experts.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "lancet/comm/communicator.h"

namespace lancet::comm {

// Milliseconds of a call. exchange: by what leaves the rank, in bytes; all_reduce: by the vector's bytes.
struct Network {
  std::string name;  // of the hardware that is declared
  std::function<double(double bytes)> all_to_all_ms, all_reduce_ms;
};

// Rank 0 of `ranks`. Its duplicates are the streams.
std::unique_ptr<Communicator> make_emulated_world(int ranks, Network network);

}  // namespace lancet::comm
