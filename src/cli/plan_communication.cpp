// The section of `lancet plan --explain` that says why each communication of a step is there. An instruction is there
// for one Reason, which its op's kind says and, for an all-reduce, what it sums. The words of a Reason name the op that
// made the operand and the first op that reads the result. Instructions with the same reason, words and label, but for
// the number of the block or bucket, are one row.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <ranges>
#include <set>
#include <tuple>

#include "lancet/cost/costs.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/program.h"
#include "lancet/ops/catalogue.h"
#include "lancet/ops/peer_parts.h"
#include "lancet/passes/reshard_steps.h"
#include "lancet/schedule/schedule_report.h"
#include "plan_report.h"

namespace lancet::cli {
namespace {

using ir::Instruction;
using ir::TensorId;
using Step = passes::Reshard::Kind;

enum class Reason {
  counts,
  to_experts,
  from_experts,
  rounds,
  shards_move,
  shard_of_sum,
  sum,
  whole,
  records,
  gradients,
  gradient_shards,
  updated_shards,
  to_next_stage,
  to_stage_before,
  from_stage_before,
  from_next_stage,
};

// {rows}: activations or gradients; {value}: the operand; {reader}: the first op that reads the result; {parameters}:
// their number.
struct Words {
  Reason reason;
  std::string_view why;
};
constexpr Words all_words[] = {
    {Reason::counts, "the ranks tell each other how many tokens their experts get"},
    {Reason::to_experts, "{rows} go to the ranks of the tokens' experts"},
    {Reason::from_experts, "{rows} return from the experts to the ranks of the tokens"},
    {Reason::rounds, "choices beyond the slots of the experts' buffers take further rounds; none is expected"},
    {Reason::shards_move, "{value} is split along one dimension, {reader} reads it split along another"},
    {Reason::shard_of_sum, "the ranks have summands of {value}, {reader} reads a shard of the sum"},
    {Reason::sum, "the ranks have summands of {value}, {reader} reads the sum"},
    {Reason::whole, "the ranks have shards of {value}, {reader} reads the whole"},
    {Reason::records, "the ranks have shares of the loss and of the other logged numbers, the records have the sums"},
    {Reason::gradients, "the ranks have summands of the gradients of {parameters}, the updates read the sums"},
    {Reason::gradient_shards,
     "the ranks have summands of the gradients of {parameters}, each updates with its shard of the sums"},
    {Reason::updated_shards, "each rank has updated its shard of {parameters}, the next step reads the whole"},
    {Reason::to_next_stage, "the next stage reads {value}"},
    {Reason::to_stage_before, "the stage before reads {value}"},
    {Reason::from_stage_before, "{reader} reads what the stage before sends"},
    {Reason::from_next_stage, "{reader} reads what the next stage sends"},
};

// The changes of sharding by which collectives come into a program.
constexpr std::pair<Step, Reason> of_steps[] = {{Step::swap_shards, Reason::shards_move},
                                                {Step::reduce_scatter, Reason::shard_of_sum},
                                                {Step::sum_shards, Reason::sum},
                                                {Step::all_gather, Reason::whole}};

Reason reason_of_collective(const Instruction& at) {
  const auto step =
      std::ranges::find(of_steps, ops::collective_of(at), [](const auto& item) { return passes::name(item.first); });
  LANCET_CHECK(step != std::end(of_steps), "{} is no change of sharding", at.op);
  return step->second;
}

Reason reason_between_stages(ir::Stream stream) {
  if (stream == ir::Stream::send_next) return Reason::to_next_stage;
  if (stream == ir::Stream::send_previous) return Reason::to_stage_before;
  return stream == ir::Stream::receive_previous ? Reason::from_stage_before : Reason::from_next_stage;
}

// The tensor of which this one is a slice, or the tensor itself.
TensorId whole_of(const ir::Program& program, TensorId id) {
  while (program[id].slice) id = program[id].storage;
  return id;
}

// What the words of the reasons name of a program.
class Reasons {
 public:
  explicit Reasons(const ir::Program& program)
      : program_(program),
        sums_gradients_(ir::gradient_all_reduces(program)),
        makers_(program.tensors.size()),
        readers_(program.tensors.size()),
        is_share_(program.tensors.size()) {
    for (const Instruction& at : program.instructions)
      for (const TensorId id : at.results)
        if (const Instruction*& maker = makers_[whole(id)]; !maker) maker = maker_of(at);
    // The first reader; a policy may order readers of different roles one way in a layer and the other way in the next.
    for (const Instruction& at : program.instructions | std::views::reverse)
      for (const TensorId id : at.operands) note_reader(readers_[whole(id)], passes_on(at) ? reader_of(at) : &at);
    for (const ir::Output& output : program.outputs) is_share_[output.tensor.index()] = ir::is_share(output.kind);
  }

