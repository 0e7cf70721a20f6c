#include "run_files.h"

#include <fmt/format.h>
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "lancet/base/files.h"
#include "lancet/base/json.h"

namespace lancet::report {
namespace {

using nlohmann::json;

constexpr std::int64_t most_steps = 1'000'000'000'000;
constexpr std::size_t most_line = 64 << 20;  // bytes; a thousand times the record of a model with many experts

// Reads a file line by line; a line without an end is cut at most_line, so that it does not fill the memory.
class Lines {
 public:
  explicit Lines(std::istream& in) : in_(in), block_(1 << 18, '\0') {}
  bool next(std::string& line) {
    line.clear();
    ended_ = false;
    while (at_ < filled_ || fill()) {
      const std::string_view left(block_.data() + at_, filled_ - at_);
      const std::size_t end = left.find('\n');
      line += left.substr(0, end);
      at_ += std::min(left.size(), end == left.npos ? end : end + 1);
      ended_ = end != left.npos;
      if (ended_ || line.size() > most_line) return true;
    }
    return !line.empty();
  }
  bool ended() const { return ended_; }  // by a '\n'; a line that a run is writing, or that a full disk cut, has none

 private:
  bool fill() {
    in_.read(block_.data(), std::streamsize(block_.size()));
    at_ = 0, filled_ = static_cast<std::size_t>(in_.gcount());
    return filled_ > 0;
  }
  std::istream& in_;
  std::string block_;
  std::size_t at_ = 0, filled_ = 0;
  bool ended_ = false;
};

class MetricsReader {
 public:
  // Returns what is wrong with the line, or an empty text for a record.
  std::string add(const std::string& line) {
    const json record = json_of(line);
    if (!record.is_object()) return "expected a JSON object, found none";
    const auto step = record.find("step");
    if (step == record.end() || !step->is_number_integer() || *step < 1 || *step > most_steps)
      return "expected \"step\", a whole number from 1 on";
    std::array<double, series_keys.size()> values;
    bool finite = true;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const auto value = record.find(series_keys[i]);
      const bool none = value == record.end() || value->is_null();
      if (!none && !value->is_number()) return fmt::format("expected \"{}\" to be a number or null", series_keys[i]);
      finite = finite && (value == record.end() || !value->is_null() || !is_steady(series_keys[i]));
      values[i] = none ? std::numeric_limits<double>::quiet_NaN() : value->get<double>();
    }
    std::vector<float> load;
    const auto counts = record.find("layer_expert_tokens");
    if (counts != record.end() && !read_load(*counts, load))
      return "expected \"layer_expert_tokens\" to hold, for each layer, the tokens of each expert, as in earlier lines";
    std::array<std::vector<double>, layer_keys.size()> layers;
    for (std::size_t i = 0; i < layer_keys.size(); ++i)
      if (const auto given = record.find(layer_keys[i]); given != record.end() && !read_layers(*given, layers[i]))
        return fmt::format("expected \"{}\" to hold a number or null for each layer", layer_keys[i]);
    if (record.contains("held_out_loss") && !record.contains("loss")) return add_held_out(*step, values);
    go_back(step->get<std::int64_t>());
    metrics.steps.push_back(step->get<std::int64_t>());
    metrics.finite.push_back(finite);
    for (std::size_t i = 0; i < values.size(); ++i) metrics.series[i].push_back(values[i]);
    if (!load.empty()) add_column(std::move(load));
    metrics.layers = std::move(layers);
    return {};
  }

  void skip(std::int64_t line, const std::string& wrong) {
    if (metrics.broken.count++ == 0) metrics.broken.first = fmt::format("line {}: {}", line, wrong);
  }
  Metrics metrics;

 private:
  // A step whose record could not be written, because the disk was full, has no row to add to.
  std::string add_held_out(std::int64_t step, const std::array<double, series_keys.size()>& values) {
    if (metrics.steps.empty() || metrics.steps.back() != step) return {};
    constexpr std::size_t held_out = series_index("held_out_loss");
    metrics.series[held_out].back() = values[held_out];
    return {};
  }

  bool read_load(const json& layers, std::vector<float>& load) {
    if (!layers.is_array()) return false;
    std::vector<std::size_t> experts;
    for (const json& layer : layers) {
      if (!layer.is_array() || layer.empty()) return false;
      for (const json& tokens : layer) {
        if (!tokens.is_number()) return false;
        load.push_back(tokens.get<float>());
        if (!(load.back() >= 0) || !std::isfinite(load.back())) return false;
      }
      experts.push_back(layer.size());
    }
    if (experts.empty()) return true;
    if (metrics.experts.empty()) metrics.experts = experts;
    return metrics.experts == experts;
  }

  static bool read_layers(const json& numbers, std::vector<double>& values) {
    if (!numbers.is_array()) return false;
    for (const json& number : numbers) {
      if (!number.is_number() && !number.is_null()) return false;
      values.push_back(number.is_null() ? std::numeric_limits<double>::quiet_NaN() : number.get<double>());
    }
    return true;
  }

  void go_back(std::int64_t step) {
    while (!metrics.steps.empty() && metrics.steps.back() >= step) {
      metrics.steps.pop_back();
      metrics.finite.pop_back();
      for (auto& values : metrics.series) values.pop_back();
    }
    while (!metrics.load.empty() && metrics.load.back().from >= step) metrics.load.pop_back();
    if (!metrics.load.empty()) metrics.load.back().to = std::min(metrics.load.back().to, step - 1);
  }

