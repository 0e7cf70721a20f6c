// Runs that stop and go on: bit for bit on as many ranks, with the same loss on others.
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "declared_costs.h"
#include "lancet/base/atomic_file.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/data/token_file.h"
#include "lancet/data/tokenizer.h"
#include "lancet/train/model_folder.h"
#include "log_capture.h"
#include "temporary_folder.h"
#include "train/checkpoint_tensors.h"
#include "train/support.h"

namespace lancet {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

config::Config config_in(const std::string& run) {
  auto config = test::small_config();
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
Error run(const config::Config& config, int ranks, train::TrainerOptions options = {}) {
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

Error stop_after(config::Config config, std::int64_t step, int ranks, const train::TrainerOptions& options = {}) {
  config.train.stop_after = step;
  const Error error = run(config, ranks, options);
  CHECK(error.code == ExitCode::saved);
  return error;
}

checkpoint::Manifest manifest_in(const std::string& run, std::int64_t step) {
  const auto opened = checkpoint::Checkpoint::open(fs::path(run) / "checkpoints" / checkpoint::folder_name(step));
  INFO((opened.ok() ? "" : opened.error().message));
  REQUIRE(opened.ok());
  REQUIRE(opened->verify().ok());
  return opened->manifest();
}

std::vector<nlohmann::json> records_of(const std::string& run) {
  std::vector<nlohmann::json> records;
  std::ifstream in(run + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);) records.push_back(nlohmann::json::parse(line));
  return records;
}

std::vector<double> losses(const std::string& run) {
  std::vector<double> values;
  for (const auto& record : records_of(run)) {
    if (!record.contains("loss")) continue;
    CHECK(record["step"] == values.size() + 1);
    values.push_back(record["loss"]);
  }
  return values;
}

std::string in_checkpoints(const std::string& run, const std::string& name) { return run + "/checkpoints/" + name; }

}  // namespace

TEST_CASE("k steps, stop, resume, N-k steps are N steps, bit for bit") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "whole");
  const int ranks = GENERATE(1, 2);
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  config.train.optimizer = GENERATE(config::Optimizer::adamw, config::Optimizer::sgd);
  SECTION("sequential") {}
  SECTION("gradient accumulation") { config.train.gradient_accumulation_steps = 2; }
  SECTION("no clipping") { config.train.clip_grad = 0; }
  SECTION("no master weights") { config.train.master_weights = false; }
  REQUIRE(run(config, ranks).code == ExitCode::done);
  config.log.run_dir = folder / "stopped";
  const Error stopped = stop_after(config, 2, ranks);
  CHECK(stopped.message.find("saved and stopped after step 2 of 6 (train.stop_after)") == 0);
  CHECK(losses(folder / "stopped").size() == 2);
  stop_after(config, 5, ranks);
  REQUIRE(run(config, ranks).code == ExitCode::done);
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
  config.overlap.policy =
      GENERATE(config::Policy::expert_pipeline, config::Policy::dw, config::Policy::partition, config::Policy::lancet);
  if (config.overlap.policy != config::Policy::dw) config.overlap.parts = 2;
  const test::DeclaredCosts costs;
  const train::TrainerOptions options{.costs = &costs};
  REQUIRE(run(config, 2, options).code == ExitCode::done);
  config.log.run_dir = folder / "stopped";
  stop_after(config, 3, 2, options);
  REQUIRE(run(config, 2, options).code == ExitCode::done);
  CHECK(losses(folder / "stopped") == losses(folder / "whole"));
  CHECK(manifest_in(folder / "whole", 6).files == manifest_in(folder / "stopped", 6).files);
}

