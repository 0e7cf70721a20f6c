// Generation: single tokens give the same logits as the whole forward pass; tokens are drawn as requested.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <set>

#include "good.h"
#include "lancet/base/utf8.h"
#include "lancet/data/tokenizer.h"
#include "lancet/models/generate.h"
#include "lancet/planner/from_config.h"
#include "log_capture.h"
#include "routers.h"
#include "support.h"
#include "train/meshes.h"
#include "train/rank_state.h"
#include "train/runs.h"

namespace lancet {

using namespace train;

namespace {

struct Loaded {
  config::Config config;
  std::unique_ptr<comm::Communicator> world = comm::make_self();
  run::Streams streams;
  runtime::TensorStore store;
  int threads = 1;

  explicit Loaded(config::Config c)
      : config(std::move(c)), streams(run::Streams::make(config, *world, nullptr).value()) {
    config.model.initializer_range = 0.2;  // logits that differ between tokens
    store.add(planner::rank_forward(config, model::Mode::generate, 1).value());
    REQUIRE(initialize_weights(config, store).ok());
  }
  std::unique_ptr<models::Decoder> decoder() {
    auto made = test::good(models::Decoder::create(config, *world, store, streams, threads));
    return std::move(*made);
  }
  // Logits [S, vocabulary] of all positions by the forward pass over the whole sequence.
  std::vector<std::vector<float>> forward(const std::vector<std::int32_t>& tokens) {
    config::Config c = config;
    c.train.seq_len = std::ssize(tokens);
    const ir::Plan plan = planner::plan_forward(c, planner::build_options(c, model::Mode::generate, 1), 1)->front();
    const auto executor = test::good(runtime::Executor::create(plan, store, streams.executor_options(threads)));
    std::ranges::copy(tokens, (*executor)->input("tokens").as<std::int32_t>());
    REQUIRE((*executor)->run().ok());
    const ops::TensorView view = (*executor)->output("logits");
    std::vector<std::vector<float>> logits;
    for (std::size_t s = 0; s < tokens.size(); ++s) {
      auto& row = logits.emplace_back();
      for (std::int64_t v = 0; v < config.model.vocab_size; ++v) {
        const std::int64_t at = std::int64_t(s) * view.shape().back() + v;
        row.push_back(view.dtype() == DType::bf16 ? to_f32(view.as<bf16>()[at]) : view.as<float>()[at]);
      }
    }
    return logits;
  }
};

std::vector<float> read(models::Decoder& decoder, std::span<const std::int32_t> tokens) {
  const auto logits = test::good(decoder.read(tokens));
  return {logits->begin(), logits->end()};
}

std::ptrdiff_t largest(const std::vector<float>& logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

std::vector<std::int32_t> some_tokens(std::int64_t count, std::int64_t vocabulary) {
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < count; ++i) tokens.push_back(std::int32_t((i * i * 7 + 3 * i + 5) % vocabulary));
  return tokens;
}

std::vector<std::int32_t> generated(models::Decoder& decoder, std::span<const std::int32_t> prompt,
                                    const models::GenerateOptions& options, models::Ending ending) {
  std::vector<std::int32_t> ids;
  const auto result = test::good(models::generate(decoder, prompt, options, [&](std::int32_t token) -> Status {
    ids.push_back(token);
    return {};
  }));
  CHECK(*result == ending);
  return ids;
}

}  // namespace

TEST_CASE("single tokens, and a prompt in any pieces, give the logits of the whole forward pass") {
  const auto [freq, route] = GENERATE(table<std::int64_t, test::Route>({{0, {config::Router::switch_top1}},
                                                                        {1, {config::Router::switch_top1}},
                                                                        {1, {config::Router::top_k, 2, true}},
                                                                        {1, {config::Router::top_k, 2, false}},
                                                                        {1, {config::Router::gshard, 2}},
                                                                        {1, {config::Router::hash}},
                                                                        {1, {config::Router::random}},
                                                                        {1, {config::Router::sigmoid, 2, true, 0.01}},
                                                                        {2, {config::Router::batch_prioritized}}}));
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const int threads = GENERATE(1, 2);
  config::Config config = test::small_config();
  config.model.moe_layer_freq = freq;
  if (freq == 0) test::set_family(config.model, "llama");
  if (route.router == config::Router::random) test::set_family(config.model, "mixtral");
  if (route.router == config::Router::sigmoid) test::set_family(config.model, "dots1");
  if (route.router == config::Router::batch_prioritized) test::set_family(config.model, "olmoe");
  if (route.router == config::Router::top_k)
    test::set_family(config.model, route.normalized ? "qwen3_moe" : "qwen2_moe");
  route.set(config.model);
  config.model.capacity_factor = 0.01;  // training would drop nearly all tokens; here none is dropped
  config.train.dtype = dtype;
  config.model.n_positions = config.train.seq_len = 24;
  Loaded loaded(config);
  loaded.threads = threads;
  const auto tokens = some_tokens(24, config.model.vocab_size);
  const auto expected = loaded.forward(tokens);
  const auto decoder = loaded.decoder();

  std::vector<std::vector<float>> single;
  for (std::size_t i = 0; i < tokens.size(); ++i) single.push_back(read(*decoder, std::span(tokens).subspan(i, 1)));
  const float tolerance = dtype == DType::f32 ? 2e-5f : 0.15f;  // the forward pass sums its attention in another order
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    INFO("position " << i);
    if (dtype == DType::f32) CHECK(largest(single[i]) == largest(expected[i]));
    float most = 0;
    for (std::size_t v = 0; v < expected[i].size(); ++v) most = std::max(most, std::abs(single[i][v] - expected[i][v]));
    CHECK(most < tolerance);
  }
  float apart = 0;  // checks that the compared logits do differ between positions
  for (std::size_t v = 0; v < expected[23].size(); ++v)
    apart = std::max(apart, std::abs(expected[23][v] - expected[22][v]));
  CHECK(apart > 2 * tolerance);

