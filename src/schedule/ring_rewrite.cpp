// How the rewriting works. Window i of a tensor is the shard of the rank i places on, so that one text serves all ranks
// (ops/comm/take_shard). An instruction works on windows if it is a product of a ring, or if it has a row along the
// same dimension and is between two instructions on windows, as GELU between the products of an FFN. All others are
// whole. A tensor's windows are joined before the first instruction that reads the whole, and taken from the whole for
// an instruction on windows; both are copies, since a window along the second dimension is not contiguous.
//
// All-gather: window 0 is the rank's own shard. A step passes the window that came last on, and so brings the next one.
// Reduce-scatter: the sums travel. At step t of n each rank makes its summand of window (t + 1) mod n, which is the
// shard of a rank further on, and adds it to the sum that comes from the next rank; the last one is its own.
// With two sums, one is made of the windows of even numbers and one of odd numbers, and each travels two ranks; so a
// product is made between the end of a message and the next one of the same sum. Both ways: the sums of the ranks above
// come down, those of the ranks below come up, and the rank's own summand is added to both at the end.
#include "rings.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "lancet/base/check.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"
#include "lancet/ops/peer_parts.h"
#include "lancet/schedule/cut.h"

namespace lancet::schedule {
namespace {

using ir::Instruction;
using ir::TensorId;

// What an instruction of the source does in the result.
struct Place {
  enum class Kind : std::uint8_t { whole, gather, scatter, windows, sum } kind = Kind::whole;
  int ring = Ringed::outside;
  int key = -1;                            // of the windows
  const ops::PartitionRow* row = nullptr;  // of windows and sum
};

// Finds the place of each instruction.
class Places {
 public:
  Places(const ir::Program& program, std::span<const Ring> rings, std::span<const RingChoice> choices)
      : program_(program), places_(program.instructions.size()), is_gathered_(program.tensors.size()) {
    std::map<std::string, int> keys;
    for (std::size_t r = 0; r < rings.size(); ++r) {
      if (choices[r].way == RingWay::whole) continue;
      const auto [key, is_new] = keys.emplace(rings[r].key(program), int(first_.size()));
      if (is_new) first_.push_back(&rings[r]);
      place(rings[r], int(r), key->second, choices[r]);
    }
    for (std::size_t key = 0; key < first_.size(); ++key) add_between(int(key));
  }

  const std::vector<Place>& places() const { return places_; }
  const Ring& first(int key) const { return *first_[std::size_t(key)]; }  // a ring of the key

 private:
  void place(const Ring& ring, int number, int key, const RingChoice& choice) {
    places_[ring.collective] = {ring.gathers ? Place::Kind::gather : Place::Kind::scatter, number, key};
    if (ring.gathers) is_gathered_[program_.instructions[ring.collective].results[0].index()] = true;
    for (const std::size_t i : ring.products)
      places_[i] = {Place::Kind::windows, number, key,
                    window_row(program_, program_.instructions[i], ring.axis, ring.shards)};
    for (const std::size_t i : ring.weight_gradients)
      if (choice.weight_gradients)
        places_[i] = {Place::Kind::sum, number, key,
                      sum_row(program_, program_.instructions[i], ring.axis, ring.shards)};
  }

  // The instructions that read what is made in windows, and make what is read in windows, directly or by one another.
  void add_between(int key) {
    const Ring& ring = first(key);
    const std::size_t count = places_.size();
    std::vector<const ops::PartitionRow*> rows(count);
    std::vector<bool> made(program_.tensors.size()), read(program_.tensors.size());
    for (std::size_t i = 0; i < count; ++i) {
      const Instruction& at = program_.instructions[i];
      const bool here = places_[i].kind == Place::Kind::windows && places_[i].key == key;
      const bool reads = std::ranges::any_of(at.operands, [&](TensorId id) { return bool(made[id.index()]); });
      if (places_[i].kind == Place::Kind::whole && reads && !overwrites_gathered(at))
        rows[i] = window_row(program_, at, ring.axis, ring.shards);
      if (here || rows[i])
        for (const TensorId id : at.results) made[id.index()] = true;
    }
    for (std::size_t i = count; i-- > 0;) {
      const Instruction& at = program_.instructions[i];
      if (rows[i] && std::ranges::any_of(at.results, [&](TensorId id) { return bool(read[id.index()]); }))
        places_[i] = {Place::Kind::windows, Ringed::between, key, rows[i]};
      if (places_[i].kind == Place::Kind::windows && places_[i].key == key)
        for (std::size_t o = 0; o < at.operands.size(); ++o)
          if (ops::is_split(places_[i].row->operands[o])) read[at.operands[o].index()] = true;
    }
  }

