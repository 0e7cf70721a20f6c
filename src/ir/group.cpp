#include "lancet/ir/group.h"

#include <set>

#include "lancet/base/check.h"

namespace lancet::ir {
namespace {

constexpr std::string_view axes_attribute = "axes";

}  // namespace

void set_group(Attributes& attributes, const mesh::Mesh& mesh, mesh::Axes axes) {
  for (const mesh::Axis axis : mesh::all_axes)
    if (mesh[axis] == 1) axes.remove(axis);
  if (axes != mesh.wide()) attributes.set(axes_attribute, mesh::to_string(axes));
}

void copy_group(const Attributes& from, Attributes& to) {
  if (from.has(axes_attribute)) to.set(axes_attribute, from.text(axes_attribute));
}

mesh::Axes group_of(const Instruction& instruction) {
  if (!instruction.attributes.has(axes_attribute)) return {};
  const std::string& text = instruction.attributes.text(axes_attribute);
  const auto axes = mesh::parse_axes(text);
  LANCET_CHECK(axes && !axes->empty(), "{} names the axes '{}'", instruction.op, text);
  return *axes;
}

std::vector<mesh::Axes> groups_of(const Program& program) {
  std::set<mesh::Axes> groups;
  for (const Instruction& instruction : program.instructions)
    if (const mesh::Axes axes = group_of(instruction); !axes.empty()) groups.insert(axes);
  return {groups.begin(), groups.end()};
}

}  // namespace lancet::ir
