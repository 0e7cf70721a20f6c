#include "run_files.h"

#include <fmt/format.h>
#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/report/report.h"
#include "lancet/schedule/schedule_report.h"

namespace lancet::report {
namespace {

using nlohmann::json;

class Words {
 public:
  std::size_t operator()(const std::string& word) {
    const auto [at, added] = index_.emplace(word, words.size());
    if (added) words.push_back(word);
    return at->second;
  }
  std::vector<std::string> words;

 private:
  std::unordered_map<std::string, std::size_t> index_;
};

std::string text_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_string() ? at->get<std::string>() : "";
}
// Returns lowest() if there is no such number.
double number_of(const json& object, const char* key) {
  const auto at = object.find(key);
  return at != object.end() && at->is_number() ? at->get<double>() : std::numeric_limits<double>::lowest();
}

// The number of the instruction that an event is of.
std::optional<std::size_t> instruction_of(const json& event) {
  const auto args = event.find("args");
  if (args == event.end() || !args->is_object()) return {};
  const auto index = args->find("index");
  if (index == args->end() || !index->is_number_unsigned()) return {};
  return index->get<std::size_t>();
}

// The stage that the arguments of a process's name say; the first one, if they say none that can be.
int stage_of(const json& args) {
  const double stage = number_of(args, "stage");
  return stage > 0 && stage < 65536 ? int(stage) : 0;
}

struct Process {
  std::string name;
  double sort_index = 0;
  int stage = 0;
  std::map<double, TimelineRow> streams;  // by thread id
};

class TraceReader {
 public:
  bool add(const json& event) {
    if (!event.is_object()) return false;
    const std::string phase = text_of(event, "ph"), name = text_of(event, "name");
    Process& process = processes_[number_of(event, "pid")];
    if (phase == "M") {
      const auto args = event.find("args");
      if (args == event.end() || !args->is_object()) return false;
      if (name == "process_name") process.name = text_of(*args, "name"), process.stage = stage_of(*args);
      if (name == "process_sort_index") process.sort_index = number_of(*args, "sort_index");
      if (name == "thread_name") process.streams[number_of(event, "tid")].stream = text_of(*args, "name");
      return true;
    }
    if (phase != "X") return true;
    const double start = number_of(event, "ts"), length = number_of(event, "dur");
    if (start < 0 || length < 0) return false;
    process.streams[number_of(event, "tid")].events.push_back(
        {start, length, names_(name), kinds_(text_of(event, "cat")), instruction_of(event)});
    return true;
  }

  Timeline take() {
    std::vector<Process> sorted;
    for (auto& [pid, process] : processes_) sorted.push_back(std::move(process));
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const auto& a, const auto& b) { return a.sort_index < b.sort_index; });
    Timeline timeline{std::move(names_.words), std::move(kinds_.words), {}, 0};
    for (Process& process : sorted)
      for (auto& [tid, row] : process.streams) {
        row.process = process.name;
        row.stage = process.stage;
        timeline.rows.push_back(std::move(row));
      }
    return timeline;
  }

 private:
  Words names_, kinds_;
  std::map<double, Process> processes_;
};

}  // namespace

Result<Timeline> read_timeline(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string text, read_file(path, "a step's timeline"));
  const json root = json_of(text);
  const auto wrong = [&](std::string_view what) { return data_error(fmt::format("{}: {}", path.string(), what)); };
  if (!root.is_object() || !root.contains("traceEvents") || !root["traceEvents"].is_array())
    return wrong("expected a JSON object with \"traceEvents\", found none");
  TraceReader reader;
  std::size_t number = 0;
  for (const json& event : root["traceEvents"]) {
    if (!reader.add(event))
      return wrong(fmt::format("expected \"traceEvents\" with times, found event {} without", number));
    ++number;
  }
  return reader.take();
}

void shorten(Timeline& timeline) {
  std::size_t events = 0;
  std::vector<TimelineRow> kept;
  for (auto row = timeline.rows.begin(); row != timeline.rows.end();) {
    const auto end = std::find_if(row, timeline.rows.end(), [&](const TimelineRow& other) {
      return other.process != row->process || other.stage != row->stage;
    });
    for (auto each = row; each != end; ++each) events += each->events.size();
    if (events > most_events && !kept.empty())
      ++timeline.left_out;
    else
      std::move(row, end, std::back_inserter(kept));
    row = end;
  }
  timeline.rows = std::move(kept);
}

