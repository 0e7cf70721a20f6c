// Copies the program and replaces each split instruction by its parts. The operands and results of a part depend on the
// axis in the op's partition row:
// - axis 0: slice p of the tensor. The slices are views of one memory if something reads the tensor whole or in another
//   number of parts; otherwise each part's value has memory of its own.
// - the last axis: a tensor of the part's columns, which place_columns copies into the whole if something reads that.
// - irregular (slots of the experts): a view of the whole buffer, marked with the part, since slots are global.
// - filled slots and rows, irregular of i32: one tensor per part, joined by join_rows if something reads the whole.
//   Those that were made whole are split by the ops that the cut names (Cut::filled, Cut::received).
// - partial: one sum per part, added up by `sum`; accumulated: each part adds onto the result of the part before;
//   cumulative: the last part's is the whole's, and a part that reads it takes that of the same part.
// - the positions of a sequence (Cut::by_positions): slices of axis 1. What a part needs of other positions, its
//   op says (ops::PositionParts). In the backward pass the last positions are part 0.
// - a repeat: each part is a repeat of the parts of its body. Experts' buffers and what else these make in the scratch
//   are in the part's own one. Weight gradients, which are accumulated, go from part to part.
// With pipelines (Split), slices and views of activations become copies: `copy` makes the parts of a tensor from
// outside, `concat`, for slots of the experts `merge_slots`, makes the whole of one that is read outside. Parts of ops
// with a continued result take that of the part before as a further operand.
#include "lancet/schedule/cut.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <unordered_map>

#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"

