// Assignment gives each instruction its chunk, of which stage s has those that are s modulo the number of stages.
// Emission then walks the program once for each stage. Before an instruction of the stage it receives every value that
// crosses to or through a chunk of this stage and was made before the instruction in the whole program; it sends a
// value right after the instruction, or the receive, that gives it. So the messages of a link are in the order of their
// makers on both of its ends.
//
// The gradients of a shared parameter are a chain of accumulations, one onto the other. Where the chain leaves a stage
// it is broken: the next link begins with the parameter's state, or with nothing, and what is left becomes a gradient
// of its own stage, in the form of the whole gradient.
#include "lancet/passes/passes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <limits>
#include <map>
#include <ranges>
#include <utility>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"

namespace lancet::passes {
namespace {

using ir::Instruction;
using ir::OutputKind;
using ir::Role;
using ir::Stream;
using ir::TensorId;
using ir::TensorKind;

// The index of the operand onto which the instruction adds, or -1.
int accumulator_of(const Instruction& at) {
  for (const ops::PartitionRow& row : ops::op(at.op).partition)
    for (std::size_t i = 0; i < std::min(row.operands.size(), at.operands.size()); ++i)
      if (row.operands[i] == ops::accumulated) return int(i);
  return -1;
}

ops::Attributes of_type(const ir::TensorType& type) {
  return {{"dtype", std::string(name(type.dtype))}, {"shape", fmt::format("{}", fmt::join(type.shape.span(), ","))}};
}

// What is cut, and where: the same for all stages.
struct Layout {
  const ir::Program& program;
  const ir::Mesh& mesh;
  int stages;
  int laps;                            // the chunks of a stage
  std::vector<std::size_t> made;       // by tensor: the instruction that makes it; the number of instructions: none
  std::vector<int> chunk;              // by instruction
  std::vector<int> nearest, farthest;  // by tensor: the first and last chunk that has it
  struct Gradient {
    TensorId parameter, sum;
    int chunk;
    std::vector<std::size_t> conversions;  // instructions that give the sum the form of the output, the last one first
  };
  std::vector<Gradient> gradients;               // each chunk's sum of a parameter's gradient
  std::map<TensorId, std::vector<int>> holders;  // of parameters with gradients: the stages, ascending

  Layout(const ir::Program& cut, const ir::Mesh& of, std::span<const int> first_blocks)
      : program(cut),
        mesh(of),
        stages(of[ir::Axis::stage]),
        laps(int(first_blocks.size()) / stages),
        made(ir::makers_of(cut)) {
    LANCET_CHECK(laps >= 1, "{} stages have the first blocks of {} chunks", stages, first_blocks.size());
    for (const int block : blocks_of(program))
      chunk.push_back(int(std::ranges::upper_bound(first_blocks, block) - first_blocks.begin()) - 1);
    find_crossings();
    for (const ir::Output& output : program.outputs)
      if (output.kind == OutputKind::gradient) follow(output);
    for (auto& [parameter, list] : holders) {
      std::ranges::sort(list);
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
  }

  bool is_made(TensorId id) const { return made[id.index()] < program.instructions.size(); }
  int chunk_of(TensorId id) const { return chunk[made[id.index()]]; }
  int stage_of(TensorId id) const { return chunk_of(id) % stages; }
  // True for an operand whose sum the instruction continues in another chunk than that which made it.
  bool is_broken(std::size_t i, std::size_t operand) const {
    const Instruction& at = program.instructions[i];
    return int(operand) == accumulator_of(at) && is_made(at.operands[operand]) &&
           chunk_of(at.operands[operand]) != chunk[i];
  }

 private:
  void find_crossings() {
    nearest.assign(program.tensors.size(), std::numeric_limits<int>::max());
    farthest.assign(program.tensors.size(), -1);
    const auto has = [&](TensorId id, int where) {
      nearest[id.index()] = std::min(nearest[id.index()], where);
      farthest[id.index()] = std::max(farthest[id.index()], where);
    };
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      const Instruction& at = program.instructions[i];
      for (const TensorId id : at.results) has(id, chunk[i]);
      for (std::size_t operand = 0; operand < at.operands.size(); ++operand)
        if (is_made(at.operands[operand]) && !is_broken(i, operand)) has(at.operands[operand], chunk[i]);
    }
    // Every stage has a chunk in the last lap, which is nearest to the chunk of the head.
    for (const ir::Output& output : program.outputs)
      if (output.kind == OutputKind::logits) has(output.tensor, (laps - 1) * stages);
  }

  // The chain of sums from the gradient back, through changes of its form: ranks along tensor may divide the gradient
  // of an embedding in another way than its weights.
  void follow(const ir::Output& output) {
    TensorId sum = output.tensor;
    int last = -1;
    std::vector<std::size_t> conversions;
    while (is_made(sum)) {
      const std::size_t maker = made[sum.index()];
      const Instruction& at = program.instructions[maker];
      if (chunk[maker] != last) {
        gradients.push_back({output.parameter, sum, chunk[maker], conversions});
        holders[output.parameter].push_back(chunk[maker] % stages);
      }
      last = chunk[maker];
      const int operand = accumulator_of(at);
      if (operand < 0 && !(converts(at) && is_made(at.operands[0]) && chunk_of(at.operands[0]) == last)) return;
      if (operand < 0) conversions.push_back(maker);
      sum = at.operands[std::size_t(std::max(operand, 0))];
    }
  }

