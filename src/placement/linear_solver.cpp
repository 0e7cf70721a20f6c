// CBC runs in a child process, which writes messages to a pipe: the bound of the linear relaxation once that is solved,
// every bound that CBC proves, every answer that it finds, and how it ended. When the time is over or the child dies,
// what has arrived is the result. CBC looks at its clock only between its own steps, so that the parent ends the child
// by its own clock.
//
// Messages are arrays of doubles: what it is, a bound, the number of values, the values.
#include "lancet/placement/linear_solver.h"

#ifdef LANCET_HAVE_CBC
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CbcConfig.h>
#include <CbcEventHandler.hpp>
#include <CbcModel.hpp>
#include <OsiClpSolverInterface.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>
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

// After the limit, for CBC to end by itself and to hand over its last bound.
constexpr double grace_seconds = 0.25;
// By which an answer's rows may be off, relative to the sum of the row's factors: CBC's own tolerances are below it.
constexpr double row_tolerance = 1e-5;
constexpr double bound_tolerance = 1e-6;  // relative

using Clock = std::chrono::steady_clock;
using LinearStatus = LinearAnswer::Status;

enum class Message {
  bound,
  answer,
  end
};  // the end's bound is followed by a LinearStatus in place of the number of values

class Sender {
 public:
  explicit Sender(int file) : file_(file) {}
  void bound(double bound) const { send({double(Message::bound), finite(bound), 0}); }
  void answer(const double* values, std::size_t count) const {
    std::vector<double> numbers{double(Message::answer), -unbounded, double(count)};
    numbers.insert(numbers.end(), values, values + count);
    send(numbers);
  }
  void end(LinearStatus status, double bound) const { send({double(Message::end), finite(bound), double(status)}); }

 private:
  static double finite(double bound) { return std::fabs(bound) < 1e40 ? bound : -unbounded; }
  void send(const std::vector<double>& numbers) const {
    const char* bytes = reinterpret_cast<const char*>(numbers.data());
    std::size_t left = numbers.size() * sizeof(double);
    while (left > 0) {
      const ssize_t written = write(file_, bytes, left);
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return;
      bytes += written;
      left -= static_cast<std::size_t>(written);
    }
  }
  int file_;
};

// Hands over what CBC finds. CBC clones it with each copy of its model.
class Progress : public CbcEventHandler {
 public:
  Progress(const Sender& sender, std::size_t columns, double bound)
      : sender_(sender), columns_(int(columns)), bound_(bound) {}
  CbcEventHandler* clone() const override { return new Progress(*this); }
  CbcAction event(CbcEvent which) override {
    if (model_->parentModel()) return noAction;  // a heuristic's part of the program
    // At this event all open nodes are in the tree, of which the least is the bound.
    if (which == treeStatus) sender_.bound(model_->getBestPossibleObjValue());
    if (which == solution || which == heuristicSolution) {
      const OsiSolverInterface* whole = model_->postProcessedSolver();
      if (!whole || whole->getNumCols() != columns_) return noAction;
      sender_.answer(whole->getColSolution(), static_cast<std::size_t>(columns_));
      if (whole->getObjValue() <= bound_ + bound_tolerance * std::fabs(bound_)) {
        sender_.end(LinearStatus::optimal, bound_);
        _exit(0);
      }
    }
    return noAction;
  }

 private:
  Sender sender_;
  int columns_;
  double bound_;
};

double cbc_bound(double bound) { return std::clamp(bound, -COIN_DBL_MAX, COIN_DBL_MAX); }

