#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "assets.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/ir/plan.h"
#include "lancet/report/report.h"
#include "run_files.h"

namespace lancet::report {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct Run {
  std::string name;
  Metrics metrics;
  std::map<std::string, std::string> config;
  std::optional<PlanSummary> plan;
  std::optional<Memory> memory;
  std::optional<Timeline> timeline;
  std::vector<Communication> communications;
  std::vector<std::string> left_out;  // the reason for each file that is not shown
};

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

template <class Wanted, class T>
void store(Result<T> found, Wanted& wanted, std::vector<std::string>& left_out) {
  if (found.ok())
    wanted = std::move(found).value();
  else
    left_out.push_back(found.error().message);
}

// The plans of the pipeline stages; the first one is read already. A run without stages has one.
std::vector<ir::Plan> plans_of(const fs::path& folder, Run& run) {
  std::vector<ir::Plan> plans{run.plan->plan};
  const auto stages = run.config.find("mesh.stage");
  for (int stage = 1; stages != run.config.end() && stage < std::atoi(stages->second.c_str()); ++stage) {
    auto summary = read_plan_summary(ir::stage_path(folder / "plan.ir", std::size_t(stage)));
    if (!summary.ok()) {
      run.left_out.push_back(summary.error().message);
      break;
    }
    plans.push_back(std::move(summary->plan));
  }
  return plans;
}

// Without the plan that was traced, as after overlap.replan, what hides communication is known as predicted alone.
void read_communications(const fs::path& folder, Run& run) {
  if (!run.plan) return;
  const std::vector<ir::Plan> plans = plans_of(folder, run);
  for (std::size_t stage = 0; stage < plans.size(); ++stage) {
    std::vector<Communication> rows = communications(plans[stage]);
    if (run.timeline) {
      auto measured = communications(plans[stage], *run.timeline, int(stage));
      if (measured.ok())
        rows = std::move(*measured);
      else
        run.left_out.push_back(fmt::format("{}: {}", (folder / "trace.json").string(), measured.error().message));
    }
    for (Communication& row : rows) {
      if (plans.size() > 1) row.stage = int(stage);
      run.communications.push_back(std::move(row));
    }
  }
}

// Reads all of a run that can be shown. Data error: nothing can.
Result<Run> read_run(const fs::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored))
    return data_error(fmt::format("cannot read the run {}: {}", folder.string(),
                                  is_there(folder) ? "not a folder" : "no such folder"));
  Run run;
  const fs::path plain = fs::absolute(folder, ignored).lexically_normal();
  run.name = (plain.has_filename() ? plain : plain.parent_path()).filename().string();
  if (run.name.empty()) run.name = folder.string();  // "/"
  store(read_metrics(folder / "metrics.jsonl"), run.metrics, run.left_out);
  if (const Metrics::Broken& broken = run.metrics.broken; broken.count > 0)
    log::warn("{}: {} broken line(s) skipped; {}", (folder / "metrics.jsonl").string(), broken.count, broken.first);
  store(read_config(folder / "config.json"), run.config, run.left_out);
  store(read_plan_summary(folder / "plan.ir"), run.plan, run.left_out);
  if (is_there(folder / "memory.json"))  // not every run has one
    store(read_memory(folder / "memory.json"), run.memory, run.left_out);
  if (is_there(folder / "trace.json"))  // most runs have none
    store(read_timeline(folder / "trace.json"), run.timeline, run.left_out);
  read_communications(folder, run);
  if (run.timeline) shorten(*run.timeline);
  if (run.metrics.steps.empty() && run.config.empty() && !run.plan && !run.timeline)
    return data_error(
        fmt::format("{}: nothing in this folder can be shown: {}", folder.string(), run.left_out.front()));
  for (const std::string& reason : run.left_out) log::warn("left out: {}", reason);
  return run;
}

