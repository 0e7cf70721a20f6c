#include "lancet/ir/groups.h"

#include <algorithm>

#include "lancet/ir/repeat.h"

namespace lancet::ir {

void set_group(Attributes& attributes, const mesh::Mesh& mesh, mesh::Axes axes) {
  axes = axes & mesh.wide();
  if (axes != mesh.wide()) attributes.set(axes_attribute, mesh::to_string(axes));
}

std::string_view axes_text(const Instruction& instruction) {
  if (!instruction.attributes.has(axes_attribute)) return {};
  return instruction.attributes.text(axes_attribute);
}

mesh::Axes group_of(const Instruction& instruction, const mesh::Mesh& mesh) {
  const mesh::Axes named = group_of(instruction);
  return named.empty() ? mesh.wide() : named;
}

mesh::Axes group_of(const Instruction& instruction) {
  const std::string_view text = axes_text(instruction);
  return text.empty() ? mesh::Axes() : mesh::parse_axes(text).value();
}

bool has_sound_axes(const Instruction& instruction) {
  return std::ranges::all_of(instruction.attributes.items(), [](const auto& item) {
    if (item.first != axes_attribute) return true;
    const auto* text = std::get_if<std::string>(&item.second);
    const auto axes = text ? mesh::parse_axes(*text) : std::nullopt;
    return axes && !axes->empty();
  });
}

std::array<std::set<mesh::Axes>, stream_count> used_axes(const Program& program) {
  std::array<std::set<mesh::Axes>, stream_count> used;
  const auto add = [&](const Instruction& instruction) {
    if (const std::string_view text = axes_text(instruction); !text.empty())
      used[static_cast<std::size_t>(instruction.stream)].insert(mesh::parse_axes(text).value());
  };
  for (const Instruction& instruction : program.instructions) {
    if (!is_repeat(instruction)) add(instruction);  // a repeat goes over the groups of its body
    std::ranges::for_each(instruction.body, add);
  }
  return used;
}

}  // namespace lancet::ir
