// The group of ranks that an instruction works with. The attribute axes="data,expert" names the axes of the mesh along
// which the group's ranks differ; without it, the group is all ranks.
#pragma once
#include "lancet/ir/program.h"
#include "lancet/mesh/mesh.h"

namespace lancet::ir {

// Names the group of these axes, without those that have a single coordinate; a group of all ranks gets no attribute.
void set_group(Attributes& attributes, const mesh::Mesh& mesh, mesh::Axes axes);

// Names the group that `from` names, if it names one.
void copy_group(const Attributes& from, Attributes& to);

// The axes that the instruction names; empty: all ranks. An attribute with other words throws InternalError.
mesh::Axes group_of(const Instruction& instruction);

// The mesh's groups that the instructions name, in the order of Axes.
std::vector<mesh::Axes> groups_of(const Program& program);

}  // namespace lancet::ir
