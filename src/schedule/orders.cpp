#include "orders.h"

#include <algorithm>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/plan_memory.h"

namespace lancet::schedule {

namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Role;

// Walks the instructions in program order and appends each to the new order, after those of its dependencies that are
// missing and before those listed to follow it (recursively). Moved instructions are skipped by the walk. An
// instruction of the reduce stream is appended as soon as the walk has reached it and all its dependencies are in the
// new order.
class Reorder {
 public:
  Reorder(const ir::Program& program, const Dependencies& dependencies, const std::vector<Order>& after)
      : dependencies_(dependencies),
        after_(after),
        moved_(dependencies.size()),
        emitted_(dependencies.size()),
        reached_(dependencies.size()),
        missing_(dependencies.size()),
        reductions_after_(dependencies.size()) {
    for (const Order& list : after)
      for (InstructionId id : list) moved_[id.index()] = true;
    for (std::size_t i = 0; i < dependencies.size(); ++i) {
      if (program.instructions[i].stream != ir::Stream::reduce) continue;
      missing_[i] = dependencies[i].size();
      for (InstructionId before : dependencies[i]) reductions_after_[before.index()].push_back(id_of(i));
    }
  }

  Order run() {
    for (std::size_t i = 0; i < dependencies_.size(); ++i) {
      reached_[i] = true;
      if (!moved_[i] && missing_[i] == 0) emit(id_of(i));
    }
    LANCET_CHECK(order_.size() == dependencies_.size(), "{} of {} instructions are in the new order", order_.size(),
                 dependencies_.size());
    return std::move(order_);
  }

 private:
  void emit(InstructionId id) {
    const std::size_t i = id.index();
    if (emitted_[i]) return;
    for (InstructionId before : dependencies_[i]) emit(before);
    if (emitted_[i]) return;  // it follows one of its dependencies
    emitted_[i] = true;
    order_.push_back(id);
    for (InstructionId next : after_[i]) emit(next);
    for (InstructionId reduction : reductions_after_[i])
      if (--missing_[reduction.index()] == 0 && reached_[reduction.index()]) emit(reduction);
  }

  const Dependencies& dependencies_;
  const std::vector<Order>& after_;
  std::vector<bool> moved_, emitted_, reached_;
  std::vector<std::size_t> missing_;     // reduce stream: number of dependencies not in the new order yet; else 0
  std::vector<Order> reductions_after_;  // instructions of the reduce stream that depend on this one
  Order order_;
};

bool is_filler(const ir::Instruction& at) { return at.role == Role::dw || at.role == Role::update; }

// Finds the messages for which only fillers wait, such as an all-gather of what a weight gradient reads. One of them
// also waits for what else the first of its fillers needs. It would otherwise be sent as soon as the network is idle,
// maybe in the forward pass, and its result be alive until the filler runs.
void hold_messages_for_fillers(std::vector<Job>& jobs) {
  std::vector<std::int32_t> first_filler(jobs.size(), -1);
  for (Job& job : jobs) job.feeds_filler = job.stream == ir::Stream::expert;
  for (std::size_t i = jobs.size(); i-- > 0;)
    for (std::int32_t need : jobs[i].needs) {
      if (!jobs[i].filler) jobs[std::size_t(need)].feeds_filler = false;
      first_filler[std::size_t(need)] = std::int32_t(i);
    }
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    Job& message = jobs[i];
    message.feeds_filler = message.feeds_filler && first_filler[i] >= 0;
    if (!message.feeds_filler) continue;
    for (std::int32_t need : jobs[std::size_t(first_filler[i])].needs)
      if (need < std::int32_t(i) && std::ranges::count(message.needs, need) == 0) message.needs.push_back(need);
  }
}

// What is recomputed could run as soon as the forward pass has made what it reads, and would then keep memory that it
// is to free. It waits for the computation before the last message of the backward pass that precedes it, so that it
// may run beside that message, or, before the first message, for the computation right before it. jobs: of the
// program's instructions from `begin` on.
void hold_recomputation(std::vector<Job>& jobs, const ir::Program& program, std::size_t begin) {
  std::vector<std::int32_t> after;  // jobs
  bool after_message = false;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const ir::Instruction& at = program.instructions[begin + i];
    // It need not wait for all parts of the message.
    if (at.role != Role::recompute && at.attributes.integer("part", 0) > 0) continue;
    if (at.role == Role::forward) {
      after_message = false;
    } else if (at.role == Role::dx && at.stream == ir::Stream::expert) {
      after = jobs[i].needs;
      after_message = true;
    } else if (at.role == Role::recompute) {
      for (const std::int32_t need : after)
        if (std::ranges::count(jobs[i].needs, need) == 0) jobs[i].needs.push_back(need);
    }
    const bool in_layers = at.role == Role::forward || at.role == Role::dx;
    if (in_layers && at.stream == ir::Stream::compute && !after_message) after = {std::int32_t(i)};
  }
}

}  // namespace

Order reordered(const ir::Program& program, const Dependencies& dependencies, const std::vector<Order>& after) {
  return Reorder(program, dependencies, after).run();
}

ir::Program permuted(ir::Program program, const Order& order) {
  std::vector<ir::Instruction> instructions;
  instructions.reserve(order.size());
  for (InstructionId id : order) instructions.push_back(std::move(program.instructions[id.index()]));
  program.instructions = std::move(instructions);
  return program;
}

Dependencies renumbered(const Dependencies& dependencies, const Order& order) {
  std::vector<InstructionId> position(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) position[order[i].index()] = id_of(i);
  Dependencies result = permuted(dependencies, order);
  for (std::vector<InstructionId>& list : result) {
    for (InstructionId& id : list) id = position[id.index()];
    std::sort(list.begin(), list.end());
  }
  return result;
}