// Gives runs with the same name their paths as names, and runs with the same path a number.
void name_apart(std::vector<Run>& runs, std::span<const fs::path> folders) {
  const auto rename = [&](const auto& other) {
    std::map<std::string, int> count;
    for (const Run& run : runs) ++count[run.name];
    for (std::size_t i = 0; i < runs.size(); ++i)
      if (count[runs[i].name] > 1) runs[i].name = other(i);
  };
  rename([&](std::size_t i) { return folders[i].string(); });
  rename([&](std::size_t i) { return fmt::format("{} ({})", runs[i].name, i + 1); });
}

// Six digits suffice for a chart; null is a gap. Written as text, since a JSON tree of a million numbers is slower.
template <int digits = 6, class Values>
std::string numbers(const Values& values) {
  std::string text = "[";
  for (const auto value : values) {
    if (text.size() > 1) text += ',';
    if (std::isfinite(double(value)))
      text += fmt::format("{:.{}g}", double(value), digits);
    else
      text += "null";
  }
  return text + "]";
}
std::string whole(std::span<const std::int64_t> values) {
  std::string text = "[";
  for (const auto value : values) text += (text.size() > 1 ? "," : "") + std::to_string(value);
  return text + "]";
}
std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }
std::string number(const std::optional<double>& value) { return value ? number(*value) : "null"; }

std::string quoted(const std::string& text) { return json_text(json(text)); }
std::string quoted(const std::vector<std::string>& texts) {
  std::string all = "[";
  for (const std::string& text : texts) all += (all.size() > 1 ? "," : "") + quoted(text);
  return all + "]";
}

// Counts the records of steps whose loss or norm was not finite, and names the step of the first. Emulated devices
// compute neither.
std::string not_finite_json(const Run& run) {
  const Metrics& metrics = run.metrics;
  const auto device = run.config.find("device");
  const bool computes = device == run.config.end() || device->second != R"("emulated")";
  const auto first = std::ranges::find(metrics.finite, false);
  const bool none = !computes || first == metrics.finite.end();
  return fmt::format(R"({{"count":{},"first":{}}})", none ? 0 : std::ranges::count(metrics.finite, false),
                     none ? 0 : metrics.steps[std::size_t(first - metrics.finite.begin())]);
}

std::string series_json(const Metrics& metrics) {
  const std::size_t width = records_a_point(metrics.steps.size());
  std::string text = fmt::format(R"({{"width":{},"steps":{})", width, whole(last_of_each(metrics.steps, width)));
  if (const Progress used = progress(metrics); !used.tokens.empty())
    text += fmt::format(R"(,"tokens":{},"seconds":{})", numbers<9>(last_of_each(used.tokens, width)),
                        numbers<9>(last_of_each(used.seconds, width)));
  for (std::size_t i = 0; i < series_keys.size(); ++i) {
    const std::vector<double>& values = metrics.series[i];
    if (std::none_of(values.begin(), values.end(), [](double value) { return std::isfinite(value); })) continue;
    const Points points = thin(values, width, is_steady(series_keys[i]));
    text += fmt::format(R"(,"{}":{{"mean":{})", series_keys[i], numbers(points.mean));
    if (width > 1) text += fmt::format(R"(,"low":{},"high":{})", numbers(points.low), numbers(points.high));
    text += "}";
  }
  return text + "}";
}

