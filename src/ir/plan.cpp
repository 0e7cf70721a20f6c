// Prints, parses and verifies plans. A plan is sound if
// - its program is, and each wait is for an earlier instruction, which rules out cycles;
// - every dependency (dependencies.h) is implied by stream order and waits;
// - exactly the used values and views that own memory have an arena offset, and all of them end within the arena;
// - two blocks that share bytes are never live together: when the first access to one starts, all accesses to the other
//   have ended (dependencies.h: Life). Outputs are read after the step, so nothing may follow them in their bytes.
#include "lancet/ir/plan.h"

#include <fmt/format.h>
#include <algorithm>

#include "lancet/base/files.h"
#include "lancet/ir/dependencies.h"
#include "text.h"

namespace lancet::ir {
namespace {

// "[12] ...instruction... | wait 3 7 | at 0 4096 | ms 0.125 0.5". After "at" come the arena offsets of the results, or
// "-" for a result that is stored in another tensor's memory.
std::string print_line(const Plan& plan, std::size_t index) {
  const Instruction& instruction = plan.program.instructions[index];
  std::string text = fmt::format("[{}] {}", index, print(plan.program, instruction));
  if (!plan.waits[index].empty()) {
    text += " | wait";
    for (InstructionId id : plan.waits[index]) text += fmt::format(" {}", id.value);
  }
  if (!instruction.results.empty()) {
    text += " | at";
    for (TensorId id : instruction.results) {
      const std::int64_t offset = plan.offsets[id.index()];
      text += offset < 0 ? " -" : fmt::format(" {}", offset);
    }
  }
  if (const Interval& when = plan.predicted[index]; when.end > 0)
    text += fmt::format(" | ms {} {}", print_real(when.start), print_real(when.end));
  return text;
}

Status parse_waits(LineReader& line, Plan& plan) {
  while (!line.done() && !line.rest().starts_with("|")) {
    const LineReader before = line;
    LANCET_ASSIGN(const std::int64_t wait, line.integer());
    if (wait < 0 || wait + 1 >= std::int64_t(plan.waits.size()))
      return before.error("the number of an earlier instruction");
    plan.waits.back().push_back({static_cast<std::int32_t>(wait)});
  }
  return {};
}

std::string print_view(const Plan& plan, const ViewPrinter& views, TensorId view) {
  const std::int64_t offset = plan.offsets[view.index()];
  return views.line(view) + (offset < 0 ? "" : fmt::format(" | at {}", offset));
}

Status parse_view(LineReader& line, TensorId view, Plan& plan) {
  plan.offsets.resize(view.index() + 1, -1);
  if (!line.accept("|")) return {};
  LANCET_TRY(line.expect("at "));
  LANCET_ASSIGN(plan.offsets[view.index()], line.offset());
  return {};
}

Status parse_offsets(LineReader& line, const Program& program, Plan& plan) {
  for (TensorId id : program.instructions.back().results) {
    const LineReader before = line;
    if (line.word() == "-") continue;
    line = before;
    LANCET_ASSIGN(plan.offsets[id.index()], line.offset());
  }
  return {};
}

Status parse_instruction(LineReader& line, ProgramParser& parser, Plan& plan) {
  LANCET_TRY(line.expect("["));
  LANCET_ASSIGN(const std::int64_t index, line.integer());
  if (index != std::int64_t(plan.waits.size())) return line.error(fmt::format("instruction [{}]", plan.waits.size()));
  LANCET_TRY(line.expect("]"));
  LANCET_TRY(parser.instruction(line));
  plan.waits.emplace_back();
  plan.predicted.emplace_back();
  plan.offsets.resize(parser.program().tensors.size(), -1);
  while (line.accept("|")) {
    if (line.accept("wait ")) {
      LANCET_TRY(parse_waits(line, plan));
    } else if (line.accept("at ")) {
      LANCET_TRY(parse_offsets(line, parser.program(), plan));
    } else {
      LANCET_TRY(line.expect("ms "));
      LANCET_ASSIGN(plan.predicted.back().start, line.real());
      LANCET_ASSIGN(plan.predicted.back().end, line.real());
    }
  }
  return {};
}

Status verify_shape(const Plan& plan) {
  const std::size_t n = plan.program.instructions.size();
  if (plan.waits.size() != n || plan.predicted.size() != n || plan.offsets.size() != plan.program.tensors.size())
    return internal_error("the plan's tables do not fit its program");
  for (std::size_t i = 0; i < n; ++i)
    for (InstructionId wait : plan.waits[i])
      if (!wait.valid() || wait.index() >= i)
        return internal_error(
            fmt::format("instruction [{}] waits for [{}], which does not come before it", i, wait.value));
  return {};
}

Status verify_order(const Plan& plan, const HappensBefore& order) {
  const auto needed = dependencies(plan.program);
  for (std::size_t i = 0; i < needed.size(); ++i)
    for (InstructionId before : needed[i])
      if (!order.ordered(before, {static_cast<std::int32_t>(i)}))
        return internal_error(fmt::format("nothing makes instruction [{}] wait for [{}], whose memory it uses: {}", i,
                                          before.value, print(plan.program, plan.program.instructions[i])));
  return {};
}

struct Block {
  TensorId tensor;
  std::int64_t begin, end;  // bytes of the arena
  InstructionId made;
  std::vector<Life> lives;
};

Status verify_arena(const Plan& plan, const HappensBefore& order) {
  const auto touched = accesses(plan.program);
  const std::vector<bool> crosses = crossing_memory(plan.program);
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < plan.program.tensors.size(); ++i) {
    const TensorId id{static_cast<std::int32_t>(i)};
    const Tensor& tensor = plan.program[id];
    const bool owns = tensor.number >= 0 && !tensor.storage.valid() && !touched[i].empty();
    if (owns != (plan.offsets[i] >= 0))
      return internal_error(
          fmt::format("{} {} an offset in the arena", plan.program.display(id), owns ? "lacks" : "must not have"));
    if (!owns) continue;
    Block block{id, plan.offsets[i], plan.offsets[i] + bytes(tensor.type), touched[i].front(),
                lives_of(plan.program, order, touched[i], crosses[i])};
    if (block.end > plan.arena_bytes)
      return internal_error(
          fmt::format("{} ends at byte {} of an arena of {}", plan.program.display(id), block.end, plan.arena_bytes));
    blocks.push_back(std::move(block));
  }
  for (const Output& output : plan.program.outputs)  // read after the step: live to the end
    for (Block& block : blocks)
      if (block.tensor == plan.program.root(output.tensor)) std::ranges::for_each(block.lives, &Life::end_never);
  std::sort(blocks.begin(), blocks.end(), [](const Block& a, const Block& b) { return a.begin < b.begin; });
  for (std::size_t i = 0; i < blocks.size(); ++i)
    for (std::size_t j = i + 1; j < blocks.size() && blocks[j].begin < blocks[i].end; ++j)
      if (!are_apart(blocks[i].lives, blocks[j].lives))
        return internal_error(fmt::format("{} and {} share bytes of the arena, and nothing orders [{}] against [{}]",
                                          plan.program.display(blocks[i].tensor),
                                          plan.program.display(blocks[j].tensor), blocks[i].made.value,
                                          blocks[j].made.value));
  return {};
}

}  // namespace

