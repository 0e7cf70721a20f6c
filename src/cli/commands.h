// Adds the commands to the parser. The chosen command stores the function to run in a Selection.
#pragma once

#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"

namespace lancet::cli {

// The function that the command line selected. Exactly one of `local` and `ranked` is set.
struct Selection {
  std::function<Status()> local;                                       // runs on one process
  std::function<Status(comm::Communicator&, int local_ranks)> ranked;  // runs on every rank
  std::chrono::milliseconds timeout{300'000};                          // for the ranks' first messages
};

void add_train(CLI::App& app, Selection& selection);
void add_data(CLI::App& app, Selection& selection);
void add_bench(CLI::App& app, Selection& selection);
void add_plan(CLI::App& app, Selection& selection);
void add_place(CLI::App& app, Selection& selection);
void add_profile(CLI::App& app, Selection& selection);
void add_report(CLI::App& app, Selection& selection);
void add_eval(CLI::App& app, Selection& selection);
void add_generate(CLI::App& app, Selection& selection);
void add_export(CLI::App& app, Selection& selection);
void add_import(CLI::App& app, Selection& selection);

// Runs `body` with the communicator over all ranks that the launcher started: MPI under a launcher, one rank without.
// Prints errors and returns the exit code; no rank is left waiting. timeout: for the ranks' first messages;
// their start has at least 30 s.
int run_ranked(const std::function<Status(comm::Communicator&, int local_ranks)>& body,
               std::chrono::milliseconds timeout);
int report(const Error& error);         // logs the error and returns its exit code
Status print(const std::string& text);  // writes to standard output and flushes it; a data error if that fails
// Runs the command and returns its status, or a data error if standard output failed.
Status all_printed(const std::function<Status()>& command);

// Declares the subcommands of `lancet bench`, which bench_*.cpp define.

// The commit of the sources that the program's build tree links, with " and changes" if they differ from it; "unknown"
// outside a build tree or without git.
std::string commit();

void add_bench_ops(CLI::App& bench, Selection& selection);
void add_bench_network(CLI::App& bench, Selection& selection);
void add_bench_policies(CLI::App& bench, Selection& selection);

}  // namespace lancet::cli
