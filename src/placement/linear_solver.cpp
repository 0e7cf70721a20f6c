#include "lancet/placement/linear_solver.h"

#ifdef LANCET_HAVE_CBC
#include <Cbc_C_Interface.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>

#include "lancet/base/check.h"
#endif

namespace lancet::placement {
#ifndef LANCET_HAVE_CBC

std::string linear_solver() { return ""; }

Result<LinearAnswer> solve_linear(const LinearModel&, const LinearOptions&) {
  return config_error(
      "this program was built without CBC, which solves linear and integer programs: expected the package "
      "coinor-libcbc-dev when CMake ran, found none");
}

#else
namespace {

using CbcModel = std::unique_ptr<Cbc_Model, decltype(&Cbc_deleteModel)>;

double cbc_bound(double bound) {
  constexpr double most = std::numeric_limits<double>::max();  // CBC's infinity
  return std::clamp(bound, -most, most);
}

CbcModel load(const LinearModel& model) {
  CbcModel cbc(Cbc_newModel(), &Cbc_deleteModel);
  Cbc_setLogLevel(cbc.get(), 0);
  for (const LinearModel::Column& column : model.columns)
    Cbc_addCol(cbc.get(), column.name.c_str(), cbc_bound(column.lower), cbc_bound(column.upper), column.cost,
               column.integer, 0, nullptr, nullptr);
  std::vector<int> indices;
  std::vector<double> factors;
  for (const LinearModel::Row& row : model.rows) {
    indices.clear();
    factors.clear();
    for (const Term& term : row.terms) indices.push_back(term.column), factors.push_back(term.factor);
    // An equation for now: this call takes one bound of a row.
    Cbc_addRow(cbc.get(), row.name.c_str(), static_cast<int>(indices.size()), indices.data(), factors.data(), 'E', 0);
  }
  for (std::size_t i = 0; i < model.rows.size(); ++i) {
    Cbc_setRowLower(cbc.get(), static_cast<int>(i), cbc_bound(model.rows[i].lower));
    Cbc_setRowUpper(cbc.get(), static_cast<int>(i), cbc_bound(model.rows[i].upper));
  }
  return cbc;
}

void set_options(Cbc_Model* cbc, const LinearModel& model, const LinearOptions& options) {
  const auto set = [&](const char* name, const std::string& value) { Cbc_setParameter(cbc, name, value.c_str()); };
  set("log", "0");
  set("threads", "0");
  set("timeMode", "elapsed");
  set("sec", fmt::format("{:.3f}", options.seconds));
  set("ratioGap", fmt::format("{:.17g}", options.gap));
  set("allowableGap", "0");
  if (options.start.empty()) return;
  std::vector<int> columns;
  std::vector<double> values;
  for (std::size_t i = 0; i < model.columns.size(); ++i)
    if (model.columns[i].integer) columns.push_back(static_cast<int>(i)), values.push_back(options.start[i]);
  if (!columns.empty()) Cbc_setMIPStartI(cbc, static_cast<int>(columns.size()), columns.data(), values.data());
}

LinearAnswer::Status status_of(Cbc_Model* cbc, bool has_integers) {
  using Status = LinearAnswer::Status;
  if (Cbc_isContinuousUnbounded(cbc)) return Status::unbounded;
  if (Cbc_isProvenInfeasible(cbc)) return Status::infeasible;
  if (Cbc_isProvenOptimal(cbc)) return Status::optimal;
  LANCET_CHECK(!Cbc_isAbandoned(cbc), "CBC abandoned a linear program (status {})", Cbc_status(cbc));
  return has_integers && Cbc_numberSavedSolutions(cbc) > 0 ? Status::feasible : Status::nothing;
}

}  // namespace

std::string linear_solver() { return fmt::format("CBC {}", Cbc_getVersion()); }

Result<LinearAnswer> solve_linear(const LinearModel& model, const LinearOptions& options) {
  using Status = LinearAnswer::Status;
  const auto before = std::chrono::steady_clock::now();
  const CbcModel cbc = load(model);
  set_options(cbc.get(), model, options);
  Cbc_solve(cbc.get());
  LinearAnswer answer;
  answer.status = status_of(cbc.get(), model.integer_count() > 0);
  if (answer.status == Status::optimal || answer.status == Status::feasible) {
    const double* values = Cbc_getColSolution(cbc.get());
    answer.values.assign(values, values + model.columns.size());
    for (std::size_t i = 0; i < model.columns.size(); ++i)
      if (model.columns[i].integer) answer.values[i] = std::round(answer.values[i]);
    answer.objective = Cbc_getObjValue(cbc.get());
    answer.bound = answer.objective;
  }
  if (answer.status != Status::optimal || options.gap > 0) {
    const double bound = Cbc_getBestPossibleObjValue(cbc.get());
    answer.bound = std::fabs(bound) < 1e40 ? bound : -unbounded;
  }
  answer.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - before).count();
  return answer;
}

#endif
}  // namespace lancet::placement
