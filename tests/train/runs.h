// Runs of train() in folders of their own, and what they leave there.
#pragma once
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "lancet/checkpoint/checkpoint.h"
#include "lancet/train/trainer.h"
#include "temporary_folder.h"
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

// How train() ends on these ranks, which are threads.
inline Error run(const config::Config& config, int ranks, train::TrainerOptions options = {}) {
  options.local_ranks = ranks;
  Error error{ExitCode::done, "", false};
  std::mutex mutex;
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const Status mine = train::train(config, world, options);
    const std::lock_guard lock(mutex);
    if (!mine.ok() && (world.rank() == 0 || !mine.error().agreed)) error = mine.error();
    if (!mine.ok()) CHECK(mine.error().agreed);
    return {};
  });
  REQUIRE(status.ok());
  CHECK(error.message.find('\n') == std::string::npos);
  return error;
}

inline Error stop_after(config::Config config, std::int64_t step, int ranks,
                        const train::TrainerOptions& options = {}) {
  config.train.stop_after = step;
  const Error error = run(config, ranks, options);
  CHECK(error.code == ExitCode::saved);
  return error;
}

inline checkpoint::Manifest manifest_in(const std::string& run, std::int64_t step) {
  const auto opened =
      checkpoint::Checkpoint::open(std::filesystem::path(run) / "checkpoints" / checkpoint::folder_name(step));
  INFO((opened.ok() ? "" : opened.error().message));
  REQUIRE(opened.ok());
  REQUIRE(opened->verify().ok());
  return opened->manifest();
}

inline std::vector<nlohmann::json> records_of(const std::string& run) {
  std::vector<nlohmann::json> records;
  std::ifstream in(run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) records.push_back(nlohmann::json::parse(line));
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

inline std::string in_checkpoints(const std::string& run, const std::string& name) {
  return run + "/checkpoints/" + name;
}

}  // namespace lancet::test
