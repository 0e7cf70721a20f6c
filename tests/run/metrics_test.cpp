// metrics.jsonl: complete lines on a full disk, and no loss of earlier runs' records.
#include "lancet/run/metrics.h"

#include <catch2/catch.hpp>
#include <limits>

#include "file_limit.h"
#include "good.h"
#include "lancet/run/run_folder.h"
#include "log_capture.h"
#include "program.h"
#include "text.h"

namespace lancet {
namespace {

using test::FileLimit;
using test::TemporaryFolder;

run::StepRecord record_of(std::int64_t step) {
  run::StepRecord record;
  record.step = step;
  record.loss = 1.0 / double(step);
  return record;
}

}  // namespace

TEST_CASE("a record on a full disk leaves only complete lines, and later records follow them") {
  const TemporaryFolder folder;
  auto file = test::good(run::MetricsFile::create(folder / "metrics.jsonl"));
  const auto line = run::to_json(record_of(1)).size() + 1;
  {
    const FileLimit limit(2 * line + line / 2);
    REQUIRE(file->write(record_of(1)).ok());
    REQUIRE(file->write(record_of(2)).ok());
    const Error failed = test::refused(file->write(record_of(3)));
    CHECK(failed.code == ExitCode::data);
    CHECK(failed.message.find("cannot write the record of step 3 to ") != std::string::npos);
    CHECK(failed.message.find('\n') == std::string::npos);
    CHECK(std::filesystem::file_size(folder / "metrics.jsonl") ==
          run::to_json(record_of(1)).size() + run::to_json(record_of(2)).size() + 2);
    CHECK(test::metrics(folder / "").size() == 2);
  }
  REQUIRE(file->write(record_of(4)).ok());
  const auto records = test::metrics(folder / "");
  REQUIRE(records.size() == 3);
  CHECK(records[1]["step"] == 2);
  CHECK(records[2]["step"] == 4);
}

TEST_CASE("a held-out loss is a separate line, complete or absent") {
  const TemporaryFolder folder;
  auto file = test::good(run::MetricsFile::create(folder / "metrics.jsonl"));
  REQUIRE(file->write(record_of(1)).ok());
  const auto bytes = std::filesystem::file_size(folder / "metrics.jsonl");
  {
    const FileLimit limit(bytes + 10);
    const Error failed = test::refused(file->write_held_out(1, 0.5));
    CHECK(failed.message.find("cannot write the record of step 1 to ") != std::string::npos);
    CHECK(std::filesystem::file_size(folder / "metrics.jsonl") == bytes);
  }
  REQUIRE(file->write_held_out(1, 0.5).ok());
  REQUIRE(file->write_held_out(1, std::numeric_limits<double>::quiet_NaN()).ok());
  std::ifstream in(folder / "metrics.jsonl");
  std::string line;
  std::getline(in, line);
  std::getline(in, line);
  CHECK(line == R"({"step": 1, "held_out_loss": 0.5})");
  std::getline(in, line);
  CHECK(line == R"({"step": 1, "held_out_loss": null})");
}

TEST_CASE("a missing output is logged once, and once more when it is back") {
  const test::LogCapture log;
  run::Lasting state("metrics.jsonl");
  state.note({});
  CHECK(log.text().empty());
  for (int i = 0; i < 3; ++i) state.note(data_error("full"));
  CHECK(log.text() == "warning: full; the run continues without it and logs when it works again\n");
  state.note({});
  state.note({});
  CHECK(log.count("metrics.jsonl is written again; 3 records are missing") == 1);
  state.note(data_error("full"));
  CHECK(log.count("warning: ") == 3);
}

TEST_CASE("a record holds each MoE layer's load") {
  const std::vector<double> tokens{7, 0, 1, 30};
  const std::vector<run::LayerLoad> layers{{1.5, 0, 1.25, 0, std::span(tokens).first(2)},
                                           {4, 12.5, 0.5, 2, std::span(tokens).last(2)}};
  const auto record = test::json_in(run::to_json(record_of(1), layers));
  CHECK(record["layer_load_max_over_mean"] == std::vector<double>{1.5, 4});
  CHECK(record["layer_drop_pct"] == std::vector<double>{0, 12.5});
  CHECK(record["layer_router_entropy"] == std::vector<double>{1.25, 0.5});
  CHECK(record["layer_dead_experts"] == std::vector<int>{0, 2});
  CHECK(record["layer_z_loss"].empty());  // no router has one
  CHECK(record["layer_bias_spread"].empty());
  CHECK(record["layer_expert_tokens"] == std::vector<std::vector<int>>{{7, 0}, {1, 30}});
  CHECK(test::json_in(run::to_json(record_of(1), layers, false))["layer_expert_tokens"].empty());
  CHECK(test::json_in(run::to_json(record_of(1)))["layer_drop_pct"].empty());  // a dense model
}

TEST_CASE("a record holds each MoE layer's experts per token, z-loss and spread of biases") {
  const std::vector<run::LayerLoad> layers{{.experts_per_token = 1.25, .z_loss = 4.5, .bias_spread = 0.125},
                                           {.experts_per_token = 2, .z_loss = 0.5, .bias_spread = 0}};
  run::StepRecord step = record_of(1);
  step.experts_per_token = 1.625;
  step.z_loss = 5;
  step.bias_spread = 0.125;
  const auto record = test::json_in(run::to_json(step, layers));
  CHECK(record["experts_per_token"] == 1.625);
  CHECK(record["z_loss"] == 5);
  CHECK(record["bias_spread"] == 0.125);
  CHECK(record["layer_experts_per_token"] == std::vector<double>{1.25, 2});
  CHECK(record["layer_z_loss"] == std::vector<double>{4.5, 0.5});
  CHECK(record["layer_bias_spread"] == std::vector<double>{0.125, 0});
}

TEST_CASE("the remaining time is printed once per step after the first was timed") {
  CHECK(run::step_line(record_of(1), 9, {}).ends_with("| ETA n/a"));
  CHECK(run::step_line(record_of(2), 9, 75.).ends_with("| ETA 1m 15s"));
}

TEST_CASE("records of earlier runs are kept under numbers") {
  const TemporaryFolder folder;
  for (int run = 1; run <= 3; ++run) {
    auto file = test::good(run::MetricsFile::create(folder / "metrics.jsonl"));
    if (run < 3) REQUIRE(file->write(record_of(run)).ok());
  }
  auto first = [&](const std::string& name) {
    std::ifstream in(folder / name);
    std::string line;
    std::getline(in, line);
    return test::json_in(line)["step"].get<int>();
  };
  CHECK(first("metrics.jsonl.1") == 1);
  CHECK(first("metrics.jsonl.2") == 2);
  CHECK(std::filesystem::file_size(folder / "metrics.jsonl") == 0);
  REQUIRE(run::MetricsFile::create(folder / "metrics.jsonl").ok());  // an empty file holds nothing to keep
  CHECK(folder.names().size() == 3);
  CHECK(run::MetricsFile::create(folder / "none/metrics.jsonl").error().code == ExitCode::data);
}

}  // namespace lancet
