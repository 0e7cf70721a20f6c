// The groups of ranks that instructions go over. The attribute axes="data,expert" (ir::to_string) names the axes of
// the mesh along which the ranks of the group differ; an instruction without it goes over all ranks. Instructions of
// the compute stream have the attribute if what they compute depends on the rank's place in the group.
#pragma once
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/ir/mesh.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

inline constexpr std::string_view axes_attribute = "axes";
// Of a group along the axis `stage`, the stages whose ranks are in it, where not all are: stages="0,3". Plans of the
// other stages lack the instruction.
inline constexpr std::string_view stages_attribute = "stages";
// Of a message between stages that have several runs of blocks each (chunks), the number of its run; 0 without it.
inline constexpr std::string_view chunk_attribute = "chunk";

// Names the group of these axes, without those that have a single coordinate; a group of all ranks gets no attribute.
void set_group(Attributes& attributes, const Mesh& mesh, Axes axes);

// The attribute's text; empty without it. InternalError: it is a number.
std::string_view axes_text(const Instruction& instruction);

// The axes that a sound instruction names; none: it goes over all ranks.
Axes group_of(const Instruction& instruction);
// The axes along which the ranks of its group differ: those that it names, else all of the mesh that are wide.
Axes group_of(const Instruction& instruction, const Mesh& mesh);

// True if the attribute is missing, or names axes of the mesh as ir::to_string() does.
bool has_sound_axes(const Instruction& instruction);

// The ranks that an instruction goes over, as a key: its axes, and the stages if it names some: "data,expert",
// "stage:0,3"; "" for all ranks. key_of(): InternalError where an attribute is a number. ranks_of(): the ranks of the
// group that `rank` is in, ascending; the rank alone if the key names stages without its own. The key is sound.
std::string key_of(const Instruction& instruction);
std::vector<int> ranks_of(std::string_view key, const Mesh& mesh, int rank);

// By stream: the keys of the groups of the program's instructions. The program is sound (program.h).
std::array<std::set<std::string>, stream_count> used_keys(const Program& program);

// True for a collective of a stage's program along the axis `stage`. Without axes it goes over all ranks.
bool is_along_stages(const Instruction& instruction);

// The rank at the other end of a stream between stages, of which the first follows the last; nothing with one stage.
std::optional<int> neighbour(const Mesh& mesh, int rank, Stream stream);
// The stream of that rank on which it takes part.
Stream opposite(Stream stream);

}  // namespace lancet::ir