namespace lancet::schedule {

std::vector<bool> per_token_tensors(const ir::Program& program) {
  std::vector<bool> result(program.tensors.size());
  for (const ir::Instruction& at : program.instructions) {
    const auto& ragged = ops::op(at.op).ragged;
    if (!ragged || ragged->slots < 0) continue;
    const Shape& choices = program.type(at.operands[std::size_t(ragged->slots)]).shape;
    for (std::size_t o = 0; o < at.operands.size(); ++o)
      if (int(o) != ragged->counts && program.type(at.operands[o]).shape == choices)
        result[at.operands[o].index()] = true;
    for (const ir::TensorId id : at.results)
      if (program.type(id).shape == choices) result[id.index()] = true;
  }
  return result;
}

Split joined(Split a, const Split& b) {
  for (std::size_t i = 0; i < a.parts.size(); ++i) {
    if (b.parts[i] == 1) continue;
    a.rows[i] = b.rows[i], a.parts[i] = b.parts[i], a.cuts[i] = b.cuts[i];
  }
  return a;
}

namespace {

using ir::Instruction;
using ir::Slice;
using ir::TensorId;
using ops::Axis;

bool is_all_to_all(const Instruction& at) { return ops::kind(at) == ops::Kind::all_to_all; }

// By tensor: true if something reads it as a whole, in another number of parts than it is made in, or in another
// pipeline: its parts are slices of one memory, or must be joined. The parts of all other tensors have lifetimes of
// their own.
std::vector<bool> whole_users(const ir::Program& program, const Split& split) {
  std::vector<int> made_in(program.tensors.size(), 1), pipeline_of(program.tensors.size());
  std::vector<bool> whole(program.tensors.size());
  const bool copies = !split.pipeline.empty();
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const Instruction& at = program.instructions[i];
    const int pipeline = copies ? split.pipeline[i] : 0;
    for (std::size_t o = 0; o < at.operands.size(); ++o) {
      const std::size_t id = at.operands[o].index();
      // Of whole all-to-alls, filled slots and rows come in parts.
      const ops::Axis axis = split.parts[i] > 1 ? split.rows[i]->operands[o] : ops::none;
      const bool reads_whole =
          split.parts[i] == 1 ? !(is_all_to_all(at) && o > 0) : axis == ops::none || axis == ops::accumulated;
      const bool reads_before = split.parts[i] > 1 && split.cuts[i]->by_positions && ops::op(at.op).positions &&
                                ops::op(at.op).positions->up_to == int(o);
      if (reads_whole || reads_before || split.parts[i] != made_in[id] || pipeline != pipeline_of[id]) whole[id] = true;
    }
    for (TensorId id : at.results) {
      made_in[id.index()] = split.parts[i];
      pipeline_of[id.index()] = pipeline;
    }
  }
  if (split.all_helpers) whole.assign(whole.size(), true);
  for (const ir::Output& output : program.outputs) whole[output.tensor.index()] = true;
  if (copies) return whole;
  for (std::size_t i = whole.size(); i-- > 0;)  // a tensor that reuses another's memory needs it whole
    if (const TensorId storage = program.tensors[i].storage; whole[i] && storage.valid()) whole[storage.index()] = true;
  return whole;
}

// The experts and slots of the tokens that fill the slots: operands of the layer's dispatch.
std::vector<TensorId> choices_of(const ir::Program& program, const std::vector<bool>& per_token, TensorId filled) {
  for (const Instruction& at : program.instructions) {
    if (std::ranges::count(at.operands, filled) == 0) continue;
    std::vector<TensorId> choices;
    std::ranges::copy_if(at.operands, std::back_inserter(choices), [&](TensorId id) {
      return bool(per_token[id.index()]) && program.type(id).dtype == DType::i32;
    });
    if (!choices.empty()) return choices;
  }
  LANCET_CHECK(false, "no tokens fill the slots {}", program.display(filled));
  return {};
}

// The instruction that reads or makes filled slots or rows and has an attribute: the number of ranks, or of slots of an
// expert.
const Instruction& toucher_of(const ir::Program& program, TensorId filled, std::string_view attribute) {
  const auto found = std::ranges::find_if(program.instructions, [&](const Instruction& at) {
    return at.attributes.has(attribute) &&
           (std::ranges::count(at.operands, filled) > 0 || std::ranges::count(at.results, filled) > 0);
  });
  LANCET_CHECK(found != program.instructions.end(), "nothing reads the filled slots {} with {}",
               program.display(filled), attribute);
  return *found;
}

class Rewriter {
 public:
  Rewriter(const ir::Program& source, const Split& split)
      : source_(source),
        split_(split),
        per_token_(split.per_token.empty() ? per_token_tensors(source) : split.per_token),
        received_(source.tensors.size()),
        whole_users_(whole_users(source, split)) {
    result_.program = source.without_instructions();
    for (const Instruction& at : source.instructions)
      if (ops::kind(at) == ops::Kind::counts) received_[at.results[0].index()] = true;
  }

  Rewritten run() {
    for (std::size_t i = 0; i < source_.instructions.size(); ++i) {
      origin_ = static_cast<int>(i);
      if (split_.parts[i] > 1) {
        split(source_.instructions[i], *split_.rows[i], split_.parts[i]);
        continue;
      }
      Instruction whole = source_.instructions[i];
      if (is_all_to_all(whole)) whole.operands = all_pairs(whole);
      emit(std::move(whole), origin_);
    }
    return std::move(result_);
  }

 private:
  // True for filled slots and rows: what says which slots or rows a part works on.
  bool names_rows(TensorId id, Axis axis) const {
    return axis == ops::irregular && source_.type(id).dtype == DType::i32;
  }
  bool copies() const { return !split_.pipeline.empty(); }
  // What a gate says of each token stays in slices: a copy of so few bytes is not worth an instruction.
  bool copies(TensorId id) const { return copies() && !is_per_token(id); }
  bool is_per_token(TensorId id) const { return per_token_[id.index()]; }
  int pipeline(std::size_t instruction) const { return copies() ? split_.pipeline[instruction] : 0; }

  void emit(Instruction instruction, int origin) {
    result_.program.instructions.push_back(std::move(instruction));
    result_.origin.push_back(origin);
  }