TEST_CASE("saved at any number of ranks, loaded at any: the losses go on as they were") {
  const int from = GENERATE(1, 2, 4), to = GENERATE(1, 2, 4);
  const bool per_rank = GENERATE(false, true);
  const TemporaryFolder folder;
  auto config = config_in(folder / "whole");
  config.train.micro_batch_size = 8 / from;
  if (per_rank) {
    config.model.experts_per_rank = 4 / from;
    config.model.num_local_experts.reset();
  }
  REQUIRE(run(config, from).code == ExitCode::done);
  config.log.run_dir = folder / "moved";
  stop_after(config, 3, from);
  REQUIRE(run(config, to).code == ExitCode::done);
  const auto whole = losses(folder / "whole"), moved = losses(folder / "moved");
  REQUIRE(moved.size() == whole.size());
  INFO(from << " to " << to);
  for (std::size_t i = 0; i < whole.size(); ++i) CHECK(moved[i] == Approx(whole[i]).epsilon(i < 4 ? 1e-6 : 1e-5));
  const auto manifest = manifest_in(folder / "moved", 6);
  CHECK(manifest.ranks == to);
  CHECK(manifest.rows == 8);
  CHECK(manifest.experts == 4);
  CHECK(manifest.next_sample == 48);
  CHECK(manifest.tokens == 48 * 16);
  // And back, from a config that says the same as at first.
  config.train.steps = 7;
  REQUIRE(run(config, from).code == ExitCode::done);
  CHECK(manifest_in(folder / "moved", 7).rows == 8);
}

TEST_CASE("another batch that the config asks for continues where the samples were") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  stop_after(config, 3, 1);  // 12 rows
  config.train.micro_batch_size = 2;
  REQUIRE(run(config, 1).code == ExitCode::done);
  const auto manifest = manifest_in(folder / "run", 6);
  CHECK(manifest.rows == 2);
  CHECK(manifest.next_sample == 3 * 4 + 3 * 2);
}

TEST_CASE("a damaged checkpoint is left out, and named, for the one before") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 2;
  REQUIRE(run(config, 2).code == ExitCode::done);
  const auto expected = losses(folder / "run");
  const std::string newest = in_checkpoints(folder / "run", "step-000006");
  const std::string shard =
      newest + "/" + GENERATE("model-00002-of-00002", "optimizer-00001-of-00002") + ".safetensors";
  {
    std::fstream file(shard, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-5, std::ios::end);
    file.put('\x55');
  }
  REQUIRE(run(config, 2).code == ExitCode::done);
  CHECK(losses(folder / "run") == expected);
  CHECK(fs::exists(newest + ".old"));
  REQUIRE(manifest_in(folder / "run", 6).step == 6);
  // None is whole: an error, not a new beginning.
  for (const char* step : {"step-000002", "step-000004", "step-000006"})
    fs::resize_file(in_checkpoints(folder / "run", step) + "/manifest.json", 100);
  const Error error = run(config, 2);
  CHECK(error.code == ExitCode::data);
  CHECK(error.message.find("expected a whole checkpoint among the 3 in ") == 0);
  CHECK(losses(folder / "run") == expected);
}

TEST_CASE("what is asked for by name is taken or refused") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 2;
  REQUIRE(run(config, 1).code == ExitCode::done);
  const auto expected = losses(folder / "run");
  auto refused = [&](const train::TrainerOptions& options, const std::string& words) {
    const Error error = run(config, 1, options);
    CHECK(error.code == ExitCode::data);
    CHECK(error.message.find(words) != std::string::npos);
  };
  refused({.resume = "step-000003"}, "found step-000006, step-000004, step-000002");
  refused({.resume = folder / "none"}, "expected step-NUMBER or the folder of a checkpoint, found no such folder");
  CHECK(run(config, 1, {.resume = "step-000002", .init_from = folder / "run"}).code == ExitCode::config);
  // Going back sets later ones aside.
  REQUIRE(run(config, 1, {.resume = "step-000002"}).code == ExitCode::done);
  CHECK(losses(folder / "run") == expected);
  CHECK(fs::exists(in_checkpoints(folder / "run", "step-000004.old")));
  // By its folder, into another run.
  config.log.run_dir = folder / "other";
  refused({.init_from = folder / "none"}, "--init-from " + folder / "none" + ": expected a checkpoint's folder");
  refused({.resume = "step-000002"}, "found none");
  REQUIRE(run(config, 1, {.resume = in_checkpoints(folder / "run", "step-000004")}).code == ExitCode::done);
  CHECK(manifest_in(folder / "other", 6).files == manifest_in(folder / "run", 6).files);
  CHECK(records_of(folder / "other").front()["step"] == 5);
}