// The numbers of the tables of runs. Means leave out the first step, as the last line of a run does.
std::string means_json(const Metrics& metrics) {
  const std::string last_step = metrics.steps.empty() ? "null" : std::to_string(metrics.steps.back());
  std::string text = fmt::format(R"({{"records":{},"last_step":{})", metrics.steps.size(), last_step);
  if (const Progress used = progress(metrics); !used.tokens.empty())
    text += fmt::format(R"(,"tokens":{:.0f},"seconds":{:.9g})", used.tokens.back(), used.seconds.back());
  for (std::size_t i = 0; i < series_keys.size(); ++i) {
    double sum = 0, count = 0, last = std::numeric_limits<double>::quiet_NaN(), least = last;
    for (std::size_t r = 0; r < metrics.steps.size(); ++r) {
      const double value = metrics.series[i][r];
      if (!std::isfinite(value)) continue;
      last = value;
      least = std::fmin(least, value);
      if (metrics.steps[r] == 1 && metrics.steps.size() > 1) continue;
      sum += value;
      ++count;
    }
    if (!std::isfinite(last)) continue;
    text += fmt::format(R"(,"{}":{{"mean":{},"last":{},"least":{}}})", series_keys[i], number(sum / count),
                        number(last), number(least));
  }
  return text + "}";
}

// The last record's numbers of a MoE layer, without "layer_" before their keys.
std::string last_of_layer(const Metrics& metrics, std::size_t layer) {
  std::string text;
  for (std::size_t i = 0; i < layer_keys.size(); ++i)
    if (layer < metrics.layers[i].size())
      text += fmt::format(R"({}"{}":{})", text.empty() ? "" : ",",
                          layer_keys[i].substr(std::string_view("layer_").size()), number(metrics.layers[i][layer]));
  return "{" + text + "}";
}

// The share of each expert in percent of an even share, for each layer: column after column, expert after expert.
std::string load_json(const Metrics& metrics) {
  std::string layers;
  std::size_t first = 0, layer = 0;
  for (const std::size_t experts : metrics.experts) {
    std::vector<double> percent;
    for (const LoadColumn& column : metrics.load) {
      double sum = 0;
      for (std::size_t e = first; e < first + experts; ++e) sum += double(column.load[e]);
      for (std::size_t e = first; e < first + experts; ++e)
        percent.push_back(sum > 0 ? std::round(100 * double(column.load[e]) * double(experts) / sum) : 0);
    }
    layers += fmt::format(R"({}{{"experts":{},"percent":{},"last":{}}})", layers.empty() ? "" : ",", experts,
                          numbers(percent), last_of_layer(metrics, layer++));
    first += experts;
  }
  std::vector<std::int64_t> from, to;
  for (const LoadColumn& column : metrics.load) {
    from.push_back(column.from);
    to.push_back(column.to);
  }
  return fmt::format(R"({{"from":{},"to":{},"layers":[{}]}})", whole(from), whole(to), layers);
}

std::string plan_json(const PlanSummary& plan) {
  std::string largest;
  for (const LargeTensor& tensor : plan.largest)
    largest += fmt::format(R"({}{{"name":{},"type":{},"made_by":{},"bytes":{}}})", largest.empty() ? "" : ",",
                           quoted(tensor.name), quoted(tensor.type), quoted(tensor.made_by), number(tensor.bytes));
  const std::size_t width = records_a_point(plan.live.size());
  return fmt::format(
      R"({{"policy":{},"ranks":{},"predicted_ms":{},"exposed_ms":{},"instructions":{},"parameters":{},"state":{},)"
      R"("arena":{},"width":{},"live":{},"largest":[{}]}})",
      quoted(plan.policy), plan.ranks, number(plan.predicted_ms), number(plan.exposed_ms), plan.instructions,
      number(plan.parameters), number(plan.state), number(plan.arena), width, numbers(thin(plan.live, width).high),
      largest);
}

std::string memory_json(const Memory& memory) {
  std::string text = "{";
  for (std::size_t i = 0; i < memory_parts.size(); ++i)
    text += fmt::format(R"({}"{}":{})", i > 0 ? "," : "", memory_parts[i], number(memory.bytes[i]));
  return text + "}";
}

