// Sources of tokens: evaluation covers the same windows at any number of ranks; tokenizer and vocabulary must match.
#include "lancet/data/batches.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <vector>

#include "good.h"
#include "lancet/data/token_file.h"
#include "lancet/train/trainer.h"
#include "program.h"

namespace lancet {
namespace {

using test::TemporaryFolder;

constexpr std::int64_t length = 4;

// Token i is i, so that the first token identifies a window.
void write_counting_tokens(const std::string& path, int count) {
  std::vector<data::TokenId> tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), 0);
  auto writer = test::good(data::TokenWriter::create(path, 1000, 0));
  REQUIRE(writer->append(tokens).ok());
  REQUIRE(writer->finish().ok());
}

config::Config evaluation_config(const std::string& path, std::int64_t sequences) {
  config::Config config;
  config.model.vocab_size = 1000;
  config.data.train = config.data.eval = path;
  config.data.eval_sequences = sequences;
  config.train.seq_len = length;
  config.train.micro_batch_size = 8;
  return config;
}

// The number of times that each window counts, over all ranks and batches.
std::map<std::int64_t, int> counted_windows(const config::Config& config, int ranks, std::int64_t sequences) {
  std::map<std::int64_t, int> counted;
  for (int rank = 0; rank < ranks; ++rank) {
    auto evaluation = test::good(data::evaluation_batches(config, {}, rank, ranks));
    REQUIRE(evaluation->has_value());
    CHECK((*evaluation)->sequences == sequences);
    const std::int64_t rows = 8 * ranks;
    CHECK((*evaluation)->count == (sequences + rows - 1) / rows);
    std::vector<std::int32_t> inputs(8 * length), targets(8 * length);
    for (std::int64_t batch = 0; batch < (*evaluation)->count; ++batch) {
      REQUIRE((*evaluation)->batches->fill(batch, 0, inputs, targets).ok());
      for (std::size_t at = 0; at < inputs.size(); at += length) {
        const bool counts = targets[at] != data::ignored_target;
        CHECK(inputs[at] % length == 0);
        for (int i = 0; i < length; ++i) {
          CHECK(inputs[at + std::size_t(i)] == inputs[at] + i);
          CHECK(targets[at + std::size_t(i)] == (counts ? inputs[at] + i + 1 : -1));
        }
        if (counts) ++counted[inputs[at] / length];
      }
    }
  }
  return counted;
}

// The numbers of the sequences of `steps` steps of 24 rows, by what is in their row of the token file.
std::map<std::int64_t, std::int64_t> numbers_of_run(config::Config config, int ranks, int micro_batches, int steps,
                                                    std::int64_t offset) {
  config.train.gradient_accumulation_steps = micro_batches;
  config.train.micro_batch_size = 24 / ranks / micro_batches;
  const auto rows = std::size_t(config.train.micro_batch_size);
  std::map<std::int64_t, std::int64_t> numbers;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto batches = test::good(data::training_batches(config, {}, rank, ranks, offset));
    const data::SequenceOrder order = data::training_order(config, rank, ranks, offset);
    std::vector<std::int32_t> inputs(rows * length), targets(rows * length), found(rows);
    for (int step = 0; step < steps; ++step)
      for (int micro = 0; micro < micro_batches; ++micro) {
        REQUIRE((*batches)->fill(step, micro, inputs, targets).ok());
        order.fill(step, micro, found);
        for (std::size_t row = 0; row < rows; ++row) CHECK(numbers.emplace(inputs[row * length], found[row]).second);
      }
  }
  return numbers;
}

data::Tokenizer byte_tokenizer(const std::string& folder) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.emplace_back(data::kEndOfText);
  auto tokenizer = test::good(data::Tokenizer::make(tokens, {}));
  REQUIRE(tokenizer->save(folder).ok());
  return *tokenizer;
}

std::string message_of(const Error& error) {
  CHECK(error.code == ExitCode::data);
  CHECK(error.message.find('\n') == std::string::npos);
  return error.message;
}

}  // namespace

TEST_CASE("a sequence has one number in the run, on any number of ranks and micro batches") {
  const TemporaryFolder folder;
  const std::string path = folder / "tokens.bin";
  write_counting_tokens(path, 800);
  const config::Config config = evaluation_config(path, 1);
  const auto alone = numbers_of_run(config, 1, 1, 3, 0);
  std::set<std::int64_t> numbers;
  for (const auto& [_, number] : alone) numbers.insert(number);
  CHECK(numbers.size() == 72);
  CHECK((*numbers.begin() == 0 && *numbers.rbegin() == 71));
  for (const int ranks : {1, 2, 4})
    for (const int micro_batches : {1, 2, 3}) CHECK(numbers_of_run(config, ranks, micro_batches, 3, 0) == alone);
  // A run that resumes after the first 24 sequences with another step.
  auto rest = alone;
  for (const auto& [token, _] : numbers_of_run(config, 1, 1, 1, 0)) rest.erase(token);
  CHECK(numbers_of_run(config, 2, 1, 2, 24) == rest);
}

