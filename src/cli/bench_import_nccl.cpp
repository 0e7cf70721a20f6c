// lancet bench import-nccl: what nccl-tests measured on a cluster, as the tables of its hardware file.
#include <fmt/format.h>

#include <memory>

#include "bench.h"
#include "lancet/base/atomic_file.h"
#include "lancet/cost/hardware.h"
#include "lancet/profiler/nccl_log.h"

namespace lancet::cli {
namespace {

struct NcclArguments {
  std::string hardware, out;
  std::vector<std::string> logs;
};

Result<std::string> input_text(const std::string& path, const char* what) {
  auto text = read_file(path, what);
  if (!text.ok()) return config_error(text.error().message);
  return text;
}

Status import_nccl(const NcclArguments& arguments) {
  LANCET_ASSIGN(std::string hardware, input_text(arguments.hardware, "a hardware file"));
  for (const std::string& path : arguments.logs) {
    LANCET_ASSIGN(const std::string text, input_text(path, "a log of nccl-tests"));
    LANCET_ASSIGN(const profiler::NcclLog log, profiler::parse_nccl_log(text, path));
    LANCET_ASSIGN(hardware, profiler::with_nccl_log(hardware, arguments.hardware, log,
                                                    std::filesystem::path(path).filename().string()));
    LANCET_TRY(
        print(fmt::format("{}: {} of {} ranks on {} host{}\n", path,
                          log.collective == profiler::NcclLog::Collective::all_reduce ? "all-reduces" : "all-to-alls",
                          log.ranks, log.hosts, log.hosts > 1 ? "s" : "")));
  }
  return write_file(arguments.out, hardware);
}

}  // namespace

void add_bench_import_nccl(CLI::App& bench, Selection& selection) {
  CLI::App* command = bench.add_subcommand("import-nccl",
                                           "Put what nccl-tests measured into a hardware file: lancet bench "
                                           "import-nccl mine.json alltoall.log --out new.json");
  auto arguments = std::make_shared<NcclArguments>();
  command->add_option("hardware", arguments->hardware, "The cluster's hardware file, with its NICs and links")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("logs", arguments->logs, "Outputs of all_reduce_perf or alltoall_perf, each for one number of nodes")
      ->required()
      ->type_name("LOG");
  command->add_option("--out", arguments->out, "The hardware file to write; comments are not kept")
      ->required()
      ->type_name("FILE");
  command->callback(
      [arguments, &selection] { selection.local = [arguments]() -> Status { return import_nccl(*arguments); }; });
}

}  // namespace lancet::cli
