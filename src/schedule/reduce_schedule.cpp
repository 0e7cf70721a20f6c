// Buckets replaces sync's all-reduces, or ZeRO-1's reduce-scatters, by chunks of a given size: gradients in the order
// in which they are complete are collected until a chunk is full or one of them is read; a gradient larger than 1.5
// chunks is cut into slices: of the gradient for an all-reduce, of the rank's shard of it for a reduce-scatter.
// Ordering then orders one such program: it simulates it, sorts the updates at the end of the step by the time at which
// their gradients are ready, and with Network::all_to_all_first turns the waits of the timeline into dependencies: an
// all-reduce that had to wait for an all-to-all is put after it and depends on it.
#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/overlap.h"
#include "orders.h"

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Role;
using ir::Stream;
using ir::TensorId;

// Chunk sizes to try, in bytes: from one whose time is all bandwidth to one that a fast network sends in a fraction of
// a millisecond; 0: the buckets as they are.
constexpr std::int64_t chunks[] = {0,       25 << 20,  8 << 20,   4 << 20,   2 << 20,
                                   1 << 20, 512 << 10, 256 << 10, 128 << 10, 64 << 10};

// The all-reduces of a Program's gradients; cut() makes the same Program with all-reduces of about another size.
class Buckets {
 public:
  Buckets(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Costs& costs)
      : program_(program), op_costs_(op_costs), costs_(costs), is_bucket_(ir::gradient_all_reduces(program)) {
    std::vector<std::size_t> made(program.tensors.size());
    for (std::size_t i = 0; i < program.instructions.size(); ++i) {
      const ir::Instruction& instruction = program.instructions[i];
      for (std::size_t k = 0; is_bucket_[i] && k < instruction.operands.size(); ++k)
        gradients_.push_back({instruction.operands[k], instruction.results[k], made[instruction.operands[k].index()],
                              &instruction, bytes_of(instruction, k)});
      for (TensorId id : instruction.results) made[id.index()] = i;
    }
    std::ranges::stable_sort(gradients_, {}, &Gradient::made);
  }

  // The bytes of one gradient, as it travels.
  std::int64_t bytes_of(ir::Instruction instruction, std::size_t k) const {
    instruction.operands = {instruction.operands[k]};
    instruction.results = {instruction.results[k]};
    return std::int64_t(cost::bytes_sent(program_, instruction));
  }

  bool empty() const { return gradients_.empty(); }
  std::int64_t largest() const {
    std::int64_t most = 0;
    for (std::size_t i = 0; i < is_bucket_.size(); ++i)
      if (is_bucket_[i]) most = std::max(most, std::int64_t(cost::bytes_sent(program_, program_.instructions[i])));
    return most;
  }

  // True if start-up times, on the network and on the cores, make the work a quarter longer than with the largest
  // bucket.
  bool too_small(std::int64_t chunk_bytes) const {
    auto ms_per_byte = [&](double bytes) {
      return (costs_.all_reduce_ms(bytes) + costs_.all_reduce_core().ms(bytes)) / bytes;
    };
    return ms_per_byte(double(chunk_bytes)) > 1.25 * ms_per_byte(double(largest()));
  }

  Chunked cut(std::int64_t chunk_bytes) {
    result_ = {program_.without_instructions(), {}};
    count_ = 0;
    chunks_.clear();
    reduced_.assign(program_.tensors.size(), {});
    auto next = gradients_.begin();
    for (std::size_t i = 0; i < program_.instructions.size(); ++i) {
      if (is_bucket_[i]) continue;
      if (needs_sent(program_.instructions[i])) close_all();
      result_.program.instructions.push_back(program_.instructions[i]);
      result_.op_costs.push_back(op_costs_[i]);
      for (; next != gradients_.end() && next->made == i; ++next) add(*next, chunk_bytes);
      if (next == gradients_.end()) close_all();
    }
    rename_reduced();
    return std::move(result_);
  }

 private:
  struct Gradient {
    TensorId sum, reduced;             // operand and result of its all-reduce
    std::size_t made;                  // the instruction that makes the sum
    const ir::Instruction* reduction;  // its all-reduce: its attributes name the group of ranks
    std::int64_t bytes;
  };
  // What an all-reduce will hold, of one group of ranks.
  struct Chunk {
    const ir::Instruction* like;
    std::vector<TensorId> operands, results;
    std::int64_t filled = 0;
  };

