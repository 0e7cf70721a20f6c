#include <algorithm>

#include "schedule/cuts/cuts.h"

namespace lancet::schedule {
namespace {

ops::PeerParts groups(const TokenRanks& among, int parts) {
  return {.ranks = among.ranks, .parts = parts, .host = among.ranks / parts, .own_first = false};
}

std::vector<int> that_divide_ranks(const ir::Program&, const AxisRows&, const TokenRanks& among,
                                   std::span<const int> wanted) {
  std::vector<int> counts(wanted.begin(), wanted.end());
  std::erase_if(counts, [&](int parts) { return among.ranks % parts != 0; });
  return counts;
}

}  // namespace

const Cut& peers_cut() {
  static const Cut cut{
      .name = "peers",
      .words = {.parts = "groups of peers",
                .splits = "ranks, in equal groups of neighbours; part p sends to the p-th group from the own one on",
                .pairs = "all-to-all, experts, all-to-all back; both passes",
                .rewrites = "irregular rows of the ops' tables; split_peers and peer_rows split slots and rows",
                .memory = "none: parts fill one buffer of full size",
                .launches = "one of each op and message a part; as many messages between ranks as without parts",
                .source = "FasterMoE (He et al., PPoPP 2022), smart scheduling"},
      .rows = expert_rows,
      .part_counts = that_divide_ranks,
      .filled = {.op = "split_peers", .attribute = "ranks"},
      .received = {.op = "peer_rows", .attribute = "ranks"},
      .peers = groups};
  return cut;
}

}  // namespace lancet::schedule
