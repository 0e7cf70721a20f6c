// A rank's received rows are cut into tiles by the ranks that they come from: its own, for which there is no message,
// then the rest of its host, then tiles of the other ranks (ops/peer_parts.h). A tile is multiplied as soon as it is
// there; what follows row by row runs tile by tile as well, up to the product whose result goes back.
//
// Comet's public code also orders the tiles of a product's kernel greedily, by the fewest ranks that are missing, since
// a tile of the kernel may span rows of several ranks. Here a part has all rows of its ranks and no others, so that the
// order of the parts is that order.
#include <algorithm>

#include "lancet/ops/catalogue.h"
#include "schedule/cuts/cuts.h"

namespace lancet::schedule {
namespace {

// All-to-alls to the experts, and the experts up to the product whose columns are sent back.
AxisRows source_rows(const ir::Program& program) {
  std::vector<bool> sent_back(program.instructions.size());
  for (const ColumnPair& pair : column_pairs(program)) sent_back[pair.product] = true;
  std::vector<ir::InstructionId> chosen;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const ops::OpDef& op = ops::op(at.op);
    const bool leaves = op.kind == ops::Kind::all_to_all && !op.to_experts;
    if (in_layers(at) && is_expert_core(at) && !leaves && !sent_back[i]) chosen.push_back(ir::id_of(i));
  }
  return infer_axes(program, chosen);
}

ops::PeerParts tiles(const TokenRanks& among, int parts) {
  return {.ranks = among.ranks, .parts = parts, .host = among.on_host, .own_first = true};
}

// The numbers of parts with tiles of all other ranks, half as many and so on.
std::vector<int> tile_counts(const ir::Program&, const AxisRows&, const TokenRanks& among,
                             std::span<const int> wanted) {
  std::vector<int> counts;
  const std::int64_t others = among.ranks - among.on_host, near = tiles(among, 1).near();
  for (std::int64_t tile = others; tile >= 1; tile /= 2) {
    const int parts = int(near + (others + tile - 1) / tile);
    if (parts >= wanted.front() && parts <= wanted.back() && tiles(among, parts).fit()) counts.push_back(parts);
  }
  counts.erase(std::unique(counts.begin(), counts.end()), counts.end());
  return counts;
}

}  // namespace

const Cut& source_rows_cut() {
  static const Cut cut{
      .name = "source_rows",
      .words = {.parts = "tiles of source ranks",
                .splits = "received rows, by the ranks they come from: the own rank, its host, tiles of other ranks",
                .pairs = "all-to-all to the experts, then their products but for the last; both passes",
                .rewrites = "irregular rows of the ops' tables; split_peers and peer_rows split slots and rows",
                .memory = "none: parts fill one buffer of full size",
                .launches = "one of each op and message a tile; none for the own rank",
                .source = "Comet (Zhang et al., MLSys 2025), section 3.1.2, layer 0"},
      .rows = source_rows,
      .part_counts = tile_counts,
      .filled = {.op = "split_peers", .attribute = "ranks"},
      .received = {.op = "peer_rows", .attribute = "ranks"},
      .peers = tiles};
  return cut;
}

}  // namespace lancet::schedule
