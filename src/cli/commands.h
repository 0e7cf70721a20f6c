// Each command adds itself to the program and leaves what to run.
#pragma once
#include <CLI/CLI.hpp>
#include <chrono>
#include <functional>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"

namespace lancet::cli {

// What the command line asked for.
struct Selection {
  std::function<Status()> local;                                       // runs on one process
  std::function<Status(comm::Communicator&, int local_ranks)> ranked;  // runs on every rank
  std::chrono::milliseconds start_timeout{300'000};                    // for all ranks to be there
};

void add_train(CLI::App& app, Selection& selection);
void add_data(CLI::App& app, Selection& selection);
void add_bench(CLI::App& app, Selection& selection);
void add_plan(CLI::App& app, Selection& selection);
void add_profile(CLI::App& app, Selection& selection);
void add_report(CLI::App& app, Selection& selection);
void add_eval(CLI::App& app, Selection& selection);
void add_generate(CLI::App& app, Selection& selection);
void add_export(CLI::App& app, Selection& selection);
void add_import(CLI::App& app, Selection& selection);

// Runs `body` with the communicator over all ranks that the launcher started: MPI under a launcher, one rank without.
// Returns the exit code; errors have been printed, and no rank is left waiting. start_timeout: for the launcher's ranks
// to meet.
int run_ranked(const std::function<Status(comm::Communicator&, int local_ranks)>& body,
               std::chrono::milliseconds start_timeout);
int report(const Error& error);         // prints it, returns its exit code
Status print(const std::string& text);  // on standard output, to its end; a data error where that fails
// The command's status; a data error where standard output did not take all that it printed.
Status all_printed(const std::function<Status()>& command);

}  // namespace lancet::cli
