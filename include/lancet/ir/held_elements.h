// Which elements of a tensor a rank holds, as runs of neighbours. Elements are counted row-major.
//
// A dimension that is split gives the rank one segment of it, or one of each block; a run is what these segments leave
// contiguous in the whole tensor. There is one run where all dimensions but the first are whole; f32[768,3072{tensor}]
// has one for each of its 768 rows. All work here is by runs.
#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "lancet/base/flat_shard.h"
#include "lancet/base/shape.h"
#include "lancet/ir/mesh.h"
#include "lancet/ir/sharding.h"

namespace lancet::ir {

// The elements [whole, whole + count) of the whole tensor are the elements [held, held + count) of the rank's shard.
struct HeldRun {
  std::int64_t whole = 0, held = 0, count = 0;
  friend bool operator==(const HeldRun&, const HeldRun&) = default;
};

// The runs of a rank's shard, in the order of `held`, which is that of `whole`, too. Neighbours are one run. Without a
// sharding the rank holds all elements. InternalError: the sharding does not split that shape on the mesh.
std::vector<HeldRun> held_elements(const Shape& whole, const std::optional<Sharding>& sharding, const Mesh& mesh,
                                   int rank);

// What is left of runs in order of which only the elements [begin, end) of the shard are held (a flat shard), with
// `held` counted from `begin` on.
std::vector<HeldRun> of_held(const std::vector<HeldRun>& runs, const FlatRange& range);

// The part of the runs that is in the elements [begin, end) of the whole tensor. It is contiguous in the shard.
std::vector<HeldRun> of_whole(const std::vector<HeldRun>& runs, const FlatRange& range);

std::int64_t elements_of(const std::vector<HeldRun>& runs);

}  // namespace lancet::ir
