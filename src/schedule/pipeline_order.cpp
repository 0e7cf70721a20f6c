// The passes of each micro batch through each chunk are lists of instructions. A schedule is a list of passes, made for
// a number of micro batches that the stages divide, without the passes of those that there are not: what is left of an
// order that ends, ends. What is left out of the passes, all-reduces and what closes the step, stays a list of its own
// in the order of the program; after each instruction its head follows as soon as all that it depends on has been
// listed. As all stages keep that order, stages that meet in two all-reduces meet in them in one order.
#include "lancet/schedule/stage_graph.h"

#include <algorithm>
#include <deque>

#include "lancet/ir/dependencies.h"
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
  InPipeline(const ir::Program& program, config::PipelineSchedule schedule, int stage, int stages,
             WaitingWeights waiting)
      : program_(program),
        zero_bubble_(schedule == config::PipelineSchedule::zero_bubble),
        stage_(std::size_t(stage)),
        stages_(std::size_t(stages)),
        delay_(zero_bubble_ ? std::size_t(waiting.delay) : 0),
        dealt_(waiting.dealt),
        dependencies_(ir::dependencies(program)),
        listed_(program.instructions.size()),
        is_weight_(waiting_weights(program, dependencies_)),
        passes_(std::size_t(ir::micro_batches(program))) {
    find_passes();
    chunks_ = passes_[0].size();
    for (const auto& of_micro : passes_)
      LANCET_CHECK(of_micro.size() == chunks_, "the micro batches pass through {} and {} chunks of the stage", chunks_,
                   of_micro.size());
  }

  PipelineOrder run() {
    const std::size_t rounds = (passes_.size() + stages_ - 1) / stages_, count = chunks_ * rounds * stages_;
    const std::size_t warm_up = (chunks_ - 1) * stages_ + stages_ - 1 - stage_;
    for (std::size_t k = 0; k < count + warm_up; ++k) {
      if (Passes* forward = k < count ? pass(k, true) : nullptr) list_pass(forward->forward);
      if (Passes* backward = k >= warm_up ? pass(k - warm_up, false) : nullptr) list_backward(*backward);
    }
    for (; !waiting_.empty(); waiting_.pop_front()) list_pass(waiting_.front()->weights);
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

  void find_passes() {
    struct Reached {
      std::size_t chunk = 0;
      bool in_backward = false, has_computed = false;
    };
    const std::vector<bool> closes = ir::closes_step(program_);
    std::vector<Reached> reached(passes_.size());
    for (std::size_t i = 0; i < closes.size(); ++i) {
      const ir::Instruction& at = program_.instructions[i];
      if (closes[i] || at.stream == ir::Stream::reduce) {
        late_.push_back(ir::id_of(i));
        continue;
      }
      auto& [chunk, in_backward, has_computed] = reached[std::size_t(at.micro_batch)];
      const bool turns_back = !in_backward && at.role != Role::forward;
      // After computation, the first receive begins another chunk.
      if (!turns_back && has_computed && ops::kind(at) == ops::Kind::receive) {
        LANCET_CHECK(!in_backward || chunk > 0, "the backward pass receives more often than the forward pass");
        chunk += in_backward ? -1 : 1;
        has_computed = false;
      }
      if (turns_back) {
        in_backward = true;
        has_computed = false;
      }
      has_computed = has_computed || (at.stream == ir::Stream::compute && !at.operands.empty());
      std::vector<Passes>& passes = passes_[std::size_t(at.micro_batch)];
      if (passes.size() <= chunk) passes.resize(chunk + 1);
      Passes& of = passes[chunk];
      (is_weight_[i] ? of.weights : in_backward ? of.backward : of.forward).push_back(ir::id_of(i));
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

  // All-to-alls of the backward pass have beside them what is listed behind them and needs none of them.
  bool takes_no_turns(InstructionId id) const {
    const ir::Instruction& at = program_.instructions[id.index()];
    if (at.stream == ir::Stream::compute) return at.role == Role::recompute || (zero_bubble_ && is_weight_[id.index()]);
    return at.role != Role::forward;
  }

  PipelineOrder finished() const {
    PipelineOrder result{permuted(program_, order_), {}};
    std::vector<bool> overlaps;
    for (const InstructionId id : order_) overlaps.push_back(takes_no_turns(id));
    result.needed = turns(result.program, ir::dependencies(result.program), overlaps);
    Dependencies extra(order_.size());
    for (std::size_t i = 0; i < order_.size(); ++i)
      if (ops::kind(result.program.instructions[i]) == ops::Kind::receive && pass_of_[i] >= 2)
        if (const InstructionId end = ends_[std::size_t(pass_of_[i]) - 2]; end.valid()) extra[i].push_back(end);
    join(result.needed, extra);
    return result;
  }

  const ir::Program& program_;
  const bool zero_bubble_;
  const std::size_t stage_, stages_;
  const std::size_t delay_;  // the backward passes after which the weight gradients of one follow
  const bool dealt_;         // and run beside all-to-alls
  const Dependencies dependencies_;
  std::vector<bool> listed_, is_weight_;     // by instruction
  std::vector<std::vector<Passes>> passes_;  // by micro batch and chunk
  std::size_t chunks_ = 0;                   // runs of blocks that the stage has
  std::deque<const Passes*> waiting_;        // whose weight gradients are not listed
  Order late_;                               // all-reduces, and what closes the step
  std::size_t next_late_ = 0;
  Order order_;
  std::vector<int> pass_of_;         // by place in the order: the pass that lists it, or -1
  std::vector<InstructionId> ends_;  // by pass: the last computation up to its end, in the new order
  InstructionId last_compute_{};
};

}  // namespace

std::vector<bool> waiting_weights(const ir::Program& program, const Dependencies& dependencies) {
  const std::vector<bool> closes = ir::closes_step(program);
  std::vector<bool> is_needed(closes.size()), is_weight(closes.size());  // needed: by what is neither a W nor late
  for (std::size_t i = closes.size(); i-- > 0;) {
    const ir::Instruction& at = program.instructions[i];
    const bool late = closes[i] || at.stream == ir::Stream::reduce;
    is_weight[i] = !late && !is_needed[i] && (at.role == Role::dw || at.role == Role::recompute);
    if (late || is_weight[i]) continue;
    for (const InstructionId before : dependencies[i]) is_needed[before.index()] = true;
  }
  return is_weight;
}

PipelineOrder in_pipeline_order(const ir::Program& program, config::PipelineSchedule schedule, int stage, int stages,
                                WaitingWeights waiting) {
  return InPipeline(program, schedule, stage, stages, waiting).run();
}

}  // namespace lancet::schedule