  Reason of(std::size_t instruction) const {
    const Instruction& at = program_.instructions[instruction];
    if (ir::is_repeat(at)) return Reason::rounds;
    switch (const ops::Kind kind = ops::kind(at)) {
      case ops::Kind::counts:
        return Reason::counts;
      case ops::Kind::all_to_all:
        return ops::op(at.op).to_experts ? Reason::to_experts : Reason::from_experts;
      case ops::Kind::collective:
        return reason_of_collective(at);
      case ops::Kind::flat_reduce_scatter:
        return Reason::gradient_shards;
      case ops::Kind::flat_all_gather:
        return Reason::updated_shards;
      case ops::Kind::send:
      case ops::Kind::receive:
        return reason_between_stages(at.stream);
      default:
        LANCET_CHECK(at.stream == ir::Stream::reduce, "{} is of kind {}", at.op, int(kind));
        if (sums_gradients(instruction)) return Reason::gradients;
        return is_share_[at.results[0].index()] ? Reason::records : Reason::sum;
    }
  }

  // parameters: how many the row is about.
  std::string words(Reason reason, const Instruction& at, std::size_t parameters) const {
    const Instruction* maker = at.operands.empty() ? nullptr : makers_[whole(at.operands[0])];
    const Instruction* reader = at.results.empty() ? nullptr : reader_of(at);
    const bool forward = maker && maker->role == ir::Role::forward;
    const auto row = std::ranges::find(all_words, reason, &Words::reason);
    const std::string why =
        fmt::format(fmt::runtime(row->why), fmt::arg("rows", forward ? "activations" : "gradients"),
                    fmt::arg("value", value_of(at)), fmt::arg("reader", reader ? reader->op : "an output"),
                    fmt::arg("parameters", fmt::format("{} parameter{}", parameters, parameters == 1 ? "" : "s")));
    return std::string(direction(at.role)) + why;
  }

 private:
  // True for a step of a ring and for what sums or joins what has come: what others made it passes on to its readers.
  static bool passes_on(const Instruction& at) {
    return ops::is_ring_step(at) || (ops::kind(at) == ops::Kind::part_helper && at.stream == ir::Stream::compute);
  }
  static void note_reader(const Instruction*& first, const Instruction* reader) {
    if (reader && (!first || reader->role <= first->role)) first = reader;
  }
  // The instruction, or the maker of what it passes on; of a sum, that of the rank's own summand.
  const Instruction* maker_of(const Instruction& at) const {
    if (!passes_on(at)) return &at;
    const Instruction* maker = makers_[whole(at.operands.back())];
    return maker ? maker : &at;
  }
  std::size_t whole(TensorId id) const { return whole_of(program_, id).index(); }
  const Instruction* reader_of(const Instruction& at) const { return readers_[whole(at.results[0])]; }
  // What the instruction sends; nothing, if it only receives.
  std::string value_of(const Instruction& at) const {
    if (at.operands.empty()) return "";
    const Instruction* maker = makers_[whole(at.operands[0])];
    return maker ? maker->op + "'s result"
                 : fmt::format("a {}", name(program_[whole_of(program_, at.operands[0])].kind));
  }
  // Also of sums over other ranks that a sum of gradients has made, as that of a weight that two stages have.
  bool sums_gradients(std::size_t instruction) const {
    const auto sums = [&](const Instruction* maker) {
      const auto index = std::size_t(maker ? maker - program_.instructions.data() : 0);
      return maker && index < sums_gradients_.size() && sums_gradients_[index];
    };
    return sums_gradients_[instruction] || std::ranges::any_of(program_.instructions[instruction].operands, sums,
                                                               [&](TensorId id) { return makers_[whole(id)]; });
  }
  static std::string_view direction(ir::Role role) {
    if (role == ir::Role::forward) return "forward: ";
    return role == ir::Role::dx || role == ir::Role::dw ? "backward: " : "";
  }