  // The chunk that is being collected for the group of this gradient.
  Chunk& chunk_of(const Gradient& gradient) {
    const auto same = [&](const Chunk& chunk) {
      return chunk.like->op == gradient.reduction->op && chunk.like->attributes == gradient.reduction->attributes;
    };
    const auto found = std::ranges::find_if(chunks_, same);
    return found != chunks_.end() ? *found : chunks_.emplace_back(Chunk{gradient.reduction, {}, {}});
  }

  // True for an update in the midst of the backward pass whose gradient waits in a chunk that is not full yet, and for
  // an instruction that zeroes the sum of such a gradient.
  bool needs_sent(const ir::Instruction& instruction) const {
    return std::ranges::any_of(chunks_, [&](const Chunk& chunk) {
      const auto reads = [&](TensorId id) { return std::ranges::count(chunk.results, id) > 0; };
      const auto overwrites = [&](TensorId id) {
        return std::ranges::any_of(chunk.operands,
                                   [&](TensorId sum) { return program_.root(sum) == program_.root(id); });
      };
      return std::ranges::any_of(instruction.operands, reads) || std::ranges::any_of(instruction.writes, overwrites);
    });
  }

  void add(const Gradient& gradient, std::int64_t chunk_bytes) {
    if (2 * gradient.bytes > 3 * chunk_bytes) return slice(gradient, chunk_bytes);
    Chunk& chunk = chunk_of(gradient);
    chunk.operands.push_back(gradient.sum);
    chunk.results.push_back(gradient.reduced);
    chunk.filled += gradient.bytes;
    if (chunk.filled >= chunk_bytes) close(chunk);
  }

  // Reduces a large gradient in slices, each by a reduction of its own. Readers of the result read the whole that the
  // slices are part of, so that they depend on the reductions of all slices.
  void slice(const Gradient& gradient, std::int64_t chunk_bytes) {
    constexpr std::int64_t step = 16;  // floats: slices begin at multiples of a cache line
    close(chunk_of(gradient));
    const bool in_place = ops::op(gradient.reduction->op).in_place;
    const TensorId whole =
        in_place ? gradient.sum : result_.program.add_view(program_.type(gradient.reduced), TensorId{}, std::nullopt);
    const std::int64_t elements = program_.type(gradient.reduced).shape.elements();
    const std::int64_t count = (gradient.bytes + chunk_bytes - 1) / chunk_bytes;
    const std::int64_t length = (elements / count + step - 1) / step * step;
    for (std::int64_t begin = 0; begin < elements; begin += length) {
      const ir::TensorType type{DType::f32, {std::min(length, elements - begin)}};
      if (in_place) {
        const TensorId slice = result_.program.add_view(type, whole, ir::Slice{4 * begin});
        emit(*gradient.reduction, {slice}, {result_.program.add_value(type, slice, ir::Slice{0})});
        continue;
      }
      ir::Instruction part = *gradient.reduction;
      part.attributes.set("begin", part.attributes.integer("begin", 0) + begin);
      part.attributes.set("length", type.shape.elements());
      emit(part, {gradient.sum}, {result_.program.add_value(type, whole, ir::Slice{4 * begin})});
    }
    reduced_[gradient.reduced.index()] = whole;
  }

  void close_all() {
    for (Chunk& chunk : chunks_) close(chunk);
  }

  void close(Chunk& chunk) {
    if (chunk.operands.empty()) return;
    emit(*chunk.like, std::move(chunk.operands), std::move(chunk.results));
    chunk.operands = {};
    chunk.results = {};
    chunk.filled = 0;
  }

  // Appends a reduction of the same kind and group as `like`.
  void emit(const ir::Instruction& like, std::vector<TensorId> operands, std::vector<TensorId> results) {
    ir::Instruction sum = like;
    sum.operands = std::move(operands);
    sum.results = std::move(results);
    sum.label = fmt::format("bucket.{}", count_++);
    result_.op_costs.push_back(cost::reduce_cost(costs_, result_.program, sum));
    result_.program.instructions.push_back(std::move(sum));
  }

  void rename_reduced() {
    auto rename = [&](TensorId& id) {
      if (id.index() < reduced_.size() && reduced_[id.index()].valid()) id = reduced_[id.index()];
    };
    for (ir::Instruction& instruction : result_.program.instructions)
      for (TensorId& id : instruction.operands) rename(id);
    for (ir::Output& output : result_.program.outputs) rename(output.tensor);
  }

