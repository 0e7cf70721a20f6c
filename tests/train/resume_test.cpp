// Runs that stop and resume: bit for bit on the same number of ranks, with the same loss on others.
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>

#include "declared_costs.h"
#include "good.h"
#include "in_memory.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/data/token_file.h"
#include "lancet/run/checkpoint_tensors.h"
#include "log_capture.h"
#include "temporary_folder.h"
#include "train/meshes.h"
#include "train/runs.h"

namespace lancet {
namespace {

using namespace test;

// Its bytes.
std::string tensor_of(const checkpoint::Checkpoint& checkpoint, const std::string& name) {
  std::string text;
  const auto append = [&](std::uint64_t, std::span<const std::byte> bytes) -> Status {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    return {};
  };
  REQUIRE(checkpoint.load({{name, {.sink = append}}}, 1).ok());
  return text;
}

}  // namespace

TEST_CASE("k steps, stop, resume, N-k steps equal N steps, bit for bit") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "whole");
  // Each two of them, in each section.
  const auto [ranks, dtype, optimizer] =
      GENERATE(table<int, DType, config::Optimizer>({{1, DType::f32, config::Optimizer::adamw},
                                                     {1, DType::bf16, config::Optimizer::sgd},
                                                     {2, DType::f32, config::Optimizer::sgd},
                                                     {2, DType::bf16, config::Optimizer::adamw}}));
  config.train.dtype = dtype;
  config.train.optimizer = optimizer;
  SECTION("sequential") {}
  SECTION("gradients and loads that add up") {
    config.train.gradient_accumulation_steps = 2;
    config.model.router_aux_loss_coef = 0.1;
    config.model.router_aux_loss_scope = config::AuxLossScope::global;
  }
  SECTION("no clipping") { config.train.clip_grad = 0; }
  SECTION("no master weights") { config.train.master_weights = false; }
  REQUIRE(train_run(config, ranks).code == ExitCode::done);
  config.log.run_dir = folder / "stopped";
  const Error stopped = stop_after(config, 2, ranks);
  CHECK(stopped.message.find("saved and stopped after step 2 of 6 (train.stop_after)") == 0);
  CHECK(losses(folder / "stopped").size() == 2);
  stop_after(config, 5, ranks);
  REQUIRE(train_run(config, ranks).code == ExitCode::done);
  CHECK(losses(folder / "stopped") == losses(folder / "whole"));
  const auto one = manifest_in(folder / "whole", 6), other = manifest_in(folder / "stopped", 6);
  CHECK(one.files == other.files);  // names, sizes and checksums of weights and optimizer
  CHECK(one.files.size() == std::size_t(2 * ranks));
  CHECK(one.tokens == other.tokens);
  CHECK(one.next_sample == other.next_sample);
  CHECK(one.plan == other.plan);
}

TEST_CASE("every policy resumes bit for bit") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "whole");
  config.overlap.policy = GENERATE("tutel", "dw", "partition", "lancet");
  if (config.overlap.policy != "dw") config.overlap.parts = 2;
  const test::DeclaredCosts costs;
  const train::TrainerOptions options{.costs = &costs};
  REQUIRE(train_run(config, 2, options).code == ExitCode::done);
  config.log.run_dir = folder / "stopped";
  stop_after(config, 3, 2, options);
  REQUIRE(train_run(config, 2, options).code == ExitCode::done);
  CHECK(losses(folder / "stopped") == losses(folder / "whole"));
  CHECK(manifest_in(folder / "whole", 6).files == manifest_in(folder / "stopped", 6).files);
}

TEST_CASE("saved at any number of ranks, loaded at any: the losses continue") {
  const int from = GENERATE(1, 2, 4), to = GENERATE(1, 2, 4);
  const bool per_rank = (from == 2) == (to == 4);
  const TemporaryFolder folder;
  auto config = config_in(folder / "whole");
  config.train.micro_batch_size = 8 / from;
  // Each optimizer and each type goes to more ranks and to fewer.
  if (to == 2 * from || to < from - 2) config.train.optimizer = config::Optimizer::sgd;
  if (to != 2) config.train.dtype = DType::bf16;
  if (per_rank) {
    config.model.experts_per_rank = 4 / from;
    config.model.num_local_experts.reset();
  }
  REQUIRE(train_run(config, from).code == ExitCode::done);
  config.log.run_dir = folder / "moved";
  stop_after(config, 3, from);
  REQUIRE(train_run(config, to).code == ExitCode::done);
  const auto whole = losses(folder / "whole"), moved = losses(folder / "moved");
  REQUIRE(moved.size() == whole.size());
  INFO(from << " to " << to);
  for (std::size_t i = 0; i < 3; ++i) CHECK(moved[i] == whole[i]);
  CHECK(moved[3] == Approx(whole[3]).epsilon(1e-6));
  // bf16 gradients of other sums round differently.
  const double later = config.train.dtype == DType::bf16 ? 2e-3 : 1e-5;
  for (std::size_t i = 4; i < whole.size(); ++i) CHECK(moved[i] == Approx(whole[i]).epsilon(later));
  const auto manifest = manifest_in(folder / "moved", 6);
  CHECK(manifest.ranks == to);
  CHECK(manifest.rows == 8);
  CHECK(manifest.experts == 4);
  CHECK(manifest.next_sample == 48);
  CHECK(manifest.tokens == 48 * 16);
  // And back, from a config equal to the first.
  config.train.steps = 7;
  REQUIRE(train_run(config, from).code == ExitCode::done);
  CHECK(manifest_in(folder / "moved", 7).rows == 8);
}