  // The operands of a whole all-to-all: its buffer, and the filled slots and rows of every part that its layer is split
  // in.
  std::vector<TensorId> all_pairs(const Instruction& all_to_all) const {
    const auto filled = parts_.find(all_to_all.operands[1].value), rows = parts_.find(all_to_all.operands[2].value);
    if (rows == parts_.end()) return all_to_all.operands;
    LANCET_CHECK(filled != parts_.end() && filled->second.size() == rows->second.size(),
                 "the rows of {} are in parts, its filled slots are not", all_to_all.label);
    std::vector<TensorId> operands{all_to_all.operands[0]};
    for (std::size_t p = 0; p < rows->second.size(); ++p) {
      operands.push_back(filled->second[p]);
      operands.push_back(rows->second[p]);
    }
    return operands;
  }

  void split(const Instruction& whole, const ops::PartitionRow& row, int parts) {
    const std::vector<Instruction> made =
        ir::is_repeat(whole) ? repeats_of(whole, row, parts) : parts_of(whole, row, parts);
    for (const Instruction& part : made) emit(part, origin_);
    for (std::size_t r = 0; r < whole.results.size(); ++r)  // none: the scratch of a repeat
      if (row.results[r] != ops::accumulated && row.results[r] != ops::cumulative && row.results[r] != ops::none)
        finish(whole, r, row, made);
  }

  std::vector<Instruction> parts_of(const Instruction& whole, const ops::PartitionRow& row, int parts) {
    whole_ = &whole;
    for (std::size_t o = 0; o < whole.operands.size(); ++o)
      if (names_rows(whole.operands[o], row.operands[o])) ensure_filled_parts(whole.operands[o], parts);
    std::vector<Instruction> made;  // in the order in which they run
    for (int n = 0; n < parts; ++n) {
      const int p = slice_of(n, parts);
      Instruction part = begin_part(row, n, parts);
      if (is_all_to_all(whole) && row.operands[1] == ops::none) part.operands = all_pairs(whole);
      for (std::size_t o = 0; o < whole.operands.size(); ++o)
        if (row.operands[o] != ops::none) part.operands[o] = operand(whole.operands[o], row.operands[o], p, parts);
      const bool sums = !row.results.empty() && row.results[0] == ops::accumulated;
      if (sums)
        add_onto(result_.program, part, n == 0 ? std::vector<TensorId>() : made.back().results, n + 1 == parts);
      else if (const auto continued = ops::op(part.op).continued; continued && n > 0 && !scratch_.valid())
        part.operands.push_back(made.back().results[*continued]);  // counts of a gate, and where rows begin (rule 1)
      for (std::size_t r = 0; !sums && r < whole.results.size(); ++r)
        part.results[r] = result(whole.results[r], row.results[r], p, parts);
      if (const auto& positions = ops::op(part.op).positions; positions && this_cut().by_positions)
        add_positions(part, *positions, made, p, parts);
      made.push_back(std::move(part));
    }
    for (std::size_t r = 0; r < whole.results.size(); ++r) {
      if (row.results[r] == ops::accumulated) continue;
      std::vector<TensorId>& of_result = parts_[whole.results[r].value];
      of_result.clear();
      for (int p = 0; p < parts; ++p) of_result.push_back(made[std::size_t(slice_of(p, parts))].results[r]);
    }
    return made;
  }

  // Which slice the n-th part to run works on, and which part a slice is: of positions, backward, the last one first.
  int slice_of(int n, int parts) const {
    const bool forward = source_.instructions[std::size_t(origin_)].role == ir::Role::forward;
    return this_cut().by_positions && !forward ? parts - 1 - n : n;
  }

