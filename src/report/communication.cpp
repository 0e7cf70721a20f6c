#include "lancet/report/communication.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lancet/ir/micro_batches.h"
#include "lancet/schedule/schedule_report.h"
#include "timeline.h"

namespace lancet::report {
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