Blocks::Blocks(const ir::Program& program) : of(program.instructions.size()) {
  std::vector<std::int32_t> block(program.tensors.size(), -1);
  for (std::size_t i = 0; i < of.size(); ++i) {
    auto touch = [&](ir::TensorId id) {
      const ir::TensorId root = program.root(id);
      if (program[root].number < 0) return;
      std::int32_t& number = block[root.index()];
      if (number < 0) {
        number = std::int32_t(bytes.size());
        bytes.push_back(ir::bytes(program.type(root)));
      }
      if (std::find(of[i].begin(), of[i].end(), number) == of[i].end()) of[i].push_back(number);
    };
    for (ir::TensorId id : program.instructions[i].operands) touch(id);
    for (ir::TensorId id : program.instructions[i].results) touch(id);
  }
}

LiveBlocks Blocks::live() const {
  std::vector<int> users(bytes.size());
  for (const auto& touched : of)
    for (const std::int32_t block : touched) ++users[std::size_t(block)];
  return {bytes, users};
}

std::int64_t peak_bytes(const ir::Program& program) {
  const Blocks blocks(program);
  LiveBlocks live = blocks.live();
  for (const auto& touched : blocks.of) {
    live.start(touched);
    live.finish(touched);
  }
  return live.peak_bytes();
}

void LiveBlocks::start(std::span<const std::int32_t> blocks) {
  for (const std::int32_t id : blocks) {
    Block& block = blocks_[std::size_t(id)];
    if (!block.alive) bytes_ += block.bytes;
    block.alive = true;
  }
  peak_bytes_ = std::max(peak_bytes_, bytes_);
}

void LiveBlocks::finish(std::span<const std::int32_t> blocks) {
  for (const std::int32_t id : blocks)
    if (Block& block = blocks_[std::size_t(id)]; --block.jobs_left == 0) bytes_ -= block.bytes;
}

std::int64_t LiveBlocks::new_bytes(std::span<const std::int32_t> blocks) const {
  std::int64_t bytes = 0;
  for (const std::int32_t id : blocks)
    if (const Block& block = blocks_[std::size_t(id)]; !block.alive) bytes += block.bytes;
  return bytes;
}

std::int64_t LiveBlocks::freed_by(std::span<const std::int32_t> blocks) const {
  std::int64_t bytes = 0;
  for (const std::int32_t id : blocks)
    if (const Block& block = blocks_[std::size_t(id)]; block.jobs_left == 1) bytes += block.bytes;
  return bytes;
}

Orders::Orders(const ir::Program& program, std::vector<cost::OpCost> op_costs)
    : Orders(program, op_costs, {{0, op_costs.size()}}) {}

Orders::Orders(const ir::Program& program, std::vector<cost::OpCost> op_costs, const std::vector<Span>& spans)
    : program_(program), op_costs_(std::move(op_costs)), dependencies_(ir::dependencies(program_)) {
  Blocks blocks(program_);
  for (const Span& span : spans) spans_.push_back(of_span(span, blocks));
  block_bytes_ = std::move(blocks.bytes);
}

Orders::OfSpan Orders::of_span(const Span& span, const Blocks& blocks) const {
  const auto& [begin, end] = span;
  std::vector<Job> jobs;
  for (std::size_t i = begin; i < end; ++i) {
    const ir::Instruction& at = program_.instructions[i];
    Job job{.stream = at.stream,
            .ms = op_costs_[i].ms,
            .part = int(at.attributes.integer("part", -1)),
            .backward = at.role != Role::forward,
            .filler = is_filler(at),
            .needs = {},
            .blocks = blocks.of[i]};
    for (InstructionId need : dependencies_[i])
      if (need.index() >= begin) job.needs.push_back(need.value - std::int32_t(begin));
    if (at.stream == ir::Stream::reduce)
      for (std::int32_t need : job.needs) jobs[std::size_t(need)].feeds_network = true;
    jobs.push_back(std::move(job));
  }
  hold_messages_for_fillers(jobs);
  hold_recomputation(jobs, program_, begin);
  OfSpan made{begin, std::move(jobs), {}, {}};
  std::vector<std::size_t> first(blocks.bytes.size(), blocks.of.size()), last(blocks.bytes.size());
  for (std::size_t i = 0; i < blocks.of.size(); ++i)
    for (std::int32_t block : blocks.of[i]) {
      first[std::size_t(block)] = std::min(first[std::size_t(block)], i);
      last[std::size_t(block)] = i;
    }
  for (std::size_t block = 0; block < first.size(); ++block) {
    if (first[block] < begin && last[block] >= begin) made.before.push_back(std::int32_t(block));
    if (first[block] < end && last[block] >= end) made.after.push_back(std::int32_t(block));
  }
  return made;
}

Orders::Found Orders::find(const ListOptions& options) const {
  Found found;
  for (const auto& [begin, jobs, before, after] : spans_) {
    const ListSchedule schedule = list_schedule(jobs, options, {block_bytes_, before, after});
    found.makespan += schedule.makespan;
    found.peak_bytes = std::max(found.peak_bytes, schedule.peak_bytes.front());
    for (std::size_t i = found.order.size(); i < begin; ++i) found.order.push_back(id_of(i));
    for (InstructionId id : schedule.order) found.order.push_back(id_of(id.index() + begin));
  }
  for (std::size_t i = found.order.size(); i < op_costs_.size(); ++i) found.order.push_back(id_of(i));
  return found;
}

}  // namespace lancet::schedule
