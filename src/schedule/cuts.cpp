// The cuts: the ways to split a step in parts, one constant each.
#include <algorithm>
#include <functional>
#include <limits>

#include "lancet/base/check.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/cut.h"

namespace lancet::schedule {

namespace {

using ir::InstructionId;
using ir::TensorId;
using ops::Axis;
using ops::PartitionRow;

constexpr Axis unknown = std::numeric_limits<Axis>::max();

// A row of a table, which outlives all programs.
std::shared_ptr<const PartitionRow> of_table(const PartitionRow* row) { return {std::shared_ptr<void>(), row}; }

// Propagation by a worklist of tensors: whenever the axis of a tensor becomes known, every member that touches it and
// has no row yet takes the first row that agrees, if there is one, which makes the axes of its other tensors known. An
// axis once set never changes, so the worklist empties after at most one visit per tensor. Windows of rings, which are
// parts already, take no row. Of a repeat, the instructions of its body are members, weight gradients included: they
// add onto what the rounds before have made, and so may add onto what the parts before have made.
class AxisSolver {
 public:
  AxisSolver(const ir::Program& program, std::span<const InstructionId> members)
      : program_(program), axes_(program.tensors.size(), unknown), users_(program.tensors.size()) {
    for (const ir::Instruction& at : program.instructions) all_.push_back(&at);
    for (const InstructionId id : members) {
      const ir::Instruction& at = program.instructions[id.index()];
      if (!ir::is_repeat(at)) {
        add_member(id.index());
        continue;
      }
      bodies_.emplace_back(id.index(), all_.size());
      for (const ir::Instruction& part : at.body) {
        all_.push_back(&part);
        add_member(all_.size() - 1);
      }
    }
    rows_.resize(all_.size());
    for (const std::size_t i : members_) {
      const ops::OpDef& op = ops::op(all_[i]->op);
      if (op.kind == ops::Kind::all_to_all) take(i, op.partition.front());
    }
    if (changed_.empty()) split_sequences();
  }

  AxisRows run() {
    while (!changed_.empty()) {
      const TensorId tensor = changed_.back();
      changed_.pop_back();
      for (const std::size_t i : users_[tensor.index()])
        if (!rows_[i]) try_rows(i);
    }
    AxisRows rows;
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) rows.push_back(of_table(rows_[i]));
    for (const auto& [repeat, first] : bodies_) rows[repeat] = row_of_repeat(*all_[repeat], first);
    return rows;
  }

 private:
  void add_member(std::size_t i) {
    members_.push_back(i);
    for (const auto* list : {&all_[i]->operands, &all_[i]->results})
      for (const TensorId tensor : *list) users_[tensor.index()].push_back(i);
  }

  // first: of the instructions of the body.
  std::shared_ptr<const PartitionRow> row_of_repeat(const ir::Instruction& repeat, std::size_t first) const {
    const auto rows = rows_.begin() + std::ptrdiff_t(first), end = rows + std::ptrdiff_t(repeat.body.size());
    if (std::find(rows, end, nullptr) != end) return nullptr;
    const auto axis_of = [&](TensorId id) { return axes_[id.index()] == unknown ? ops::none : axes_[id.index()]; };
    auto row = std::make_shared<PartitionRow>();
    std::ranges::transform(repeat.operands, std::back_inserter(row->operands), axis_of);
    std::ranges::transform(repeat.results, std::back_inserter(row->results), axis_of);
    row->in = ops::SplitIn::time;
    row->body.assign(rows, end);
    return row;
  }

  // Without experts, what is known is the batch that the model is given.
  void split_sequences() {
    for (std::size_t i = 0; i < axes_.size(); ++i) {
      const ir::Tensor& tensor = program_.tensors[i];
      if (tensor.kind == ir::TensorKind::input && tensor.type.shape.rank() == 2 && !users_[i].empty())
        set(TensorId{std::int32_t(i)}, 0);
    }
  }