TEST_CASE("weights alone begin another run at step 1, and only its first start") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  REQUIRE(run(config, 1).code == ExitCode::done);
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
  auto read = [](const checkpoint::Checkpoint& checkpoint, const std::string& name) {
    std::string text;
    REQUIRE(checkpoint
                .read({{name,
                        [&](std::uint64_t, std::span<const std::byte> bytes) -> Status {
                          text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
                          return {};
                        }}})
                .ok());
    return text;
  };
  for (const char* name : {"wte.weight", "h.2.moe.experts.3.c_proj.weight", "h.1.ln_1.weight"})
    CHECK(read(*from, name) == read(*to, name));
  REQUIRE(run(config, 2, {.init_from = folder / "run"}).code == ExitCode::done);
  CHECK(losses(folder / "tuned").size() == 6);  // it went on from its own checkpoint
}

TEST_CASE("a config that does not fit the checkpoint is told what differs") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  stop_after(config, 1, 1);
  auto refused = [&](const std::function<void(config::Config&)>& change, const std::string& words) {
    auto changed = config;
    change(changed);
    const Error error = run(changed, 1);
    CHECK(error.code == ExitCode::config);
    INFO(error.message);
    CHECK(error.message.find(words) != std::string::npos);
  };
  refused([](auto& c) { c.model.n_embd = 64; },
          "model.n_embd: expected 32, found 64; model.n_inner: expected 128, found 256");
  refused([](auto& c) { c.model.n_layer = 5; }, "model.n_layer: expected 4, found 5");
  refused([](auto& c) { c.model.n_layer = 3; },
          "expected the model that is saved there: model.n_layer: expected 4, found 3");
  refused([](auto& c) { c.model.moe_layer_freq = 3; }, "model.moe_layer_freq: expected 2, found 3");
  refused([](auto& c) { c.model.vocab_pad_multiple = 256; }, "model.vocab_pad_multiple: expected 64, found 256");
  refused([](auto& c) { c.model.n_head = 4; }, "model.n_head: expected 2, as in ");
  refused([](auto& c) { c.model.num_local_experts = 8; }, "model.num_local_experts: expected 4, as in ");
  refused([](auto& c) { c.train.optimizer = config::Optimizer::sgd; }, "train.optimizer: expected adamw, as in ");
}

TEST_CASE("a signal on one rank stops all") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  std::array<std::atomic<int>, 2> stop{};
  stop[1] = SIGTERM;
  Error error;
  REQUIRE(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
            const Status status =
                train::train(config, world, {.local_ranks = 2, .stop = &stop[std::size_t(world.rank())]});
            if (world.rank() == 0) error = status.error();
            return {};
          }).ok());
  CHECK(error.code == ExitCode::saved);
  CHECK(error.message.find("saved and stopped after step 1 of 6 (another rank's signal)") == 0);
  CHECK(manifest_in(folder / "run", 1).ranks == 2);
}

namespace {

// Trains and evaluates on files, evaluations of 8 batches on two ranks.
config::Config config_with_files(const TemporaryFolder& folder, const std::string& run) {
  auto config = config_in(folder / run);
  std::vector<data::TokenId> tokens;
  for (int i = 0; i < 2000; ++i) tokens.push_back(i * i % 67);
  auto writer = data::TokenWriter::create(folder / "tokens.bin", 67, 0);
  REQUIRE(writer.ok());
  REQUIRE(writer->append(tokens).ok());
  REQUIRE(writer->finish().ok());
  config.data.synthetic = false;
  config.data.train = config.data.eval = folder / "tokens.bin";
  config.data.eval_sequences = 64;
  return config;
}

// A run that rank 1 asks to stop when it is asked for the `at`-th time; how it ends, and how often it was asked.
std::pair<Error, int> run_until(const config::Config& config, int at, const std::string& init_from = "") {
  Error error{ExitCode::done, "", false};
  int asked = 0;
  const Status status = comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    train::TrainerOptions options{.local_ranks = 2, .init_from = init_from};
    if (world.rank() == 1) options.interrupted = [&] { return ++asked >= at; };
    const Status mine = train::train(config, world, options);
    if (world.rank() == 0 && !mine.ok()) error = mine.error();
    return {};
  });
  REQUIRE(status.ok());
  return {error, asked};
}

}  // namespace

