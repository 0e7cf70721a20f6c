// Declares the subcommands of `lancet bench`, which bench_*.cpp define.
#pragma once
#include "commands.h"

namespace lancet::cli {

void add_bench_network(CLI::App& bench, Selection& selection);
void add_bench_checkpoint(CLI::App& bench, Selection& selection);
void add_bench_sweep(CLI::App& bench, Selection& selection);
void add_bench_import_nccl(CLI::App& bench, Selection& selection);
void add_bench_policies(CLI::App& bench, Selection& selection);

}  // namespace lancet::cli