  for (std::size_t cut : {1, 5, 8, 23}) {
    decoder->forget();
    INFO("cut after " << cut);
    const auto before = read(*decoder, std::span(tokens).first(cut));
    const auto after = read(*decoder, std::span(tokens).subspan(cut));
    for (std::size_t v = 0; v < after.size(); ++v) {
      CHECK(before[v] == Approx(single[cut - 1][v]).margin(tolerance));
      CHECK(after[v] == Approx(single[23][v]).margin(tolerance));
    }
  }
}

TEST_CASE("the cache holds the window, which may be shorter than the model's positions") {
  config::Config config = test::small_config();
  if (GENERATE(false, true)) test::set_family(config.model, "qwen3_moe");
  config.model.n_positions = 4096;
  config.train.seq_len = 24;
  Loaded loaded(config);
  const auto decoder = loaded.decoder();
  CHECK(decoder->window() == 24);
  const Shape cache{1, config.model.key_heads(), 24, config.model.head_size()};
  for (const char* each : {"h.0.attn.keys", "h.1.attn.values"}) CHECK(loaded.store[each].type.shape == cache);
  const auto tokens = some_tokens(24, config.model.vocab_size);
  CHECK(largest(read(*decoder, tokens)) == largest(loaded.forward(tokens).back()));
}

TEST_CASE("greedy generation takes the forward pass's largest logit at every step") {
  config::Config config = test::small_config();
  config.model.n_positions = config.train.seq_len = 40;
  Loaded loaded(config);
  const auto decoder = loaded.decoder();
  std::vector<std::int32_t> ids = some_tokens(3, config.model.vocab_size);
  const auto drawn =
      generated(*decoder, ids, {.sampling = {.temperature = 0}, .max_tokens = 100}, models::Ending::window);
  CHECK(drawn.size() == 38);  // 37 tokens fill the window, and its logits give one more
  for (std::int32_t token : drawn) {
    const auto logits = loaded.forward(ids);
    REQUIRE(token == largest(logits.back()));
    ids.push_back(token);
    if (ids.size() > 40) break;
  }
}

