// The memory layout of a `route[T,E]` tensor: a gate's decisions for T tokens and E experts, as a struct of arrays that
// host and device read alike.
#pragma once
#include <cstdint>

#include "lancet/base/hd.h"

namespace lancet::ir {

struct RouteLayout {
  std::int64_t tokens, experts;

  // int32[T]: the chosen expert. int32[T]: the token's slot in [0, capacity), or dropped. float[T]: its gate
  // probability. int32[E] begin, end: this part owns the slots [begin, end) of each expert (rule 1: a part continues
  // the slot counts of the part before it).
  LANCET_HD std::int32_t* expert(void* base) const { return static_cast<std::int32_t*>(base); }
  LANCET_HD std::int32_t* slot(void* base) const { return expert(base) + tokens; }
  LANCET_HD float* weight(void* base) const { return reinterpret_cast<float*>(slot(base) + tokens); }
  LANCET_HD std::int32_t* begin(void* base) const { return slot(base) + 2 * tokens; }
  LANCET_HD std::int32_t* end(void* base) const { return begin(base) + experts; }
  LANCET_HD const std::int32_t* expert(const void* base) const { return expert(const_cast<void*>(base)); }
  LANCET_HD const std::int32_t* slot(const void* base) const { return slot(const_cast<void*>(base)); }
  LANCET_HD const float* weight(const void* base) const { return weight(const_cast<void*>(base)); }
  LANCET_HD const std::int32_t* begin(const void* base) const { return begin(const_cast<void*>(base)); }
  LANCET_HD const std::int32_t* end(const void* base) const { return end(const_cast<void*>(base)); }

  LANCET_HD std::int64_t bytes() const { return 4 * (3 * tokens + 2 * experts); }

  static constexpr std::int32_t dropped = -1;
};

}  // namespace lancet::ir
