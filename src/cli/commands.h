// The commands, each of which adds itself to the parser, and what they share. The chosen command stores the function to
// run in a Selection.
#pragma once

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/data/tokenizer.h"
#include "lancet/models/loaded_model.h"

namespace lancet::cli {

// The function that the command line selected. Exactly one of `local` and `ranked` is set.
struct Selection {
  std::function<Status()> local;                                       // runs on one process
  std::function<Status(comm::Communicator&, int local_ranks)> ranked;  // runs on every rank
  std::chrono::milliseconds timeout{300'000};                          // for the ranks' first messages
};

using AddCommand = void(CLI::App& app, Selection& selection);
AddCommand add_train, add_data, add_bench, add_plan, add_place, add_profile, add_report, add_eval, add_generate,
    add_export, add_import;
AddCommand add_bench_ops, add_bench_network, add_bench_policies;  // of `lancet bench`

// Runs `body` with the communicator over all ranks that the launcher started: MPI under a launcher, one rank without.
// Prints errors and returns the exit code; no rank is left waiting. timeout: for the ranks' first messages;
// their start has at least 30 s.
int run_ranked(const std::function<Status(comm::Communicator&, int local_ranks)>& body,
               std::chrono::milliseconds timeout);
int report(const Error& error);  // logs the error and returns its exit code

// Opens standard descriptors that are closed, and makes stdout and stderr wait where theirs is non-blocking and full.
void open_standard_streams();
// Writes to a descriptor, which may be non-blocking, and returns the number of bytes: fewer than given on an error.
// Signal handlers may call it.
std::size_t write_waiting(int descriptor, std::string_view text);
Status print(const std::string& text);  // writes to standard output and flushes it; a data error if that fails
// Runs the command and returns its status, or a data error if standard output failed.
Status all_printed(const std::function<Status()>& command);

// The commit of the sources that the program's build tree links, with " and changes" if they differ from it; "unknown"
// outside a build tree or without git.
std::string commit();

// The CONFIG argument and --set, shared by the commands that read a config.
struct ConfigArguments {
  std::string file;
  std::string from;  // of the commands that have the option: model.from; CONFIG may then be missing
  std::vector<std::string> overrides, accepted;
};

std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command);
Result<config::Config> load_config(const ConfigArguments& arguments);
// Collective: every rank reads the file, and an error on any rank is returned on all. Sets the communicator's timeout
// to comm.timeout_s.
Result<config::Config> load_config(const ConfigArguments& arguments, comm::Communicator& world);

// Returns the config's comm.timeout_s; the default's if the config is invalid, which is reported later, or a pipe.
std::chrono::milliseconds configured_timeout(const ConfigArguments& arguments);

// Returns the folder of the profile files that are used if overlap.profile is empty: lancet in $XDG_CACHE_HOME or else
// ~/.cache (the XDG base directories). Empty if there is no home folder; costs are not kept then.
std::string profile_folder();

std::string shell_word(const std::string& word);  // as a shell reads it

// --accept-field, shared by the commands that read a folder of Hugging Face's format.
void add_accept_option(CLI::App& command, std::vector<std::string>& accepted);

// --from, --dtype, --device and --threads, shared by the commands that load a trained model.
struct FromArguments {
  std::string from, dtype, device;
  std::vector<std::string> accepted;
  int threads = 0;
  models::LoadOptions options(int local_ranks) const;
};
std::shared_ptr<FromArguments> add_from_arguments(CLI::App& command);
CLI::Option* add_from_option(CLI::App& command, std::string& from);

// --special-as-text, of the commands that read a text.
void add_special_as_text(CLI::App& command, data::SpecialTokens& special);

// Validators of option values. Their errors name the expected and the found value. They refuse what the parser would
// accept: -1 for a seed, nan for a share.

// --seed: a whole number from 0 to 2^64 - 1 in decimal digits, and nothing else.
CLI::Option* add_seed_option(CLI::App& command, std::uint64_t& seed, const std::string& help);

// An option of a number, whose default the help shows.
template <class Number>
CLI::Option* add_number(CLI::App& command, const char* name, Number& number, const std::string& help,
                        const CLI::Validator& range) {
  return command.add_option(name, number, help)->capture_default_str()->check(range);
}

// Accepts numbers of this range, both ends included, and no nan.
CLI::Validator between(double least, double most);
// Accepts whole numbers of this range, both ends included.
CLI::Validator whole_between(std::int64_t least, std::int64_t most);

// Returns for example "12.3 MB, 40s left". The rest is estimated from the mean speed; seconds: since the beginning.
std::string progress_detail(const std::string& done, double fraction, double seconds);

// Shows a command's progress on standard error: one line that is rewritten in place on a terminal, else a line at every
// tenth.
class ProgressBar {
 public:
  // patience: seconds before the bar appears; a shorter task shows none.
  explicit ProgressBar(const char* what, double patience = 0);
  ~ProgressBar();
  ProgressBar(const ProgressBar&) = delete;
  void show(double fraction, const std::string& done);

 private:
  const char* const what_;
  const double patience_;
  const bool terminal_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  int shown_ = -1;
};

// Makes SIGINT, SIGTERM, SIGUSR1 and SIGHUP, unless they are ignored, print a line to stderr before they end the
// process by their default action: the shell sees 128 + the signal's number.
void announce_signals();

// Makes the first of SIGINT, SIGTERM, SIGUSR1, SIGHUP and SIGPIPE (stdout was closed), unless ignored, only set the
// returned number; another SIGINT or SIGTERM ends the process. is_rank0: the signal is reported on stderr.
const std::atomic<int>& catch_stop_signals(bool is_rank0);
// Stops the reports: this process has failed and is about to end, and its launcher may send signals.
void report_no_signals();

}  // namespace lancet::cli