TEST_CASE("a run keeps the groups of tokens that it was saved with") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "whole");
  config.model.capacity_factor = 0.75;
  config.model.router_aux_loss_coef = 0;
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  config.log.run_dir = folder / "moved";
  stop_after(config, 3, 2);
  config.train.micro_batch_size = 8;  // as many sequences a step, on one rank
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  const auto expected = losses(folder / "whole"), found = losses(folder / "moved");
  REQUIRE(found.size() == expected.size());
  for (std::size_t i = 0; i < found.size(); ++i) CHECK(found[i] == Approx(expected[i]).epsilon(1e-5));
  const auto saved = test::good(config::parse(manifest_in(folder / "moved", 6).config, "manifest"));
  CHECK(saved->model.router_group_size == 4);
}

TEST_CASE("a resumed run with another batch size continues at the next sample") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  stop_after(config, 3, 1);  // 12 rows
  config.train.micro_batch_size = 2;
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  const auto manifest = manifest_in(folder / "run", 6);
  CHECK(manifest.rows == 2);
  CHECK(manifest.next_sample == 3 * 4 + 3 * 2);
}

TEST_CASE("weights alone start another run at step 1, and only at its first start") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  config.log.run_dir = folder / "tuned";
  config.train.lr = 0;
  config.train.optimizer = config::Optimizer::sgd;
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  stop_after(config, 2, 2, {.init_from = folder / "run"});
  const auto from = checkpoint::Checkpoint::open(in_checkpoints(folder / "run", "step-000006"));
  const auto to = checkpoint::Checkpoint::open(in_checkpoints(folder / "tuned", "step-000002"));
  REQUIRE(from.ok());
  REQUIRE(to.ok());
  CHECK(to->manifest().optimizer == "sgd");
  for (const char* name : {"wte.weight", "h.2.moe.experts.3.c_proj.weight", "h.1.ln_1.weight"})
    CHECK(tensor_of(*from, name) == tensor_of(*to, name));
  REQUIRE(train_run(config, 2, {.init_from = folder / "run"}).code == ExitCode::done);
  CHECK(losses(folder / "tuned").size() == 6);  // it resumed from its own checkpoint
}

TEST_CASE("weights of step 3 do not count as a checkpoint of the run that starts from them") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "run");
  stop_after(config, 3, 2);
  config.log.run_dir = folder / "tuned";
  config.train.eval_interval = 3;
  const auto [error, asked] = run_until(config, 3 + 1, folder / "run");
  CHECK(error.code == ExitCode::saved);
  CHECK(error.message.find("saved and stopped after step 3 of 6 (another rank's signal)") == 0);
  CHECK(manifest_in(folder / "tuned", 3).step == 3);
}

TEST_CASE("held-out losses are recorded after their steps and kept when a run resumes") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "whole");
  config.train.eval_interval = 2;
  // The step and the loss; each equals the logged one.
  const auto held_out = [](const std::string& run, const test::LogCapture& log) {
    std::vector<std::pair<int, double>> found;
    nlohmann::json before;
    for (const auto& record : records_of(run)) {
      if (record.contains("held_out_loss")) {
        CHECK(record.size() == 2);
        CHECK(before["step"] == record["step"]);
        CHECK(before.contains("loss"));
        found.emplace_back(record["step"].get<int>(), record["held_out_loss"].get<double>());
        std::array<char, 80> line{};
        std::snprintf(line.data(), line.size(), "step %d | held-out loss %.4f of 64 sequences | ", found.back().first,
                      found.back().second);
        CHECK(log.count(line.data()) == 1);
      }
      before = record;
    }
    return found;
  };
  std::vector<std::pair<int, double>> expected;
  {
    const test::LogCapture log;
    REQUIRE(train_run(config, 1).code == ExitCode::done);
    expected = held_out(folder / "whole", log);
    REQUIRE(expected.size() == 3);
    for (const int i : {0, 1, 2}) CHECK(expected[std::size_t(i)].first == 2 * (i + 1));
  }
  config.log.run_dir = folder / "stopped";
  const test::LogCapture log;
  stop_after(config, GENERATE(4, 5), 1);  // a run stopped at step 4 has no loss of it yet
  REQUIRE(train_run(config, 1).code == ExitCode::done);
  CHECK(held_out(folder / "stopped", log) == expected);
  REQUIRE(train_run(config, 1).code == ExitCode::done);  // nothing is left to do
  CHECK(held_out(folder / "stopped", log) == expected);
  CHECK(losses(folder / "stopped") == losses(folder / "whole"));
}

