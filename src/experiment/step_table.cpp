#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "lancet/experiment/run.h"

namespace lancet::experiment {
namespace {

struct Row {
  std::string name;
  std::vector<std::string> cells;  // by column; empty: no such point
};

std::string row_of(const Point& point) {
  const std::string label = point.label.empty() ? "" : ", " + point.label;
  const std::string file = std::filesystem::path(point.on).stem().string();
  const std::string place = point.variation.empty() ? file : file + ":" + point.variation;
  return fmt::format("{}, {}, {}{}, {} rank{}", place, point.model, point.gate, label, point.ranks,
                     point.ranks == 1 ? "" : "s");
}

}  // namespace

// Points that differ in nothing that a row's name holds get rows of one name, in the experiment's order.
std::string step_table(const Experiment& experiment, const std::map<std::string, std::string>& results) {
  std::vector<std::string> policies;
  for (const Point& point : experiment.points)
    if (std::find(policies.begin(), policies.end(), point.policy) == policies.end()) policies.push_back(point.policy);
  std::vector<Row> rows;
  for (const Point& point : experiment.points) {
    const auto column = std::size_t(std::find(policies.begin(), policies.end(), point.policy) - policies.begin());
    const std::string name = row_of(point);
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const Row& row) { return row.name == name && row.cells[column].empty(); });
    if (row == rows.end()) row = rows.insert(row, {name, std::vector<std::string>(policies.size())});
    row->cells[column] = results.at(point.id);
  }
  std::size_t width = 0, column = 13;  // "out of memory"
  for (const Row& row : rows) width = std::max(width, row.name.size());
  for (const std::string& policy : policies) column = std::max(column, policy.size());
  std::string text = fmt::format("{:<{}}", "step, ms", width);
  for (const std::string& policy : policies) text += fmt::format("  {:>{}}", policy, column);
  for (const Row& row : rows) {
    text += fmt::format("\n{:<{}}", row.name, width);
    for (const std::string& cell : row.cells) text += fmt::format("  {:>{}}", cell.empty() ? "-" : cell, column);
  }
  return text + "\n";
}

}  // namespace lancet::experiment