  static bool converts(const Instruction& at) {
    return ops::kind(at) == ops::Kind::collective || ops::kind(at) == ops::Kind::share;
  }
};

class Stage {
 public:
  Stage(const Layout& cut, int stage)
      : cut_(cut),
        source_(cut.program),
        stage_(stage),
        now_(std::size_t(cut.laps), std::vector<TensorId>(source_.tensors.size())) {
    result_.program.name = source_.name;
    result_.program.attributes = source_.attributes;
  }

  StageProgram run() {
    add_named();
    for (const ir::Output& output : source_.outputs)
      if (is_share(output.kind) && cut_.stage_of(output.tensor) != stage_)
        no_shares_[output.tensor] = ops::append(result_.program, "no_share", {}, of_type(source_.type(output.tensor)),
                                                Role::forward, output.name)[0];
    for (std::size_t i = 0; i < source_.instructions.size(); ++i) {
      if (cut_.chunk[i] % cut_.stages != stage_) continue;
      receive_before(i);
      emit(i);
    }
    receive_before(source_.instructions.size());
    sum_shared_gradients();
    add_outputs();
    return std::move(result_);
  }

 private:
  ir::Program& program() { return result_.program; }

  // The named tensors that the stage reads, in the order of the source.
  void add_named() {
    std::vector<bool> read(source_.tensors.size());
    for (std::size_t i = 0; i < source_.instructions.size(); ++i) {
      const Instruction& at = source_.instructions[i];
      if (cut_.chunk[i] % cut_.stages != stage_) continue;
      for (const TensorId id : at.operands) read[source_.root(id).index()] = true;
    }
    for (std::size_t i = 0; i < read.size(); ++i) {
      const ir::Tensor& tensor = source_.tensors[i];
      if (!read[i] || tensor.number >= 0) continue;
      const TensorId named = program().add_named(tensor.kind, tensor.name, tensor.type, tensor.sharding);
      program()[named].flat_shard = tensor.flat_shard;
      for (auto& of_lap : now_) of_lap[i] = named;
    }
  }

  // The copy of a tensor of the source in a chunk of this stage.
  TensorId& now(int chunk, TensorId id) { return now_[std::size_t(chunk / cut_.stages)][id.index()]; }

  // Receives what was made before instruction `end` in other chunks, and is read in one of this stage or beyond it.
  void receive_before(std::size_t end) {
    for (; received_ < end; ++received_)
      for (const TensorId id : source_.instructions[received_].results) {
        const int from = cut_.chunk[received_], chunks = cut_.laps * cut_.stages;
        // A value reaches the chunk that is nearer to its maker first.
        for (int chunk = stage_; chunk < chunks; chunk += cut_.stages)
          if (from < chunk && cut_.farthest[id.index()] >= chunk) receive(received_, id, chunk);
        for (int chunk = chunks - cut_.stages + stage_; chunk >= 0; chunk -= cut_.stages)
          if (chunk < from && cut_.nearest[id.index()] <= chunk) receive(received_, id, chunk);
      }
  }

  void receive(std::size_t maker, TensorId id, int chunk) {
    const Instruction& at = source_.instructions[maker];
    const bool from_previous = cut_.chunk[maker] < chunk;
    now(chunk, id) = ops::append(program(), from_previous ? "receive_previous" : "receive_next", {},
                                 in_chunk(chunk, of_type(source_.type(id))), at.role, at.label)[0];
    send(maker, id, chunk);
  }

  ops::Attributes in_chunk(int chunk, ops::Attributes attributes = {}) const {
    if (const int lap = chunk / cut_.stages; lap > 0) attributes.set(ir::chunk_attribute, std::int64_t(lap));
    return attributes;
  }

  // To the neighbour that is farther from the maker.
  void send(std::size_t maker, TensorId id, int chunk) {
    const Instruction& at = source_.instructions[maker];
    const int from = cut_.chunk[maker];
    if (chunk >= from && cut_.farthest[id.index()] > chunk)
      ops::append(program(), "send_next", {now(chunk, id)}, in_chunk(chunk), at.role, at.label);
    if (chunk <= from && cut_.nearest[id.index()] < chunk)
      ops::append(program(), "send_previous", {now(chunk, id)}, in_chunk(chunk), at.role, at.label);
  }

