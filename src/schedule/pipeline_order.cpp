// The passes of each micro batch through each chunk are lists of instructions, in the order of the policy that has
// scheduled the step of one micro batch. A schedule is a list of passes, made for a number of micro batches that the
// stages divide, without the passes of those that there are not: what is left of an order that ends, ends. What is left
// out of the passes, all-reduces and what closes the step, stays a list of its own in the order of the program; after
// each instruction its head follows as soon as all that it depends on has been listed. As all stages keep that order,
// stages that meet in two all-reduces meet in them in one order. What computes after an all-reduce over several stages,
// or after one behind it, would keep the passes of a stage from running that the others wait for; it follows them all.
//
// What the policy adds to the dependencies holds within each pass; passes wait for one another's values alone. A W that
// the policy has put beside an all-to-all of its own micro batch stays there: it is part of B.
#include "lancet/schedule/stage_graph.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/simulate.h"
#include "orders.h"

namespace lancet::schedule {
namespace {

using ir::InstructionId;
using ir::Role;

// The instructions of one micro batch in one chunk.
struct Passes {
  Order forward, backward, weights;
};

class InPipeline {
 public:
  InPipeline(const ir::Program& program, const Dependencies& needed, config::PipelineSchedule schedule, int stage,
             int stages, WaitingWeights waiting)
      : program_(program),
        needed_(needed),
        stage_(std::size_t(stage)),
        stages_(std::size_t(stages)),
        delay_(schedule == config::PipelineSchedule::zero_bubble ? std::size_t(waiting.delay) : 0),
        dealt_(waiting.dealt),
        dependencies_(ir::dependencies(program)),
        listed_(program.instructions.size()),
        chunks_(chunks_of(program)),
        passes_(std::size_t(ir::micro_batches(program)), std::vector<Passes>(chunks_)) {
    find_passes();
    keep_policy();
    find_last();
  }

  PipelineOrder run() {
    const std::size_t rounds = (passes_.size() + stages_ - 1) / stages_, count = chunks_ * rounds * stages_;
    const std::size_t warm_up = (chunks_ - 1) * stages_ + stages_ - 1 - stage_;
    for (std::size_t k = 0; k < count + warm_up; ++k) {
      if (Passes* forward = k < count ? pass(k, true) : nullptr) list_pass(forward->forward);
      if (Passes* backward = k >= warm_up ? pass(k - warm_up, false) : nullptr) list_backward(*backward);
    }
    for (; !waiting_.empty(); waiting_.pop_front()) list_pass(waiting_.front()->weights);
    late_.insert(late_.end(), last_.begin(), last_.end());
    follow();
    LANCET_CHECK(order_.size() == program_.instructions.size(), "{} of {} instructions are in the order of the stage",
                 order_.size(), program_.instructions.size());
    return finished();
  }

 private:
  // The k-th pass of all stages in one direction: `stages` micro batches through a chunk, then through the next one,
  // and after the last chunk the next `stages`. Nothing if there is no such micro batch.
  Passes* pass(std::size_t k, bool forward) {
    const std::size_t micro = k / (chunks_ * stages_) * stages_ + k % stages_, chunk = k / stages_ % chunks_;
    return micro < passes_.size() ? &passes_[micro][forward ? chunk : chunks_ - 1 - chunk] : nullptr;
  }

  static std::size_t chunks_of(const ir::Program& program) {
    std::int64_t last = 0;
    for (const ir::Instruction& at : program.instructions)
      if (ir::between_stages(at.stream)) last = std::max(last, at.attributes.integer(ir::chunk_attribute, 0));
    return std::size_t(last) + 1;
  }

  // A receive begins the pass through its chunk. What depends on it belongs to that pass, wherever the policy lists it.
  void find_passes() {
    std::vector<PassKind> kinds = pass_kinds(program_, dependencies_);
    keep_beside(kinds);
    std::vector<std::size_t> chunk(kinds.size());
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      if (kinds[i] == PassKind::late) {
        late_.push_back(ir::id_of(i));
        continue;
      }
      const ir::Instruction& at = program_.instructions[i];
      const bool is_forward = kinds[i] == PassKind::forward;
      chunk[i] = is_forward ? 0 : chunks_ - 1;
      for (const InstructionId before : dependencies_[i])
        if (const std::size_t j = before.index();
            kinds[j] != PassKind::late && program_.instructions[j].micro_batch == at.micro_batch)
          chunk[i] = is_forward ? std::max(chunk[i], chunk[j]) : std::min(chunk[i], chunk[j]);
      if (ops::kind(at) == ops::Kind::receive) chunk[i] = std::size_t(at.attributes.integer(ir::chunk_attribute, 0));
      Passes& of = passes_[std::size_t(std::max(at.micro_batch, 0))][chunk[i]];
      (is_forward ? of.forward : kinds[i] == PassKind::weight ? of.weights : of.backward).push_back(ir::id_of(i));
    }
  }