TEST_CASE("steps skipped before a stop count among the consecutive ones") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.on_non_finite = config::OnNonFinite::skip;
  config.train.max_skips = 3;
  config.train.weight_decay = 0;
  config.train.lr = 1e30;  // the first step is sound, and its update ruins the weights
  stop_after(config, 2, 2);
  stop_after(config, 3, 2);
  CHECK(manifest_in(folder / "run", 3).skips_in_a_row == 2);
  const Error error = train_run(config, 2);
  CHECK(error.code == ExitCode::numerical);
  CHECK(error.message.find("step 4: expected a finite loss and gradient norm in one of 3 steps in a row ") == 0);
}

TEST_CASE("a run that resumes corrects AdamW's bias for the updates that were made") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "0");
  config.train.steps = 2;
  config.train.weight_decay = 0;
  config.train.lr_schedule = config::LrSchedule::constant;
  stop_after(config, 1, 1);
  std::filesystem::copy(folder / "0", folder / "1", std::filesystem::copy_options::recursive);
  checkpoint::Manifest manifest = manifest_in(folder / "1", 1);
  manifest.skipped_steps = 1;
  folder.write("1/checkpoints/step-000001/manifest.json", checkpoint::to_json(manifest));
  const auto update = [&](const std::string& run) {  // of the second step
    config.log.run_dir = run;
    REQUIRE(train_run(config, 1).code == ExitCode::done);
    std::array<float, 2> biases{};
    for (const int step : {1, 2}) {
      const auto opened = test::good(checkpoint::Checkpoint::open(in_checkpoints(run, checkpoint::folder_name(step))));
      std::memcpy(&biases[std::size_t(step - 1)], tensor_of(*opened, "ln_f.bias").data(), sizeof(float));
    }
    return double(biases[1]) - double(biases[0]);
  };
  const double beta1 = config.train.adam_beta1, beta2 = config.train.adam_beta2;
  const auto corrected = [&](int t) { return std::sqrt(1 - std::pow(beta2, t)) / (1 - std::pow(beta1, t)); };
  CHECK(update(folder / "1") / update(folder / "0") == Approx(corrected(1) / corrected(2)).epsilon(1e-3));
}

TEST_CASE("old checkpoints are removed, and records hold the time of saving") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.steps = 9;
  config.train.save_interval = 1;
  config.train.keep_last = 2;
  REQUIRE(train_run(config, 2).code == ExitCode::done);
  CHECK(checkpoint::steps_in(folder / "run/checkpoints") == std::vector<std::int64_t>{9, 8});
  for (const auto& record : records_of(folder / "run")) CHECK(record["save_ms"].get<double>() > 0);
}

TEST_CASE("shares: every tensor once, experts on their own rank, the rest spread evenly") {
  const auto config = config_in("unused");
  for (const int ranks : {1, 2, 4}) {
    std::map<std::string, int> seen;
    std::vector<std::uint64_t> bytes(std::size_t(ranks), 0);
    std::mutex mutex;
    REQUIRE(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
              LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks}));
              const auto share = run::shares_of(trainer->store())[std::size_t(world.rank())];
              const std::lock_guard lock(mutex);
              bytes[std::size_t(world.rank())] = share.bytes;
              for (const auto& shard : share.shards)
                for (const auto& tensor : shard.tensors) ++seen[tensor.name];
              return {};
            }).ok());
    for (const auto& [name, count] : seen) CHECK(count == 1);
    CHECK(seen.contains("h.0.moe.experts.3.c_fc.weight.m"));
    CHECK(seen.contains("wte.weight.v"));
    CHECK(*std::max_element(bytes.begin(), bytes.end()) < 1.2 * double(*std::min_element(bytes.begin(), bytes.end())));
  }
}

// Runs over a token file that stop in the middle of an epoch and resume bit for bit, for every optimizer and type.

namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

constexpr int windows = 20;  // of 16 tokens; with 8 rows per step an epoch ends in the middle of step 3

std::string token_file(const TemporaryFolder& folder) {
  std::vector<data::TokenId> tokens;
  for (int i = 0; i <= windows * 16; ++i) tokens.push_back((i * i + 5 * i / 3) % 67);
  auto writer = test::good(data::TokenWriter::create(folder / "tokens.bin", 67, 0));
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

std::vector<checkpoint::ShardFile> files_of(const std::string& run) {
  const auto opened =
      test::good(checkpoint::Checkpoint::open(fs::path(run) / "checkpoints" / checkpoint::folder_name(6)));
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
  const auto whole = test::losses_of_run(config, folder / "whole", ranks, 0);
  REQUIRE(whole.size() == 6);
  REQUIRE(test::losses_of_run(config, folder / "stopped", ranks, stop).size() == std::size_t(stop));
  CHECK(test::losses_of_run(config, folder / "stopped", ranks, 0) == whole);
  CHECK(files_of(folder / "stopped") == files_of(folder / "whole"));
}

}  // namespace lancet
