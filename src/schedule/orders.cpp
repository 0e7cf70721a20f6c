#include "orders.h"

#include <algorithm>

#include "lancet/ir/dependencies.h"
#include "lancet/schedule/plan_memory.h"

namespace lancet::schedule {
namespace {

using ir::id_of;
using ir::InstructionId;
using ir::Role;

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

// What is made again could run as soon as the forward pass has made what it reads, and would then keep memory that it
// is to free. It waits for the computation before the last message of the backward pass that precedes it, so that it
// may run beside that message, or, before the first message, for the computation right before it. jobs: of the
// program's instructions from `begin` on.
void hold_recomputation(std::vector<Job>& jobs, const ir::Program& program, std::size_t begin) {
  std::vector<std::int32_t> after;  // jobs
  bool after_message = false;
  for (std::size_t i = 0; i < jobs.size(); ++i) {
    const ir::Instruction& at = program.instructions[begin + i];
    if (at.attributes.integer("part", 0) > 0) continue;  // it need not wait for all parts of the message
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

std::int64_t peak_bytes(const ir::Program& program) {
  const Blocks blocks(program);
  std::vector<Job> jobs;
  for (std::size_t i = 0; i < blocks.of.size(); ++i) {
    jobs.push_back({.stream = ir::Stream::compute, .ms = 1, .needs = {}, .blocks = blocks.of[i]});
    if (i > 0) jobs.back().needs = {std::int32_t(i) - 1};
  }
  return list_schedule(jobs, {}, {blocks.bytes}).peak_bytes;
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
  OfSpan made{begin, {}, {}, {}};
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
      for (std::int32_t need : job.needs) made.jobs[std::size_t(need)].feeds_network = true;
    made.jobs.push_back(std::move(job));
  }
  hold_messages_for_fillers(made.jobs);
  hold_recomputation(made.jobs, program_, begin);
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
    found.peak_bytes = std::max(found.peak_bytes, schedule.peak_bytes);
    for (std::size_t i = found.order.size(); i < begin; ++i) found.order.push_back(id_of(i));
    for (InstructionId id : schedule.order) found.order.push_back(id_of(id.index() + begin));
  }
  for (std::size_t i = found.order.size(); i < op_costs_.size(); ++i) found.order.push_back(id_of(i));
  return found;
}

}  // namespace lancet::schedule
