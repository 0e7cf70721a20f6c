#include "bench.h"

namespace lancet::cli {

void add_bench(CLI::App& app, Selection& selection) {
  CLI::App* bench = app.add_subcommand("bench", "Benchmarks: lancet bench ops configs/bench-small.json");
  bench->require_subcommand(1);
  add_bench_network(*bench, selection);
  add_bench_policies(*bench, selection);
  add_bench_ops(*bench, selection);
}

}  // namespace lancet::cli
