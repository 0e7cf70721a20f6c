#include "policies.h"

namespace lancet::planner {
namespace {

constexpr SchedulePass take_turns{"take_turns", schedule::take_turns};
constexpr SchedulePass split_by_capacity{"split_experts_by_capacity", schedule::split_experts_by_capacity};
constexpr SchedulePass split_by_peers{"split_experts_by_peers", schedule::split_experts_by_peers};
constexpr SchedulePass move_dw{"move_dw", schedule::move_dw};
constexpr SchedulePass chunk_all_reduces{"chunk_all_reduces", schedule::chunk_all_reduces};
constexpr SchedulePass split_forward{"split_forward", schedule::split_forward};
constexpr SchedulePass pipelines_with_copies{"pipelines_with_copies", schedule::pipelines_with_copies};
constexpr SchedulePass pipelines_of_slices{"pipelines_of_slices", schedule::pipelines_of_slices};
constexpr SchedulePass move_dw_greedily{"move_dw_greedily", schedule::move_dw_greedily};
constexpr SchedulePass degree_per_layer{"degree_per_layer", schedule::degree_per_layer};
constexpr SchedulePass smart_schedule{"smart_schedule", schedule::smart_schedule};
constexpr SchedulePass tile_experts{"tile_experts", schedule::tile_experts};
constexpr SchedulePass pipeline_both_passes{"pipeline_both_passes", schedule::pipeline_both_passes};
constexpr SchedulePass collective_matmul{"collective_matmul", schedule::collective_matmul};
constexpr SchedulePass pair_micro_batches{"pair_micro_batches", schedule::pair_micro_batches};
constexpr SchedulePass pair_if_shorter{"pair_micro_batches_if_shorter", schedule::pair_micro_batches_if_shorter};
constexpr SchedulePass search_orders{"search_orders", schedule::search_orders};
constexpr SchedulePass across_steps{"across_steps", schedule::across_steps};
constexpr SchedulePass search_orders_with_rings{"search_orders_with_rings", schedule::search_orders_with_rings};

const Policy table[] = {
    {"sequential", "no overlap of computation and all-to-all (as DeepSpeed and RAF do)", {}, {}, {take_turns}},
    {"expert_pipeline",
     "the experts in 1, 2, 4 or 8 parts beside their all-to-alls (as Tutel does)",
     {"capacity"},
     {},
     {take_turns, split_by_capacity}},
    {"peer_groups",
     "the experts by 1, 2, 4 or 8 groups of peers beside their all-to-alls (as FasterMoE does)",
     {"peers"},
     {},
     {take_turns, split_by_peers}},
    {"dw", "weight gradients under the backward all-to-alls (Lancet, section 4)", {}, {}, {move_dw, chunk_all_reduces}},
    {"partition",
     "the forward pass around the MoE layers in parts (Lancet, section 5)",
     {"batch"},
     {},
     {take_turns, split_forward}},
    {"tutel",
     "expert_pipeline in the best of two orders, parts for each kind of MoE layers (Tutel, MLSys 2023)",
     {"capacity"},
     {},
     {take_turns, degree_per_layer}},
    {"fastermoe",
     "peer_groups in the order of its smart schedule (FasterMoE, PPoPP 2022)",
     {"peers"},
     {},
     {take_turns, smart_schedule}},
    {"comet",
     "the experts by tiles of source ranks, their results by tiles of columns (Comet, MLSys 2025)",
     {"source_rows", "columns"},
     {},
     {take_turns, tile_experts}},
    {"flowmoe",
     "both passes in one pipeline of parts of the batch, all-reduces in chunks (FlowMoE, NeurIPS 2025)",
     {"batch"},
     {},
     {pipeline_both_passes, chunk_all_reduces}},
    {"collective_matmul",
     "products beside their collectives in windows (Wang et al., ASPLOS 2023; XLA)",
     {"ring_shards"},
     {},
     {take_turns, collective_matmul}},
    {"neighbour_microbatches",
     "the backward pass of a micro batch beside the forward pass of the next (Megatron-LM, DualPipe)",
     {"micro_batches"},
     {},
     {move_dw, chunk_all_reduces},
     false,
     {pair_micro_batches},
     {},
     true},
    {"lancet_paper",
     "one pipeline an MoE layer, with copies at its borders, and the greedy dW (Lancet, sections 4 and 5)",
     {"batch"},
     {},
     {pipelines_with_copies, move_dw_greedily}},
    {"lancet_paper_slices",
     "lancet_paper, parts as slices of the whole instead of copies",
     {"batch"},
     {},
     {pipelines_of_slices, move_dw_greedily},
     true},
    {"lancet_paper_ranges",
     "lancet_paper_slices, ranges of any length, each order of a few list schedules simulated",
     {"batch"},
     {},
     {split_forward, move_dw_greedily},
     true},
    {"lancet_paper_assigned",
     "lancet_paper_ranges, the assignment of dW improved by a local search",
     {"batch"},
     {},
     {split_forward, move_dw},
     true},
    {"lancet_paper_chunks",
     "lancet_paper_assigned, all-reduces in chunks between the all-to-alls",
     {"batch"},
     {},
     {split_forward, move_dw, chunk_all_reduces},
     true},
    {"lancet",
     "both, and the backward pass, tiles of experts and rings of products where these pay",
     {"batch", "capacity", "columns", "source_rows", "ring_shards", "micro_batches"},
     {"sequential", "dw"},
     {search_orders, search_orders_with_rings},
     false,
     {pair_if_shorter},
     {across_steps}},
    {"auto",
     "the fastest of those above, but lancet_paper",
     {},
     {"sequential", "expert_pipeline", "peer_groups", "dw", "partition", "tutel", "fastermoe", "comet", "flowmoe",
      "collective_matmul", "neighbour_microbatches", "lancet"},
     {}},
};

}  // namespace

std::span<const Policy> policy_table() { return table; }

}  // namespace lancet::planner
