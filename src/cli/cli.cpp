#include "lancet/cli/cli.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "commands.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/comm/mpi.h"
#include "signals.h"

namespace lancet::cli {
namespace {

constexpr const char* description =
    "Lancet trains GPT-2 mixture-of-experts models: one JSON file, one program, MPI ranks.\n\n"
    "  lancet data train-tokenizer --vocab-size 8192 --out data/tok book.txt\n"
    "  lancet data tokenize --tokenizer data/tok --out data/train.bin book.txt\n"
    "  mpirun -np 2 lancet train configs/quickstart.json\n\n"
    "Exit codes: 0 done, 1 internal, 2 config or usage, 3 data or checkpoint, 4 loss not finite, 5 communication,\n75 "
    "saved and stopped: run the same command again.";

// Makes every option refuse an empty word, as of an unset shell variable; only --prompt may be empty.
void refuse_empty_words(CLI::App& command) {
  for (CLI::Option* option : command.get_options())
    if (option->get_name() != "--prompt")
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
  if (error.get_exit_code() == 0) return is_rank0 ? app.exit(error) : 0;  // --help
  if (is_rank0) log::error("{}", usage_line(app, error));
  return static_cast<int>(ExitCode::config);
}

int run(const Selection& selection) {
  try {
    if (selection.ranked) return run_ranked(selection.ranked, selection.timeout);
    const Status status = all_printed(selection.local);
    return status.ok() ? 0 : report(status.error());
  } catch (const std::exception& error) {
    return report(internal_error(error.what()));
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

Status print(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
  if (written && std::ferror(stdout) == 0) return {};
  return data_error(fmt::format("cannot write standard output: {}", std::strerror(errno)));
}

Status all_printed(const std::function<Status()>& command) {
  try {
    LANCET_TRY(command());
  } catch (const std::system_error&) {  // thrown by fmt if standard output fails
    if (std::ferror(stdout) == 0) throw;
  }
  return print("");
}

int main(int argc, char** argv) {
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

}  // namespace lancet::cli