  const ir::Program& program_;
  std::span<const cost::OpCost> op_costs_;
  const cost::Costs& costs_;
  const std::vector<bool> is_bucket_;  // by instruction
  std::vector<Gradient> gradients_;    // in the order in which they are complete
  Chunked result_;
  std::vector<TensorId> reduced_;  // by reduced gradient, if it is cut in slices: the whole
  std::vector<Chunk> chunks_;      // being collected, by group of ranks
  int count_ = 0;
};

// One way to cut and order the all-reduces, and its simulated step.
struct Trial : Chunked {
  Dependencies extra;
  Timeline timeline;
};

class Ordering {
 public:
  // dependencies: of the candidate's program.
  Ordering(Trial& candidate, Dependencies dependencies, const cost::Costs& costs)
      : c_(candidate), costs_(costs), dependencies_(std::move(dependencies)) {}

  // Orders the candidate's instructions. program and op_costs are set before.
  void run(Network network) {
    simulate(network);
    apply(updates_by_readiness());
    simulate(network);
    c_.extra.assign(dependencies_.size(), {});
    if (network == Network::all_to_all_first) wait_for_all_to_alls();
  }

 private:
  void simulate(Network network) {
    c_.timeline =
        schedule::simulate(c_.program, dependencies_, c_.op_costs, costs_.interference(), costs_.launch_ms(), network);
  }

  Stream stream(std::size_t i) const { return c_.program.instructions[i].stream; }

  void apply(const Order& order) {
    c_.program = permuted(std::move(c_.program), order);
    c_.op_costs = permuted(c_.op_costs, order);
    dependencies_ = renumbered(dependencies_, order);
  }

  // The order in which the updates at the end of the step follow the times at which their gradients are ready.
  Order updates_by_readiness() const {
    std::size_t last = dependencies_.size();  // the last computation that is not an update
    for (std::size_t i = 0; i < dependencies_.size(); ++i)
      if (stream(i) == Stream::compute && c_.program.instructions[i].role != Role::update) last = i;
    std::vector<Order> after(dependencies_.size());
    if (last == dependencies_.size()) return reordered(c_.program, dependencies_, after);
    std::vector<double> ready(dependencies_.size());
    for (std::size_t i = last + 1; i < dependencies_.size(); ++i) {
      for (InstructionId before : dependencies_[i])
        ready[i] = std::max(ready[i], before.index() > last && stream(before.index()) == Stream::compute
                                          ? ready[before.index()]
                                          : c_.timeline.when[before.index()].end);
      if (stream(i) == Stream::compute) after[last].push_back(id_of(i));
    }
    std::ranges::stable_sort(after[last], {}, [&](InstructionId id) { return ready[id.index()]; });
    return reordered(c_.program, dependencies_, after);
  }

  void wait_for_all_to_alls() {
    std::vector<std::size_t> reductions, all_to_alls;
    for (std::size_t i = 0; i < dependencies_.size(); ++i) {
      if (stream(i) == Stream::reduce) reductions.push_back(i);
      if (stream(i) == Stream::expert && c_.op_costs[i].ms > 0) all_to_alls.push_back(i);
    }
    const std::vector<std::size_t> latest = latest_positions(reductions);
    std::vector<std::size_t> position, waits_for;  // per all-reduce
    double stream_free = 0;
    for (std::size_t k = 0; k < reductions.size(); ++k) {
      const std::size_t i = reductions[k];
      std::size_t at = std::max(i, position.empty() ? 0 : position.back());
      std::size_t all_to_all = last_in_the_way(i, all_to_alls, stream_free);
      if (all_to_all < none && std::max(at, all_to_all) >= latest[k]) all_to_all = none;
      if (all_to_all < none) at = std::max(at, all_to_all);
      position.push_back(at);
      waits_for.push_back(all_to_all);
      stream_free = c_.timeline.when[i].end;
    }
    move_after(reductions, position, waits_for);
  }

  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

  // The position before which each all-reduce, and so all before it, must be, so that its readers need not move.
  std::vector<std::size_t> latest_positions(const std::vector<std::size_t>& reductions) const {
    std::vector<std::size_t> first_user(dependencies_.size(), none);
    for (std::size_t i = dependencies_.size(); i-- > 0;)
      for (InstructionId before : dependencies_[i]) first_user[before.index()] = i;
    std::vector<std::size_t> latest(reductions.size());
    std::size_t bound = none;
    for (std::size_t k = reductions.size(); k-- > 0;) latest[k] = bound = std::min(bound, first_user[reductions[k]]);
    return latest;
  }

