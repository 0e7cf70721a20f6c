#include "timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>

#include "lancet/base/files.h"
#include "lancet/base/json.h"

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

}  // namespace lancet::report