  // What slice p of the positions needs of the others. before: the parts that run before it.
  void add_positions(Instruction& part, const ops::PositionParts& positions, const std::vector<Instruction>& before,
                     int p, int parts) {
    const auto first = [&](TensorId id, std::int64_t rows) {  // of its positions
      ir::TensorType type = result_.program.type(id);
      type.shape.set(1, rows);
      return result_.program.add_view(type, id, Slice{});
    };
    const std::int64_t rows = source_.type(whole_->operands[0]).shape[1] / parts;
    if (positions.before) part.attributes.set("before", rows * p);
    if (positions.up_to >= 0)
      part.operands.push_back(first(whole_->operands[std::size_t(positions.up_to)], rows * (p + 1)));
    if (!positions.sums) return;
    if (!before.empty()) part.operands.push_back(first(before.back().results[1], rows * (p + 1)));
    std::vector<ir::TensorType> types;
    for (const TensorId id : part.operands) types.push_back(result_.program.type(id));
    const ir::TensorType sums = ops::op(part.op).infer({types, part.attributes}).value()[1];
    part.results.push_back(result_.program.add_value(sums, before.empty() ? TensorId{} : part.operands.back()));
  }

  // Every part runs the rounds of its own windows, over its own tensors.
  std::vector<Instruction> repeats_of(const Instruction& whole, const ops::PartitionRow& row, int parts) {
    whole_ = &whole;
    std::vector<Instruction> made;
    for (int n = 0; n < parts; ++n) {
      const int p = slice_of(n, parts);
      Instruction& part = made.emplace_back(begin_part(row, n, parts));
      part.operands[ir::repeat_count] =
          operand(whole.operands[ir::repeat_count], row.operands[ir::repeat_count], p, parts);
      const TensorId round = whole.results[ir::repeat_round];
      part.results[ir::repeat_round] = result(round, ops::cumulative, n, parts);
      parts_[round.value].resize(std::size_t(parts));
      parts_[round.value][std::size_t(p)] = part.results[ir::repeat_round];
    }
    scratch_ = whole.results[ir::repeat_scratch];
    std::vector<std::vector<Instruction>> bodies(made.size());
    for (std::size_t i = 0; i < whole.body.size(); ++i) {
      std::vector<Instruction> of_parts = parts_of(whole.body[i], *row.body[i], parts);
      for (std::size_t p = 0; p < bodies.size(); ++p) bodies[p].push_back(std::move(of_parts[p]));
    }
    scratch_ = {};
    for (std::size_t p = 0; p < bodies.size(); ++p) ir::set_body(result_.program, made[p], std::move(bodies[p]));
    return made;
  }

  Instruction begin_part(const ops::PartitionRow& row, int p, int parts) const {
    Instruction part = *whole_;
    part.label = fmt::format("{}/{}", whole_->label, p);
    part.attributes = attributes_of_part(row, p, parts);
    return part;
  }

  const Cut& this_cut() const { return *split_.cuts[std::size_t(origin_)]; }

  ir::Attributes attributes_of_part(const ops::PartitionRow& row, int p, int parts) const {
    const Cut& cut = this_cut();
    ir::Attributes attributes = ops::attributes_of_share(row, whole_->attributes, parts);
    if (cut.by_positions && attributes.has("batch")) attributes.set("batch", std::int64_t(1));
    if (cut.peers) {
      const ops::PeerParts peers = cut.peers(split_.among, parts);
      for (const std::string_view name : row.divided)
        if (attributes.has(name)) attributes.set(name, whole_->attributes.integer(name) * peers.size(p) / peers.ranks);
      if (is_all_to_all(*whole_)) set_reach(attributes, peers, p);
    }
    if (!row.results.empty() && row.results[0] == ops::last && ops::op(whole_->op).column_tiles)
      attributes.set("columns", source_.type(whole_->results[0]).shape.back() / parts);
    attributes.set("part", std::int64_t(p));
    attributes.set("parts", std::int64_t(parts));
    return attributes;
  }

  // The cost of an all-to-all depends on whom it reaches. Groups of peers other than hosts may be near and far at once.
  void set_reach(ir::Attributes& attributes, const ops::PeerParts& peers, int p) const {
    const std::int64_t own = p == 0 ? 1 : 0;
    attributes.set("peers", peers.size(p) - own);
    if (peers.own_first || peers.host == split_.among.on_host)
      attributes.set("near", std::int64_t(p < (peers.own_first ? peers.near() : 1)));
    if (peers.size(p) > own && own) attributes.set("own", own);
  }

