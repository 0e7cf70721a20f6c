// Runs over a token file that stop in the middle of an epoch and resume bit for bit, for every optimizer and type.
#include <catch2/catch.hpp>
#include <filesystem>

#include "in_memory.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/data/token_file.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

constexpr int windows = 20;  // of 16 tokens; with 8 rows per step an epoch ends in the middle of step 3

std::string token_file(const TemporaryFolder& folder) {
  std::vector<data::TokenId> tokens;
  for (int i = 0; i <= windows * 16; ++i) tokens.push_back((i * i + 5 * i / 3) % 67);
  auto writer = data::TokenWriter::create(folder / "tokens.bin", 67, 0);
  REQUIRE(writer.ok());
  REQUIRE(writer->append(tokens).ok());
  REQUIRE(writer->finish().ok());
  return folder / "tokens.bin";
}

config::Config config_of(const TemporaryFolder& folder, int ranks, int accumulation) {
  auto config = test::small_config();
  config.model.num_local_experts = 4;
  config.data.synthetic = false;
  config.data.train = token_file(folder);
  config.train.steps = 6;
  config.train.micro_batch_size = 8 / ranks / accumulation;
  config.train.gradient_accumulation_steps = accumulation;
  config.train.weight_decay = 0.1;
  config.train.save_interval = 100;
  config.train.save_buffer_mb = 8;
  return config;
}

// The losses of all steps in the run folder, after a run on these ranks up to `stop` (0: the end).
std::vector<double> train_run(config::Config config, const std::string& folder, int ranks, int stop) {
  config.log.run_dir = folder;
  config.train.stop_after = stop;
  std::atomic<int> wrong{0};
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const Status mine = train::train(config, world, {.local_ranks = ranks});
    const ExitCode code = mine.ok() ? ExitCode::done : mine.error().code;
    wrong += code != (stop > 0 ? ExitCode::saved : ExitCode::done);
    return {};
  });
  REQUIRE(status.ok());
  REQUIRE(wrong == 0);
  std::vector<double> losses;
  std::ifstream in(folder + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    const auto at = line.find("\"loss\": ");
    if (at == std::string::npos) continue;  // a held-out loss
    losses.push_back(std::stod(line.substr(at + 8)));
  }
  return losses;
}

std::vector<checkpoint::ShardFile> files_of(const std::string& run) {
  const auto opened = checkpoint::Checkpoint::open(fs::path(run) / "checkpoints" / checkpoint::folder_name(6));
  REQUIRE(opened.ok());
  return opened->manifest().files;
}

}  // namespace

TEST_CASE("a run stopped in the middle of an epoch and resumed equals an undisturbed one, bit for bit") {
  const test::InMemory place;
  const TemporaryFolder folder;
  const auto [ranks, accumulation, stop] =
      GENERATE(table<int, int, int>({{1, 1, 2}, {1, 2, 3}, {2, 2, 1}, {2, 4, 3}, {4, 1, 3}, {4, 2, 5}}));
  auto config = config_of(folder, ranks, accumulation);
  config.train.optimizer = GENERATE(config::Optimizer::adamw, config::Optimizer::sgd);
  const bool adamw = config.train.optimizer == config::Optimizer::adamw;
  config.train.dtype = adamw == (accumulation == 2) ? DType::f32 : DType::bf16;
  if (ranks == 2) {
    config.model.router = accumulation == 2 ? config::Router::top_k : config::Router::gshard;
    config.model.num_experts_per_tok = 2;
    config.model.router_jitter_noise = 0.1;
  }
  if (ranks == 4 && accumulation == 2) {  // with a bias, which has no moments
    config.model.router = config::Router::sigmoid;
    config.model.router_bias_update_rate = 0.01;
  }
  if (ranks == 4 && accumulation == 1) config.model.router = config::Router::random;
  const auto whole = train_run(config, folder / "whole", ranks, 0);
  REQUIRE(whole.size() == 6);
  REQUIRE(train_run(config, folder / "stopped", ranks, stop).size() == std::size_t(stop));
  CHECK(train_run(config, folder / "stopped", ranks, 0) == whole);
  CHECK(files_of(folder / "stopped") == files_of(folder / "whole"));
}

}  // namespace lancet
