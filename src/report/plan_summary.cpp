#include "plan_summary.h"

#include <fmt/format.h>
#include <algorithm>

#include "lancet/base/files.h"
#include "lancet/base/json.h"

namespace lancet::report {
namespace {

constexpr std::size_t most_named = 8;

// Returns nothing for a value of another type: the file may hold any.
template <class T>
std::optional<T> header_value(const ir::Attributes& header, std::string_view name) {
  for (const auto& [key, value] : header.items())
    if (key == name)
      if (const T* found = std::get_if<T>(&value)) return *found;
  return {};
}

// The first and the last instruction that touch a tensor. first > last: none does.
struct Life {
  std::size_t first = SIZE_MAX, last = 0;
};

std::vector<Life> lives(const ir::Program& program) {
  std::vector<Life> lives(program.tensors.size());
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& instruction = program.instructions[i];
    for (const auto* ids : {&instruction.operands, &instruction.results})
      for (const ir::TensorId id : *ids) {
        Life& life = lives[program.root(id).index()];
        life.first = std::min(life.first, i);
        life.last = std::max(life.last, i);
      }
  }
  for (const ir::Output& output : program.outputs)  // read after the last instruction
    lives[program.root(output.tensor).index()].last = program.instructions.size() - 1;
  return lives;
}

std::string maker_of(const ir::Program& program, const Life& life) {
  const ir::Instruction& maker = program.instructions[life.first];
  return fmt::format("{} {} {}", maker.op, ir::name(maker.role), maker.label);
}

void summarize_arena(const ir::Plan& plan, PlanSummary& summary) {
  const ir::Program& program = plan.program;
  const std::vector<Life> all = lives(program);
  std::vector<double> change(program.instructions.size() + 1);
  std::vector<std::size_t> order;
  for (std::size_t t = 0; t < all.size(); ++t) {
    const ir::Tensor& tensor = program.tensors[t];
    if (plan.offsets[t] < 0 || tensor.storage.valid() || all[t].first > all[t].last) continue;
    const double bytes = double(ir::bytes(tensor.type));
    change[all[t].first] += bytes;
    change[all[t].last + 1] -= bytes;
    order.push_back(t);
  }
  double live = 0;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) summary.live.push_back(live += change[i]);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return ir::bytes(program.tensors[a].type) > ir::bytes(program.tensors[b].type);
  });
  order.resize(std::min(order.size(), most_named));
  for (const std::size_t t : order)
    summary.largest.push_back({program.display({static_cast<std::int32_t>(t)}), ir::to_string(program.tensors[t].type),
                               maker_of(program, all[t]), double(ir::bytes(program.tensors[t].type))});
}

}  // namespace

Result<PlanSummary> read_plan_summary(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string text, read_file(path, "a plan"));
  auto parsed = ir::parse_plan(text);
  if (!parsed.ok()) return data_error(fmt::format("{}: {}", path.string(), parsed.error().message));
  const ir::Plan& plan = *parsed;
  if (const Status sound = ir::verify(plan); !sound.ok())
    return data_error(fmt::format("{}: {}", path.string(), sound.error().message));
  if (plan.program.instructions.empty())
    return data_error(fmt::format("{}: expected a plan, found no instruction", path.string()));
  PlanSummary summary;
  summary.policy = header_value<std::string>(plan.header, "policy").value_or("");
  summary.ranks = header_value<std::int64_t>(plan.header, "ranks").value_or(0);
  summary.predicted_ms = header_value<double>(plan.header, "predicted_ms");
  summary.exposed_ms = header_value<double>(plan.header, "exposed_ms");
  summary.instructions = plan.program.instructions.size();
  for (const ir::Tensor& tensor : plan.program.tensors) {
    if (tensor.kind == ir::TensorKind::parameter) summary.parameters += double(ir::bytes(tensor.type));
    if (tensor.kind == ir::TensorKind::state) summary.state += double(ir::bytes(tensor.type));
  }
  summary.arena = double(plan.arena_bytes);
  summarize_arena(plan, summary);
  summary.plan = std::move(*parsed);
  return summary;
}

namespace {

using nlohmann::json;

void flatten(const json& value, const std::string& path, std::map<std::string, std::string>& fields) {
  if (!value.is_object() || value.empty()) {
    fields[path] = json_text(value);
    return;
  }
  for (const auto& [key, inner] : value.items()) flatten(inner, path.empty() ? key : path + "." + key, fields);
}

}  // namespace

Result<std::map<std::string, std::string>> read_config(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string text, read_file(path, "a run's config"));
  LANCET_ASSIGN(const json root, parse_json(text, path.string(), ExitCode::data, JsonComments::ignored));
  if (!root.is_object())
    return data_error(fmt::format("{}: expected a JSON object, found {}", path.string(), root.type_name()));
  std::map<std::string, std::string> fields;
  flatten(root, "", fields);
  return fields;
}

}  // namespace lancet::report