  // The operand that says which slots or rows of the buffer the part fills. A counts op has no buffer.
  TensorId filled_rows(const Instruction& part, const ops::PartitionRow& row, const ir::TensorType& buffer) const {
    for (std::size_t o = 0; o < whole_->operands.size(); ++o)
      if (names_rows(whole_->operands[o], row.operands[o]) &&
          source_.type(whole_->operands[o]).shape[0] == buffer.shape[0])
        return part.operands[o];
    return {};
  }

  ir::TensorType slice_type(TensorId id, int parts) const {
    ir::TensorType type = source_.type(id);
    const int axis = this_cut().by_positions ? axis_of_tokens(type.shape) : 0;
    LANCET_CHECK(type.shape[axis] % parts == 0, "{} parts do not divide {}", parts, ir::to_string(type));
    type.shape.set(axis, type.shape[axis] / parts);
    return type;
  }
  Slice slice(TensorId id, int p, int parts) const { return {ir::bytes(source_.type(id)) / parts * p, 0, 0}; }

  TensorId operand(TensorId id, Axis axis, int p, int parts) {
    if (axis == ops::none || axis == ops::accumulated) return id;
    std::vector<TensorId>& known = parts_[id.value];
    if (axis == ops::cumulative) return known.size() == std::size_t(parts) ? known[std::size_t(p)] : id;
    if (known.size() == std::size_t(parts) && in_this_pipeline(id)) return known[std::size_t(p)];
    LANCET_CHECK(!names_rows(id, axis) && axis != ops::last, "{} is in {} parts, needed in {}", source_.display(id),
                 known.size(), parts);
    // The whole exists: all its views, or copies, are made at once.
    if (copies(id) && axis == 0) {
      known = split_copies(id, parts);
      copied_[id.value] = pipeline(std::size_t(origin_));
      return known[std::size_t(p)];
    }
    std::vector<TensorId> views;
    for (int q = 0; q < parts; ++q)
      views.push_back(axis == ops::irregular
                          ? result_.program.add_view(source_.type(id), id, Slice{0, q, parts})
                          : result_.program.add_view(slice_type(id, parts), id, slice(id, q, parts)));
    known = views;
    return known[std::size_t(p)];
  }

  // True if the known parts of the tensor belong to the pipeline of this instruction.
  bool in_this_pipeline(TensorId id) const {
    const auto it = copied_.find(id.value);
    return it == copied_.end() || it->second == pipeline(std::size_t(origin_));
  }

  // Copies of all parts of a tensor that was made whole.
  std::vector<TensorId> split_copies(TensorId id, int parts) {
    std::vector<TensorId> made;
    for (int q = 0; q < parts; ++q) {
      const TensorId view = result_.program.add_view(slice_type(id, parts), id, slice(id, q, parts));
      made.push_back(result_.program.add_value(slice_type(id, parts)));
      emit({"copy", {view}, {made.back()}, {}, {}, ir::Stream::compute, whole_->role, whole_->label}, -1);
    }
    return made;
  }

  TensorId result(TensorId id, Axis axis, int p, int parts) {
    ir::Program& program = result_.program;
    const ir::TensorType& type = source_.type(id);
    if (axis == ops::cumulative && p + 1 == parts) return id;
    if (axis == ops::partial || axis == ops::cumulative || names_rows(id, axis)) return program.add_value(type);
    if (axis == ops::last) {
      ir::TensorType tile = type;
      tile.shape.set(-1, tile.shape.back() / parts);
      return program.add_value(tile);
    }
    const bool in_body = scratch_.valid() && source_.root(id) == scratch_;
    if (in_body || copies(id) || (axis == 0 && !whole_users_[id.index()])) {
      const TensorId storage = source_[id].storage;
      return program.add_value(axis == 0 ? slice_type(id, parts) : type,
                               storage.valid() && storage != scratch_ ? operand(storage, axis, p, parts) : TensorId{});
    }
    program[id].kind = ir::TensorKind::view;
    if (axis == ops::irregular) return program.add_value(type, id, Slice{0, p, parts});
    return program.add_value(slice_type(id, parts), id, slice(id, p, parts));
  }