// An event is four numbers: start and length in microseconds, name, kind.
std::string timeline_json(const Timeline& timeline) {
  std::string rows;
  for (const TimelineRow& row : timeline.rows) {
    rows += fmt::format(R"({}{{"process":{},"stream":{},"events":[)", rows.empty() ? "" : ",", quoted(row.process),
                        quoted(row.stream));
    bool first = true;
    for (const TimelineEvent& event : row.events) {
      rows += fmt::format("{}{:.9g},{:.9g},{},{}", first ? "" : ",", event.start, event.length, event.name, event.kind);
      first = false;
    }
    rows += "]}";
  }
  return fmt::format(R"({{"names":{},"kinds":{},"left_out":{},"rows":[{}]}})", quoted(timeline.names),
                     quoted(timeline.kinds), timeline.left_out, rows);
}

std::string hidden_json(const std::optional<Hidden>& hidden) {
  if (!hidden) return "null";
  return fmt::format(R"({{"ms":{},"hidden_ms":{},"by":{}}})", number(hidden->ms), number(hidden->hidden_ms),
                     quoted(hidden->by));
}

std::string communications_json(const std::vector<Communication>& communications) {
  std::string rows;
  for (const Communication& row : communications)
    rows += fmt::format(R"({}{{"stage":{},"site":{},"pass":{},"parts":{},"predicted":{},"measured":{}}})",
                        rows.empty() ? "" : ",", row.stage ? std::to_string(*row.stage) : "null", quoted(row.site),
                        quoted(row.pass), row.parts, hidden_json(row.predicted), hidden_json(row.measured));
  return "[" + rows + "]";
}

std::string config_json(const std::map<std::string, std::string>& config) {
  std::string text = "{";
  for (const auto& [field, value] : config)
    text += fmt::format("{}{}:{}", text.size() > 1 ? "," : "", quoted(field), quoted(value));
  return text + "}";
}

std::string run_json(const Run& run) {
  return fmt::format(
      R"({{"name":{},"left_out":{},"cut_short":{},"broken":{{"count":{},"first":{}}},"not_finite":{},"means":{},"series":{},"load":{},)"
      R"("config":{},"plan":{},"memory":{},"timeline":{},"communications":{}}})",
      quoted(run.name), quoted(run.left_out), run.metrics.cut_short, run.metrics.broken.count,
      quoted(run.metrics.broken.first), not_finite_json(run), means_json(run.metrics), series_json(run.metrics),
      load_json(run.metrics), config_json(run.config), run.plan ? plan_json(*run.plan) : "null",
      run.memory ? memory_json(*run.memory) : "null", run.timeline ? timeline_json(*run.timeline) : "null",
      communications_json(run.communications));
}

// Escapes the characters that could end the script element around the JSON, or begin a comment. They occur only inside
// strings, where \u means the same.
std::string inert(const std::string& text) {
  std::string result;
  result.reserve(text.size() + text.size() / 64);
  for (const char c : text) {
    if (c == '<' || c == '>' || c == '&')
      result += fmt::format("\\u{:04x}", int(c));
    else
      result += c;
  }
  return result;
}

void replace(std::string& page, std::string_view mark, std::string_view text) {
  if (const auto at = page.find(mark); at != page.npos) page.replace(at, mark.size(), text);
}

}  // namespace

Result<std::string> page(std::span<const fs::path> folders) {
  std::vector<Run> runs;
  for (const fs::path& folder : folders) {
    LANCET_ASSIGN(Run run, read_run(folder));
    runs.push_back(std::move(run));
  }
  name_apart(runs, folders);
  std::string data;
  for (const Run& run : runs) data += (data.empty() ? "" : ",\n") + run_json(run);
  std::string page(assets::page_html);
  replace(page, "/*uplot.css*/", assets::uplot_css);
  replace(page, "/*page.css*/", assets::page_css);
  replace(page, "/*uplot.js*/", assets::uplot_js);
  replace(page, "/*charts.js*/", assets::charts_js);
  replace(page, "/*page.js*/", assets::page_js);
  replace(page, "/*data*/", inert("{\"runs\":[" + data + "]}"));  // last, so that marks in the data stay text
  return page;
}

}  // namespace lancet::report
