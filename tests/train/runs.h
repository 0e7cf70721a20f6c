// Runs of train() in temporary folders, and the files that they write.
#pragma once
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "checkpoint/support.h"
#include "good.h"
#include "lancet/data/token_file.h"
#include "lancet/train/trainer.h"
#include "temporary_folder.h"
#include "text.h"
#include "train/support.h"

namespace lancet::test {

inline config::Config config_in(const std::string& run) {
  auto config = small_config();
  config.model.num_local_experts = 4;
  config.train.steps = 6;
  config.train.micro_batch_size = 4;
  config.train.weight_decay = 0.1;
  config.train.lr_schedule = config::LrSchedule::cosine;
  config.train.save_interval = 100;  // the end
  config.train.save_buffer_mb = 8;
  config.log.run_dir = run;
  return config;
}

// The result of train() on these ranks, which are threads.
inline Error train_run(const config::Config& config, int ranks, train::TrainerOptions options = {}) {
  options.local_ranks = ranks;
  Error error{ExitCode::done, "", false};
  std::mutex mutex;
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const Status mine = train::train(config, world, options);
    const std::lock_guard lock(mutex);
    if (!mine.ok() && (world.rank() == 0 || !mine.error().agreed)) error = mine.error();
    if (!mine.ok()) CHECK(mine.error().agreed);
    return {};
  }));
  CHECK(error.message.find('\n') == std::string::npos);
  return error;
}

inline Error stop_after(config::Config config, std::int64_t step, int ranks,
                        const train::TrainerOptions& options = {}) {
  config.train.stop_after = step;
  const Error error = train_run(config, ranks, options);
  CHECK(error.code == ExitCode::saved);
  return error;
}

// Trains and evaluates on files, evaluations of 8 batches on two ranks.
inline config::Config config_with_files(const TemporaryFolder& folder, const std::string& run) {
  auto config = config_in(folder / run);
  std::vector<data::TokenId> tokens;
  for (int i = 0; i < 2000; ++i) tokens.push_back(i * i % 67);
  auto writer = test::good(data::TokenWriter::create(folder / "tokens.bin", 67, 0));
  REQUIRE(writer->append(tokens).ok());
  REQUIRE(writer->finish().ok());
  config.data.synthetic = false;
  config.data.train = config.data.eval = folder / "tokens.bin";
  config.data.eval_sequences = 64;
  return config;
}

// A run that rank 1 stops at the `at`-th poll of its stop function; returns its result and the number of polls.
inline std::pair<Error, int> run_until(const config::Config& config, int at, const std::string& init_from = "") {
  Error error{ExitCode::done, "", false};
  int asked = 0;
  test::good(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    train::TrainerOptions options{.local_ranks = 2, .init_from = init_from};
    if (world.rank() == 1) options.interrupted = [&] { return ++asked >= at; };
    const Status mine = train::train(config, world, options);
    if (world.rank() == 0 && !mine.ok()) error = mine.error();
    return {};
  }));
  return {error, asked};
}

inline checkpoint::Manifest manifest_in(const std::string& run, std::int64_t step) {
  const auto opened = test::good(
      checkpoint::Checkpoint::open(std::filesystem::path(run) / "checkpoints" / checkpoint::folder_name(step)));
  REQUIRE(test::verify(*opened).ok());
  return opened->manifest();
}

inline std::vector<nlohmann::json> records_of(const std::string& run) {
  std::vector<nlohmann::json> records;
  std::ifstream in(run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) records.push_back(test::json_in(line));
  return records;
}

inline std::vector<double> losses(const std::string& run) {
  std::vector<double> values;
  for (const auto& record : records_of(run)) {
    if (!record.contains("loss")) continue;
    CHECK(record["step"] == values.size() + 1);
    values.push_back(record["loss"]);
  }
  return values;
}

// The step, and the loss.
inline std::vector<std::pair<std::int64_t, double>> held_out_losses(const std::string& run) {
  std::vector<std::pair<std::int64_t, double>> values;
  for (const auto& record : records_of(run))
    if (record.contains("held_out_loss")) values.emplace_back(record["step"], record["held_out_loss"]);
  return values;
}

inline std::string in_checkpoints(const std::string& run, const std::string& name) {
  return run + "/checkpoints/" + name;
}

}  // namespace lancet::test