  void add_column(std::vector<float> load) {
    const std::size_t most = std::clamp<std::size_t>(most_cells / load.size() & ~1u, 8, most_columns);
    const std::int64_t step = metrics.steps.back();
    auto& columns = metrics.load;
    if (!columns.empty() && filled_ < records_each_) {
      for (std::size_t i = 0; i < load.size(); ++i) columns.back().load[i] += load[i];
      columns.back().to = step;
      ++filled_;
      return;
    }
    if (columns.size() == most) halve();
    columns.push_back({step, step, std::move(load)});
    filled_ = 1;
  }

  // Adds up neighbouring columns, so that the map covers twice as many records.
  void halve() {
    auto& columns = metrics.load;
    std::size_t kept = 0;
    for (std::size_t i = 0; i + 1 < columns.size(); i += 2, ++kept) {
      for (std::size_t e = 0; e < columns[i].load.size(); ++e) columns[i].load[e] += columns[i + 1].load[e];
      columns[i].to = columns[i + 1].to;
      if (kept != i) columns[kept] = std::move(columns[i]);
    }
    columns.resize(kept);
    records_each_ *= 2;
  }

  std::size_t records_each_ = 1, filled_ = 0;  // records in a column, and in the last one
};

void flatten(const json& value, const std::string& path, std::map<std::string, std::string>& fields) {
  if (!value.is_object() || value.empty()) {
    fields[path] = json_text(value);
    return;
  }
  for (const auto& [key, inner] : value.items()) flatten(inner, path.empty() ? key : path + "." + key, fields);
}

}  // namespace

Result<Metrics> read_metrics(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    return data_error(fmt::format("cannot read {}: no such file", path.string()));
  std::ifstream in(path, std::ios::binary);
  MetricsReader reader;
  Lines lines(in);
  std::string line;
  bool endless = false;
  for (std::int64_t number = 1; !endless && lines.next(line); ++number) {
    endless = line.size() > most_line;
    const std::string wrong =
        endless ? fmt::format("expected a record of at most {} MB, found more; the lines after it are skipped, too",
                              most_line >> 20)
                : reader.add(line);
    if (wrong.empty()) continue;
    if (lines.ended() || endless)
      reader.skip(number, wrong);
    else
      reader.metrics.cut_short = true;
  }
  if (in.bad() || (!in.eof() && !endless)) return data_error(fmt::format("cannot read {}", path.string()));
  if (reader.metrics.steps.empty())
    return data_error(fmt::format("{}: expected records of steps, found none{}{}", path.string(),
                                  reader.metrics.broken.count > 0 ? "; " : "", reader.metrics.broken.first));
  return std::move(reader.metrics);
}

Progress progress(const Metrics& metrics) {
  const std::vector<double>& step_ms = metrics.series[series_index("step_ms")];
  const std::vector<double>& tokens_per_s = metrics.series[series_index("tokens_per_s")];
  Progress progress;
  double tokens = 0, seconds = 0;
  std::int64_t before = 0;
  for (std::size_t r = 0; r < metrics.steps.size(); ++r) {
    const double step_s = step_ms[r] / 1000, steps = double(metrics.steps[r] - before);
    if (std::isfinite(step_s * tokens_per_s[r])) {
      seconds += steps * step_s;
      tokens += steps * std::round(tokens_per_s[r] * step_s);
    }
    before = metrics.steps[r];
    progress.seconds.push_back(seconds);
    progress.tokens.push_back(tokens);
  }
  return tokens > 0 ? progress : Progress{};
}

Points thin(std::span<const double> values, std::size_t width, bool steady) {
  constexpr double nothing = std::numeric_limits<double>::quiet_NaN();
  Points points;
  for (std::size_t at = 0; at < values.size(); at += width) {
    double sum = 0, low = nothing, high = nothing;
    std::size_t count = 0;
    const auto neighbours = values.subspan(at, std::min(width, values.size() - at));
    for (const double value : neighbours) {
      if (!std::isfinite(value)) continue;
      sum += value;
      low = std::fmin(low, value);  // the number, where the other is NaN
      high = std::fmax(high, value);
      ++count;
    }
    const bool gap = count == 0 || (steady && count < neighbours.size());
    points.mean.push_back(gap ? nothing : sum / double(count));
    points.low.push_back(gap ? nothing : low);
    points.high.push_back(gap ? nothing : high);
  }
  return points;
}

Result<Memory> read_memory(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string text, read_file(path, "a run's memory plan"));
  const json root = json_of(text);
  if (!root.is_object()) return data_error(fmt::format("{}: expected a JSON object, found none", path.string()));
  Memory memory;
  for (std::size_t i = 0; i < memory_parts.size(); ++i) {
    const auto value = root.find(memory_parts[i]);
    if (value == root.end()) continue;
    if (!value->is_number() || *value < 0)
      return data_error(fmt::format("{}: expected \"{}\" to be a number of bytes, found another value", path.string(),
                                    memory_parts[i]));
    memory.bytes[i] = value->get<double>();
  }
  return memory;
}

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