  // The last all-to-all that ended between the moment the all-reduce was ready and its start.
  std::size_t last_in_the_way(std::size_t i, const std::vector<std::size_t>& all_to_alls, double stream_free) const {
    double ready = stream_free;
    for (InstructionId before : dependencies_[i])
      ready = std::max(ready, c_.timeline.when[before.index()].end +
                                  (stream(before.index()) == Stream::reduce ? 0 : costs_.launch_ms()));
    const double start = c_.timeline.when[i].start;
    const auto later = std::upper_bound(all_to_alls.begin(), all_to_alls.end(), start, [&](double time, std::size_t e) {
      return time < c_.timeline.when[e].end * (1 - 1e-12);
    });
    if (later == all_to_alls.begin() || start <= ready * (1 + 1e-12)) return none;
    const std::size_t all_to_all = *(later - 1);
    return c_.timeline.when[all_to_all].end > ready ? all_to_all : none;
  }

  void move_after(const std::vector<std::size_t>& reductions, const std::vector<std::size_t>& position,
                  const std::vector<std::size_t>& waits_for) {
    Order order;
    std::vector<std::size_t> new_position(dependencies_.size());
    auto put = [&](std::size_t i) {
      new_position[i] = order.size();
      order.push_back(id_of(i));
    };
    std::size_t next = 0;
    for (std::size_t i = 0; i < dependencies_.size(); ++i) {
      if (stream(i) != Stream::reduce) put(i);
      for (; next < reductions.size() && position[next] <= i; ++next) put(reductions[next]);
    }
    for (std::size_t k = 0; k < reductions.size(); ++k)
      if (waits_for[k] < none) c_.extra[new_position[reductions[k]]].push_back(id_of(new_position[waits_for[k]]));
    apply(order);
    join(dependencies_, c_.extra);
    simulate(Network::shared);
  }

  Trial& c_;
  const cost::Costs& costs_;
  Dependencies dependencies_;
};

}  // namespace

Chunked cut_all_reduces(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Costs& costs,
                        std::int64_t chunk_bytes) {
  return Buckets(program, op_costs, costs).cut(chunk_bytes);
}

std::vector<std::int64_t> chunk_sizes(const ir::Program& program, const cost::Costs& costs, std::size_t most) {
  std::vector<std::int64_t> sizes;
  const Buckets buckets(program, {}, costs);
  for (std::int64_t chunk : chunks)
    if (!buckets.empty() && chunk > 0 && chunk < buckets.largest() && !buckets.too_small(chunk)) sizes.push_back(chunk);
  std::vector<std::int64_t> some;  // from the largest to the smallest, evenly
  for (std::size_t i = 0; i < std::min(most, sizes.size()); ++i)
    some.push_back(sizes[sizes.size() <= most ? i : i * (sizes.size() - 1) / (most - 1)]);
  return some;
}

Ordered reduce_schedule(const ir::Program& program, std::span<const cost::OpCost> op_costs, const cost::Costs& costs,
                        ReduceReport* report) {
  Buckets buckets(program, op_costs, costs);
  ReduceReport made;
  const Dependencies whole = ir::dependencies(program);
  made.before_ms = made.after_ms = simulate(program, whole, op_costs, costs.interference(), costs.launch_ms()).makespan;
  Ordered best{program, {}};
  for (std::int64_t chunk : chunks) {
    if (buckets.empty() || chunk > 2 * buckets.largest()) continue;
    if (chunk > 0 && buckets.too_small(chunk)) continue;
    const Chunked cut = chunk == 0 ? Chunked{program, {op_costs.begin(), op_costs.end()}} : buckets.cut(chunk);
    const Dependencies dependencies = chunk == 0 ? whole : ir::dependencies(cut.program);
    for (Network network : {Network::shared, Network::all_to_all_first}) {
      Trial candidate{cut, {}, {}};
      Ordering(candidate, dependencies, costs).run(network);
      if (candidate.timeline.makespan >= made.after_ms * (1 - 1e-9)) continue;
      made.chunk_bytes = chunk;
      made.after_ms = candidate.timeline.makespan;
      best = {std::move(candidate.program), std::move(candidate.extra)};
    }
  }
  if (report) *report = made;
  return best;
}

}  // namespace lancet::schedule
