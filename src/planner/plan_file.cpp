// A plan file may have been edited by hand, so nothing in it is trusted. It is compared with the sequential plan that
// this build makes of the config: the header names the same model, optimizer, ranks and build; the Program passes the
// checks of ops (shapes, types) and of plans (order, streams, memory); offsets are aligned; predictions are times; and
// it has the same named tensors, updates, outputs and instructions, whether they are of this step or of the step
// before, and sums as many gradients; besides, it may recompute values of the forward pass. Which tensors an
// instruction reads is the editor's responsibility. With several ranks, all must read the same text.
#include "lancet/planner/from_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "lancet/base/files.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"
#include "lancet/ops/peer_parts.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/schedule_report.h"

namespace lancet::planner {
namespace {

// `missing`: of a header without that field.
std::string header_text(const ir::Plan& plan, std::string_view name, std::string missing = "none") {
  for (const auto& [key, value] : plan.header.items())
    if (key == name) {
      if (const auto* text = std::get_if<std::string>(&value)) return *text;
      if (const auto* integer = std::get_if<std::int64_t>(&value)) return std::to_string(*integer);
      return fmt::format("{}", std::get<double>(value));
    }
  return missing;
}

constexpr double most_ms = 1e9;

// Reports draw and compare predictions, so they must be times.
Status check_predictions(const ir::Plan& plan) {
  for (std::size_t i = 0; i < plan.predicted.size(); ++i) {
    const auto& [start, end] = plan.predicted[i];
    if (!(start >= 0 && start <= end && end <= most_ms))
      return config_error(
          fmt::format("instruction [{}]: expected predicted times from 0 on, found ms {} {}", i, start, end));
  }
  return {};
}

// Kernels need aligned tensors, and an all-reduce sends neighbouring tensors in one call. The arena ends
// where its last tensor does.
Status check_arena(const ir::Plan& plan) {
  constexpr std::int64_t alignment = 64;
  std::int64_t end = 0;
  for (std::size_t i = 0; i < plan.offsets.size(); ++i) {
    const ir::TensorId id{static_cast<std::int32_t>(i)};
    if (plan.offsets[i] > 0 && plan.offsets[i] % alignment != 0)
      return config_error(fmt::format("{}: expected an offset that is a multiple of {} bytes, found {}",
                                      plan.program.display(id), alignment, plan.offsets[i]));
    if (plan.offsets[i] >= 0) end = std::max(end, plan.offsets[i] + ir::bytes(plan.program.type(id)));
  }
  if (plan.arena_bytes - end >= alignment)
    return config_error(fmt::format("arena: expected {} bytes, found {}", end, plan.arena_bytes));
  return {};
}

// What the costs of an instruction read of its attributes.
Status check_work(const ir::Program& program, std::span<const ir::Instruction> instructions) {
  for (const ir::Instruction& at : instructions) {
    LANCET_TRY(check_work(program, at.body));
    try {
      if (at.body.empty()) ops::work(program, at);
    } catch (const InternalError& error) {
      const std::string what = error.what();
      return config_error(fmt::format("{}, in: {}", what.substr(0, what.find(" (")), ir::print(program, at)));
    }
  }
  return {};
}

// The op, its place in the model, and the attributes that all its parts share. A step of a ring counts as the
// collective that the ring takes the place of.
std::string description_of(const ir::Instruction& at) {
  ir::Instruction whole = at;
  whole.op = ops::collective_of(at);
  std::string line =
      fmt::format("{} at {} ({})", whole.op, ir::of_micro_batch(schedule::site_of(at), std::max(at.micro_batch, 0)),
                  ir::name(at.role));
  for (const auto& [name, value] : at.attributes.items())
    if (!ops::is_divided(whole, name) && std::ranges::count(ops::part_attributes, name) == 0 &&
        std::ranges::count(ops::tile_attributes, name) == 0 && name != ops::ring_of && name != ops::ring_shift)
      std::visit([&, &name = name](const auto& v) { line += fmt::format(" {}={}", name, v); }, value);
  return line;
}

// A line for each named tensor, output, update and instruction, parts counting as one. Left out are what a schedule
// adds or cuts differently: helpers of parts, and all-reduces.
std::set<std::string> content_of(const ir::Program& program) {
  std::set<std::string> lines;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.number < 0 && ir::parse_micro_batch(tensor.name).micro_batch != ir::step_before)
      lines.insert(ir::print(tensor));
  for (const ir::Output& output : program.outputs)
    lines.insert(fmt::format("output {} : {}", output.name, ir::to_string(program.type(output.tensor))));
  for (const ir::Instruction& at : program.instructions) {
    for (ir::TensorId id : at.writes)
      if (const ir::Tensor& tensor = program[program.root(id)]; tensor.number < 0)
        lines.insert(fmt::format("update of @{}", tensor.name));
    if (ops::kind(at) != ops::Kind::part_helper && at.stream != ir::Stream::reduce) lines.insert(description_of(at));
  }
  return lines;
}

std::int64_t reduced_bytes(const ir::Program& program) {
  double bytes = 0;  // whole numbers
  for (const ir::Instruction& at : program.instructions)
    if (at.stream == ir::Stream::reduce) bytes += cost::bytes_sent(program, at);
  return std::int64_t(bytes);
}

// What the backward pass of a step may recompute: the lines of these instructions, by micro batch.
std::set<std::string> repeatable_content(const ir::Program& step) {
  std::set<std::string> lines;
  for (ir::Instruction at : step.instructions) {
    const auto& again = ops::op(at.op).again;
    if (!again || at.role != ir::Role::forward) continue;
    if (!again->op.empty()) at.op = again->op;
    at.role = ir::Role::recompute;
    lines.insert(description_of(at));
  }
  return lines;
}

// The parts of an instruction, and the helpers that split or join them, say of how many they are: each number of them
// is there equally often, which is once, or once for each window of a ring. The steps of a ring are all but one.
Status check_parts(const ir::Program& program) {
  struct Parts {
    std::int64_t count = 0;
    std::map<std::int64_t, int> found = {};
  };
  std::map<std::string, Parts> parts;
  for (const ir::Instruction& at : program.instructions) {
    if (!at.attributes.has("parts") || ops::is_ring_step(at)) continue;
    const std::string line = description_of(at);
    const std::int64_t count = at.attributes.integer("parts"), part = at.attributes.integer("part", -1);
    Parts& of = parts.emplace(line, Parts{count}).first->second;
    if (count != of.count || part < 0 || part >= count)
      return config_error(
          fmt::format("\"{}\": expected one of {} parts, found part {} of {}", line, of.count, part, count));
    ++of.found[part];
  }
  for (const auto& [line, of] : parts)
    for (std::int64_t part = 0; part < of.count; ++part)
      if (const auto it = of.found.find(part); it == of.found.end() || it->second != of.found.begin()->second)
        return config_error(fmt::format("\"{}\": expected part {} of {} as often as the others", line, part, of.count));
  return {};
}

Status same_content(const ir::Program& found, const ir::Program& expected) {
  const auto theirs = content_of(found), mine = content_of(expected), repeatable = repeatable_content(expected);
  for (const std::string& line : mine)
    if (!theirs.contains(line)) return config_error(fmt::format("expected the model's \"{}\", found none", line));
  for (const std::string& line : theirs)
    if (!mine.contains(line) && !repeatable.contains(line))
      return config_error(fmt::format("expected what the model has, found \"{}\"", line));
  if (const auto bytes = reduced_bytes(found); bytes != reduced_bytes(expected))
    return config_error(
        fmt::format("expected all-reduces of {} bytes in all, found {}", reduced_bytes(expected), bytes));
  return check_parts(found);
}

// Of another model's step, the first named tensor or instruction that differs.
std::string first_difference(const ir::Program& found, const ir::Program& expected) {
  for (const ir::Tensor& mine : expected.tensors) {
    if (mine.number >= 0) continue;
    const auto theirs = std::ranges::find(found.tensors, mine.name, &ir::Tensor::name);
    if (theirs == found.tensors.end()) return fmt::format("expected {}, found none", ir::print(mine));
    if (theirs->type != mine.type) return fmt::format("expected {}, found {}", ir::print(mine), ir::print(*theirs));
  }
  const Status content = ops::verify(found).ok() ? same_content(found, expected) : Status();
  return content.ok() ? "" : content.error().message;
}

constexpr std::pair<const char*, const char*> header_fields[] = {
    {"ranks", "a plan whose number of ranks is"},  // first, since the model's hash differs with the ranks, too
    {"mesh", "a plan of the mesh"},
    {"model", "a plan of the model with the hash"},
    {"optimizer", "a plan with the optimizer"},
    {"build", "a plan made by the build"},
};

Status same_header(const ir::Plan& found, const ir::Plan& expected) {
  const std::string default_mesh = ir::to_string(ir::of_experts(int(expected.header.integer("ranks"))));
  for (const auto& [name, what] : header_fields) {
    const std::string missing = name == std::string_view("mesh") ? default_mesh : "none";
    const std::string mine = header_text(expected, name, missing), theirs = header_text(found, name, missing);
    if (mine == theirs) continue;
    const std::string which =
        name == std::string_view("model") ? first_difference(found.program, expected.program) : "";
    return config_error(fmt::format("header: {}: expected {} {}, found {}{}{}", name, what, mine, theirs,
                                    which.empty() ? "" : ": ", which));
  }
  for (const char* name : {"predicted_ms", "exposed_ms"})
    for (const auto& [key, value] : found.header.items()) {
      const auto* number = std::get_if<double>(&value);
      if (key == name && !(number && *number >= 0 && *number <= most_ms))
        return config_error(
            fmt::format("header: {}: expected a time from 0 on, found {}", key, header_text(found, name)));
    }
  if (const Status known = check_policy(header_text(found, "policy")); !known.ok())
    return config_error("header: " + known.error().message);
  return {};
}

// ir::verify() has checked that what is of the step before closes a step.
Status check_border(const ir::Program& program, const config::Overlap& overlap) {
  const std::vector<bool> may_cross = schedule::may_cross_steps(program);
  for (std::size_t i = 0; i < may_cross.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    if (!ir::of_step_before(at) || (overlap.across_steps && may_cross[i])) continue;
    return config_error(fmt::format(
        "instruction [{}]: expected none of the step before, since {}, found {}", i,
        overlap.across_steps ? "updates wait for a norm that is made of it" : "overlap.across_steps is false",
        ir::print(program, at)));
  }
  return {};
}

Status check_limit(const ir::Plan& plan, std::int64_t limit_mb) {
  constexpr std::int64_t mb = 1'000'000;
  const std::int64_t bytes = schedule::plan_bytes(plan);
  if (limit_mb == 0 || bytes <= limit_mb * mb) return {};
  return config_error(fmt::format("expected a plan within train.memory_limit_mb, {} MB a rank, found one of {} MB",
                                  limit_mb, (bytes + mb - 1) / mb));
}

Result<ir::Plan> checked_plan(std::string_view text, StepModel model) {
  LANCET_ASSIGN(ir::Plan plan, ir::parse_plan(text));
  const std::int64_t limit_mb = std::exchange(model.config.train.memory_limit_mb, 0);
  model.config.overlap.policy = "sequential";
  LANCET_ASSIGN(const ir::Plan expected, plan_step(model, {}));
  LANCET_TRY(same_header(plan, expected));
  LANCET_TRY(ops::verify(plan.program));
  LANCET_TRY(ir::verify(plan));
  LANCET_TRY(check_arena(plan));
  LANCET_TRY(check_work(plan.program, plan.program.instructions));
  LANCET_TRY(check_predictions(plan));
  LANCET_TRY(check_limit(plan, limit_mb));
  LANCET_TRY(check_border(plan.program, model.config.overlap));
  LANCET_TRY(same_content(plan.program, expected.program));
  return plan;
}

// All errors in a plan file that a user names are config errors.
Error in_file(const std::filesystem::path& path, const Error& error) {
  return config_error(fmt::format("plan {}: {}", path.string(), error.message));
}

// A plan's text is some 250 bytes an instruction.
constexpr std::uintmax_t most_bytes = 256 << 20;

Result<std::string> read_text(const std::filesystem::path& path) {
  std::error_code unknown;
  if (const auto bytes = std::filesystem::file_size(path, unknown); !unknown && bytes > most_bytes)
    return config_error(fmt::format("plan {}: expected a plan of at most {} MB, found {} MB", path.string(),
                                    most_bytes >> 20, bytes >> 20));
  auto text = read_file(path, "a plan, as lancet plan --out writes it");
  if (!text.ok()) return config_error("plan " + text.error().message);
  if (text->starts_with("\xef\xbb\xbf")) text->erase(0, 3);  // an editor's mark of UTF-8
  const auto odd = std::ranges::find_if(*text, [](unsigned char byte) { return byte >= 0x80 || byte == 0; });
  if (odd != text->end())
    return config_error(fmt::format("plan {}: expected a plan's text, found byte 0x{:02x} at byte {}", path.string(),
                                    static_cast<unsigned char>(*odd), odd - text->begin()));
  return text;
}

Result<ir::Plan> plan_in(const std::filesystem::path& path, std::string_view text, const StepModel& model) {
  if (const std::int64_t stages = model.config.mesh.stage; stages > 1)
    return in_file(path, config_error(fmt::format("expected mesh.stage = 1 for a plan from a file, found {}", stages)));
  if (text.empty()) return in_file(path, config_error("expected a plan, found an empty file"));
  auto plan = checked_plan(text, model);
  if (!plan.ok()) return in_file(path, plan.error());
  return plan;
}

}  // namespace

Result<ir::Plan> read_plan(const std::filesystem::path& path, const StepModel& model) {
  LANCET_ASSIGN(const std::string text, read_text(path));
  return plan_in(path, text, model);
}

Result<ir::Plan> read_same_plan(const std::filesystem::path& path, const StepModel& model, comm::Communicator& world) {
  const Result<std::string> text = read_text(path);
  LANCET_TRY(comm::agree(world, text.ok() ? Status() : Status(text.error())));
  LANCET_ASSIGN(const std::string first, broadcast_text(world, *text, 0));
  const bool same = *text == first;
  LANCET_TRY(comm::agree(
      world, same ? Status()
                  : Status(config_error(fmt::format(
                        "plan {}: expected the same file on all ranks, found another than rank 0's", path.string())))));
  auto plan = plan_in(path, *text, model);
  LANCET_TRY(comm::agree(world, plan.ok() ? Status() : Status(plan.error())));
  return plan;
}

}  // namespace lancet::planner