namespace {

using schedule::CommunicationSite;

// By rank, the times of the plan's instructions in milliseconds; instructions without an event take no time.
using Measured = std::map<std::string, std::vector<ir::Interval>>;

Result<Measured> measured_of(const ir::Plan& plan, const Timeline& timeline, int stage) {
  const auto& instructions = plan.program.instructions;
  Measured measured;
  for (const TimelineRow& row : timeline.rows) {
    if (row.is_predicted() || row.stage != stage) continue;
    std::vector<ir::Interval>& when = measured[row.process];
    when.resize(instructions.size());
    for (const TimelineEvent& event : row.events) {
      const std::string& name = timeline.names[event.name];
      const std::size_t index = event.instruction.value_or(instructions.size());
      if (index >= instructions.size() || ir::event_name(instructions[index]) != name)
        return data_error(fmt::format("expected the times of the plan's instructions, found event '{}'", name));
      when[index] = {event.start / 1000, (event.start + event.length) / 1000};
    }
  }
  if (measured.empty()) return data_error("expected the times of the plan's instructions on a rank, found none");
  return measured;
}

// Adds the times of a site to what has been found at the same place and in the same pass, and divides them by `ranks`.
void add(const CommunicationSite& site, double ranks, std::vector<CommunicationSite>& sums) {
  const auto is_same = [&](const CommunicationSite& sum) { return sum.site == site.site && sum.pass == site.pass; };
  auto sum = std::ranges::find_if(sums, is_same);
  if (sum == sums.end()) sum = sums.insert(sum, {site.site, site.pass, site.stream, site.parts, 0, 0, {}});
  sum->ms += site.ms / ranks;
  sum->covered_ms += site.covered_ms / ranks;
  for (const auto& [name, ms] : site.under) sum->add_under(name, ms / ranks);
}

std::vector<CommunicationSite> mean_of(const ir::Program& program, const Measured& measured) {
  std::vector<CommunicationSite> sums;
  for (const auto& [rank, when] : measured)
    for (const CommunicationSite& site : schedule::communication_sites(program, when))
      add(site, double(measured.size()), sums);
  for (CommunicationSite& sum : sums) sum.sort_under();
  return sums;
}

// Writes the times of the sites into the member `times` of their rows, which are made where they are missing.
void note(const std::vector<CommunicationSite>& sites, std::optional<Hidden> Communication::*times,
          std::vector<Communication>& rows) {
  for (const CommunicationSite& site : sites) {
    const auto is_of = [&](const Communication& row) { return row.site == site.site && row.pass == site.pass; };
    auto row = std::ranges::find_if(rows, is_of);
    if (row == rows.end())
      row = rows.insert(row, {.site = site.site, .pass = std::string(site.pass), .parts = site.parts});
    (*row).*times = Hidden{site.ms, site.covered_ms, schedule::longest_first(site.under)};
  }
}

}  // namespace

std::vector<Communication> communications(const ir::Plan& plan) {
  std::vector<Communication> rows;
  note(schedule::communication_sites(plan.program, plan.predicted), &Communication::predicted, rows);
  return rows;
}

Result<std::vector<Communication>> communications(const ir::Plan& plan, const Timeline& timeline, int stage) {
  std::vector<Communication> rows = communications(plan);
  LANCET_ASSIGN(const Measured measured, measured_of(plan, timeline, stage));
  note(mean_of(plan.program, measured), &Communication::measured, rows);
  return rows;
}

Result<std::vector<Communication>> communications(const ir::Plan& plan, const std::filesystem::path& trace) {
  LANCET_ASSIGN(const Timeline timeline, read_timeline(trace));
  auto rows = communications(plan, timeline, 0);
  if (!rows.ok()) return data_error(fmt::format("{}: {}", trace.string(), rows.error().message));
  return rows;
}

}  // namespace lancet::report