TEST_CASE("a micro batch holds the same sequences on any number of ranks") {
  const TemporaryFolder folder;
  const std::string path = folder / "tokens.bin";
  write_counting_tokens(path, 800);
  for (const bool synthetic : {false, true}) {
    INFO((synthetic ? "synthetic tokens" : "a token file"));
    config::Config config = evaluation_config(path, 1);
    config.data.synthetic = synthetic;
    config.train.gradient_accumulation_steps = 3;
    // Micro batch 1 of step 2 and the numbers of its sequences, rank after rank.
    const auto micro_batch = [&](int ranks) {
      config.train.micro_batch_size = 8 / ranks;
      const auto rows = std::size_t(config.train.micro_batch_size);
      std::vector<std::int32_t> all;
      for (int rank = 0; rank < ranks; ++rank) {
        std::vector<std::int32_t> inputs(rows * length), targets(rows * length), numbers(rows);
        REQUIRE((*data::training_batches(config, {}, rank, ranks))->fill(2, 1, inputs, targets).ok());
        data::training_order(config, rank, ranks).fill(2, 1, numbers);
        for (std::size_t row = 0; row < rows; ++row) {
          all.insert(all.end(), &inputs[row * length], &inputs[row * length] + length);
          all.push_back(numbers[row]);
        }
      }
      return all;
    };
    const auto alone = micro_batch(1);
    CHECK(alone[length] == 56);
    for (const int ranks : {2, 4, 8}) CHECK(micro_batch(ranks) == alone);
  }
}

TEST_CASE("an evaluation covers each sequence once at any number of ranks") {
  const TemporaryFolder folder;
  const std::string path = folder / "eval.bin";
  write_counting_tokens(path, 30 * length + 1);  // 30 windows
  for (const auto& [asked, sequences] : std::vector<std::pair<int, int>>{{20, 20}, {3, 3}, {30, 30}, {64, 30}}) {
    const auto config = evaluation_config(path, asked);
    for (int ranks : {1, 2, 3, 4}) {
      INFO(asked << " sequences asked for, " << ranks << " ranks");
      const auto counted = counted_windows(config, ranks, sequences);
      REQUIRE(counted.size() == std::size_t(sequences));
      CHECK(counted.begin()->first == 0);
      CHECK(counted.rbegin()->first == sequences - 1);
      for (const auto& [window, times] : counted) CHECK(times == 1);
    }
  }
}

TEST_CASE("an evaluation in which experts choose covers whole groups of sequences") {
  const TemporaryFolder folder;
  const std::string path = folder / "eval.bin";
  write_counting_tokens(path, 30 * length + 1);  // 30 windows
  config::Config config = evaluation_config(path, 30);
  config.model.num_local_experts = 4;
  config.model.router = config::Router::expert_choice;
  for (const int ranks : {1, 2, 4}) CHECK(counted_windows(config, ranks, 24).size() == 24);
  config.model.router_group_size = 4;
  for (const int ranks : {1, 2, 4}) CHECK(counted_windows(config, ranks, 28).size() == 28);
  config.data.eval_sequences = 3;
  const Error refused = test::refused(data::evaluation_batches(config, {}, 0, 1));
  CHECK(refused.code == ExitCode::config);
  CHECK(
      refused.message ==
      "data.eval_sequences (--max-sequences): expected at least the 4 of one group of model.router \"expert_choice\", "
      "found 3");
  config.data.eval_sequences = 100;
  config.data.eval = folder / "short.bin";
  write_counting_tokens(config.data.eval, 3 * length + 1);
  const Error short_file = test::refused(data::evaluation_batches(config, {}, 0, 1));
  CHECK(message_of(short_file) ==
        config.data.eval +
            ": expected at least the 4 sequences of one group of model.router \"expert_choice\", found 3");
}

TEST_CASE("a tokenizer of another vocabulary is refused for every source of tokens") {
  const TemporaryFolder folder;
  const std::string tok = folder / "tok";
  const auto tokenizer = byte_tokenizer(tok);
  config::Config config;
  config.train.seq_len = length;
  config.train.micro_batch_size = 1;
  config.model.experts_per_rank = 2;
  config.model.vocab_size = 256;
  config.data.tokenizer = tok;
  const std::string expected =
      "data.tokenizer: expected a vocabulary of at most model.vocab_size = 256 ids in " + tok + ", found one of 257";
  SECTION("synthetic tokens") {
    config.data.synthetic = true;
    config.train.sample_tokens = 3;  // the tokenizer is needed only for samples
  }
  SECTION("a file of llm.c, which names no tokenizer") {
    std::vector<std::int32_t> header(256);
    header[0] = 20240520, header[1] = 1, header[2] = 100;
    const std::vector<std::uint16_t> tokens(100, 7);
    std::ofstream out(folder / "llmc.bin", std::ios::binary);
    out.write(reinterpret_cast<const char*>(header.data()), 1024)
        .write(reinterpret_cast<const char*>(tokens.data()), 200);
    config.data.train = config.data.eval = folder / "llmc.bin";
    out.close();
  }
  const auto world = comm::make_self();
  CHECK(message_of(train::Trainer::create(config, *world).error()) == expected);
  config.data.tokenizer.clear();
  CHECK(data::training_batches(config, {}, 0, 1).ok());  // nothing else was wrong
}

TEST_CASE("the tokenizer is loaded and its prompt encoded at the start") {
  const TemporaryFolder folder;
  const std::string tok = folder / "tok";
  const auto tokenizer = byte_tokenizer(tok);
  config::Config config;
  CHECK_FALSE(data::load_tokenizer(config)->has_value());
  config.model.vocab_size = 257;
  config.data.tokenizer = tok;
  config.train.sample_prompt = "good \xff";
  CHECK(data::load_tokenizer(config).value()->hash() == tokenizer.hash());  // nothing is to be generated
  config.train.sample_tokens = 5;
  CHECK(message_of(data::load_tokenizer(config).error()).find("train.sample_prompt: ") == 0);
  config.train.sample_prompt = "good";
  CHECK(data::load_tokenizer(config).value()->vocab_size() == 257);
  config.data.tokenizer = folder / "none";
  CHECK(message_of(data::load_tokenizer(config).error()).find("none/vocab.json") != std::string::npos);
}

}  // namespace lancet
