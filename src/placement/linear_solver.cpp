// CBC runs in a child process. Both processes share a board, on which the child writes the bound of the linear
// relaxation once that is solved, every bound that CBC proves, every answer that it finds, and how it ended. When the
// time is over or the child dies, what is on the board is the result. CBC looks at its clock only between its own
// steps, so that the parent ends the child by its own clock.
#include "lancet/placement/linear_solver.h"

#include <algorithm>

#include "lancet/base/check.h"

#ifdef LANCET_HAVE_CBC
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CbcConfig.h>
#include <CbcEventHandler.hpp>
#include <CbcModel.hpp>
#include <OsiClpSolverInterface.hpp>
#include <atomic>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <thread>

#include "lancet/base/clock.h"
#endif

namespace lancet::placement {

int LinearModel::add_column(Column column) {
  columns.push_back(column);
  return static_cast<int>(columns.size()) - 1;
}

void LinearModel::add_row(double lower, double upper, std::vector<Term> terms) {
  std::stable_sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.column < b.column; });
  std::vector<Term> sums;
  for (const Term& term : terms) {
    LANCET_CHECK(term.column >= 0 && term.column < static_cast<int>(columns.size()), "a row has column {} of {}",
                 term.column, columns.size());
    if (!sums.empty() && sums.back().column == term.column)
      sums.back().factor += term.factor;
    else
      sums.push_back(term);
  }
  std::erase_if(sums, [](const Term& term) { return term.factor == 0; });
  if (!sums.empty()) rows.push_back({lower, upper, std::move(sums)});
}

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

// Memory that parent and child share. The child writes, and what it has written by its end the parent reads.
class Board {
 public:
  explicit Board(std::size_t columns) : columns_(columns) {
    memory_ = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    LANCET_CHECK(memory_ != MAP_FAILED, "cannot share memory with the solver: {}", std::strerror(errno));
    head_ = new (memory_) Head;
    values_ = reinterpret_cast<double*>(head_ + 1);
  }
  ~Board() { munmap(memory_, bytes()); }
  Board(const Board&) = delete;

  void add_bound(double bound) {
    if (std::fabs(bound) < 1e40) head_->bound = std::max(head_->bound.load(), bound);
  }
  void add_answer(const double* values) {
    const std::size_t at = std::min(head_->answers.load(), most_answers - 1);
    std::copy_n(values, columns_, values_ + at * columns_);
    head_->answers = at + 1;
  }
  void end(LinearStatus status, double bound) {
    add_bound(bound);
    head_->status = status;
    head_->ended = true;
  }

  double bound() const { return head_->bound; }
  bool ended() const { return head_->ended; }
  LinearStatus status() const { return head_->status; }
  std::vector<std::vector<double> > answers() const {
    std::vector<std::vector<double> > all;
    for (const double* at = values_; all.size() < head_->answers; at += columns_) all.emplace_back(at, at + columns_);
    return all;
  }

 private:
  static constexpr std::size_t most_answers = 50;  // a further one replaces the last
  struct Head {
    std::atomic<double> bound = -unbounded;
    std::atomic<std::size_t> answers = 0;
    std::atomic<LinearStatus> status = LinearStatus::nothing;
    std::atomic<bool> ended = false;
  };
  std::size_t bytes() const { return sizeof(Head) + most_answers * columns_ * sizeof(double); }
  const std::size_t columns_;
  void* memory_ = nullptr;
  Head* head_ = nullptr;
  double* values_ = nullptr;  // of the answers, one after another
};

// Hands over what CBC finds. CBC clones it with each copy of its model.
class Progress : public CbcEventHandler {
 public:
  Progress(Board& board, std::size_t columns, double bound) : board_(&board), columns_(int(columns)), bound_(bound) {}
  CbcEventHandler* clone() const override { return new Progress(*this); }
  CbcAction event(CbcEvent which) override {
    if (model_->parentModel()) return noAction;  // a heuristic's part of the program
    // At this event all open nodes are in the tree, of which the least is the bound.
    if (which == treeStatus) board_->add_bound(model_->getBestPossibleObjValue());
    if (which == solution || which == heuristicSolution) {
      const OsiSolverInterface* whole = model_->postProcessedSolver();
      if (!whole || whole->getNumCols() != columns_) return noAction;
      board_->add_answer(whole->getColSolution());
      if (whole->getObjValue() <= bound_ + bound_tolerance * std::fabs(bound_)) {
        board_->end(LinearStatus::optimal, bound_);
        _exit(0);
      }
    }
    return noAction;
  }

 private:
  Board* board_;
  int columns_;
  double bound_;
};

double cbc_bound(double bound) { return std::clamp(bound, -COIN_DBL_MAX, COIN_DBL_MAX); }

std::string column_name(std::size_t index) { return fmt::format("c{}", index); }

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
  for (std::size_t i = 0; i < model.rows.size(); ++i) clp.setRowName(static_cast<int>(i), fmt::format("r{}", i));
  for (std::size_t i = 0; i < model.columns.size(); ++i) {
    clp.setColName(static_cast<int>(i), column_name(i));
    if (model.columns[i].integer) clp.setInteger(static_cast<int>(i));
  }
}

