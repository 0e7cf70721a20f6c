// Mesh: the ranks as a grid with named axes (GShard, section 3.3; each axis is one kind of parallelism).
//
// Rank r has one coordinate on each axis. The axes are ordered outermost first: neighbouring ranks differ in `tensor`,
// then in `expert`, `data`, `stage`, so that groups of an inner axis are on one host where they fit. On a mesh of data
// 2, expert 2, tensor 2, rank 5 = 4 + 1 has the coordinates data 1, expert 0, tensor 1.
#pragma once
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lancet::ir {

// stage: the pipeline stage. data, expert: the batch is split over both, and the experts over `expert`. tensor: the
// weights of products and the vocabulary are split over it.
enum class Axis : std::uint8_t { stage, data, expert, tensor };
inline constexpr int axis_count = 4;
inline constexpr std::array<Axis, axis_count> all_axes = {Axis::stage, Axis::data, Axis::expert, Axis::tensor};
std::string_view name(Axis axis);
std::optional<Axis> parse_axis(std::string_view text);

// Some of a mesh's axes, without an order.
class Axes {
 public:
  constexpr Axes() = default;
  constexpr Axes(std::initializer_list<Axis> axes) : Axes(std::span(axes.begin(), axes.size())) {}
  constexpr explicit Axes(std::span<const Axis> axes) {
    for (const Axis axis : axes) add(axis);
  }
  constexpr bool has(Axis axis) const { return (bits_ >> int(axis) & 1) != 0; }
  constexpr void add(Axis axis) { bits_ |= std::uint8_t(1 << int(axis)); }
  constexpr void remove(Axis axis) { bits_ &= std::uint8_t(~(1 << int(axis))); }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr int count() const { return std::popcount(bits_); }
  // The axes that are in a or b, in both, in a but not in b.
  friend constexpr Axes operator|(Axes a, Axes b) { return of(a.bits_ | b.bits_); }
  friend constexpr Axes operator&(Axes a, Axes b) { return of(a.bits_ & b.bits_); }
  friend constexpr Axes operator-(Axes a, Axes b) { return of(a.bits_ & ~b.bits_); }
  friend constexpr bool operator==(Axes, Axes) = default;
  friend constexpr auto operator<=>(Axes, Axes) = default;

 private:
  static constexpr Axes of(int bits) {
    Axes axes;
    axes.bits_ = std::uint8_t(bits);
    return axes;
  }
  std::uint8_t bits_ = 0;
};
inline constexpr Axes batch_axes{Axis::data, Axis::expert};  // the batch is split over them
std::string to_string(Axes axes);                            // "data,expert", outermost first
std::optional<Axes> parse_axes(std::string_view text);       // what to_string() writes; none for any other text

struct Mesh {
  std::array<int, axis_count> sizes = {1, 1, 1, 1};

  int operator[](Axis axis) const { return sizes[std::size_t(axis)]; }
  int& operator[](Axis axis) { return sizes[std::size_t(axis)]; }
  int ranks() const { return size(Axes(all_axes)); }
  int size(Axes axes) const;  // the ranks of one group of these axes
  Axes wide() const;          // the axes that have more than one coordinate
  bool has_groups() const;    // whether some axes make groups that are neither single ranks nor all of them
  int coordinate(int rank, Axis axis) const;
  // The ranks that have rank's coordinates on all other axes, ascending; rank is one of them.
  std::vector<int> group(int rank, Axes axes) const;
  // The place of `rank` in its group: 0 to size(axes) - 1.
  int place(int rank, Axes axes) const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};
// All ranks along `expert`: each holds its own experts, and its own share of the batch.
Mesh of_experts(int ranks);
std::string to_string(const Mesh& mesh);  // "data 2 x expert 4": axes of more than one coordinate; "1 rank" without

// The mesh and each rank's place: "data 2 x expert 4; rank r: data r / 4, expert r % 4".
std::string describe(const Mesh& mesh);

}  // namespace lancet::ir