  void try_rows(std::size_t i) {
    if (all_[i]->attributes.has("parts")) return;
    for (const PartitionRow& row : ops::op(all_[i]->op).partition)
      if (row.in_time() && agrees(*all_[i], row)) return take(i, row);
  }

  // True if the row agrees with the known axes of all tensors, and at least one tensor is known to be split: an
  // instruction is split only if a neighbour is.
  bool agrees(const ir::Instruction& at, const PartitionRow& row) const {
    if (at.operands.size() > row.operands.size() || at.results.size() > row.results.size()) return false;
    if (ops::moves(at, row.operands.front())) return false;
    bool split = false;
    auto fits = [&](TensorId tensor, Axis axis) {
      const Axis known = axes_[tensor.index()];
      split |= known != unknown && known != ops::none;
      return axis <= 0 && (known == unknown || known == axis);  // slices of the first axis alone are contiguous
    };
    for (std::size_t i = 0; i < at.operands.size(); ++i)
      if (!fits(at.operands[i], row.operands[i])) return false;
    for (std::size_t i = 0; i < at.results.size(); ++i)
      if (!fits(at.results[i], row.results[i])) return false;
    return split;
  }

  void take(std::size_t i, const PartitionRow& row) {
    rows_[i] = &row;
    const ir::Instruction& at = *all_[i];
    for (std::size_t i = 0; i < at.operands.size(); ++i)
      set(at.operands[i], row.operands[std::min(i, row.operands.size() - 1)]);
    for (std::size_t i = 0; i < at.results.size(); ++i) set(at.results[i], row.results[i]);
  }

  void set(TensorId tensor, Axis axis) {
    if (axes_[tensor.index()] != unknown) return;
    axes_[tensor.index()] = axis;
    if (axis != ops::none) changed_.push_back(tensor);
  }

  const ir::Program& program_;
  std::vector<const ir::Instruction*> all_;                  // the program's, then those of bodies
  std::vector<std::pair<std::size_t, std::size_t>> bodies_;  // a repeat, and where its body begins
  std::vector<std::size_t> members_;
  std::vector<const PartitionRow*> rows_;        // of all
  std::vector<Axis> axes_;                       // by tensor
  std::vector<std::vector<std::size_t>> users_;  // by tensor: members that touch it
  std::vector<TensorId> changed_;                // the worklist
};

std::vector<ir::InstructionId> members(const ir::Program& program,
                                       const std::function<bool(const ir::Instruction&)>& is) {
  std::vector<ir::InstructionId> result;
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    if (is(program.instructions[i])) result.push_back(ir::id_of(i));
  return result;
}

// True for an instruction of the layers' two passes, without weight gradients.
bool in_layers(const ir::Instruction& at) { return at.role == ir::Role::forward || at.role == ir::Role::dx; }

// True for the experts and the all-to-alls around them. Counts stay one message a layer: both sides of it are split
// where they are needed, by Cut::filled and Cut::received.
bool is_expert_core(const ir::Instruction& at) {
  return ops::kind(at) == ops::Kind::all_to_all || ops::is_over_expert_rows(at);
}

// Where experts' results leave: products that can make tiles of columns, each read by an all-to-all back and by nothing
// else. In the backward pass these are the gradients of the tokens that the experts got.
struct ColumnPair {
  std::size_t product, all_to_all;  // instructions
};
std::vector<ColumnPair> column_pairs(const ir::Program& program) {
  const std::vector<std::size_t> maker = ir::makers_of(program);
  std::vector<int> readers(program.tensors.size());
  for (const ir::Instruction& at : program.instructions)
    for (ir::TensorId id : at.operands) ++readers[id.index()];
  for (const ir::Output& output : program.outputs) ++readers[output.tensor.index()];
  std::vector<ColumnPair> pairs;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const ops::OpDef& op = ops::op(at.op);
    if (op.kind != ops::Kind::all_to_all || op.to_experts || !in_layers(at)) continue;
    const ir::TensorId sent = at.operands[0];
    const std::size_t from = maker[sent.index()];
    if (from < i && readers[sent.index()] == 1 && ops::op(program.instructions[from].op).column_tiles &&
        !program[at.results[0]].storage.valid())
      pairs.push_back({from, i});
  }
  return pairs;
}

