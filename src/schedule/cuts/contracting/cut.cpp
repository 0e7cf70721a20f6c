// An all-to-all whose received rows are multiplied goes in tiles of columns, over which the product sums: the product
// of a tile adds onto the sums of those before it while the next tile travels, y = b + x_0 W_0^T, y += x_1 W_1^T, and
// so on. take_columns copies each tile, a dense tensor, out of what is sent; the weights are read where they are.
//
// A weight gradient reads the received rows whole: place_columns copies the tiles into one buffer. It could work tile
// by tile, since its columns are independent, but its bits would then depend on the cut, and in the forward pass the
// tiles would have to be kept until it runs, in place of the buffer. The copy takes a percent or two of the product's
// time.
#include <algorithm>

#include "lancet/ops/catalogue.h"
#include "lancet/ops/contraction.h"
#include "schedule/cuts/cuts.h"

namespace lancet::schedule {
namespace {

using ops::accumulated, ops::last, ops::none;

const ops::PartitionRow sums_row{{last, none, none, none}, {accumulated}, ops::SplitIn::time};

// The products that read the rows which an all-to-all brings to the experts; empty if another instruction of the two
// passes reads them, too, or a product is made again, or something is in their memory.
std::vector<std::size_t> products_of(const ir::Program& program, std::size_t all_to_all) {
  const ir::TensorId rows = program.instructions[all_to_all].results[0];
  std::vector<std::size_t> products;
  for (std::size_t i = all_to_all + 1; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const auto reads = std::ranges::count(at.operands, rows);
    if (reads > 0 && at.role == ir::Role::recompute) return {};  // tiles might round their sums otherwise
    if (reads == 0 || !in_layers(at)) continue;
    if (reads > 1 || at.operands[0] != rows || !at.body.empty() || ops::kind(at) != ops::Kind::product ||
        ops::contraction_of(at.op).sums.empty())
      return {};
    products.push_back(i);
  }
  return products;
}

AxisRows contracting_rows(const ir::Program& program) {
  AxisRows rows(program.instructions.size());
  std::vector<bool> is_storage(program.tensors.size()), is_output(program.tensors.size());
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.storage.valid()) is_storage[tensor.storage.index()] = true;
  for (const ir::Output& output : program.outputs) is_output[output.tensor.index()] = true;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const ops::OpDef& op = ops::op(at.op);
    if (op.kind != ops::Kind::all_to_all || !op.to_experts || !in_layers(at) || at.attributes.has("parts")) continue;
    const ir::TensorId received = at.results[0];
    if (program[received].storage.valid() || is_storage[received.index()] || is_output[received.index()]) continue;
    const std::vector<std::size_t> products = products_of(program, i);
    if (products.empty()) continue;
    rows[i] = &all_to_all_of_columns;
    for (const std::size_t product : products) rows[product] = &sums_row;
  }
  return rows;
}

// Any number of tiles that leaves a column to each.
std::vector<int> that_have_columns(const ir::Program& program, const AxisRows& rows, const TokenRanks&,
                                   std::span<const int> wanted) {
  std::vector<int> counts(wanted.begin(), wanted.end());
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i])
      std::erase_if(counts,
                    [&](int parts) { return program.type(program.instructions[i].operands[0]).shape.back() < parts; });
  return counts;
}

}  // namespace

const Cut& contracting_cut() {
  static const Cut cut{
      .name = "contracting",
      .words = {.parts = "tiles of summed columns",
                .splits = "features of the rows that experts receive, over which their first product sums",
                .pairs = "the all-to-all to the experts and the products that read it; both passes",
                .rewrites = "take_columns, an all-to-all and a product that adds onto f32 sums for each tile",
                .memory = "the sums of 16-bit results; tiles on their way; where dW reads the rows, these once more",
                .launches = "two copies, one message and product a tile; rounding and GELU once, after the last",
                .source = "collective matmul (Wang et al., ASPLOS 2023): all-to-all beside einsum; XLA"},
      .rows = contracting_rows,
      .part_counts = that_have_columns,
      .unequal = true};
  return cut;
}

}  // namespace lancet::schedule
