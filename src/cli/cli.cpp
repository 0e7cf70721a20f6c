#include "lancet/cli/cli.h"

#include <fmt/format.h>
#include <unistd.h>
#include <algorithm>
#include <csignal>
#include <cstring>
#include <initializer_list>
#include <sstream>
#include <string_view>

#include "commands.h"
#include "lancet/base/exceptions.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/comm/mpi.h"

namespace lancet::cli {
namespace {

constexpr const char* description =
    "Lancet trains mixture-of-experts models: one JSON file, one program, MPI ranks.\n\n"
    "  lancet data train-tokenizer --vocab-size 8192 --out data/tok book.txt\n"
    "  lancet data tokenize --tokenizer data/tok --out data/train.bin book.txt\n"
    "  mpirun -np 2 lancet train configs/quickstart.json\n\n"
    "Exit codes: 0 done, 1 internal, 2 config or usage, 3 data or checkpoint, 4 loss not finite, 5 communication,\n75 "
    "saved and stopped: run the same command again.";

// Makes every option refuse an empty word, as of an unset shell variable; only texts may be empty.
void refuse_empty_words(CLI::App& command) {
  for (CLI::Option* option : command.get_options())
    if (option->get_name() != "--prompt" && option->get_name() != "--text")
      option->check(
          [](const std::string& word) { return word.empty() ? "expected a value, found an empty word" : ""; });
  for (CLI::App* inner : command.get_subcommands([](const CLI::App*) { return true; })) refuse_empty_words(*inner);
}

// The parser's message in one line, after the words that select the command. An unknown option is reported first: the
// parser takes the word after it for something else, and may report that.
std::string usage_line(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = &app;
  std::string path = app.get_name();
  for (; !command->get_subcommands().empty(); path += " " + command->get_name())
    command = command->get_subcommands().front();
  std::string message = error.what();
  const std::vector<std::string> left = app.remaining(true);
  if (const auto unknown = std::ranges::find_if(left, [](const auto& word) { return word.starts_with("-"); });
      unknown != left.end())
    message = "expected one of its options, found " + shown(*unknown);
  else if (!left.empty() && dynamic_cast<const CLI::RequiredError*>(&error))
    message += ", found " + shown(left.front());
  return fmt::format("{}: {}; see {} --help", path, cut(message, 400), path);
}

int usage(const CLI::App& app, const CLI::ParseError& error, bool is_rank0) {
  if (error.get_exit_code() == 0) {  // --help, --version, --cuts
    if (!is_rank0) return 0;
    std::ostringstream text;
    app.exit(error, text);
    const Status printed = print(text.str());
    return printed.ok() ? 0 : report(printed.error());
  }
  if (is_rank0) log::error("{}", usage_line(app, error));
  return static_cast<int>(ExitCode::config);
}

int run(const Selection& selection) {
  try {
    if (selection.ranked) return run_ranked(selection.ranked, selection.timeout);
    const Status status = all_printed(selection.local);
    return status.ok() ? 0 : report(status.error());
  } catch (const std::exception& error) {
    return report(error_of(error));
  }
}

}  // namespace

int report(const Error& error) {
  if (error.code == ExitCode::saved)
    log::info("{}", error.message);
  else
    log::error("{}", error.message);
  return static_cast<int>(error.code);
}

int main(int argc, char** argv) {
  open_standard_streams();
  const comm::Launch launch = comm::detect_launch();
  log::set_up(launch.rank, launch.size);
  if (launch.rank == 0) announce_signals();  // a launcher passes a signal on to all ranks; only one reports it
  CLI::App app(description, "lancet");
  app.set_version_flag("--version", "lancet " LANCET_VERSION);
  app.require_subcommand(1);
  Selection selection;
  for (const auto add : {add_train, add_data, add_bench, add_plan, add_place, add_profile, add_report, add_eval,
                         add_generate, add_export, add_import})
    add(app, selection);
  refuse_empty_words(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return usage(app, error, launch.rank == 0);
  }
  return run(selection);
}

// Runs a command on every rank: under MPI if a launcher started several ranks, else alone. A rank reports its error
// and, unless all ranks have agreed on it, aborts the job, so that no rank waits for one that failed.
namespace {

Status guarded(const std::function<Status(comm::Communicator&, int)>& body, comm::Communicator& world,
               int local_ranks) {
  try {
    return all_printed([&] { return body(world, local_ranks); });
  } catch (const std::exception& error) {
    return error_of(error);
  }
}

#ifdef LANCET_HAVE_MPI
// MPI_Init returns once the launcher has started every rank, which may load the program from a slow disk.
constexpr std::chrono::milliseconds least_launch = std::chrono::seconds(30);

int run_mpi(const std::function<Status(comm::Communicator&, int)>& body, const comm::Launch& launch,
            std::chrono::milliseconds timeout) {
  auto session = comm::MpiSession::start(std::max(timeout, least_launch), timeout);
  if (!session.ok()) return report(session.error());
  const auto world = (*session)->world();
  if (world->size() != launch.size || world->rank() != launch.rank) {
    // If MPI does not support this launcher, every process is a world of its own.
    report(config_error(
        fmt::format("expected rank {} of {}, as the launcher says, found rank {} of {} in MPI: start with the mpirun "
                    "of this program's MPI, or srun --mpi=pmix",
                    launch.rank, launch.size, world->rank(), world->size())));
    (*session)->abort_job(static_cast<int>(ExitCode::config));
  }
  const Status status = guarded(body, *world, launch.local_size);
  if (status.ok()) return 0;
  const Error& error = status.error();
  report_no_signals();
  if (!error.agreed || launch.rank == 0) report(error);
  // The other ranks may be waiting for this one.
  if (!error.agreed) (*session)->abort_job(static_cast<int>(error.code));
  return static_cast<int>(error.code);
}
#endif

}  // namespace

int run_ranked(const std::function<Status(comm::Communicator&, int)>& body,
               [[maybe_unused]] std::chrono::milliseconds timeout) {
  const comm::Launch launch = comm::detect_launch();
  if (launch.size > 1) {
#ifdef LANCET_HAVE_MPI
    return run_mpi(body, launch, timeout);
#else
    if (launch.rank > 0) return static_cast<int>(ExitCode::config);
    return report(config_error("expected one rank, since this program was built without MPI (LANCET_MPI=OFF); found " +
                               std::to_string(launch.size)));
#endif
  }
  const auto self = comm::make_self();
  const Status status = guarded(body, *self, 1);
  return status.ok() ? 0 : report(status.error());
}

// Of the two ways to handle signals, the one that a command installs last holds: main() calls announce_signals() on
// rank 0 for every command, training catch_stop_signals(). Handlers use only write(), poll(), sigaction(), raise()
// and lock-free atomics. Signals that were ignored at the start (nohup) stay ignored.
namespace {

void say(std::string_view text) { write_waiting(STDERR_FILENO, text); }

void say_name(int signal) {
  say("SIG");
  say(::sigabbrev_np(signal));
}

// SA_RESETHAND has restored the default action, so that raise() ends the process.
void stop(int signal) {
  say("error: stopped by ");
  say_name(signal);
  say(" before the end\n");
  std::raise(signal);
}

void handle(std::initializer_list<int> signals, void (*handler)(int), int flags) {
  for (const int signal : signals) {
    struct sigaction before = {}, action = {};
    if (::sigaction(signal, nullptr, &before) != 0 || before.sa_handler == SIG_IGN) continue;
    action.sa_handler = handler;
    action.sa_flags = flags;
    ::sigaction(signal, &action, nullptr);
  }
}

std::atomic<int> requested{0};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "handlers read and write them");
std::atomic<bool> speaks{false};

void request(int signal) {
  if (requested.exchange(signal) != 0) return;
  if (!speaks) return handle({SIGINT, SIGTERM}, SIG_DFL, 0);
  handle({SIGINT, SIGTERM}, stop, static_cast<int>(SA_RESETHAND));
  say_name(signal);
  say(": saving and stopping after this step; another SIGTERM or SIGINT stops at once\n");
}

}  // namespace

void announce_signals() {
  handle({SIGINT, SIGTERM, SIGUSR1, SIGHUP}, stop, static_cast<int>(SA_RESETHAND));
  handle({SIGXFSZ}, SIG_IGN, 0);  // so that write() returns an error when a file reaches the size limit
}

const std::atomic<int>& catch_stop_signals(bool is_rank0) {
  speaks = is_rank0;
  handle({SIGINT, SIGTERM, SIGUSR1, SIGHUP, SIGPIPE}, request, SA_RESTART);
  return requested;
}

void report_no_signals() { speaks = false; }

}  // namespace lancet::cli
