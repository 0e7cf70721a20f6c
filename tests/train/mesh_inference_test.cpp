// Evaluation and generation on meshes give what one rank gives, from the trainer's weights and from a checkpoint.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "good.h"
#include "in_memory.h"
#include "lancet/models/generate.h"
#include "lancet/models/loaded_model.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/stream_communicators.h"
#include "train/meshes.h"
#include "train/runs.h"

namespace lancet {
namespace {

using ir::Mesh;

// What a rank finds after a few steps.
struct Inferred {
  double loss = 0;
  std::vector<std::int32_t> greedy, drawn;
};

const std::vector<std::int32_t> prompt{3, 14, 15};

Status write_greedily(models::Decoder& decoder, std::vector<std::int32_t>& ids) {
  const models::GenerateOptions options{.sampling = {.temperature = 0}, .max_tokens = 12};
  return models::generate(
             decoder, prompt, options,
             [&](std::int32_t token) -> Status {
               ids.push_back(token);
               return {};
             }).ok()
             ? Status()
             : Status(Error{ExitCode::internal, "no text", true});
}

std::vector<Inferred> infer(const config::Config& config, int ranks) {
  std::vector<Inferred> found(static_cast<std::size_t>(ranks));
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    Inferred& mine = found[std::size_t(world.rank())];
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks}));
    for (int step = 0; step < 4; ++step) LANCET_TRY(trainer->step(step));
    LANCET_ASSIGN(const std::optional<double> loss, trainer->evaluate());
    mine.loss = loss.value();
    LANCET_ASSIGN(run::Streams streams, run::Streams::make(config, world, nullptr));
    LANCET_ASSIGN(const std::vector<int> first_blocks, planner::StepModel(config, ranks).first_blocks);
    LANCET_ASSIGN(const auto decoder,
                  models::Decoder::create(config, world, trainer->store(), streams, 1, first_blocks));
    LANCET_TRY(write_greedily(*decoder, mine.greedy));
    LANCET_ASSIGN(const auto drawn, trainer->generate(prompt, 12));
    mine.drawn = drawn.value();
    return {};
  }));
  return found;
}

// Trains and evaluates on files; the logits of tokens differ.
config::Config on_files(const Mesh& mesh, const config::Config& files, config::Router router) {
  config::Config config = test::config_on(mesh);
  config.mesh.stage = mesh[ir::Axis::stage];
  config.data = files.data;
  config.model.router = router;
  config.model.initializer_range = 0.2;
  return config;
}

}  // namespace

TEST_CASE("meshes: evaluation and generated text are those of one rank") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  const config::Config files = test::config_with_files(folder, "run");
  const auto router = GENERATE(config::Router::switch_top1, config::Router::random);
  const Inferred expected = infer(on_files({}, files, router), 1)[0];
  CHECK(expected.greedy.size() == 12);
  CHECK(expected.drawn.size() == prompt.size() + 12);
  const Mesh mesh = GENERATE(test::mesh_of(2, 1, 2), test::mesh_of(1, 2, 2), test::mesh_of(2, 2, 2));
  config::Config config = on_files(mesh, files, router);
  config.train.sequence_parallel = (mesh[ir::Axis::data] > 1) == (router == config::Router::random);
  INFO(to_string(mesh) << ", sequences split " << config.train.sequence_parallel);
  for (const Inferred& found : infer(config, mesh.ranks())) {
    CHECK(found.loss == Approx(expected.loss).epsilon(1e-5));
    CHECK(found.greedy == expected.greedy);
    CHECK(found.drawn == expected.drawn);
  }
}

namespace {

const std::vector<std::int32_t> some_tokens{3, 14, 15, 9, 26, 5, 35, 8, 58, 41, 3, 27};

// Logits behind each of some_tokens, read one by one, or each time with all tokens before it, by the initial weights.
std::vector<std::vector<float>> logits_of(const config::Config& config, int ranks, bool one_by_one) {
  std::vector<std::vector<float>> logits;  // of the last rank
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks}));
    LANCET_ASSIGN(run::Streams streams, run::Streams::make(config, world, nullptr));
    LANCET_ASSIGN(const std::vector<int> first_blocks, planner::StepModel(config, ranks).first_blocks);
    LANCET_ASSIGN(const auto decoder,
                  models::Decoder::create(config, world, trainer->store(), streams, 1, first_blocks));
    for (std::size_t i = 0; i < some_tokens.size(); ++i) {
      if (!one_by_one) decoder->forget();
      LANCET_ASSIGN(const auto row,
                    decoder->read(std::span(some_tokens).subspan(one_by_one ? i : 0, one_by_one ? 1 : i + 1)));
      if (world.rank() == ranks - 1) logits.emplace_back(row.begin(), row.end());
    }
    return {};
  }));
  return logits;
}

}  // namespace

