// The groups of ranks that instructions go over. The attribute axes="data,expert" (mesh::to_string) names the axes of
// the mesh along which the ranks of the group differ; an instruction without it goes over all ranks. Instructions of
// the compute stream have the attribute if what they compute depends on the rank's place in the group.
#pragma once
#include <array>
#include <set>
#include <string_view>

#include "lancet/ir/program.h"
#include "lancet/mesh/mesh.h"

namespace lancet::ir {

inline constexpr std::string_view axes_attribute = "axes";

// Names the group of these axes, without those that have a single coordinate; a group of all ranks gets no attribute.
void set_group(Attributes& attributes, const mesh::Mesh& mesh, mesh::Axes axes);

// The attribute's text; empty without it. InternalError: it is a number.
std::string_view axes_text(const Instruction& instruction);

// The axes that a sound instruction names; none: it goes over all ranks.
mesh::Axes group_of(const Instruction& instruction);
// The axes along which the ranks of its group differ: those that it names, else all of the mesh that are wide.
mesh::Axes group_of(const Instruction& instruction, const mesh::Mesh& mesh);

// True if the attribute is missing, or names axes of the mesh as mesh::to_string() does.
bool has_sound_axes(const Instruction& instruction);

// By stream: the axes that the program's instructions name. The program is sound (verify.h).
std::array<std::set<mesh::Axes>, stream_count> used_axes(const Program& program);

}  // namespace lancet::ir
