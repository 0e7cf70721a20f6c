// Helpers around the parts of an MoE layer that is split in time (Lancet, sections 5.2 and 6). A part's route is a
// route whose begin and end name the slots of each expert that the part owns. There are three ways to split a route:
//   split_route(route [, part before]) {first, tokens}: the tokens [first, first + tokens) of a whole route. The part
//       owns the slots after those of the part before.
//   split_capacity(route) {part, parts, capacity}: the slots [part * C / parts, (part + 1) * C / parts) of every
//       expert. The result has no tokens and serves all-to-alls and experts only.
//   split_peers(route) {part, parts, ranks}: the slots of the experts on one group of ranks; it has no tokens either.
//       The ranks form `parts` groups of neighbours. Part p is the p-th group counted from the rank's own, modulo
//       `parts`, so part 0 stays within the group, and in every part each group sends to one other group (the
//       all-to-alls by groups of workers of FasterMoE). It is on the expert stream, because it depends on the rank.
// The others join what parts have made:
//   join_route(part...) -> the route of the whole
//   join_rows(rows of each part...) -> where each expert's rows begin and end, over all parts
//   sum(part...) -> the sum of partial results, added in order
#include "ops/describe.h"

namespace lancet::ops {
namespace {

bool is_route(const TensorType& type) { return type.dtype == DType::route && type.shape.rank() == 2; }

Inferred infer_split(const OpInput& in) {
  const TensorType& route = in.operands[0];
  const std::int64_t first = in.attributes.integer("first"), tokens = in.attributes.integer("tokens");
  if (!is_route(route) || first < 0 || tokens < 1 || first + tokens > route.shape[0])
    return expected("a route[T,E] that has the part's tokens");
  if (in.operands.size() > 1 && (!is_route(in.operands[1]) || in.operands[1].shape[1] != route.shape[1]))
    return expected("the part before");
  return Types{{DType::route, {tokens, route.shape[1]}}};
}

Inferred infer_split_capacity(const OpInput& in) {
  const std::int64_t part = in.attributes.integer("part"), parts = in.attributes.integer("parts");
  if (!is_route(in.operands[0]) || part < 0 || part >= parts || in.attributes.integer("capacity") < 1)
    return expected("a route[T,E] and one of its parts");
  return Types{{DType::route, {0, in.operands[0].shape[1]}}};
}

Inferred infer_split_peers(const OpInput& in) {
  const std::int64_t part = in.attributes.integer("part"), parts = in.attributes.integer("parts"),
                     ranks = in.attributes.integer("ranks");
  if (!is_route(in.operands[0]) || part < 0 || part >= parts || ranks < 1 || ranks % parts ||
      in.operands[0].shape[1] % ranks)
    return expected("a route[T,E], one of its parts and ranks that divide E and that the parts divide");
  return Types{{DType::route, {0, in.operands[0].shape[1]}}};
}

Inferred infer_join_route(const OpInput& in) {
  std::int64_t tokens = 0;
  for (const TensorType& part : in.operands) {
    if (!is_route(part) || part.shape[1] != in.operands[0].shape[1]) return expected("routes over the same experts");
    tokens += part.shape[0];
  }
  return Types{{DType::route, {tokens, in.operands[0].shape[1]}}};
}

Inferred infer_same(const OpInput& in, DType dtype, std::string_view what) {
  for (const TensorType& part : in.operands)
    if (part.dtype != dtype || part != in.operands[0]) return expected(what);
  return Types{in.operands[0]};
}
Inferred infer_join_rows(const OpInput& in) { return infer_same(in, DType::i32, "rows i32[E/W,W+1] of one type"); }
Inferred infer_sum(const OpInput& in) { return infer_same(in, DType::f32, "f32 tensors of one type"); }

const OpDef table[] = {
    {.name = "split_route",
     .required = 1,
     .most = 2,
     .infer = infer_split,
     .samples = {{{route({16, 4})}, {{"capacity", 16}, {"tokens", 16}, {"first", 0}}}},
     .kind = Kind::part_helper},
    {.name = "split_capacity",
     .required = 1,
     .infer = infer_split_capacity,
     .samples = {{{route({16, 4})}, {{"capacity", 5}, {"tokens", 16}, {"part", 1}, {"parts", 2}}}},
     .kind = Kind::part_helper},
    {.name = "split_peers",
     .required = 1,
     .infer = infer_split_peers,
     .samples = {{{route({16, 4})}, {{"capacity", 5}, {"tokens", 16}, {"part", 1}, {"parts", 2}, {"ranks", 2}}},
                 {{route({16, 4})}, {{"capacity", 5}, {"tokens", 16}, {"part", 0}, {"parts", 2}, {"ranks", 4}}}},
     .stream = ir::Stream::expert,
     .kind = Kind::part_helper},
    {.name = "join_route",
     .required = 1,
     .most = any_number,
     .infer = infer_join_route,
     .samples = {{{route({16, 4})}, {{"capacity", 5}, {"tokens", 16}}}},
     .kind = Kind::part_helper},
    {.name = "join_rows",
     .required = 1,
     .most = any_number,
     .infer = infer_join_rows,
     .samples = {{{i32({4, 2}, Fill::rows)}, {{"capacity", 5}, {"tokens", 16}}}},
     .kind = Kind::part_helper},
    {.name = "sum",
     .required = 1,
     .most = any_number,
     .infer = infer_sum,
     .samples = {{{f32({2, 5}), f32({2, 5}), f32({2, 5})}, {}}},
     .kind = Kind::part_helper},
};

}  // namespace

std::span<const OpDef> route_parts_ops() { return table; }

}  // namespace lancet::ops