  // Window 0 of a gathered tensor is the rank's shard itself, which others read.
  bool overwrites_gathered(const Instruction& at) const {
    return std::ranges::any_of(at.results, [&](TensorId id) {
      const TensorId onto = program_[id].storage;
      return onto.valid() && is_gathered_[onto.index()];
    });
  }

  const ir::Program& program_;
  std::vector<Place> places_;       // by instruction
  std::vector<bool> is_gathered_;   // by tensor
  std::vector<const Ring*> first_;  // by key
};

using Windows = std::vector<TensorId>;  // by number; those that were not made are invalid

// The program that is made, with the windows of its tensors.
class RingedProgram {
 public:
  RingedProgram(const ir::Program& source, const Places& places, bool all_helpers)
      : source_(source), places_(places), all_helpers_(all_helpers), in_windows_(source.tensors.size()) {
    result_.program = source.without_instructions();
  }

  // What is made from here on is in the place of this instruction of the source.
  void begin(std::size_t instruction) {
    place_ = &places_.places()[instruction];
    source_at_ = &source_.instructions[instruction];
  }
  const Place& place() const { return *place_; }
  const Instruction& source_at() const { return *source_at_; }
  std::int64_t count() const { return places_.first(place_->key).shards; }
  ir::Program& program() { return result_.program; }
  Ringed take_result() { return std::move(result_); }

  void emit(Instruction instruction) {
    result_.program.instructions.push_back(std::move(instruction));
    result_.ring.push_back(place_->ring);
  }

  // The instruction's results, new values.
  std::vector<TensorId> append(std::string_view op, std::vector<TensorId> operands, ir::Attributes attributes,
                               std::string label) {
    result_.ring.push_back(place_->ring);
    return ops::append(result_.program, op, std::move(operands), std::move(attributes), source_at_->role,
                       std::move(label));
  }

  std::string label(std::int64_t part) const { return fmt::format("{}/{}", source_at_->label, part); }
  void set_part(ir::Attributes& attributes, std::int64_t part) const {
    attributes.set("part", part);
    attributes.set("parts", count());
  }

  // Joins the windows of a tensor that was made in windows, once. The join belongs to the ring that made the tensor, if
  // the reader is outside of rings.
  void need_whole(TensorId id) {
    InWindows& made = in_windows_[id.index()];
    if (!made.maker || made.is_joined) return;
    made.is_joined = true;
    ir::Tensor& tensor = result_.program[id];
    tensor.storage = {};
    const Instruction& maker = *made.maker;
    result_.program.instructions.push_back({"join_windows",
                                            made.of.at(made.key),
                                            {id},
                                            {},
                                            window_attributes(made.key),
                                            ir::Stream::compute,
                                            maker.role,
                                            maker.label});
    result_.ring.push_back(made.ring);
  }

  // Window `part` of a tensor, taken from the whole if it was not made in windows of this key.
  TensorId window(TensorId id, std::int64_t part) {
    InWindows& known = in_windows_[id.index()];
    Windows& windows = known.of[place_->key];
    windows.resize(std::size_t(count()));
    TensorId& found = windows[std::size_t(part)];
    if (!found.valid()) {
      need_whole(id);
      found = take(id, part);
    }
    return found;
  }

  // Notes the windows of a tensor that the instruction has made.
  void is_made(TensorId id, Windows windows) {
    InWindows& made = in_windows_[id.index()];
    made.maker = source_at_;
    made.key = place_->key;
    made.ring = place_->ring;
    made.of[place_->key] = std::move(windows);
    if (!all_helpers_) return;
    need_whole(id);
    take(id, 0);
  }

 private:
  ir::Attributes window_attributes(int key) const {
    const Ring& ring = places_.first(key);
    const ir::Attributes& of = source_.instructions[ring.collective].attributes;
    ir::Attributes result;
    if (of.has(ir::axes_attribute)) result.set(ir::axes_attribute, of.text(ir::axes_attribute));
    result.set("shards", ring.shards);
    result.set("axis", std::int64_t(ring.axis));
    return result;
  }

  TensorId take(TensorId id, std::int64_t part) {
    ir::Attributes attributes = window_attributes(place_->key);
    attributes.set("part", part);
    return append("take_window", {id}, std::move(attributes), source_at_->label)[0];
  }

  // The windows of a tensor of the source, by key.
  struct InWindows {
    const Instruction* maker = nullptr;    // of the source; null if the tensor is made whole
    int key = -1, ring = Ringed::outside;  // in which it was made
    bool is_joined = false;
    std::map<int, Windows> of = {};
  };

