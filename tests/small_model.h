// The model that the tests of model, planner and trainer share.
#pragma once
#include "lancet/config/config.h"

namespace lancet::test {

// Four blocks, two of them (0 and 2) MoE with four experts.
inline config::Model small_model() {
  config::Model m;
  m.n_layer = 4;
  m.n_head = 2;
  m.n_embd = 32;
  m.n_positions = 16;
  m.vocab_size = 67;
  m.num_local_experts = 4;
  return m;
}

}  // namespace lancet::test