  void emit(std::size_t i) {
    Instruction at = source_.instructions[i];
    const int chunk = cut_.chunk[i];
    std::optional<TensorId> dropped;
    for (std::size_t operand = 0; operand < at.operands.size(); ++operand) {
      if (!cut_.is_broken(i, operand)) continue;
      const TensorId root = source_.root(at.operands[operand]);
      dropped = at.operands[operand];
      if (source_[root].kind == TensorKind::state) {
        now(chunk, *dropped) = now(chunk, root);
      } else {
        LANCET_CHECK(operand + 1 == at.operands.size() && int(operand) >= ops::op(at.op).required,
                     "{} at {} sums onto a value of another stage", at.op, at.label);
        at.operands.pop_back();
      }
    }
    for (auto* list : {&at.operands, &at.writes})
      for (TensorId& id : *list) id = now(chunk, id);
    std::vector<TensorId> made;
    for (const TensorId id : at.results) made.push_back(copy(id, chunk, dropped));
    std::swap(at.results, made);
    program().instructions.push_back(std::move(at));
    for (const TensorId id : made) send(i, id, chunk);
  }

  TensorId copy(TensorId id, int chunk, std::optional<TensorId> dropped) {
    const ir::Tensor& tensor = source_[id];
    TensorId storage = tensor.storage.valid() ? now(chunk, tensor.storage) : TensorId{};
    if (dropped && tensor.storage == *dropped && !now(chunk, *dropped).valid()) storage = {};
    const TensorId made = program().add_value(tensor.type, storage, tensor.slice);
    program()[made].sharding = tensor.sharding;
    return now(chunk, id) = made;
  }

  // An all-reduce over the stages that have the parameter, which makes their sums equal.
  void sum_shared_gradients() {
    for (const Layout::Gradient& gradient : cut_.gradients) {
      if (gradient.chunk % cut_.stages != stage_) continue;
      const std::vector<int>& holders = cut_.holders.at(gradient.parameter);
      TensorId sum = now(gradient.chunk, gradient.sum);
      for (const std::size_t conversion : gradient.conversions | std::views::reverse) {
        const Instruction& at = source_.instructions[conversion];
        sum = ops::append(program(), at.op, {sum}, at.attributes, at.role, at.label)[0];
        program()[sum].sharding = source_[at.results[0]].sharding;
      }
      if (holders.size() > 1) {
        const auto output = std::ranges::find(source_.outputs, gradient.parameter, &ir::Output::parameter);
        sum = ops::append(program(), "all_reduce", {sum}, group_of(holders), Role::sync,
                          source_[gradient.parameter].name)[0];
        program()[sum].sharding = source_[output->tensor].sharding;
        if (holders.front() != stage_) result_.copies.push_back(source_[gradient.parameter].name);
      }
      sums_.emplace_back(gradient.parameter, sum);
    }
  }

  ops::Attributes group_of(const std::vector<int>& holders) const {
    ops::Attributes attributes;
    const bool all = int(holders.size()) == cut_.stages;
    if (all) {
      ir::set_group(attributes, cut_.mesh, {ir::Axis::stage});
      return attributes;
    }
    attributes.set(ir::axes_attribute, std::string(ir::name(ir::Axis::stage)));
    attributes.set(ir::stages_attribute, fmt::format("{}", fmt::join(holders, ",")));
    return attributes;
  }

  // id: the copy of the output's tensor on this stage, if there is one.
  bool is_output_here(const ir::Output& output, TensorId id) const {
    if (output.kind == OutputKind::logits || !cut_.is_made(output.tensor)) return id.valid();
    return cut_.stage_of(output.tensor) == stage_;
  }

  void add_outputs() {
    for (const ir::Output& output : source_.outputs) {
      if (output.kind == OutputKind::gradient || output.kind == OutputKind::bias || output.kind == OutputKind::rounds)
        continue;
      const auto none = no_shares_.find(output.tensor);
      const int chunk = cut_.is_made(output.tensor) ? cut_.chunk_of(output.tensor) : 0;
      const TensorId id = none == no_shares_.end() ? now(chunk, output.tensor) : none->second;
      if (is_share(output.kind)) {
        ir::Sharding sharding =
            source_[output.tensor].sharding.value_or(ir::Sharding::whole(source_.type(output.tensor).shape.rank()));
        sharding.partial.add(ir::Axis::stage);
        program()[id].sharding = sharding;
      } else if (!is_output_here(output, id)) {
        continue;
      }
      program().add_output(output.name, id);
    }
    for (const auto& [parameter, sum] : sums_)
      program().add_output(ir::output_name(OutputKind::gradient, source_[parameter].name), sum);
  }

  const Layout& cut_;
  const ir::Program& source_;
  const int stage_;
  std::vector<std::vector<TensorId>> now_;  // by lap and tensor of the source: its copy in that chunk of this stage
  std::map<TensorId, TensorId> no_shares_;  // by output of the source that another stage makes: zeros in its place
  std::size_t received_ = 0;                // what earlier instructions make in other chunks is received
  std::vector<std::pair<TensorId, TensorId>> sums_;  // parameters of the source, and the sums of their gradients
  StageProgram result_;
};

}  // namespace

std::vector<StageProgram> cut_stages(const ir::Program& program, const ir::Mesh& mesh,
                                     std::span<const int> first_blocks) {
  if (mesh[ir::Axis::stage] == 1) return {{program}};
  const Layout cut(program, mesh, first_blocks);
  std::vector<StageProgram> result;
  for (int stage = 0; stage < cut.stages; ++stage) result.push_back(Stage(cut, stage).run());
  return result;
}

}  // namespace lancet::passes