TEST_CASE("generation ends at the end of text or after the number of tokens") {
  Loaded loaded(test::small_config());
  const auto decoder = loaded.decoder();
  const std::vector<std::int32_t> prompt{1, 2, 3};
  const models::GenerateOptions options{.sampling = {.temperature = 0}, .max_tokens = 6};
  const auto six = generated(*decoder, prompt, options, models::Ending::max_tokens);
  CHECK(six.size() == 6);

  decoder->forget();
  models::GenerateOptions until = options;
  until.ends = {six[3]};
  const auto cut = generated(*decoder, prompt, until, models::Ending::end_of_text);
  CHECK(cut == std::vector<std::int32_t>(six.begin(), std::find(six.begin(), six.end(), six[3])));

  decoder->forget();
  CHECK(generated(*decoder, prompt, {.sampling = {.temperature = 0}, .max_tokens = 50, .slide = true},
                  models::Ending::max_tokens)
            .size() == 50);
  decoder->forget();
  CHECK(generated(*decoder, prompt, {.max_tokens = 0}, models::Ending::max_tokens).empty());
}

TEST_CASE("several ranks draw the same tokens as one") {
  config::Config config = test::small_config();
  config.model.initializer_range = 0.2;
  const std::vector<std::int32_t> prompt = some_tokens(5, config.model.vocab_size);
  std::vector<std::vector<std::int32_t>> by_ranks;
  for (int ranks : {1, 2, 4}) {
    std::vector<std::int32_t> ids;
    test::run_steps(config, ranks, 0, [&](Trainer& trainer, int rank) {
      const auto result = test::good(trainer.generate(prompt, 20));
      REQUIRE(result->has_value());
      if (rank == 0) ids = **result;
    });
    by_ranks.push_back(ids);
  }
  CHECK(by_ranks[0].size() == 25);
  CHECK(std::set<std::int32_t>(by_ranks[0].begin() + 5, by_ranks[0].end()).size() > 5);
  CHECK(by_ranks[1] == by_ranks[0]);
  CHECK(by_ranks[2] == by_ranks[0]);
}

TEST_CASE("drawn tokens follow temperature, top-k and top-p") {
  // Probabilities 0.5, 0.25, 0.125, 0.125 of the tokens 2, 0, 1, 3.
  const std::vector<float> logits{std::log(0.25f), std::log(0.125f), std::log(0.5f), std::log(0.125f)};
  auto frequencies = [&](const models::SamplingOptions& options) {
    models::TokenPicker picker(options);
    std::vector<double> counts(4);
    for (int i = 0; i < 20000; ++i) {
      const auto token = test::good(picker.pick(logits));
      counts[std::size_t(*token)] += 1.0 / 20000;
    }
    return counts;
  };
  auto check = [&](const models::SamplingOptions& options, const std::vector<double>& expected) {
    const auto found = frequencies(options);
    for (std::size_t i = 0; i < 4; ++i) {
      INFO("token " << i);
      CHECK(found[i] == Approx(expected[i]).margin(expected[i] == 0 ? 0 : 0.015));
    }
  };
  check({}, {0.25, 0.125, 0.5, 0.125});
  check({.temperature = 0}, {0, 0, 1, 0});
  check({.temperature = 0.5}, {0.0625 / 0.34375, 0.015625 / 0.34375, 0.25 / 0.34375, 0.015625 / 0.34375});
  check({.top_k = 1}, {0, 0, 1, 0});
  check({.top_k = 2}, {1 / 3., 0, 2 / 3., 0});
  check({.top_k = 3}, {0.25 / 0.875, 0.125 / 0.875, 0.5 / 0.875, 0});  // the lower id on a tie
  check({.top_k = 100}, {0.25, 0.125, 0.5, 0.125});
  check({.top_p = 0.4}, {0, 0, 1, 0});
  check({.top_p = 0.6}, {1 / 3., 0, 2 / 3., 0});
  check({.top_p = 0.76}, {0.25 / 0.875, 0.125 / 0.875, 0.5 / 0.875, 0});
  check({.top_k = 2, .top_p = 0.6}, {0, 0, 1, 0});  // 2/3 of the two
  models::TokenPicker one({.seed = 1}), same({.seed = 1}), other({.seed = 2});
  std::vector<std::int32_t> drawn[3];
  for (int i = 0; i < 50; ++i) {
    drawn[0].push_back(*one.pick(logits));
    drawn[1].push_back(*same.pick(logits));
    drawn[2].push_back(*other.pick(logits));
  }
  CHECK(drawn[0] == drawn[1]);
  CHECK(drawn[0] != drawn[2]);
}