TEST_CASE("an evaluation is left at once, on all ranks, and the run goes on from there") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "whole");
  config.train.eval_interval = 3;
  const auto [done, questions] = run_until(config, 1000000);
  CHECK(done.code == ExitCode::done);
  CHECK(questions == 6 + 8 + 1 + 8);  // steps, batches, the end of the first evaluation
  config.log.run_dir = folder / "run";
  const int batch = GENERATE(1, 3, 8);
  SECTION("between two steps") {
    const test::LogCapture log;
    const auto [error, asked] = run_until(config, 3 + batch);
    CHECK(error.code == ExitCode::saved);
    CHECK(error.message.find("saved and stopped after step 3 of 6 (another rank's signal)") == 0);
    CHECK(asked <= 3 + batch + 1);
    CHECK(log.count("held-out loss") == 0);
    CHECK(manifest_in(folder / "run", 3).step == 3);
  }
  SECTION("at the end, where the last step is saved already") {
    const test::LogCapture log;
    const auto [error, asked] = run_until(config, 6 + 9 + batch);
    CHECK(error.code == ExitCode::saved);
    CHECK(error.message.find("saved and stopped after step 6 of 6 (another rank's signal)") == 0);
    CHECK(log.count("step 3 | held-out loss") > 0);
    CHECK(log.count("step 6 | held-out loss") == 0);
  }
  REQUIRE(run(config, 2).code == ExitCode::done);
  CHECK(losses(folder / "run") == losses(folder / "whole"));
}

TEST_CASE("weights of step 3 are no checkpoint of the run that begins with them, stopped after its own step 3") {
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

TEST_CASE("held-out losses stand in the records, each after its step's, and stay where a run goes on") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "whole");
  config.train.eval_interval = 2;
  // After which step, and the loss; each is what the log says.
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
        std::snprintf(line.data(), line.size(), "step %d | held-out loss %.4f | ", found.back().first,
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
    REQUIRE(run(config, 1).code == ExitCode::done);
    expected = held_out(folder / "whole", log);
    REQUIRE(expected.size() == 3);
    for (const int i : {0, 1, 2}) CHECK(expected[std::size_t(i)].first == 2 * (i + 1));
  }
  config.log.run_dir = folder / "stopped";
  const test::LogCapture log;
  stop_after(config, 5, 1);
  REQUIRE(run(config, 1).code == ExitCode::done);
  CHECK(held_out(folder / "stopped", log) == expected);
  CHECK(losses(folder / "stopped") == losses(folder / "whole"));
}

TEST_CASE("a run goes on in a folder whose name has two lines") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "two\nlines");
  stop_after(config, 2, 2);
  REQUIRE(run(config, 2).code == ExitCode::done);
  CHECK(losses(config.log.run_dir).size() == 6);
  const std::string from = config.log.run_dir;
  config.log.run_dir = folder / "tuned";
  const test::LogCapture log;
  REQUIRE(run(config, 2, {.init_from = from}).code == ExitCode::done);
  CHECK(log.count("weights    of step 6 from ") > 0);
}

TEST_CASE("what rank 0 alone looks at is told in its words, without its rank") {
  const TemporaryFolder folder;
  const auto config = config_in(folder / "run");
  CHECK(run(config, 2, {.resume = "step-000007"}).message.find("--resume step-000007: expected a checkpoint in ") == 0);
  CHECK(run(config, 2, {.init_from = folder / "none"}).message.find("--init-from " + folder / "none" + ": ") == 0);
}