// The rows of the experts and their all-to-alls.
AxisRows expert_rows(const ir::Program& program) {
  return infer_axes(program,
                    members(program, [](const ir::Instruction& at) { return in_layers(at) && is_expert_core(at); }));
}

// The part count of a cut that takes any.
std::vector<int> any_count(const ir::Program&, const AxisRows&, const TokenRanks&, std::span<const int> wanted) {
  return {wanted.begin(), wanted.end()};
}

// Weight gradients stay whole, so that their bits are the same as without parts, unless the operands that they keep
// alive until all parts are made are a large share of all values (the logits). Those of experts do in any case.
bool keeps_much_alive(const ir::Program& program, const ir::Instruction& at, std::int64_t all) {
  constexpr std::int64_t share = 32;
  if (at.role != ir::Role::dw || at.stream != ir::Stream::compute || at.operands.size() < 2 ||
      ops::is_over_expert_rows(at) || std::ranges::none_of(ops::op(at.op).partition, &ops::PartitionRow::in_time))
    return false;
  return share * (ir::bytes(program.type(at.operands[0])) + ir::bytes(program.type(at.operands[1]))) > all;
}

AxisRows token_rows(const ir::Program& program, bool recomputed) {
  std::int64_t all = 0;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.number >= 0 && !tensor.storage.valid()) all += ir::bytes(tensor.type);
  return infer_axes(program, members(program, [&](const ir::Instruction& at) {
                      return in_layers(at) || (recomputed && at.role == ir::Role::recompute) ||
                             keeps_much_alive(program, at, all);
                    }));
}

AxisRows batch_rows(const ir::Program& program) { return token_rows(program, false); }

// True if every instruction that has a row can be split in `parts` equal parts of that axis of its operands.
bool divides(const ir::Program& program, const AxisRows& rows, int parts, bool by_positions) {
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i]) continue;
    const ir::Instruction& at = program.instructions[i];
    for (std::size_t o = 0; o < at.operands.size(); ++o) {
      if (rows[i]->operands[o] != 0) continue;
      const Shape& shape = program.type(at.operands[o]).shape;
      if (shape[by_positions ? axis_of_tokens(shape) : 0] % parts != 0) return false;
    }
  }
  return true;
}

std::vector<int> that_divide_sequences(const ir::Program& program, const AxisRows& rows, const TokenRanks&,
                                       std::span<const int> wanted) {
  std::vector<int> counts(wanted.begin(), wanted.end());
  std::erase_if(counts, [&](int parts) { return !divides(program, rows, parts, false); });
  return counts;
}

constexpr int most_position_parts = 4;  // more take a search of minutes, and hide little more

// True if ranks have or get shards of the sequence there: consecutive positions of a shard are not those of the whole.
bool shards_positions(const ir::Instruction& at) {
  const bool keeps = ops::kind(at) == ops::Kind::share && at.attributes.integer("axis", 0) == 1;
  return keeps || ops::moves(at, 1);
}

// Rows along a batch of one sequence. What has one entry a sequence, as a random choice by the sequence's number, is
// whole.
AxisRows position_rows(const ir::Program& program) {
  AxisRows rows = token_rows(program, true);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (!rows[i]) continue;
    const ir::Instruction& at = program.instructions[i];
    if (const auto& positions = ops::op(at.op).positions; positions && !positions->row.operands.empty())
      rows[i] = of_table(&positions->row);
    if (shards_positions(at)) rows[i] = nullptr;
    for (std::size_t o = 0; rows[i] && o < at.operands.size(); ++o) {
      const Shape& shape = program.type(at.operands[o]).shape;
      if (rows[i]->operands[o] == 0 && shape[axis_of_tokens(shape)] == 1) rows[i] = nullptr;
    }
  }
  return rows;
}