void load(const LinearModel& model, OsiClpSolverInterface& clp) {
  std::vector<int> rows, columns;
  std::vector<double> factors, lower, upper, cost, row_lower, row_upper;
  for (const LinearModel::Row& row : model.rows) {
    for (const Term& term : row.terms) {
      rows.push_back(static_cast<int>(row_lower.size()));
      columns.push_back(term.column);
      factors.push_back(term.factor);
    }
    row_lower.push_back(cbc_bound(row.lower));
    row_upper.push_back(cbc_bound(row.upper));
  }
  for (const LinearModel::Column& column : model.columns) {
    lower.push_back(cbc_bound(column.lower));
    upper.push_back(cbc_bound(column.upper));
    cost.push_back(column.cost);
  }
  CoinPackedMatrix matrix(true, rows.data(), columns.data(), factors.data(), static_cast<CoinBigIndex>(rows.size()));
  matrix.setDimensions(static_cast<int>(model.rows.size()), static_cast<int>(model.columns.size()));
  clp.loadProblem(matrix, lower.data(), upper.data(), cost.data(), row_lower.data(), row_upper.data());
  // CBC knows a start's columns by their names, and Clp fails where only one of columns and rows has names.
  clp.setIntParam(OsiNameDiscipline, 1);
  for (std::size_t i = 0; i < model.rows.size(); ++i) clp.setRowName(static_cast<int>(i), model.rows[i].name);
  for (std::size_t i = 0; i < model.columns.size(); ++i) {
    clp.setColName(static_cast<int>(i), model.columns[i].name);
    if (model.columns[i].integer) clp.setInteger(static_cast<int>(i));
  }
}

void set_start(CbcModel& cbc, const LinearModel& model, const std::vector<double>& start) {
  std::vector<std::pair<std::string, double> > values;
  for (std::size_t i = 0; i < start.size(); ++i)
    if (model.columns[i].integer) values.emplace_back(model.columns[i].name, start[i]);
  if (!values.empty()) cbc.setMIPStart(values);
}

LinearStatus status_of(const CbcModel& cbc) {
  if (cbc.isContinuousUnbounded() || cbc.isProvenInfeasible()) return LinearStatus::infeasible;
  if (cbc.isProvenOptimal()) return LinearStatus::optimal;
  return cbc.bestSolution() && !cbc.isAbandoned() ? LinearStatus::feasible : LinearStatus::nothing;
}

void branch_and_cut(const OsiClpSolverInterface& clp, const LinearModel& model, const LinearOptions& options,
                    bool careful, const Sender& sender) {
  CbcModel cbc(clp);
  CbcMain0(cbc);
  const Progress progress(sender, model.columns.size(), options.bound);
  cbc.passInEventHandler(&progress);
  set_start(cbc, model, options.start);
  const std::string seconds = fmt::format("{:.3f}", options.seconds), gap = fmt::format("{:.17g}", options.gap);
  std::vector<const char*> words{"lancet",    "-log",          "0",    "-threads",      "0",
                                 "-timeMode", "elapsed",       "-sec", seconds.c_str(), "-ratioGap",
                                 gap.c_str(), "-allowableGap", "0"};
  if (careful) words.insert(words.end(), {"-preprocess", "off", "-heuristicsOnOff", "off"});
  words.insert(words.end(), {"-solve", "-quit"});
  CbcMain1(static_cast<int>(words.size()), words.data(), cbc);
  const LinearStatus status = status_of(cbc);
  if (status == LinearStatus::optimal || status == LinearStatus::feasible)
    sender.answer(cbc.getColSolution(), model.columns.size());
  const bool is_best = status == LinearStatus::optimal && options.gap == 0;
  sender.end(status, is_best ? cbc.getObjValue() : cbc.getBestPossibleObjValue());
}

void solve_here(const LinearModel& model, const LinearOptions& options, bool careful, const Sender& sender) {
  const auto begin = Clock::now();
  OsiClpSolverInterface clp;
  clp.messageHandler()->setLogLevel(0);
  load(model, clp);
  clp.initialSolve();
  if (clp.isProvenPrimalInfeasible() || clp.isProvenDualInfeasible())
    return sender.end(LinearStatus::infeasible, -unbounded);
  if (!clp.isProvenOptimal()) return sender.end(LinearStatus::nothing, -unbounded);
  sender.bound(clp.getObjValue());
  if (model.integer_count() == 0) {
    sender.answer(clp.getColSolution(), model.columns.size());
    return sender.end(LinearStatus::optimal, clp.getObjValue());
  }
  LinearOptions rest = options;
  rest.seconds = std::max(0.01, options.seconds - std::chrono::duration<double>(Clock::now() - begin).count());
  branch_and_cut(clp, model, rest, careful, sender);
}