  const ir::Program& source_;
  const Places& places_;
  const bool all_helpers_;
  Ringed result_;
  std::vector<InWindows> in_windows_;
  const Place* place_ = nullptr;            // of the instruction that is rewritten
  const Instruction* source_at_ = nullptr;  // and itself
};

class RingRewriter {
 public:
  RingRewriter(const ir::Program& source, std::span<const Ring> rings, std::span<const RingChoice> choices,
               bool all_helpers)
      : source_(source), places_(source, rings, choices), choices_(choices), made_(source, places_, all_helpers) {}

  Ringed run() {
    for (std::size_t i = 0; i < source_.instructions.size(); ++i) {
      made_.begin(i);
      switch (made_.place().kind) {
        case Place::Kind::whole:
          for (const TensorId id : source_at().operands) made_.need_whole(id);
          made_.emit(source_at());
          break;
        case Place::Kind::gather:
          gather();
          break;
        case Place::Kind::scatter:
          scatter();
          break;
        case Place::Kind::windows:
          make_windows();
          break;
        case Place::Kind::sum:
          sum_windows();
          break;
      }
    }
    for (const ir::Output& output : source_.outputs) made_.need_whole(output.tensor);
    return made_.take_result();
  }

 private:
  const Instruction& source_at() const { return made_.source_at(); }
  std::int64_t count() const { return made_.count(); }
  RingWay way() const { return choices_[std::size_t(made_.place().ring)].way; }

  // A step of the ring. Steps count from 1.
  std::vector<TensorId> permute(std::vector<TensorId> operands, std::int64_t shift, std::int64_t step) {
    ir::Attributes attributes = source_at().attributes;
    attributes.set(ops::ring_of, source_at().op);
    attributes.set(ops::ring_shift, shift);
    made_.set_part(attributes, step);
    return made_.append("permute_shards", std::move(operands), std::move(attributes), made_.label(step));
  }

  void gather() {
    const TensorId shard = source_at().operands[0];
    made_.need_whole(shard);
    const std::int64_t n = count();
    const std::int64_t back = way() == RingWay::both_ways ? (n - 1) / 2 : 0, on = n - 1 - back;
    Windows windows(std::size_t(n), shard);
    TensorId last_on = shard, last_back = shard;
    for (std::int64_t step = 1; step <= on; ++step) {
      std::vector<TensorId> moved{last_on};
      if (step <= back) moved.push_back(last_back);
      moved = permute(std::move(moved), 1, step);
      windows[std::size_t(step)] = last_on = moved[0];
      if (step <= back) windows[std::size_t(n - step)] = last_back = moved[1];
    }
    made_.is_made(source_at().results[0], std::move(windows));
  }

  // The sum of these; the reduce-scatter's result if it is the last one.
  TensorId sum(std::vector<TensorId> summands, bool last) {
    if (!last) return made_.append("sum", std::move(summands), {}, source_at().label)[0];
    const TensorId id = source_at().results[0];
    made_.emit({"sum", std::move(summands), {id}, {}, {}, ir::Stream::compute, source_at().role, source_at().label});
    return id;
  }
  TensorId summand(std::int64_t part) { return made_.window(source_at().operands[0], part); }

  void scatter() {
    const std::int64_t n = count();
    LANCET_CHECK(way() == RingWay::one_way || n > 2, "a ring of {} windows goes one way", n);
    if (way() == RingWay::both_ways)
      scatter_both_ways((n - 1) / 2, n - 1 - (n - 1) / 2);
    else if (way() == RingWay::two_sums)
      scatter_two_sums(n);
    else
      scatter_one_way(n);
  }

  void scatter_one_way(std::int64_t n) {
    TensorId travels = summand(1);
    for (std::int64_t step = 1; step < n; ++step)
      travels = sum({permute({travels}, 1, step)[0], summand((step + 1) % n)}, step + 1 == n);
  }

  void scatter_two_sums(std::int64_t n) {
    TensorId odd = summand(1), even = summand(2);
    std::int64_t step = 1;
    for (std::int64_t part = 3; part < n; part += 2) {
      odd = sum({permute({odd}, 2, step++)[0], summand(part)}, false);
      const std::int64_t next = (part + 1) % n;
      even = permute({even}, 2, step++)[0];
      if (next != 0) even = sum({even, summand(next)}, false);
    }
    // The even sum has come to the rank of its shard, the odd one to the rank after.
    sum({even, permute({odd}, 1, step)[0], summand(0)}, true);
  }