TEST_CASE("the text at the end is left at once") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.sample_tokens = 10;
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.emplace_back(data::kEndOfText);
  const auto tokenizer = data::Tokenizer::make(tokens, {});
  REQUIRE(tokenizer.ok());
  REQUIRE(tokenizer->save(folder / "tok").ok());
  config.model.vocab_size = 257;
  config.data.tokenizer = folder / "tok";
  config.train.sample_prompt = "a";
  const test::LogCapture log;
  const auto [error, asked] = run_until(config, 6 + 4);
  CHECK(error.code == ExitCode::saved);
  CHECK(asked <= 6 + 4 + 1);
  CHECK(log.count("sample: ") == 0);
  REQUIRE(run(config, 2).code == ExitCode::done);
  CHECK(log.count("sample: ") > 0);
}

TEST_CASE("time is up after train.max_minutes, in evaluations, too") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "run");
  config.train.max_minutes = 1e-9;
  CHECK(run(config, 1).message.find("saved and stopped after step 1 of 6 (train.max_minutes)") == 0);
  config.train.steps = 2;  // the last step ends the run, and no step is left to look at the clock
  const test::LogCapture log;
  CHECK(run(config, 1).message.find("saved and stopped after step 2 of 2 (train.max_minutes)") == 0);
  CHECK(log.count("held-out loss") == 0);
}

TEST_CASE("a run that goes on beyond its steps, or the step to stop at, says so") {
  const TemporaryFolder folder;
  auto config = config_with_files(folder, "run");
  stop_after(config, 5, 1);
  config.train.steps = 3;
  {
    const test::LogCapture log;
    REQUIRE(run(config, 1).code == ExitCode::done);
    CHECK(log.count("train.steps: expected 5 or more, which the checkpoint has taken, found 3: no step runs") == 1);
    CHECK(log.count("step 5 | held-out loss") == 1);
    CHECK(log.count("step 3 |") == 0);
  }
  config.train.steps = 6;
  config.train.stop_after = GENERATE(4, 5);
  const test::LogCapture log;
  REQUIRE(run(config, 1).code == ExitCode::done);
  CHECK(log.count("train.stop_after: step " + std::to_string(config.train.stop_after) +
                  " is behind, since the run goes on after step 5: it does not stop there") == 1);
  CHECK(losses(folder / "run").size() == 6);
}

TEST_CASE("without a word about saving, a run saves by the clock and at its end") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 0;
  config.train.save_minutes = config::Train().save_minutes;
  REQUIRE(config.train.saves());
  REQUIRE(run(config, 2).code == ExitCode::done);
  CHECK(checkpoint::steps_in(folder / "run/checkpoints") == std::vector<std::int64_t>{6});
  config.log.run_dir = folder / "often";
  config.train.save_minutes = 1e-9;
  REQUIRE(run(config, 2).code == ExitCode::done);
  CHECK(checkpoint::steps_in(folder / "often/checkpoints") == std::vector<std::int64_t>{6, 5, 4});
  config.log.run_dir = folder / "never";
  config.train.save_minutes = 0;
  REQUIRE(run(config, 2).code == ExitCode::done);
  CHECK(checkpoint::steps_in(folder / "never/checkpoints").empty());
}

TEST_CASE("a folder that a run is at work in is another's before it is looked at") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  stop_after(config, 2, 1);
  const int held = ::open((folder / "run").c_str(), O_RDONLY | O_DIRECTORY);
  REQUIRE(::flock(held, LOCK_EX | LOCK_NB) == 0);
  fs::resize_file(in_checkpoints(folder / "run", "step-000002") + "/manifest.json", 10);  // not looked at yet
  const Error busy = run(config, 2);
  CHECK(busy.code == ExitCode::data);
  CHECK(busy.message ==
        "log.run_dir: expected a folder that no other run writes to, found one at work in " + folder / "run");
  ::close(held);
  // What a run that does not begin has made goes again.
  config.log.run_dir = folder / "new/deep/run";
  CHECK(run(config, 1, {.resume = "step-000002"}).code == ExitCode::data);
  CHECK_FALSE(fs::exists(folder / "new"));
}

