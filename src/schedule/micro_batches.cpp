// Each micro batch gets copies of the instructions and of all tensors that they make, and of the inputs that they read;
// parameters, states and the inputs of what closes the step are shared. The copies run one after the other in the
// program. What the candidate's policy adds to the dependencies (turns, chunks that wait for all-to-alls) is copied as
// well; the dependencies between micro batches, which go through the sums of gradients and through memory, are those of
// the whole program.
#include "lancet/schedule/overlap.h"

#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "reorder.h"

namespace lancet::schedule {
namespace {

using ir::InstructionId;
using ir::TensorId;
using ir::TensorKind;

class Copies {
 public:
  Copies(const Candidate& one, int count)
      : one_(one),
        source_(one.program),
        count_(count),
        closes_(ir::closes_step(source_)),
        belongs_(source_.tensors.size()),
        shared_(source_.tensors.size()) {
    for (std::size_t i = 0; i < closes_.size(); ++i)
      if (!closes_[i]) mark(source_.instructions[i]);
  }

  Candidate run() {
    result_.how = one_.how;
    result_.program.name = source_.name;
    result_.program.attributes = source_.attributes;
    for (std::size_t i = 0; i < source_.tensors.size(); ++i)
      if (source_.tensors[i].number < 0) shared_[i] = add_named(source_.tensors[i], 0);
    for (int micro = 0; micro < count_; ++micro) copy(micro);
    join(result_.needed, ir::dependencies(result_.program));
    return std::move(result_);
  }

 private:
  bool is_last(int micro) const { return micro + 1 == count_; }

  // Marks what each micro batch has of its own among the tensors of an instruction, with the memory that these are in.
  void mark(const ir::Instruction& at) {
    for (const auto* list : {&at.operands, &at.results})
      for (TensorId id : *list)
        for (; id.valid(); id = source_[id].storage)
          if (const TensorKind kind = source_[id].kind; kind != TensorKind::parameter && kind != TensorKind::state)
            belongs_[id.index()] = true;
    for (const ir::Instruction& part : at.body) mark(part);
  }

  TensorId add_named(const ir::Tensor& tensor, int micro) {
    const TensorId id =
        result_.program.add_named(tensor.kind, ir::of_micro_batch(tensor.name, micro), tensor.type, tensor.sharding);
    result_.program[id].flat_shard = tensor.flat_shard;
    return id;
  }

  void copy(int micro) {
    now_ = shared_;
    copy_tensors(micro);
    std::vector<InstructionId> position(source_.instructions.size());
    for (std::size_t i = 0; i < position.size(); ++i) {
      if (closes_[i] && !is_last(micro)) continue;
      position[i] = ir::id_of(result_.program.instructions.size());
      result_.program.instructions.push_back(copied(source_.instructions[i], closes_[i] ? 0 : micro));
      if (!one_.op_costs.empty()) result_.op_costs.push_back(one_.op_costs[i]);
      std::vector<InstructionId>& needed = result_.needed.emplace_back();
      for (const InstructionId before : one_.needed[i])
        if (position[before.index()].valid()) needed.push_back(position[before.index()]);
    }
    for (const ir::Output& output : source_.outputs) {
      const bool own = belongs_[output.tensor.index()];
      if (own || is_last(micro))
        result_.program.add_output(ir::of_micro_batch(output.name, own ? micro : 0), now_[output.tensor.index()]);
    }
  }

  // A tensor may be in the memory of one that comes after it in the table.
  void copy_tensors(int micro) {
    std::vector<std::size_t> made;
    for (std::size_t i = 0; i < belongs_.size(); ++i) {
      const ir::Tensor& tensor = source_.tensors[i];
      if (!belongs_[i] && (tensor.number < 0 || !is_last(micro))) continue;
      if (tensor.kind == TensorKind::input) {
        if (micro > 0) now_[i] = add_named(tensor, micro);
        continue;
      }
      now_[i] = tensor.kind == TensorKind::view ? result_.program.add_view(tensor.type)
                                                : result_.program.add_value(tensor.type);
      made.push_back(i);
    }
    for (const std::size_t i : made) {
      const ir::Tensor& tensor = source_.tensors[i];
      ir::Tensor& copy = result_.program[now_[i]];
      if (tensor.storage.valid()) copy.storage = now_[tensor.storage.index()];
      copy.slice = tensor.slice;
      copy.sharding = tensor.sharding;
    }
  }

  ir::Instruction copied(ir::Instruction at, int micro) const {
    for (auto* list : {&at.operands, &at.results, &at.writes})
      for (TensorId& id : *list) id = now_[id.index()];
    for (ir::Instruction& part : at.body) part = copied(std::move(part), micro);
    at.micro_batch = micro;
    return at;
  }

  const Candidate& one_;
  const ir::Program& source_;
  const int count_;
  const std::vector<bool> closes_;  // by instruction
  std::vector<bool> belongs_;       // by tensor: each micro batch has its own
  std::vector<TensorId> shared_;    // by tensor: the copy of one with a name
  std::vector<TensorId> now_;       // by tensor: its copy in the micro batch that is being made
  Candidate result_;
};

}  // namespace

Candidate in_micro_batches(const Candidate& one, int count) { return count == 1 ? one : Copies(one, count).run(); }

}  // namespace lancet::schedule