// What arrives until the other end closes, or until the time is over.
std::vector<double> read_all(int file, Clock::time_point end) {
  std::string bytes;
  char block[65536];
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd ready{file, POLLIN, 0};
    const int events = poll(&ready, 1, static_cast<int>(std::clamp<long long>(left, 0, 1'000'000)));
    if (events < 0 && errno == EINTR) continue;
    if (events == 0 && Clock::now() < end) continue;
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

// An answer with whole numbers in integer columns, and whether it still keeps to the rows.
bool is_sound(const LinearModel& model, std::vector<double>& values) {
  for (std::size_t i = 0; i < values.size(); ++i)
    if (model.columns[i].integer) values[i] = std::round(values[i]);
  return std::all_of(model.rows.begin(), model.rows.end(), [&](const LinearModel::Row& row) {
    double sum = 0, factors = 1;
    for (const Term& term : row.terms) {
      sum += term.factor * values[static_cast<std::size_t>(term.column)];
      factors += std::fabs(term.factor);
    }
    return sum >= row.lower - row_tolerance * factors && sum <= row.upper + row_tolerance * factors;
  });
}

double objective_of(const LinearModel& model, const std::vector<double>& values) {
  double sum = 0;
  for (std::size_t i = 0; i < values.size(); ++i) sum += model.columns[i].cost * values[i];
  return sum;
}

void keep(const LinearModel& model, std::vector<double> values, LinearAnswer& answer) {
  if (!is_sound(model, values)) return;
  const double objective = objective_of(model, values);
  const bool is_best = answer.values.empty() || objective <= answer.objective;
  if (is_best) std::swap(values, answer.values), answer.objective = objective;
  if (!values.empty() && values != answer.values) answer.earlier.push_back(std::move(values));
}

// Adds the messages that have arrived whole. True if the child has said how it ended.
bool add_messages(std::span<const double> numbers, const LinearModel& model, LinearAnswer& answer) {
  while (numbers.size() >= 3) {
    answer.bound = std::max(answer.bound, numbers[1]);
    const auto message = static_cast<Message>(static_cast<int>(numbers[0]));
    if (message == Message::end) {
      answer.status = static_cast<LinearStatus>(static_cast<int>(numbers[2]));
      return true;
    }
    const auto count = static_cast<std::size_t>(numbers[2]);
    numbers = numbers.subspan(3);
    if (numbers.size() < count) break;
    if (count == model.columns.size() && message == Message::answer)
      keep(model, {numbers.begin(), numbers.begin() + static_cast<std::ptrdiff_t>(count)}, answer);
    numbers = numbers.subspan(count);
  }
  return false;
}

// False if the child ended without saying how.
bool solve_in_child(const LinearModel& model, const LinearOptions& options, bool careful, LinearAnswer& answer) {
  const auto limit = std::chrono::duration<double>(options.seconds + grace_seconds);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit);
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
    solve_here(model, options, careful, Sender(ends[1]));
    _exit(0);
  }
  close(ends[1]);
  const std::vector<double> numbers = read_all(ends[0], end);
  close(ends[0]);
  kill(child, SIGKILL);
  while (waitpid(child, nullptr, 0) < 0 && errno == EINTR) {
  }
  return add_messages(numbers, model, answer);
}

}  // namespace

std::string linear_solver() { return fmt::format("CBC {}", CBC_VERSION); }

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
  answer.is_time_over = answer.seconds >= 0.99 * options.seconds;
  if (answer.status == LinearStatus::nothing && !answer.values.empty()) answer.status = LinearStatus::feasible;
  if (answer.status == LinearStatus::infeasible && !answer.values.empty()) answer.status = LinearStatus::feasible;
  if (answer.status != LinearStatus::infeasible && answer.values.empty()) answer.status = LinearStatus::nothing;
  return answer;
}

#endif
}  // namespace lancet::placement
