#include "policies.h"

#include <algorithm>

namespace lancet::planner {
namespace {

constexpr SchedulePass take_turns{"take_turns", schedule::take_turns};
constexpr SchedulePass move_dw{"move_dw", schedule::move_dw};
constexpr SchedulePass chunk_all_reduces{"chunk_all_reduces", schedule::chunk_all_reduces};
constexpr SchedulePass split_forward{"split_forward", schedule::split_forward};
constexpr SchedulePass pipelines_with_copies{"pipelines_with_copies", schedule::pipelines_with_copies};
constexpr SchedulePass move_dw_greedily{"move_dw_greedily", schedule::move_dw_greedily};
constexpr SchedulePass degree_per_layer{"degree_per_layer", schedule::degree_per_layer};
constexpr SchedulePass smart_schedule{"smart_schedule", schedule::smart_schedule};
constexpr SchedulePass tile_experts{"tile_experts", schedule::tile_experts};
constexpr SchedulePass pipeline_both_passes{"pipeline_both_passes", schedule::pipeline_both_passes};
constexpr SchedulePass collective_matmul{"collective_matmul", schedule::collective_matmul};
constexpr SchedulePass order_micro_batches{"order_micro_batches", schedule::order_micro_batches};
constexpr SchedulePass search_orders{"search_orders", schedule::search_orders};
constexpr SchedulePass across_steps{"across_steps", schedule::across_steps};
constexpr SchedulePass search_orders_with_rings{"search_orders_with_rings", schedule::search_orders_with_rings};

const Policy table[] = {
    {"sequential", "no overlap of computation and all-to-all (as DeepSpeed and RAF do)", {}, {}, {take_turns}},
    {"dw", "weight gradients under the backward all-to-alls (Lancet, section 4)", {}, {}, {move_dw, chunk_all_reduces}},
    {"partition",
     "the forward pass around the MoE layers in parts (Lancet, section 5)",
     {"batch", "positions"},
     {},
     {take_turns, split_forward}},
    {"tutel",
     "the experts in 1, 2, 4 or 8 parts, for each kind of MoE layers, in the best of two orders (Tutel, MLSys 2023)",
     {"capacity"},
     {},
     {take_turns, degree_per_layer},
     {},
     {},
     {.mixes_parts = true, .alias = "expert_pipeline"}},
    {"fastermoe",
     "the experts by 1, 2, 4 or 8 groups of peers, in the order of its smart schedule (FasterMoE, PPoPP 2022)",
     {"peers"},
     {},
     {take_turns, smart_schedule}},
    {"comet",
     "the experts by tiles of source ranks, their results by tiles of columns (Comet, MLSys 2025)",
     {"source_rows", "columns"},
     {},
     {take_turns, tile_experts},
     {},
     {},
     {.mixes_parts = true}},
    {"flowmoe",
     "both passes in one pipeline of parts of the batch, all-reduces in chunks (FlowMoE, NeurIPS 2025)",
     {"batch", "positions"},
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
     {order_micro_batches},
     {},
     {.of_micro_batches = true}},
    {"lancet_paper",
     "one pipeline an MoE layer, with copies at its borders, and the greedy dW (Lancet, sections 4 and 5)",
     {"batch", "capacity"},
     {},
     {pipelines_with_copies, move_dw_greedily},
     {},
     {},
     {.mixes_parts = true}},
    {"lancet",
     "the fastest of those above, and both passes, tiles of experts and rings of products in orders of its own",
     {"batch", "positions", "capacity", "columns", "source_rows", "ring_shards", "micro_batches"},
     {"sequential", "dw", "partition", "tutel", "fastermoe", "comet", "flowmoe", "collective_matmul",
      "neighbour_microbatches", "lancet_paper"},
     {search_orders, search_orders_with_rings},
     {order_micro_batches},
     {across_steps},
     {.mixes_parts = true, .alias = "auto"}},
};

}  // namespace

std::span<const Policy> policy_table() { return table; }

const Policy* find_policy(std::string_view name) {
  const auto found =
      std::ranges::find_if(table, [&](const Policy& policy) { return policy.name == name || policy.is.alias == name; });
  return found == std::end(table) ? nullptr : found;
}

}  // namespace lancet::planner
