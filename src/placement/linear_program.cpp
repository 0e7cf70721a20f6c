#include "linear_program.h"

#if defined(LANCET_HAVE_CBC)
#include <Cbc_C_Interface.h>

#include <memory>
#endif

namespace lancet::placement {

int LinearProgram::add_column(double lower, double upper, double cost) {
  columns.push_back({lower, upper, cost});
  return int(columns.size()) - 1;
}

void LinearProgram::add_row(double lower, double upper, std::vector<std::pair<int, double>> terms) {
  rows.push_back({lower, upper, std::move(terms)});
}

#if defined(LANCET_HAVE_CBC)
Result<std::vector<double>> solve(const LinearProgram& program) {
  std::vector<CoinBigIndex> starts(program.columns.size() + 1, 0);
  for (const LinearProgram::Row& row : program.rows)
    for (const auto& [column, _] : row.terms) ++starts[std::size_t(column) + 1];
  for (std::size_t i = 1; i < starts.size(); ++i) starts[i] += starts[i - 1];
  std::vector<int> row_of(std::size_t(starts.back()));
  std::vector<double> values(row_of.size()), lower, upper, cost, row_lower, row_upper;
  std::vector<CoinBigIndex> next(starts.begin(), starts.end() - 1);
  for (std::size_t row = 0; row < program.rows.size(); ++row) {
    for (const auto& [column, value] : program.rows[row].terms) {
      const auto at = std::size_t(next[std::size_t(column)]++);
      row_of[at] = int(row);
      values[at] = value;
    }
    row_lower.push_back(program.rows[row].lower);
    row_upper.push_back(program.rows[row].upper);
  }
  for (const LinearProgram::Column& column : program.columns) {
    lower.push_back(column.lower);
    upper.push_back(column.upper);
    cost.push_back(column.cost);
  }
  const std::unique_ptr<Cbc_Model, void (*)(Cbc_Model*)> model(Cbc_newModel(), Cbc_deleteModel);
  Cbc_setParameter(model.get(), "log", "0");
  Cbc_loadProblem(model.get(), int(program.columns.size()), int(program.rows.size()), starts.data(), row_of.data(),
                  values.data(), lower.data(), upper.data(), cost.data(), row_lower.data(), row_upper.data());
  Cbc_solve(model.get());
  if (!Cbc_isProvenOptimal(model.get())) return config_error("expected an optimum of a linear program, found none");
  const double* found = Cbc_getColSolution(model.get());
  return std::vector<double>(found, found + program.columns.size());
}
#else
Result<std::vector<double>> solve(const LinearProgram&) {
  return config_error(
      "expected a build with CBC (package coinor-libcbc-dev), whose linear programs it needs, found none");
}
#endif

}  // namespace lancet::placement