  // Joins the parts of result r where something reads the whole.
  void finish(const Instruction& whole, std::size_t r, const ops::PartitionRow& row,
              const std::vector<Instruction>& parts) {
    whole_ = &whole;
    const TensorId id = whole.results[r];
    const Axis axis = row.results[r];
    if (copies(id)) copied_[id.value] = pipeline(std::size_t(origin_));
    if (!whole_users_[id.index()]) return;
    const std::vector<TensorId> made = parts_[id.value];
    if (axis == ops::partial) {
      join("sum", whole, id, made);
    } else if (names_rows(id, axis)) {
      join("join_rows", whole, id, made);
      if (split_.all_helpers && ops::kind(whole) == ops::Kind::gate) split_filled(id, int(made.size()));
    } else if (axis == ops::last && is_all_to_all(whole)) {  // tiles that a product makes are read by all-to-alls alone
      place_columns(whole, id, made);
    } else if (copies(id)) {
      std::vector<TensorId> filled;
      for (const Instruction& part : parts) filled.push_back(filled_rows(part, row, source_.type(id)));
      join_copies(whole, id, axis, made, filled);
    }
  }

  // Copies tiles of columns, as all-to-alls bring them, into a whole whose parts are the tiles' places.
  void place_columns(const Instruction& whole, TensorId id, const std::vector<TensorId>& tiles) {
    result_.program[id].kind = ir::TensorKind::view;
    const int parts = int(tiles.size());
    for (int p = 0; p < parts; ++p) {
      join("place_columns", whole, result_.program.add_value(source_.type(id), id, Slice{0, p, parts}),
           {tiles[std::size_t(p)], whole.operands[1]});
      Instruction& copy = result_.program.instructions.back();
      copy.label = fmt::format("{}.columns/{}", layer(whole.label), p);
      copy.attributes = {{"tokens", filled_by(whole)}, {"part", std::int64_t(p)}, {"parts", std::int64_t(parts)}};
    }
  }

  // The whole tensor, in memory of its own.
  void join_copies(const Instruction& whole, TensorId id, Axis axis, const std::vector<TensorId>& made,
                   const std::vector<TensorId>& filled) {
    result_.program[id].storage = {};
    if (axis == 0) {
      join("concat", whole, id, made);
      if (split_.all_helpers) split_copies(id, int(made.size()));
      return;
    }
    std::vector<TensorId> operands;
    for (std::size_t p = 0; p < made.size(); ++p) operands.insert(operands.end(), {made[p], filled[p]});
    join("merge_slots", whole, id, operands);
    result_.program.instructions.back().attributes = {{"tokens", filled_by(whole)}};
  }

  // The expected number of slots that the instruction fills: that of the choices which it reads, if no attribute says
  // it.
  std::int64_t filled_by(const Instruction& whole) const {
    if (whole.attributes.has("tokens")) return whole.attributes.integer("tokens");
    const auto choices = std::ranges::find_if(whole.operands, [&](TensorId id) { return is_per_token(id); });
    return source_.type(*choices).shape.elements();
  }

  void join(const char* op, const Instruction& whole, TensorId id, const std::vector<TensorId>& parts) {
    emit({op, parts, {id}, {}, {}, ir::Stream::compute, whole.role, whole.label}, -1);
  }

  // Splits filled slots that were made whole, unless that is done already.
  void ensure_filled_parts(TensorId filled, int parts) {
    const std::vector<TensorId>& known = parts_[filled.value];
    if (known.size() == std::size_t(parts)) return;
    LANCET_CHECK(known.empty(), "the filled slots of {} are needed in {} parts and in {}", whole_->label, known.size(),
                 parts);
    std::vector<TensorId> made = split_filled(filled, parts);
    parts_[filled.value] = std::move(made);
  }