  // up, down: the ranks whose summands come from the ranks before and after.
  void scatter_both_ways(std::int64_t up, std::int64_t down) {
    const std::int64_t n = count();
    TensorId from_above{}, from_below{};
    for (std::int64_t step = 1; step <= down; ++step) {
      const std::int64_t left = down - step + 1;  // steps to the rank of the shard
      TensorId above = summand(n - left), below{};
      if (from_above.valid()) above = sum({from_above, above}, false);
      if (left <= up) below = summand(left);
      if (from_below.valid()) below = sum({from_below, below}, false);
      std::vector<TensorId> travel{above};
      if (below.valid()) travel.push_back(below);
      travel = permute(std::move(travel), 1, step);
      from_above = travel[0];
      if (below.valid()) from_below = travel[1];
    }
    sum({from_above, from_below, summand(0)}, true);
  }

  void make_windows() {
    const ops::PartitionRow& row = *made_.place().row;
    std::vector<Windows> made(source_at().results.size());
    for (std::int64_t part = 0; part < count(); ++part) {
      std::vector<TensorId> operands = operands_of(row, part);
      ir::Attributes attributes = ops::attributes_of_share(row, source_at().attributes, count());
      made_.set_part(attributes, part);
      const auto results = made_.append(source_at().op, std::move(operands), std::move(attributes), made_.label(part));
      for (std::size_t r = 0; r < made.size(); ++r) made[r].push_back(results[r]);
    }
    for (std::size_t r = 0; r < made.size(); ++r) made_.is_made(source_at().results[r], std::move(made[r]));
  }

  std::vector<TensorId> operands_of(const ops::PartitionRow& row, std::int64_t part) {
    std::vector<TensorId> operands;
    for (std::size_t o = 0; o < source_at().operands.size(); ++o) {
      const TensorId id = source_at().operands[o];
      if (!ops::is_split(row.operands[o])) made_.need_whole(id);
      operands.push_back(ops::is_split(row.operands[o]) ? made_.window(id, part) : id);
    }
    return operands;
  }

  // Each window's result adds onto that of the window before, in the memory of the accumulators.
  void sum_windows() {
    std::vector<TensorId> sums;
    for (std::int64_t part = 0; part < count(); ++part) {
      Instruction at = source_at();
      at.operands = operands_of(*made_.place().row, part);
      at.label = made_.label(part);
      at.attributes = ops::attributes_of_share(*made_.place().row, at.attributes, count());
      made_.set_part(at.attributes, part);
      add_onto(made_.program(), at, sums, part + 1 == count());
      sums = at.results;
      made_.emit(std::move(at));
    }
  }

  const ir::Program& source_;
  const Places places_;
  std::span<const RingChoice> choices_;
  RingedProgram made_;
};

std::vector<RingWay> ways_of(const Ring& ring) {
  std::vector<RingWay> ways{RingWay::one_way};
  if (!ring.gathers && ring.shards > 2 && ring.shards % 2 == 0) ways.push_back(RingWay::two_sums);
  if (ring.shards > 2) ways.push_back(RingWay::both_ways);
  return ways;
}

}  // namespace

std::vector<RingChoice> choices_of(const Ring& ring) {
  std::vector<RingChoice> choices{{}};
  for (const RingWay way : ways_of(ring)) {
    if (!ring.products.empty()) choices.push_back({way, false});
    if (!ring.weight_gradients.empty()) choices.push_back({way, true});
  }
  return choices;
}

Ringed with_rings(const ir::Program& program, std::span<const Ring> rings, std::span<const RingChoice> choices,
                  bool all_helpers) {
  LANCET_CHECK(rings.size() == choices.size(), "expected a choice for each of {} rings, found {}", rings.size(),
               choices.size());
  return RingRewriter(program, rings, choices, all_helpers).run();
}

std::vector<ir::Program> ring_variants(const ir::Program& program) {
  const std::vector<Ring> rings = find_rings(program);
  std::vector<ir::Program> variants;
  for (const RingWay way : {RingWay::one_way, RingWay::two_sums, RingWay::both_ways}) {
    std::vector<RingChoice> choices;
    for (const Ring& ring : rings) {
      const std::vector<RingWay> ways = ways_of(ring);
      const bool has_it = std::ranges::find(ways, way) != ways.end();
      choices.push_back({has_it ? way : RingWay::one_way, !ring.weight_gradients.empty()});
    }
    const bool differs = std::ranges::any_of(choices, [&](const RingChoice& choice) { return choice.way == way; });
    if (differs) variants.push_back(with_rings(program, rings, choices, true).program);
  }
  return variants;
}

}  // namespace lancet::schedule