void set_start(CbcModel& cbc, const LinearModel& model, const std::vector<double>& start) {
  std::vector<std::pair<std::string, double> > values;
  for (std::size_t i = 0; i < start.size(); ++i)
    if (model.columns[i].integer) values.emplace_back(column_name(i), start[i]);
  if (!values.empty()) cbc.setMIPStart(values);
}

LinearStatus status_of(const CbcModel& cbc) {
  if (cbc.isContinuousUnbounded() || cbc.isProvenInfeasible()) return LinearStatus::infeasible;
  if (cbc.isProvenOptimal()) return LinearStatus::optimal;
  return cbc.bestSolution() && !cbc.isAbandoned() ? LinearStatus::feasible : LinearStatus::nothing;
}

void branch_and_cut(const OsiClpSolverInterface& clp, const LinearModel& model, const LinearOptions& options,
                    bool careful, Board& board) {
  CbcModel cbc(clp);
  CbcMain0(cbc);
  const Progress progress(board, model.columns.size(), options.bound);
  cbc.passInEventHandler(&progress);
  set_start(cbc, model, options.start);
  const std::string seconds = fmt::format("{:.3f}", options.seconds);
  std::vector<const char*> words{"lancet",    "-log",          "0",    "-threads",      "0",
                                 "-timeMode", "elapsed",       "-sec", seconds.c_str(), "-ratioGap",
                                 "0",         "-allowableGap", "0"};
  if (careful) words.insert(words.end(), {"-preprocess", "off", "-heuristicsOnOff", "off"});
  words.insert(words.end(), {"-solve", "-quit"});
  CbcMain1(static_cast<int>(words.size()), words.data(), cbc);
  const LinearStatus status = status_of(cbc);
  if (status == LinearStatus::optimal || status == LinearStatus::feasible) board.add_answer(cbc.getColSolution());
  board.end(status, status == LinearStatus::optimal ? cbc.getObjValue() : cbc.getBestPossibleObjValue());
}

void solve_here(const LinearModel& model, const LinearOptions& options, bool careful, Board& board) {
  const auto begin = Clock::now();
  OsiClpSolverInterface clp;
  clp.messageHandler()->setLogLevel(0);
  load(model, clp);
  clp.initialSolve();
  if (clp.isProvenPrimalInfeasible() || clp.isProvenDualInfeasible())
    return board.end(LinearStatus::infeasible, -unbounded);
  if (!clp.isProvenOptimal()) return board.end(LinearStatus::nothing, -unbounded);
  board.add_bound(clp.getObjValue());
  if (std::none_of(model.columns.begin(), model.columns.end(), [](const auto& column) { return column.integer; })) {
    board.add_answer(clp.getColSolution());
    return board.end(LinearStatus::optimal, clp.getObjValue());
  }
  LinearOptions rest = options;
  rest.seconds = std::max(0.01, options.seconds - seconds_since(begin));
  branch_and_cut(clp, model, rest, careful, board);
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

// False if the child ended without saying how.
bool solve_in_child(const LinearModel& model, const LinearOptions& options, bool careful, LinearAnswer& answer) {
  const auto begin = Clock::now();
  Board board(model.columns.size());
  const pid_t child = fork();
  LANCET_CHECK(child >= 0, "cannot start a process for the solver: {}", std::strerror(errno));
  if (child == 0) {
    const int null = open("/dev/null", O_WRONLY);
    dup2(null, STDOUT_FILENO);
    dup2(null, STDERR_FILENO);
    signal(SIGABRT, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);  // without its reader it has no use
    try {
      solve_here(model, options, careful, board);
    } catch (...) {  // the caller's code must not run twice
      _exit(1);
    }
    _exit(0);
  }
  while (waitpid(child, nullptr, WNOHANG) == 0) {
    if (seconds_since(begin) > options.seconds + grace_seconds) kill(child, SIGKILL);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  answer.bound = std::max(answer.bound, board.bound());
  for (std::vector<double>& values : board.answers()) keep(model, std::move(values), answer);
  if (board.ended()) answer.status = board.status();
  return board.ended();
}

}  // namespace

std::string linear_solver() { return fmt::format("CBC {}", CBC_VERSION); }

// Debian's CBC 2.10.8 has assertions, and one of Clp fails on some programs that preprocessing makes smaller than three
// rows (coin-or/Clp, issue 288). A second try has no preprocessing and no heuristics, which preprocess likewise.
Result<LinearAnswer> solve_linear(const LinearModel& model, const LinearOptions& options) {
  const auto before = Clock::now();
  LinearAnswer answer;
  if (!solve_in_child(model, options, false, answer) && seconds_since(before) < options.seconds) {
    LinearOptions rest = options;
    rest.seconds -= seconds_since(before);
    solve_in_child(model, rest, true, answer);
  }
  answer.is_time_over = seconds_since(before) >= 0.99 * options.seconds;
  if (answer.status != LinearStatus::optimal && !answer.values.empty()) answer.status = LinearStatus::feasible;
  if (answer.status != LinearStatus::infeasible && answer.values.empty()) answer.status = LinearStatus::nothing;
  return answer;
}

#endif
}  // namespace lancet::placement