  const ir::Program& program_;
  const std::vector<bool> sums_gradients_;   // by instruction
  std::vector<const Instruction*> makers_;   // by tensor that is no slice; null for one that no instruction makes
  std::vector<const Instruction*> readers_;  // likewise
  std::vector<bool> is_share_;               // by tensor: an output that is a sum over ranks
};

// The bytes that a rank sends, or receives from another stage. An all-reduce is a reduce-scatter and an all-gather of
// the vector.
double bytes_of_rank(const ir::Program& program, const Instruction& at, std::int64_t ranks) {
  if (ops::kind(at) == ops::Kind::receive) return ops::work(program, at).bytes;
  const double bytes = cost::bytes_sent(program, at);
  if (at.stream != ir::Stream::reduce) return bytes;
  return 2 * cost::share_of_all_reduce(at) * bytes * double(ranks - 1) / double(ranks);
}

struct Row {
  Reason reason = {};
  const Instruction* first = nullptr;  // of those in the row
  std::string what, over, why;
  std::int64_t count = 0;
  double bytes = 0, ms = 0, exposed = 0;  // of all of them
  std::set<TensorId> operands = {};
};

// Per instruction, the time in which compute is idle beside it.
std::vector<double> exposed_ms(const ir::Plan& plan) {
  std::vector<double> exposed(plan.program.instructions.size());
  for (int stream = int(ir::Stream::compute) + 1; stream < ir::stream_count; ++stream)
    for (const auto& cover : schedule::communication_covers(plan.program, plan.predicted, ir::Stream(stream)))
      exposed[cover.communication.index()] = cover.ms - cover.covered_ms;
  return exposed;
}

// The ranks that take part, and the axes along which they differ.
struct Group {
  ir::Axes axes;
  std::int64_t ranks = 1;
};

Group group_on(const Instruction& at, const ir::Mesh& mesh, std::int64_t stage) {
  if (ir::between_stages(at.stream)) return {{ir::Axis::stage}, 2};
  const int first_rank = int(stage) * mesh.ranks() / mesh[ir::Axis::stage];
  return {ir::group_of(at, mesh), std::ssize(ir::ranks_of(ir::key_of(at), mesh, first_rank))};
}

std::vector<Row> rows_of(const ir::Plan& plan, const ir::Mesh& mesh) {
  const Reasons reasons(plan.program);
  const std::vector<double> exposed = exposed_ms(plan);
  std::map<std::tuple<Reason, std::string, std::string, std::string>, std::size_t> index;
  std::vector<Row> rows;
  for (std::size_t i = 0; i < exposed.size(); ++i) {
    const Instruction& at = plan.program.instructions[i];
    // Helpers of parts may be on a stream of communications without sending anything.
    if (at.stream == ir::Stream::compute || ops::kind(at) == ops::Kind::part_helper) continue;
    const Group group = group_on(at, mesh, plan.header.integer("stage", 0));
    Row row{reasons.of(i), &at, schedule::place_of_all(schedule::communication_site_of(at)), ir::to_string(group.axes),
            ""};
    const auto [it, is_new] =
        index.emplace(std::tuple(row.reason, row.what, row.over, reasons.words(row.reason, at, 0)), rows.size());
    if (is_new) rows.push_back(std::move(row));
    Row& sum = rows[it->second];
    ++sum.count;
    sum.bytes += bytes_of_rank(plan.program, at, group.ranks);
    sum.ms += plan.predicted[i].end - plan.predicted[i].start;
    sum.exposed += exposed[i];
    for (const TensorId id : at.operands) sum.operands.insert(whole_of(plan.program, id));
  }
  for (Row& row : rows) row.why = reasons.words(row.reason, *row.first, row.operands.size());
  std::ranges::stable_sort(rows, std::ranges::greater(), &Row::ms);
  return rows;
}

}  // namespace

std::string communication_table(const ir::Plan& plan, const ir::Mesh& mesh) {
  const std::vector<Row> rows = mesh.ranks() > 1 ? rows_of(plan, mesh) : std::vector<Row>();
  if (rows.empty()) return "";
  std::size_t over = 4, what = 4;
  for (const Row& row : rows) {
    over = std::max(over, row.over.size());
    what = std::max(what, row.what.size());
  }
  const bool staged = mesh[ir::Axis::stage] > 1;
  std::string text = fmt::format(
      "\ncommunication of a step{} ({}): MB that a rank sends{}, predicted ms\n{:>5}  {:<{}} {:>8} "
      "{:>8} {:>9} {:>9}  {:<{}}  {}\n",
      staged ? fmt::format(" on stage {}", plan.header.integer("stage")) : "", ir::to_string(mesh),
      staged ? " or, by a receive, gets" : "", "count", "over", over, "MB each", "ms each", "ms", "exposed", "what",
      what, "why");
  for (const Row& row : rows)
    text += fmt::format("{:>5}  {:<{}} {:>8.2f} {:>8.2f} {:>9.2f} {:>9.2f}  {:<{}}  {}\n", row.count, row.over, over,
                        row.bytes * 1e-6 / double(row.count), row.ms / double(row.count), row.ms, row.exposed, row.what,
                        what, row.why);
  return text;
}

}  // namespace lancet::cli