std::string print(const Plan& plan) {
  std::string text =
      "plan " + print(plan.header) + fmt::format("\narena {}\n", plan.arena_bytes) + print_header(plan.program);
  ViewPrinter views(plan.program);
  for (std::size_t i = 0; i < plan.program.instructions.size(); ++i) {
    for (TensorId view : views.before(plan.program.instructions[i])) text += print_view(plan, views, view) + "\n";
    text += print_line(plan, i) + "\n" + print_body(plan.program, plan.program.instructions[i]);
  }
  for (TensorId view : views.before_outputs()) text += print_view(plan, views, view) + "\n";
  return text + print_outputs(plan.program);
}

Result<Plan> parse_plan(std::string_view text) {
  Plan plan;
  ProgramParser parser;
  LANCET_TRY(for_each_line(text, [&](LineReader& line) -> Status {
    if (line.accept("plan ")) {
      LANCET_ASSIGN(plan.header, line.attributes());
    } else if (line.accept("arena ")) {
      const LineReader before = line;
      LANCET_ASSIGN(plan.arena_bytes, line.integer());
      if (plan.arena_bytes < 0) return before.error("a size of at least 0");
    } else if (line.rest().starts_with("view ")) {
      LANCET_ASSIGN(const TensorId view, parser.view(line));
      LANCET_TRY(parse_view(line, view, plan));
    } else {
      LANCET_ASSIGN(const bool in_body, parser.body(line));
      LANCET_ASSIGN(const bool declared, in_body ? Result<bool>(true) : parser.declaration(line));
      if (!declared) LANCET_TRY(parse_instruction(line, parser, plan));
    }
    if (!line.done()) return line.error("the end of the line");
    return {};
  }));
  plan.program = parser.take();
  plan.offsets.resize(plan.program.tensors.size(), -1);
  return plan;
}

Status verify(const Plan& plan) {
  LANCET_TRY(verify_shape(plan));
  LANCET_TRY(verify(plan.program));
  const HappensBefore order(plan.program, plan.waits);
  LANCET_TRY(verify_order(plan, order));
  return verify_arena(plan, order);
}

std::filesystem::path stage_path(const std::filesystem::path& path, std::size_t stage) {
  if (stage == 0) return path;
  return path.parent_path() / fmt::format("{}.stage{}{}", path.stem().string(), stage, path.extension().string());
}

Status write_later_stages(const std::filesystem::path& path, std::span<const Plan> stages) {
  for (std::size_t stage = 1; stage < stages.size(); ++stage)
    LANCET_TRY(write_file(stage_path(path, stage), print(stages[stage])));
  return {};
}

}  // namespace lancet::ir
