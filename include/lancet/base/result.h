// Result<T>: a value or an Error that a user can cause. Broken invariants throw instead (check.h).
#pragma once
#include <string>
#include <utility>
#include <variant>

namespace lancet {

// The process's exit codes; an Error carries the code with which it ends the run.
enum class ExitCode : int {
  done = 0,
  internal = 1,
  config = 2,         // config file or command line
  data = 3,           // data, tokenizer or checkpoint
  numerical = 4,      // loss or gradient norm not finite
  communication = 5,  // a rank did not arrive, a connection broke
  saved = 75          // the run saved a checkpoint and stopped; the same command resumes it
};

// message: one line with what was expected, what was found and where; for system errors, the operation and the cause.
struct Error {
  ExitCode code = ExitCode::internal;
  std::string message;
  bool agreed = false;  // all ranks return this error: one of them logs it, and no rank waits for another
};

inline Error config_error(std::string m) { return {ExitCode::config, std::move(m), false}; }
inline Error data_error(std::string m) { return {ExitCode::data, std::move(m), false}; }
inline Error numerical_error(std::string m) { return {ExitCode::numerical, std::move(m), false}; }
inline Error communication_error(std::string m) { return {ExitCode::communication, std::move(m), false}; }
inline Error internal_error(std::string m) { return {ExitCode::internal, std::move(m), false}; }

template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& { return std::get<1>(state_); }
  Error&& error() && { return std::get<1>(std::move(state_)); }

 private:
  std::variant<T, Error> state_;
};

// Success carries no value: `return {};`
template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : error_(std::move(error)), ok_(false) {}
  bool ok() const { return ok_; }
  explicit operator bool() const { return ok_; }
  const Error& error() const& { return error_; }
  Error&& error() && { return std::move(error_); }

 private:
  Error error_;
  bool ok_ = true;
};
using Status = Result<void>;

}  // namespace lancet

#define LANCET_CONCAT_(a, b) a##b
#define LANCET_CONCAT(a, b) LANCET_CONCAT_(a, b)

// LANCET_TRY(status_expression): returns its Error from the enclosing function.
#define LANCET_TRY(expr)                                                                              \
  do {                                                                                                \
    if (auto lancet_status_ = (expr); !lancet_status_.ok()) return std::move(lancet_status_).error(); \
  } while (0)

// LANCET_ASSIGN(auto x, result_expression): x = the value, or returns the Error.
#define LANCET_ASSIGN(decl, expr) LANCET_ASSIGN_(LANCET_CONCAT(lancet_result_, __LINE__), decl, expr)
#define LANCET_ASSIGN_(tmp, decl, expr)         \
  auto tmp = (expr);                            \
  if (!tmp.ok()) return std::move(tmp).error(); \
  decl = std::move(tmp).value()
