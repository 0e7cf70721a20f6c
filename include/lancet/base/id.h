// Strong ids: typed indices, so that an index into one table cannot be used for another.
#pragma once
#include <compare>
#include <cstdint>
#include <functional>

namespace lancet {

template <class Tag>
struct Id {
  std::int32_t value = -1;
  bool valid() const { return value >= 0; }
  std::size_t index() const { return static_cast<std::size_t>(value); }
  friend auto operator<=>(Id, Id) = default;
};

}  // namespace lancet

template <class Tag>
struct std::hash<lancet::Id<Tag>> {
  std::size_t operator()(lancet::Id<Tag> id) const noexcept { return std::hash<std::int32_t>{}(id.value); }
};