  // Filled slots, or the rows that a rank receives, in parts.
  std::vector<TensorId> split_filled(TensorId filled, int parts) {
    const bool rows = received_[filled.index()];
    const SplitOp& by = rows ? this_cut().received : this_cut().filled;
    LANCET_CHECK(!by.op.empty(), "the cut {} splits no {}", this_cut().name, source_.display(filled));
    std::vector<TensorId> made;
    for (int p = 0; p < parts; ++p) {
      Instruction split = by.by_choices ? split_by_choices(by, filled, made, p, parts) : split_by(by, filled, parts);
      split.stream = ops::op(split.op).stream;
      split.role = whole_->role;
      split.label = fmt::format("{}.{}/{}", layer(whole_->label), rows ? "rows" : "filled", p);
      split.attributes.set("part", std::int64_t(p));
      split.attributes.set("parts", std::int64_t(parts));
      split.results = {result_.program.add_value(source_.type(filled))};
      made.push_back(split.results[0]);
      emit(std::move(split), -1);
    }
    return made;
  }

  // before: the parts before part p.
  Instruction split_by_choices(const SplitOp& by, TensorId filled, const std::vector<TensorId>& before, int p,
                               int parts) {
    Instruction split;
    split.op = by.op;
    split.attributes = {{"experts", source_.type(filled).shape[0]}};
    for (TensorId choices : choices_of(source_, per_token_, filled))
      split.operands.push_back(operand(choices, 0, p, parts));
    if (p > 0) split.operands.push_back(before.back());
    return split;
  }

  Instruction split_by(const SplitOp& by, TensorId filled, int parts) const {
    Instruction split;
    split.op = by.op;
    split.operands = {filled};
    if (by.attribute.empty()) return split;
    const Instruction& of_layer = toucher_of(source_, filled, by.attribute);
    split.attributes.set(by.attribute, of_layer.attributes.integer(by.attribute));
    if (this_cut().peers)
      if (const ops::PeerParts peers = this_cut().peers(split_.among, parts); peers.own_first)
        split.attributes.set("host", peers.host);
    if (const std::string_view axes = ir::axes_text(of_layer); !axes.empty())  // of the ranks of its all-to-alls
      split.attributes.set(ir::axes_attribute, std::string(axes));
    return split;
  }

  static std::string layer(const std::string& label) { return label.substr(0, label.rfind('.')); }

  const ir::Program& source_;
  const Split& split_;
  Rewritten result_;
  int origin_ = 0;
  const Instruction* whole_ = nullptr;                             // the instruction that is being split
  TensorId scratch_ = {};                                          // of the repeat whose body is being split, if one is
  std::vector<bool> per_token_, received_, whole_users_;           // by tensor
  std::unordered_map<std::int32_t, std::vector<TensorId>> parts_;  // by whole tensor; looked up only
  std::unordered_map<std::int32_t, int> copied_;                   // by whole tensor: the pipeline of its parts
};

}  // namespace

void add_onto(ir::Program& program, Instruction& part, const std::vector<TensorId>& before, bool is_last) {
  const ops::OpDef& op = ops::op(part.op);
  if (!before.empty()) {
    part.operands.resize(std::size_t(op.required));
    part.operands.insert(part.operands.end(), before.begin(), before.end());
  }
  for (std::size_t r = 0; r < part.results.size(); ++r) {
    TensorId onto{};  // the tensor whose memory the result reuses
    for (const ops::Alias& alias : op.aliases)
      if (alias.result == int(r) && alias.operand < int(part.operands.size()))
        onto = part.operands[std::size_t(alias.operand)];
    if (is_last)
      program[part.results[r]].storage = onto;
    else
      part.results[r] = program.add_value(program.type(part.results[r]), onto);
  }
}

Rewritten rewrite(const ir::Program& program, const Split& split) { return Rewriter(program, split).run(); }

}  // namespace lancet::schedule
