// A table of nccl-tests has a row for each size: size, count, type, reduction, [root,] then time (us), algorithm and
// bus bandwidth and the number of errors, twice, out of place and in place. Older versions have no root. Lines of
// mpirun may begin with "[1,0]<stdout>:".
#include "lancet/profiler/nccl_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "lancet/base/json.h"
#include "lancet/base/shown.h"
#include "lancet/cost/hardware.h"

namespace lancet::profiler {
namespace {

using nlohmann::ordered_json;
using Collective = NcclLog::Collective;

constexpr double least_share = 1e-3;  // of a hardware file

std::vector<std::string> words_of(std::string line) {
  if (line.starts_with('[')) line = line.substr(std::min(line.find(':') + 1, line.size()));
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

double number_in(const std::string& word) {
  char* end = nullptr;
  const double number = std::strtod(word.c_str(), &end);
  return end != word.c_str() && *end == '\0' ? number : NAN;
}

bool is_row(const std::vector<std::string>& words) {
  return (words.size() == 12 || words.size() == 13) && !std::isnan(number_in(words[0])) &&
         !std::isnan(number_in(words[1])) && std::isnan(number_in(words[2]));
}

// The bus bandwidth of a collective relative to bytes over time.
double bus_factor(Collective collective, int ranks) {
  return (collective == Collective::all_reduce ? 2.0 : 1.0) * (ranks - 1) / ranks;
}

// What the times of a log say about a hardware file: its shares by the MB column of a table, and the latency.
struct Shares {
  double latency_us = 0;
  std::vector<std::pair<double, double>> points;  // MB, share
};

struct Conversion {
  const NcclLog& log;
  const cost::Hardware& hardware;

  int on_host() const { return (log.ranks + log.hosts - 1) / log.hosts; }
  bool one_node() const { return log.hosts == 1; }

  // The bytes that a table's MB column counts.
  double counted(double bytes) const {
    if (log.collective == Collective::all_reduce) return bytes;
    return bytes * (one_node() ? log.ranks - 1 : log.ranks - on_host()) / log.ranks;
  }
  // The bytes that pass the node's NICs, or one device's links.
  double passed(double bytes) const {
    if (log.collective == Collective::all_to_all) return counted(bytes) * (one_node() ? 1 : on_host());
    const double places = one_node() ? log.ranks : log.hosts;
    return 2 * bytes * (places - 1) / places;
  }
  double nominal_bytes_per_us() const {
    return one_node() ? hardware.node.link_gb_per_s * 1e3
                      : hardware.network.nics * hardware.network.nic_gbit_per_s / 8 * 1e3;
  }

  // What the messages of an all-to-all to other nodes take besides its latency (cost::all_to_all_ms).
  double messages_us() const {
    if (log.collective == Collective::all_reduce || on_host() > 1) return 0;  // several ranks gather them first
    return (log.ranks - 2) * hardware.network.message_us;
  }

  Shares shares() const {
    const double least =
        std::min_element(log.rows.begin(), log.rows.end(), [](auto& a, auto& b) { return a.us < b.us; })->us;
    Shares shares{std::max(least - messages_us(), 0.0), {}};
    for (const NcclLog::Row& row : log.rows) {
      if (row.us < 2 * least) continue;
      const double share = passed(row.bytes) / (row.us - shares.latency_us) / nominal_bytes_per_us();
      shares.points.emplace_back(counted(row.bytes) * 1e-6, std::max(share, least_share));
    }
    return shares;
  }
};

// Replaces the entries of `places` in one list of a table.
ordered_json with_entries(const ordered_json& list, double places, const Shares& shares) {
  std::vector<std::vector<double>> rows;
  for (const ordered_json& row : list)
    if (row[0].get<double>() != places) rows.push_back(row.get<std::vector<double>>());
  for (const auto& [mb, share] : shares.points)
    rows.push_back({places, std::round(mb * 1e6) / 1e6, std::round(share * 1e6) / 1e6});
  std::sort(rows.begin(), rows.end());
  return rows;
}

void set_number(ordered_json& field, double value, const std::string& what) {
  field = {{"value", std::round(value * 1e3) / 1e3}, {"source", "measured: smallest message, " + what}};
}

void set_latency(ordered_json& file, const Conversion& conversion, const Shares& shares, const std::string& what) {
  if (conversion.one_node()) return set_number(file["node"]["latency_us"], shares.latency_us, what);
  if (conversion.log.collective == Collective::all_to_all)
    return set_number(file["network"]["latency_us"], shares.latency_us, what);
  const double within = conversion.on_host() > 1 ? conversion.hardware.node.latency_us : 0;
  const double steps = 2 * std::ceil(std::log2(conversion.log.hosts));
  set_number(file["network"]["hop_us"], std::max(shares.latency_us - within, 0.0) / steps, what);
}

}  // namespace

Result<NcclLog> parse_nccl_log(std::string_view text, std::string_view origin) {
  const auto fail = [&](int line, const std::string& expected, const std::string& found) {
    return config_error(
        fmt::format("{}{}: expected {}, found {}", origin, line > 0 ? fmt::format(":{}", line) : "", expected, found));
  };
  NcclLog log;
  log.ranks = 0;
  std::map<std::string, int> ranks_of;  // by host
  double ratio = 0;
  bool reduces = false;
  int number = 0;
  std::istringstream in{std::string(text)};
  for (std::string line; std::getline(in, line);) {
    ++number;
    const std::vector<std::string> words = words_of(line);
    const auto on = std::find(words.begin(), words.end(), "on");
    if (words.size() > 3 && words[0] == "#" && words[1] == "Rank" && on != words.end() && on + 1 != words.end()) {
      ++log.ranks;
      ++ranks_of[*(on + 1)];
    }
    if (!is_row(words)) continue;
    const std::size_t time = words.size() - 8;
    const NcclLog::Row row{number_in(words[0]), number_in(words[time])};
    const double algorithm = number_in(words[time + 1]), bus = number_in(words[time + 2]);
    if (row.bytes == 0) continue;                     // fewer bytes than ranks
    const double wrong = number_in(words[time + 3]);  // older versions: the largest error instead of a count
    if (wrong >= 1) return fail(number, "results without errors", fmt::format("{:.0f} wrong ones", wrong));
    const bool rises = log.rows.empty() || row.bytes > log.rows.back().bytes;
    if (!(row.us > 0 && std::isfinite(row.us) && row.bytes > 0 && rises && algorithm >= 0 && bus >= 0))
      return fail(number, "a row of a rising size with its time and bandwidths", shown(line));
    log.rows.push_back(row);
    reduces = words[3] != "none";
    if (algorithm > 0) ratio = bus / algorithm;  // the last row's, whose digits are the most exact
  }
  if (log.rows.empty()) return fail(0, "a table of nccl-tests (all_reduce_perf, alltoall_perf)", "none");
  if (log.ranks < 2) return fail(0, "lines '# Rank ... on HOST' of at least two ranks", fmt::format("{}", log.ranks));
  log.hosts = int(ranks_of.size());
  for (const auto& [host, ranks] : ranks_of)
    if (ranks * log.hosts != log.ranks)
      return fail(0, fmt::format("{} ranks on each of {} hosts", (log.ranks + log.hosts - 1) / log.hosts, log.hosts),
                  fmt::format("{} on {}", ranks, host));
  // Of few digits, the ratio is some percent off.
  log.collective = reduces ? Collective::all_reduce : Collective::all_to_all;
  if (std::abs(ratio / bus_factor(log.collective, log.ranks) - 1) < 0.15) return log;
  return fail(0, "all_reduce_perf or alltoall_perf, whose bus bandwidth is 2 (n-1)/n or (n-1)/n of the other",
              fmt::format("{:.2f} with {} ranks and {} reduction", ratio, log.ranks, reduces ? "a" : "no"));
}

Result<std::string> with_nccl_log(std::string_view hardware, std::string_view origin, const NcclLog& log,
                                  const std::string& what) {
  LANCET_ASSIGN(const cost::Hardware machine, cost::parse_hardware(hardware, origin));
  const Conversion conversion{log, machine};
  if (conversion.on_host() > machine.node.devices)
    return config_error(fmt::format("{}: expected at most {} ranks a host, the devices of a node of {}, found {}", what,
                                    machine.node.devices, machine.name, conversion.on_host()));
  const Shares shares = conversion.shares();
  if (shares.points.empty())
    return config_error(
        fmt::format("{}: expected messages that take at least twice as long as the smallest, found none", what));
  const double most = std::ranges::max(shares.points, {}, &std::pair<double, double>::second).second;
  if (most > 1)
    return config_error(
        fmt::format("{}: expected at most the declared rate of the {} of {}, found {:.2f} times as much", what,
                    conversion.one_node() ? "links" : "NICs", machine.name, most));
  LANCET_ASSIGN(auto file, parse_json<ordered_json>(hardware, origin, ExitCode::config, JsonComments::ignored));
  const std::string source =
      fmt::format("{}, {} ranks on {} host{}", what, log.ranks, log.hosts, log.hosts > 1 ? "s" : "");
  const double places = conversion.one_node() ? log.ranks : log.hosts;
  ordered_json& table =
      file[conversion.one_node() ? "node" : "network"]
          [log.collective == Collective::all_to_all ? "all_to_all_efficiency" : "all_reduce_efficiency"];
  for (const char* list : {"points", "low", "high"})
    if (table.contains(list)) table[list] = with_entries(table[list], places, shares);
  table["source"] = fmt::format("{}; {:g} {}: measured, {}", table["source"].get<std::string>(), places,
                                conversion.one_node() ? "devices" : "nodes", source);
  set_latency(file, conversion, shares, source);
  return json_text(file, {.indent = 2}) + "\n";
}

}  // namespace lancet::profiler