std::vector<int> that_divide_positions(const ir::Program& program, const AxisRows& rows, const TokenRanks&,
                                       std::span<const int> wanted) {
  const auto attention = std::ranges::find_if(
      program.instructions, [](const ir::Instruction& at) { return ops::kind(at) == ops::Kind::attention; });
  if (attention == program.instructions.end() || program.type(attention->results[0]).shape[0] != 1) return {};
  std::vector<int> counts(wanted.begin(), wanted.end());
  std::erase_if(counts, [&](int parts) {
    return (wanted.size() > 1 && parts > most_position_parts) || !divides(program, rows, parts, true);
  });
  return counts;
}

constexpr Cut batch_cut{
    .name = "batch",
    .words = {.parts = "parts",
              .splits = "sequences of the batch; tokens of a part fill the slots after those of the part before",
              .pairs = "everything between all-to-alls, gate and attention included; backward as forward, or whole",
              .rewrites = "rows of the ops' tables; split_filled splits what a gate over the whole batch filled",
              .memory = "what several parts keep alive at once; none more where parts run one after another",
              .launches = "one of each op and message a part; with copies, two more at a pipeline's borders",
              .source = "Lancet (Jiang et al., MLSys 2024), section 5; FlowMoE (Gao et al., NeurIPS 2025)"},
    .rows = batch_rows,
    .part_counts = that_divide_sequences,
    .filled = {.op = "split_filled", .by_choices = true},
    .has_pipelines = true};

constexpr Cut positions_cut{
    .name = "positions",
    .words = {.parts = "parts",
              .splits = "positions of the batch's only sequence; tokens of a part fill the slots after those before it",
              .pairs = "as batch; backward from the last part on, or whole but for attention",
              .rewrites = "as batch; a part of attention reads keys and values of the parts before it",
              .memory = "as batch; gradients of keys and values in fp32, while parts add them up",
              .launches = "one of each op and message a part",
              .source = "causal attention needs no later position; TeraPipe (Li et al., ICML 2021) for pipelines"},
    .rows = position_rows,
    .part_counts = that_divide_positions,
    .filled = {.op = "split_filled", .by_choices = true},
    .by_positions = true};

constexpr Cut capacity_cut{
    .name = "capacity",
    .words = {.parts = "parts",
              .splits = "the filled slots of each expert's buffer, in equal shares",
              .pairs = "all-to-all, experts, all-to-all back; both passes",
              .rewrites = "irregular rows of the ops' tables; split_capacity and capacity_rows split slots and rows",
              .memory = "none: parts fill one buffer of full size",
              .launches = "one of each op and message a part",
              .source = "Tutel (Hwang et al., MLSys 2023), adaptive pipelining"},
    .rows = expert_rows,
    .part_counts = any_count,
    .filled = {.op = "split_capacity"},
    .received = {.op = "capacity_rows", .attribute = "ranks"}};

// The product whose result is sent back makes it in tiles of columns, over all its experts' rows: each a dense tensor
// of its own. The product reads the columns of its weights where they are (OpDef::column_tiles). A tile is sent as soon
// as it is made and arrives as a dense tensor, which place_columns copies into the whole.
using ops::last, ops::none;

const ops::PartitionRow product_row{{none, none, none, none}, {last}, ops::SplitIn::time};
const ops::PartitionRow all_to_all_row{{last, none, none}, {last}, ops::SplitIn::time};

AxisRows column_rows(const ir::Program& program) {
  AxisRows rows(program.instructions.size());
  for (const ColumnPair& pair : column_pairs(program)) {
    rows[pair.product] = of_table(&product_row);
    rows[pair.all_to_all] = of_table(&all_to_all_row);
  }
  return rows;
}