TEST_CASE("top-p over a large vocabulary sorts only what it needs and draws the same") {
  std::vector<float> logits(5000);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = float((i * 7919) % 5000) * 1e-3f;  // flat: many are kept
  const double top_p = GENERATE(1e-9, 0.2, 0.9, 0.999999);
  std::vector<std::size_t> order(logits.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return logits[a] > logits[b]; });
  double total = 0, sum = 0;
  for (std::size_t i : order) total += std::exp(double(logits[i]) - logits[order[0]]);
  std::set<std::int32_t> kept;
  for (std::size_t i : order) {
    if (!kept.empty() && sum >= top_p * total) break;
    sum += std::exp(double(logits[i]) - logits[order[0]]);
    kept.insert(std::int32_t(i));
  }
  models::TokenPicker picker({.top_p = top_p});
  for (int i = 0; i < 300; ++i) REQUIRE(kept.count(*picker.pick(logits)) == 1);
}

TEST_CASE("wrong sampling options and logits are refused") {
  CHECK(models::check(models::SamplingOptions{}).ok());
  const double nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  for (double t : {-1.0, nan, infinite})
    CHECK(models::check({.temperature = t}).error().message.find("temperature") == 0);
  for (double p : {0.0, -0.5, 1.5, nan}) CHECK(models::check({.top_p = p}).error().message.find("top-p") == 0);
  CHECK(models::check({.top_k = -1}).error().code == ExitCode::config);
  models::TokenPicker picker({});
  const auto wrong = picker.pick(std::vector<float>{1, 2, float(nan)});
  REQUIRE(!wrong.ok());
  CHECK(wrong.error().code == ExitCode::numerical);
  CHECK(wrong.error().message.find("token 2") != std::string::npos);
}

// The text that a run generates and logs at its end.

namespace {

// A run of one step that ends with a sample of 30 tokens. Tokens are bytes alone, so that a model without training
// generates invalid text.
config::Config sampled_run(const test::TemporaryFolder& folder) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  const auto tokenizer = test::good(data::Tokenizer::make(tokens, {}));
  REQUIRE(tokenizer->save(folder / "tok").ok());
  auto config = test::config_in(folder / "run");
  config.model.vocab_size = 256;
  config.data.tokenizer = folder / "tok";
  config.train.steps = 1;
  config.train.sample_prompt = "The caf\xc3\xa9 ";
  config.train.sample_tokens = 30;
  return config;
}

}  // namespace

TEST_CASE("the sample is logged as valid UTF-8") {
  const test::TemporaryFolder folder;
  const config::Config config = sampled_run(folder);
  const test::LogCapture log;
  REQUIRE(test::train_run(config, 1).code == ExitCode::done);
  CHECK(log.count("sample: The caf\xc3\xa9 ") == 1);
  CHECK(log.text().find("\xef\xbf\xbd") != std::string::npos);
  CHECK(replace_invalid_utf8(log.text()) == log.text());
}

TEST_CASE("stages: the sample of a run is the text of one rank") {
  const auto sample_of = [](int stages) {
    const test::TemporaryFolder folder;
    config::Config config = sampled_run(folder);
    config.mesh.stage = stages;
    const test::LogCapture log;
    REQUIRE(test::train_run(config, stages).code == ExitCode::done);
    const std::string text = log.text();
    const std::size_t start = text.find("sample: ");
    REQUIRE(start != text.npos);
    std::string sample = text.substr(start, text.find('\n', start) - start);
    CHECK(log.count(sample) == stages);  // ranks that are threads share a log
    return sample;
  };
  const std::string expected = sample_of(1);
  CHECK(expected.starts_with("sample: The caf\xc3\xa9 "));
  for (const int stages : {2, 4}) CHECK(sample_of(stages) == expected);
}

}  // namespace lancet
