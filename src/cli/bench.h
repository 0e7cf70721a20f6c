// Declares the subcommands of `lancet bench`, which bench_*.cpp define.
#pragma once
#include "commands.h"

namespace lancet::cli {

// The commit of the sources that the program's build tree links, with " and changes" if they differ from it; "unknown"
// outside a build tree or without git.
std::string commit();

void add_bench_ops(CLI::App& bench, Selection& selection);
void add_bench_network(CLI::App& bench, Selection& selection);
void add_bench_policies(CLI::App& bench, Selection& selection);

}  // namespace lancet::cli