  // Makes a part of B what the policy has put beside an all-to-all of B: before the first computation that waits for
  // it.
  void keep_beside(std::vector<PassKind>& kinds) const {
    std::vector<std::size_t> awaited(kinds.size(), kinds.size());  // by instruction: the first computation that waits
    for (std::size_t i = kinds.size(); i-- > 0;)
      if (program_.instructions[i].stream == ir::Stream::compute)
        for (const InstructionId before : needed_[i]) awaited[before.index()] = i;
    std::vector<std::size_t> last(passes_.size());  // by micro batch: of the all-to-alls so far
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      const ir::Instruction& at = program_.instructions[i];
      if (kinds[i] == PassKind::late) continue;
      std::size_t& until = last[std::size_t(at.micro_batch)];
      if (kinds[i] == PassKind::backward && at.stream == ir::Stream::expert) until = std::max(until, awaited[i]);
      if (kinds[i] != PassKind::weight || until <= i) continue;
      if (std::ranges::none_of(dependencies_[i],
                               [&](InstructionId before) { return kinds[before.index()] == PassKind::weight; }))
        kinds[i] = PassKind::backward;
    }
  }

  // Adds the policy's dependencies within each pass, and of what follows the passes.
  void keep_policy() {
    std::vector<int> pass(needed_.size(), -1);
    int count = 0;
    for (const auto& of_micro : passes_)
      for (const Passes& of : of_micro)
        for (const Order* list : {&of.forward, &of.backward, &of.weights}) {
          for (const InstructionId id : *list) pass[id.index()] = count;
          ++count;
        }
    for (std::size_t i = 0; i < needed_.size(); ++i) {
      std::vector<InstructionId> kept = dependencies_[i];
      for (const InstructionId before : needed_[i])
        if (pass[i] < 0 || pass[before.index()] == pass[i]) kept.push_back(before);
      std::ranges::sort(kept);
      kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
      dependencies_[i] = std::move(kept);
    }
  }

  // Takes out of late_ what could hold up a pass until other stages have ended theirs.
  void find_last() {
    std::vector<bool> waits(needed_.size()), is_last(needed_.size());  // for other stages
    bool reduce_waits = false;
    for (const InstructionId id : std::exchange(late_, {})) {
      const std::size_t i = id.index();
      const ir::Instruction& at = program_.instructions[i];
      const auto any_before = [&](const std::vector<bool>& of) {
        return std::ranges::any_of(dependencies_[i], [&](InstructionId before) { return bool(of[before.index()]); });
      };
      const bool reduces = at.stream == ir::Stream::reduce;
      if (reduces && ir::is_along_stages(at)) reduce_waits = true;
      waits[i] = (reduces && reduce_waits) || any_before(waits);
      is_last[i] = (!reduces && waits[i]) || any_before(is_last);
      (is_last[i] ? last_ : late_).push_back(id);
    }
  }

  void list_backward(const Passes& passes) {
    waiting_.push_back(&passes);
    if (waiting_.size() <= delay_) return list_pass(passes.backward);
    const Passes* due = waiting_.front();
    waiting_.pop_front();
    if (delay_ > 0 && dealt_) return list_pass(dealt(passes.backward, due->weights));
    list_pass(passes.backward);
    list_pass(due->weights);
  }

  // Weight gradients in equal numbers right after the all-to-alls; without one, at the end.
  Order dealt(const Order& backward, const Order& weights) const {
    std::size_t all_to_alls = 0, passed = 0, next = 0;
    const auto is_all_to_all = [&](InstructionId id) {
      return ops::kind(program_.instructions[id.index()]) == ops::Kind::all_to_all;
    };
    all_to_alls = std::size_t(std::ranges::count_if(backward, is_all_to_all));
    Order result;
    for (const InstructionId id : backward) {
      result.push_back(id);
      if (!is_all_to_all(id)) continue;
      for (const std::size_t end = weights.size() * ++passed / all_to_alls; next < end; ++next)
        result.push_back(weights[next]);
    }
    result.insert(result.end(), weights.begin() + std::ptrdiff_t(next), weights.end());
    return result;
  }

