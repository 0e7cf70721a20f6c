#include "lancet/placement/linear_solver.h"

#ifdef LANCET_HAVE_CBC
#include <Cbc_C_Interface.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>

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

constexpr double grace_seconds = 10;

using Clock = std::chrono::steady_clock;
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
    // Cbc_addRow takes one bound of a row; both are set below.
    Cbc_addRow(cbc.get(), row.name.c_str(), static_cast<int>(indices.size()), indices.data(), factors.data(), 'E', 0);
  }
  for (std::size_t i = 0; i < model.rows.size(); ++i) {
    Cbc_setRowLower(cbc.get(), static_cast<int>(i), cbc_bound(model.rows[i].lower));
    Cbc_setRowUpper(cbc.get(), static_cast<int>(i), cbc_bound(model.rows[i].upper));
  }
  return cbc;
}

void set_options(Cbc_Model* cbc, const LinearModel& model, const LinearOptions& options, bool careful) {
  const auto set = [&](const char* name, const std::string& value) { Cbc_setParameter(cbc, name, value.c_str()); };
  set("log", "0");
  set("threads", "0");
  set("timeMode", "elapsed");
  set("sec", fmt::format("{:.3f}", options.seconds));
  set("ratioGap", fmt::format("{:.17g}", options.gap));
  set("allowableGap", "0");
  if (careful) set("preprocess", "off"), set("heuristicsOnOff", "off");
  if (options.start.empty()) return;
  std::vector<int> columns;
  std::vector<double> values;
  for (std::size_t i = 0; i < model.columns.size(); ++i)
    if (model.columns[i].integer) columns.push_back(static_cast<int>(i)), values.push_back(options.start[i]);
  if (!columns.empty()) Cbc_setMIPStartI(cbc, static_cast<int>(columns.size()), columns.data(), values.data());
}

LinearAnswer::Status status_of(Cbc_Model* cbc, bool has_integers) {
  using Status = LinearAnswer::Status;
  if (Cbc_isContinuousUnbounded(cbc) || Cbc_isProvenInfeasible(cbc)) return Status::infeasible;
  if (Cbc_isProvenOptimal(cbc)) return Status::optimal;
  if (Cbc_isAbandoned(cbc)) return Status::nothing;
  return has_integers && Cbc_numberSavedSolutions(cbc) > 0 ? Status::feasible : Status::nothing;
}

LinearAnswer solve_here(const LinearModel& model, const LinearOptions& options, bool careful) {
  using Status = LinearAnswer::Status;
  const CbcModel cbc = load(model);
  set_options(cbc.get(), model, options, careful);
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
  if (answer.status == Status::feasible || answer.status == Status::nothing || options.gap > 0) {
    const double bound = Cbc_getBestPossibleObjValue(cbc.get());
    answer.bound = std::fabs(bound) < 1e40 ? bound : -unbounded;
  }
  return answer;
}

// An answer on its way from the child: status, objective, bound, then the values.
std::vector<double> packed(const LinearAnswer& answer) {
  std::vector<double> numbers{static_cast<double>(answer.status), answer.objective, answer.bound};
  numbers.insert(numbers.end(), answer.values.begin(), answer.values.end());
  return numbers;
}
bool unpack(std::span<const double> numbers, std::size_t columns, LinearAnswer& answer) {
  if (numbers.size() != 3 && numbers.size() != 3 + columns) return false;
  answer.status = static_cast<LinearAnswer::Status>(static_cast<int>(numbers[0]));
  answer.objective = numbers[1];
  answer.bound = numbers[2];
  answer.values.assign(numbers.begin() + 3, numbers.end());
  return true;
}

void write_all(int file, const std::vector<double>& numbers) {
  const char* bytes = reinterpret_cast<const char*>(numbers.data());
  std::size_t left = numbers.size() * sizeof(double);
  while (left > 0) {
    const ssize_t written = write(file, bytes, left);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    bytes += written;
    left -= static_cast<std::size_t>(written);
  }
}

// What arrives until the other end closes, or until the time is over.
std::vector<double> read_all(int file, Clock::time_point end) {
  std::string bytes;
  char block[4096];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd ready{file, POLLIN, 0};
    const int events = poll(&ready, 1, static_cast<int>(std::clamp<long long>(left, 0, 1'000'000)));
    if (events < 0 && errno == EINTR) continue;
    if (events <= 0) break;
    const ssize_t count = read(file, block, sizeof block);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    bytes.append(block, static_cast<std::size_t>(count));
  }
  std::vector<double> numbers(bytes.size() / sizeof(double));
  std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(double));
  return numbers;
}

// False if the child ended without an answer.
bool solve_in_child(const LinearModel& model, const LinearOptions& options, bool careful, LinearAnswer& answer) {
  int ends[2];
  LANCET_CHECK(pipe(ends) == 0, "cannot open a pipe to the solver: {}", std::strerror(errno));
  const pid_t child = fork();
  LANCET_CHECK(child >= 0, "cannot start a process for the solver: {}", std::strerror(errno));
  if (child == 0) {
    close(ends[0]);
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    signal(SIGABRT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // without its reader it has no use
    write_all(ends[1], packed(solve_here(model, options, careful)));
    _exit(0);
  }
  close(ends[1]);
  const auto limit = std::chrono::duration<double>(options.seconds + grace_seconds);
  const std::vector<double> numbers =
      read_all(ends[0], Clock::now() + std::chrono::duration_cast<Clock::duration>(limit));
  close(ends[0]);
  kill(child, SIGKILL);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return unpack(numbers, model.columns.size(), answer);
}

}  // namespace

std::string linear_solver() { return fmt::format("CBC {}", Cbc_getVersion()); }

// Debian's CBC 2.10.8 has assertions, and one of Clp fails on some programs that preprocessing makes smaller than three
// rows (coin-or/Clp, issue 288). A second try has no preprocessing and no heuristics, which preprocess likewise.
Result<LinearAnswer> solve_linear(const LinearModel& model, const LinearOptions& options) {
  const auto before = Clock::now();
  const auto passed = [&] { return std::chrono::duration<double>(Clock::now() - before).count(); };
  LinearAnswer answer;
  if (!solve_in_child(model, options, false, answer) && passed() < options.seconds) {
    LinearOptions rest = options;
    rest.seconds -= passed();
    solve_in_child(model, rest, true, answer);
  }
  answer.seconds = passed();
  return answer;
}

#endif
}  // namespace lancet::placement
