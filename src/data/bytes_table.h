// BytesTable: numbers distinct byte strings 0, 1, 2, ... in the order of their first look-up. An open-addressing hash
// table over one arena, made for millions of look-ups of pre-tokens.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/hash.h"

namespace lancet::data {

class BytesTable {
 public:
  // The string's number. A new string gets the number size() had before the call.
  std::uint32_t find_or_add(std::string_view bytes) {
    if ((ends_.size() + 1) * 2 > slots_.size()) grow();
    const std::uint64_t hash = hash64(bytes);
    const auto tag = static_cast<std::uint32_t>(hash >> 32);
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t s = hash & mask;; s = (s + 1) & mask) {
      Slot& slot = slots_[s];
      if (slot.number == kFree) {
        slot = {tag, static_cast<std::uint32_t>(ends_.size())};
        arena_.append(bytes);
        ends_.push_back(arena_.size());
        return slot.number;
      }
      if (slot.tag == tag && at(slot.number) == bytes) return slot.number;
    }
  }

  std::string_view at(std::uint32_t number) const {
    const std::size_t begin = number == 0 ? 0 : ends_[number - 1];
    return std::string_view(arena_).substr(begin, ends_[number] - begin);
  }
  std::size_t size() const { return ends_.size(); }
  std::size_t arena_bytes() const { return arena_.size(); }
  void clear() {
    slots_.assign(slots_.size(), Slot{});
    ends_.clear();
    arena_.clear();
  }

 private:
  static constexpr std::uint32_t kFree = UINT32_MAX;
  struct Slot {
    std::uint32_t tag = 0, number = kFree;
  };

  void grow() {
    slots_.assign(slots_.empty() ? 1024 : slots_.size() * 2, Slot{});
    const std::size_t mask = slots_.size() - 1;
    for (std::uint32_t i = 0; i < ends_.size(); ++i) {
      const std::uint64_t hash = hash64(at(i));
      std::size_t s = hash & mask;
      while (slots_[s].number != kFree) s = (s + 1) & mask;
      slots_[s] = {static_cast<std::uint32_t>(hash >> 32), i};
    }
  }

  std::vector<Slot> slots_;        // a power of two, at most half full
  std::vector<std::size_t> ends_;  // string i is arena_[ends_[i-1], ends_[i])
  std::string arena_;
};

}  // namespace lancet::data