  void list_pass(const Order& pass) {
    if (pass.empty()) return;
    for (const InstructionId id : pass) {
      list(id);
      pass_of_.resize(order_.size(), -1);
      pass_of_.back() = int(ends_.size());
      follow();
    }
    ends_.push_back(last_compute_);
  }

  void list(InstructionId id) {
    for (const InstructionId before : dependencies_[id.index()])
      LANCET_CHECK(listed_[before.index()], "{} at {} is listed before {} at {}, which it depends on",
                   program_.instructions[id.index()].op, program_.instructions[id.index()].label,
                   program_.instructions[before.index()].op, program_.instructions[before.index()].label);
    listed_[id.index()] = true;
    if (program_.instructions[id.index()].stream == ir::Stream::compute) last_compute_ = ir::id_of(order_.size());
    order_.push_back(id);
  }

  // Lists the late instructions whose turn it is.
  void follow() {
    const auto ready = [&](InstructionId id) {
      return std::ranges::all_of(dependencies_[id.index()],
                                 [&](InstructionId before) { return bool(listed_[before.index()]); });
    };
    for (; next_late_ < late_.size() && ready(late_[next_late_]); ++next_late_) list(late_[next_late_]);
    pass_of_.resize(order_.size(), -1);
  }

  PipelineOrder finished() const {
    PipelineOrder result{permuted(program_, order_), renumbered(dependencies_, order_)};
    Dependencies extra(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (ops::kind(result.program.instructions[i]) == ops::Kind::receive && pass_of_[i] >= 2)
        if (const InstructionId end = ends_[std::size_t(pass_of_[i]) - 2]; end.valid()) extra[i].push_back(end);
    join(result.needed, extra);
    return result;
  }

  const ir::Program& program_;
  const Dependencies& needed_;  // with those of the policy
  const std::size_t stage_, stages_;
  const std::size_t delay_;                  // the backward passes after which the weight gradients of one follow
  const bool dealt_;                         // and run beside all-to-alls
  Dependencies dependencies_;                // with those of the policy within each pass
  std::vector<bool> listed_;                 // by instruction
  const std::size_t chunks_;                 // runs of blocks that the stage has
  std::vector<std::vector<Passes>> passes_;  // by micro batch and chunk
  std::deque<const Passes*> waiting_;        // whose weight gradients are not listed
  Order late_;                               // all-reduces, and what closes the step
  Order last_;                               // of that, what follows all passes
  std::size_t next_late_ = 0;
  Order order_;
  std::vector<int> pass_of_;         // by place in the order: the pass that lists it, or -1
  std::vector<InstructionId> ends_;  // by pass: the last computation up to its end, in the new order
  InstructionId last_compute_{};
};

}  // namespace

std::vector<PassKind> pass_kinds(const ir::Program& program, const Dependencies& dependencies) {
  const std::vector<bool> closes = ir::closes_step(program);
  std::vector<PassKind> kinds;
  for (std::size_t i = 0; i < closes.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const bool is_backward = (at.role != Role::forward && at.role != Role::sync) ||
                             std::ranges::any_of(dependencies[i], [&](InstructionId before) {
                               return kinds[before.index()] == PassKind::backward &&
                                      program.instructions[before.index()].micro_batch == at.micro_batch;
                             });
    kinds.push_back(closes[i] || at.stream == ir::Stream::reduce ? PassKind::late
                    : is_backward                                ? PassKind::backward
                                                                 : PassKind::forward);
  }
  std::vector<bool> is_needed(closes.size());  // by what is neither a W nor late
  for (std::size_t i = closes.size(); i-- > 0;) {
    const Role role = program.instructions[i].role;
    if (kinds[i] == PassKind::late) continue;
    if (!is_needed[i] && (role == Role::dw || role == Role::recompute))
      kinds[i] = PassKind::weight;
    else
      for (const InstructionId before : dependencies[i]) is_needed[before.index()] = true;
  }
  return kinds;
}

PipelineOrder in_pipeline_order(const ir::Program& program, const Dependencies& needed,
                                config::PipelineSchedule schedule, int stage, int stages, WaitingWeights waiting) {
  return InPipeline(program, needed, schedule, stage, stages, waiting).run();
}

}  // namespace lancet::schedule