TEST_CASE("meshes: single tokens give a family with rotary positions the logits of the whole pass on one rank") {
  const auto family = GENERATE("mixtral", "qwen3_moe", "olmoe", "qwen2_moe", "dots1", "llama", "qwen3");
  const auto config_of = [&](const Mesh& mesh) {
    config::Config config = test::config_on(mesh);
    config.mesh.stage = mesh[ir::Axis::stage];
    test::set_family(config.model, family);
    config.model.num_experts_per_tok = 2;
    config.model.initializer_range = 0.2;  // logits that differ between tokens
    return config;
  };
  const auto expected = logits_of(config_of({}), 1, false);
  REQUIRE(expected.size() == some_tokens.size());
  for (const Mesh& mesh : {Mesh{{1, 1, 1, 2}}, Mesh{{2, 1, 1, 1}}, Mesh{{2, 1, 1, 2}}, Mesh{{1, 1, 2, 2}}}) {
    if (mesh[ir::Axis::expert] > 1 && !config::find_family(family)->has("num_experts_per_tok")) continue;
    INFO(family << " on " << to_string(mesh));
    const auto found = logits_of(config_of(mesh), mesh.ranks(), true);
    REQUIRE(found.size() == expected.size());
    double most = 0, apart = 0, scale = 0;
    for (std::size_t i = 0; i < expected.size(); ++i)
      for (std::size_t v = 0; v < expected[i].size(); ++v) {
        most = std::max(most, std::abs(double(found[i][v]) - expected[i][v]));
        apart = std::max(apart, std::abs(double(expected[i][v]) - expected[0][v]));
        scale = std::max(scale, std::abs(double(expected[i][v])));
      }
    CHECK(most < 1e-5 * scale);
    CHECK(apart > 0.1 * scale);  // the compared logits do differ between positions
  }
}

TEST_CASE("stages: evaluation and generated text are those of one rank") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  const config::Config files = test::config_with_files(folder, "run");
  // By stages that read tokens, too.
  constexpr config::Router routers[] = {config::Router::switch_top1, config::Router::hash};
  const Inferred expected[] = {infer(on_files({}, files, routers[0]), 1)[0],
                               infer(on_files({}, files, routers[1]), 1)[0]};
  int number = 0;
  struct Case {
    Mesh mesh;
    std::vector<std::int64_t> blocks = {};  // mesh.stage_blocks
    config::PipelineSchedule schedule = config::PipelineSchedule::one_forward_one_backward;
  };
  for (const auto& [mesh, blocks, schedule] :
       {Case{{{2, 1, 1, 1}}}, Case{{{4, 1, 1, 1}}}, Case{{{2, 1, 1, 1}}, {4, 0}},
        Case{{{2, 1, 1, 1}}, {}, config::PipelineSchedule::interleaved}, Case{{{2, 2, 1, 1}}}, Case{{{2, 1, 2, 1}}},
        Case{{{2, 1, 1, 2}}}, Case{{{4, 1, 2, 1}}}, Case{{{2, 2, 2, 1}}}}) {
    const int which = number++ % 2;
    config::Config config = on_files(mesh, files, routers[which]);
    config.mesh.stage_blocks = blocks;
    config.train.pipeline_schedule = schedule;
    INFO(to_string(mesh) << ", " << blocks.size() << " numbers of blocks, " << config::name(schedule));
    for (const Inferred& found : infer(config, mesh.ranks())) {
      CHECK(found.loss == Approx(expected[which].loss).epsilon(1e-5));
      CHECK(found.greedy == expected[which].greedy);
      CHECK(found.drawn == expected[which].drawn);
    }
  }
}

TEST_CASE("meshes: a model that tensor split is loaded on any ranks, and on its own mesh where that fits") {
  const test::InMemory place;
  const test::TemporaryFolder folder;
  // The evaluation of a random router numbers its sequences alike in a run and after it.
  const auto router = GENERATE(config::Router::switch_top1, config::Router::hash, config::Router::random);
  config::Config config = on_files(test::mesh_of(1, 2, 2), test::config_with_files(folder, "run"), router);
  config.model.capacity_factor = 4;  // training drops no token, as evaluation of a saved model drops none
  config.train.save_interval = 100;
  config.train.steps = 2;
  test::losses_of_run(config, folder / "run", 4, 0);
  const double held_out = test::held_out_losses(folder / "run").back().second;
  std::vector<std::int32_t> text;  // written on one rank
  const Mesh meshes_of_less[] = {{}, test::mesh_of(1, 2, 1), test::mesh_of(3, 1, 1)};
  for (const int ranks : {1, 2, 3, 4}) {
    INFO(ranks);
    test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
      LANCET_ASSIGN(const auto loaded,
                    models::LoadedModel::load(folder / "run", world, {.local_ranks = ranks, .dtype = {}}));
      LANCET_ASSIGN(const auto result,
                    models::evaluate(*loaded, world, {.data = config.data.eval, .max_sequences = 64}));
      LANCET_ASSIGN(const auto decoder, models::Decoder::create(loaded->config(), world, loaded->store(),
                                                                loaded->streams(), loaded->threads()));
      std::vector<std::int32_t> ids;
      LANCET_TRY(write_greedily(*decoder, ids));
      if (world.rank() > 0) return {};
      const Mesh mesh = config::mesh_of(loaded->config(), ranks);
      CHECK(to_string(mesh) == to_string(ranks == 4 ? test::mesh_of(1, 2, 2) : meshes_of_less[ranks - 1]));
      CHECK(result.loss == Approx(held_out).epsilon(1e-5));
      if (ranks == 1) text = ids;
      CHECK(ids == text);
      return {};
    }));
  }
}

}  // namespace lancet