TEST_CASE("a checkpoint that cannot be read is no reason to go back to an older one") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 2;
  REQUIRE(run(config, 1).code == ExitCode::done);
  // The system refuses what should be a file for a reason of its own: too many links on the way to it.
  const std::string checkpoints = folder / "run/checkpoints";
  fs::rename(checkpoints, folder / "kept");
  fs::create_symlink("checkpoints", checkpoints);
  const Error error = run(config, 1);
  CHECK(error.code == ExitCode::internal);
  CHECK(error.message.find(checkpoints + ": cannot be read: ") == 0);
  CHECK(losses(folder / "run").size() == 6);
  // Nor is it to a command that reads a model.
  std::vector<Error> found(2);
  REQUIRE(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
            const auto loaded =
                train::load_newest(folder / "run", world, [](const train::ModelFolder&) { return Status(); });
            if (!loaded.ok()) found[std::size_t(world.rank())] = loaded.error();
            return {};
          }).ok());
  for (const Error& each : found) {
    CHECK(each.code == ExitCode::internal);
    CHECK(each.message.find(checkpoints + ": cannot be read: ") == 0);
    CHECK(each.agreed);
  }
}

TEST_CASE("a checkpoint of another version's config is compared field by field") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  stop_after(config, 2, 1);
  const fs::path at = fs::path(folder / "run") / "checkpoints/step-000002/manifest.json";
  auto manifest = checkpoint::parse_manifest(*read_file(at, "it"), "it");
  REQUIRE(manifest.ok());
  auto saved = nlohmann::json::parse(manifest->config);
  saved["train"]["of_the_future"] = 7;
  saved["train"].erase("adam_eps");
  saved["train"]["lr"] = 0.25;
  manifest->config = saved.dump();
  REQUIRE(write_file(at, checkpoint::to_json(*manifest)).ok());
  {
    auto other = config;
    other.model.n_head = 4;
    const Error error = run(other, 1);
    CHECK(error.code == ExitCode::config);
    CHECK(error.message.find("model.n_head: expected 2, as in ") == 0);
  }
  const test::LogCapture log;
  REQUIRE(run(config, 1).code == ExitCode::done);
  CHECK(log.count("changed: train.lr 0.002 (was 0.25)") == 1);
  CHECK(log.count("its config is another version's; not known here: 'train.of_the_future'") == 1);
}

TEST_CASE("old checkpoints go as the rule says, and records say what saving took") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.steps = 9;
  config.train.save_interval = 1;
  config.train.keep_last = 2;
  config.train.keep_every = 4;
  REQUIRE(run(config, 2).code == ExitCode::done);
  CHECK(checkpoint::steps_in(folder / "run/checkpoints") == std::vector<std::int64_t>{9, 8, 4});
  for (const auto& record : records_of(folder / "run")) CHECK(record["save_ms"].get<double>() > 0);
}

TEST_CASE("a disk that takes nothing does not end the run") {
  const TemporaryFolder folder;
  auto config = config_in(folder / "run");
  config.train.save_interval = 2;
  fs::create_directories(folder / "run");
  std::ofstream(folder / "run/checkpoints") << "a file where the folder should be";
  const Error error = run(config, 2);
  CHECK(losses(folder / "run").size() == 6);
  CHECK(error.code == ExitCode::data);
  CHECK(error.message.find("the run ended, but its last checkpoint was not saved: ") == 0);
  // Stopped, it says so, too.
  config.log.run_dir = folder / "stopped";
  fs::create_directories(folder / "stopped");
  std::ofstream(folder / "stopped/checkpoints") << "";
  config.train.stop_after = 1;
  const Error stopped = run(config, 2);
  CHECK(stopped.code == ExitCode::data);
  CHECK(stopped.message.find("stopped after step 1 (train.stop_after), and it was not saved: ") == 0);
}

TEST_CASE("shares: every tensor once, experts where they live, the rest spread evenly") {
  const auto config = config_in("unused");
  for (const int ranks : {1, 2, 4}) {
    std::map<std::string, int> seen;
    std::vector<std::uint64_t> bytes(std::size_t(ranks), 0);
    std::mutex mutex;
    REQUIRE(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
              LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks}));
              const auto share = train::share_of(trainer->store(), world.rank(), ranks);
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

}  // namespace lancet
