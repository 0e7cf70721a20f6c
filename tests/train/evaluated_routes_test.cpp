// Saved and exported models whose routes depend on other tokens, evaluated.
#include <catch2/catch.hpp>
#include <cmath>

#include "good.h"
#include "lancet/comm/communicator.h"
#include "lancet/data/token_file.h"
#include "lancet/models/loaded_model.h"
#include "lancet/run/run_folder.h"
#include "temporary_folder.h"
#include "train/hugging_face_files.h"
#include "train/support.h"

using namespace lancet;
using namespace lancet::models;
using namespace lancet::test::hf;

namespace {

// A token file of `windows` sequences of 32 ids of the fixtures' vocabulary, which differ.
std::string write_windows(const test::TemporaryFolder& folder, int windows) {
  const std::string path = folder / (std::to_string(windows) + ".bin");
  std::vector<data::TokenId> tokens;
  for (int i = 0; i <= 32 * windows; ++i) tokens.push_back(data::TokenId(i * i % 1009 % 71));
  auto writer = test::good(data::TokenWriter::create(path, 71, 0));
  REQUIRE(writer->append(tokens).ok());
  REQUIRE(writer->finish().ok());
  return path;
}

// Saves the model as a run under `name`, and evaluates that.
models::EvaluateResult evaluate_saved(const config::Config& config, runtime::TensorStore& store,
                                      const test::TemporaryFolder& folder, const std::string& name,
                                      const std::string& data, int ranks = 1) {
  if (!fs::exists(folder / name)) REQUIRE(save(folder / name, config, store).ok());
  models::EvaluateResult found;
  test::good(comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto loaded,
                  models::LoadedModel::load(folder / name, world,
                                            {.local_ranks = ranks, .threads = 1, .dtype = {}, .device = {}}));
    LANCET_ASSIGN(const auto result, models::evaluate(*loaded, world, {.data = data}));
    if (world.rank() == 0) found = result;
    return {};
  }));
  return found;
}

}  // namespace

TEST_CASE("experts choose among the tokens of groups of one size before and after an export, and of whole ones alone") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2_moe"));
  config::Config& config = model.config;
  config.model.router = config::Router::expert_choice;
  config.model.num_experts_per_tok = 1;
  config.model.capacity_factor = 1;
  config.train.micro_batch_size = 3;  // the groups of training
  const std::string data = write_windows(folder, 8);
  const auto trained = evaluate_saved(config, model.store, folder, "run", data);
  CHECK(trained.sequences == 6);  // two groups
  CHECK(evaluate_saved(config, model.store, folder, "run", write_windows(folder, 6)).loss == trained.loss);
  CHECK(evaluate_saved(config, model.store, folder, "run", data, 2).loss == Approx(trained.loss).epsilon(1e-6));

  REQUIRE(export_hugging_face(exported_model(config), values_of(model.store), folder / "exported", {}).ok());
  HuggingFaceModel again = import_ok(folder / "exported");
  CHECK(again.config.model.router_group_size == 3);
  const auto imported = evaluate_saved(again.config, again.store, folder, "imported", data);
  CHECK(imported.sequences == 6);
  CHECK(imported.loss == trained.loss);

  again.config.model.router_group_size = again.config.train.micro_batch_size = 1;
  const auto single = evaluate_saved(again.config, again.store, folder, "single", write_windows(folder, 6));
  CHECK(std::abs(single.loss - trained.loss) > 1e-4);
}

TEST_CASE("a model that was trained without drops is evaluated in rounds") {
  const test::TemporaryFolder folder;
  HuggingFaceModel model = import_ok(fixture("gpt2_moe"));
  for (const auto& [name, tensor] : model.store.all())
    if (name.ends_with(".gate.weight")) std::ranges::fill(tensor.memory.span<float>(), 0.F);  // all choose expert 0
  config::Config config = model.config;
  const std::string data = write_windows(folder, 8);
  const auto expected = evaluate_saved(config, model.store, folder, "slots for all", data);
  config.model.capacity_factor.reset();
  config.model.dropless_imbalance = 1;
  for (const int ranks : {1, 2})
    CHECK(evaluate_saved(config, model.store, folder, "rounds", data, ranks).loss ==
          Approx(expected.loss).epsilon(1e-6));
}
