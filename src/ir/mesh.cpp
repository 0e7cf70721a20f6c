#include "lancet/ir/mesh.h"

namespace lancet::ir {
namespace {

constexpr std::array<std::string_view, axis_count> names = {"stage", "data", "expert", "tensor"};

}  // namespace

std::string_view name(Axis axis) { return names[std::size_t(axis)]; }

std::optional<Axis> parse_axis(std::string_view text) {
  for (const Axis axis : all_axes)
    if (name(axis) == text) return axis;
  return std::nullopt;
}

std::string to_string(Axes axes) {
  std::string text;
  for (const Axis axis : all_axes) {
    if (!axes.has(axis)) continue;
    if (!text.empty()) text += ',';
    text += name(axis);
  }
  return text;
}

std::optional<Axes> parse_axes(std::string_view text) {
  Axes axes;
  for (std::string_view rest = text; !rest.empty();) {
    const std::size_t end = rest.find(',');
    const auto axis = parse_axis(rest.substr(0, end));
    if (!axis) return std::nullopt;
    axes.add(*axis);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
  }
  return to_string(axes) == text ? std::optional(axes) : std::nullopt;
}

int Mesh::size(Axes axes) const {
  int ranks = 1;
  for (const Axis axis : all_axes)
    if (axes.has(axis)) ranks *= (*this)[axis];
  return ranks;
}

Axes Mesh::wide() const {
  Axes axes;
  for (const Axis axis : all_axes)
    if ((*this)[axis] > 1) axes.add(axis);
  return axes;
}

bool Mesh::has_groups() const { return wide().count() > 1; }

int Mesh::coordinate(int rank, Axis axis) const {
  for (std::size_t inner = axis_count - 1; inner > std::size_t(axis); --inner) rank /= sizes[inner];
  return rank % (*this)[axis];
}

int Mesh::place(int rank, Axes axes) const {
  int place = 0;
  for (const Axis axis : all_axes)
    if (axes.has(axis)) place = place * (*this)[axis] + coordinate(rank, axis);
  return place;
}

std::vector<int> Mesh::group(int rank, Axes axes) const {
  std::vector<int> members;
  members.reserve(std::size_t(size(axes)));
  for (int other = 0; other < ranks(); ++other) {
    bool same = true;
    for (const Axis axis : all_axes) same &= axes.has(axis) || coordinate(other, axis) == coordinate(rank, axis);
    if (same) members.push_back(other);
  }
  return members;
}

Mesh of_experts(int ranks) {
  Mesh mesh;
  mesh[Axis::expert] = ranks;
  return mesh;
}

std::string to_string(const Mesh& mesh) {
  std::string text;
  for (const Axis axis : all_axes) {
    if (mesh[axis] == 1) continue;
    if (!text.empty()) text += " x ";
    text += std::string(name(axis)) + " " + std::to_string(mesh[axis]);
  }
  return text.empty() ? "1 rank" : text;
}

std::string describe(const Mesh& mesh) {
  std::string places;
  int outer = mesh.ranks();
  for (const Axis axis : all_axes) {
    const int inner = outer / mesh[axis];  // the ranks that share a coordinate of this axis and of the outer ones
    if (mesh[axis] > 1) {
      places += places.empty() ? "; rank r: " : ", ";
      places += std::string(name(axis)) + " r";
      if (inner > 1) places += " / " + std::to_string(inner);
      if (outer < mesh.ranks()) places += " % " + std::to_string(mesh[axis]);
    }
    outer = inner;
  }
  return to_string(mesh) + places;
}

}  // namespace lancet::ir