std::vector<int> that_divide_features(const ir::Program& program, const AxisRows& rows, const TokenRanks&,
                                      std::span<const int> wanted) {
  std::vector<int> counts(wanted.begin(), wanted.end());
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (rows[i])
      std::erase_if(counts, [&](int parts) {
        return program.type(program.instructions[i].results[0]).shape.back() % parts != 0;
      });
  return counts;
}

constexpr Cut columns_cut{
    .name = "columns",
    .words = {.parts = "tiles of columns",
              .splits = "features that the experts' last product makes, in equal tiles over all their rows",
              .pairs = "the product whose result is sent back, and that all-to-all; both passes",
              .rewrites = "the product's attribute columns; place_columns puts tiles that arrived in their place",
              .memory = "the tiles that arrived and are not yet in their place; at most the whole once more",
              .launches = "one product, message and copy a tile",
              .source = "Comet (Zhang et al., MLSys 2025), section 3.1.2, layer 1"},
    .rows = column_rows,
    .part_counts = that_divide_features};

ops::PeerParts groups(const TokenRanks& among, int parts) {
  return {.ranks = among.ranks, .parts = parts, .host = among.ranks / parts, .own_first = false};
}

std::vector<int> that_divide_ranks(const ir::Program&, const AxisRows&, const TokenRanks& among,
                                   std::span<const int> wanted) {
  std::vector<int> counts(wanted.begin(), wanted.end());
  std::erase_if(counts, [&](int parts) { return among.ranks % parts != 0; });
  return counts;
}

constexpr Cut peers_cut{
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

// A rank's received rows are cut into tiles by the ranks that they come from: its own, for which there is no message,
// then the rest of its host, then tiles of the other ranks (ops/peer_parts.h). A tile is multiplied as soon as it is
// there; what follows row by row runs tile by tile as well, up to the product whose result goes back.
//
// Comet's public code also orders the tiles of a product's kernel greedily, by the fewest ranks that are missing, since
// a tile of the kernel may span rows of several ranks. Here a part has all rows of its ranks and no others, so that the
// order of the parts is that order.
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

constexpr Cut source_rows_cut{
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

}  // namespace

constexpr PassCut passes[] = {
    {"micro_batches",
     {.parts = "micro batches",
      .splits = "the step's micro batches (train.gradient_accumulation_steps)",
      .pairs = "the backward pass of each and the forward pass of the next",
      .rewrites = "nothing: the instructions of two passes are ordered together",
      .memory = "the activations of two micro batches, as far as overlap.memory_factor allows",
      .launches = "none",
      .source = "Megatron-LM, overlap across micro batches; DualPipe (DeepSeek-V3, 2024), section 3.2.1"}},
    {"ring_shards",
     {.parts = "windows",
      .splits = "an all-gathered or reduce-scattered tensor, in a window for each rank of the group",
      .pairs = "an all-gather and the products that read it; a product and the reduce-scatter of its result",
      .rewrites = "permutes of windows, a product each; a copy that joins windows where a reader needs the whole",
      .memory = "windows on their way; two sums of a reduce-scatter's ring",
      .launches = "one product and message a window; half as many messages a direction where both are used",
      .source = "collective matmul (Wang et al., ASPLOS 2023); XLA's windowed einsum"}}};

AxisRows infer_axes(const ir::Program& program, std::span<const InstructionId> members) {
  return AxisSolver(program, members).run();
}

std::span<const PassCut> pass_cuts() { return passes; }

const Cut& cut_named(std::string_view name) {
  const auto cuts = all_cuts();
  const auto found = std::ranges::find_if(cuts, [&](const Cut* known) { return known->name == name; });
  LANCET_CHECK(found != cuts.end(), "no cut is named {}", name);
  return **found;
}

std::span<const Cut* const> all_cuts() {
  static constexpr const Cut* table[] = {&batch_cut, &capacity_cut,  &columns_cut,
                                         &peers_cut, &positions_cut, &source_rows_cut};
  return table;
}

}  // namespace lancet::schedule
