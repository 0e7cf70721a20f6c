// Hugging Face folders for tests: the fixtures, and changed copies of them.
#pragma once
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "doubles/inproc.h"
#include "good.h"
#include "lancet/base/json.h"
#include "lancet/checkpoint/safetensors.h"
#include "lancet/models/hugging_face.h"
#include "lancet/planner/from_config.h"
#include "lancet/run/checkpoint_tensors.h"
#include "lancet/run/run_folder.h"
#include "lancet/runtime/executor.h"
#include "reference/models.h"
#include "temporary_folder.h"
#include "text.h"

namespace lancet::test::hf {

namespace fs = std::filesystem;
using lancet::models::Upcycle;

inline fs::path fixture(const std::string& name) { return reference_model(name); }

struct File {
  std::vector<checkpoint::TensorInfo> tensors;
  std::map<std::string, std::vector<std::byte>> bytes;

  static File read(const fs::path& path) {
    auto opened = test::good(checkpoint::SafetensorsFile::open(path));
    File file;
    for (const auto& tensor : opened->tensors()) {
      file.tensors.push_back(tensor);
      auto& data = file.bytes[tensor.name];
      data.resize(tensor.bytes());
      REQUIRE(opened->read(tensor, 0, data).ok());
    }
    return file;
  }
  void write(const fs::path& path) const {
    auto writer =
        test::good(checkpoint::SafetensorsWriter::create(checkpoint::disk(), path, tensors, {{"format", "pt"}}));
    for (const auto& tensor : tensors) REQUIRE(writer->append(bytes.at(tensor.name)).ok());
    REQUIRE(writer->finish().ok());
  }
  checkpoint::TensorInfo& operator[](const std::string& name) {
    for (auto& tensor : tensors)
      if (tensor.name == name) return tensor;
    FAIL("no tensor " + name);
    return tensors[0];
  }
  void rename(const std::string& from, const std::string& to) {
    bytes[to] = bytes.at(from);
    (*this)[from].name = to;
  }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    std::vector<T> result(bytes.at(name).size() / sizeof(T));
    std::memcpy(result.data(), bytes.at(name).data(), bytes.at(name).size());
    return result;
  }
};

inline std::string text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// An imported model and its values.
struct HuggingFaceModel {
  models::ImportedModel imported;
  config::Config config;
  runtime::TensorStore store;
};

inline Result<HuggingFaceModel> import_hugging_face(const fs::path& folder,
                                                    const std::optional<Upcycle>& upcycle = {}) {
  LANCET_ASSIGN(auto imported, models::ImportedModel::open(folder, upcycle));
  runtime::TensorStore store = models::reserve_whole_store(imported.config().model);
  const run::RankShare weights = run::shares_of(store).front();
  for (const run::Source& source : weights.sources) {
    const auto [begin, end] = source.elements;
    const std::span<float> values = store[source.name].memory.span<float>().first(std::size_t(end));
    LANCET_TRY(imported.read(source.name, source.elements, values.subspan(std::size_t(begin)), 1));
  }
  config::Config config = imported.config();
  return HuggingFaceModel{std::move(imported), std::move(config), std::move(store)};
}

inline HuggingFaceModel import_ok(const fs::path& folder, const std::optional<Upcycle>& upcycle = {}) {
  auto model = test::good(import_hugging_face(folder, upcycle));
  return std::move(*model);
}

inline run::ReadParameter values_of(const runtime::TensorStore& store) {
  return [&store](const std::string& parameter, const FlatRange& elements, std::span<float> to, std::int64_t) {
    return run::read_f32(store, store[parameter], sizeof(float) * std::uint64_t(elements.begin),
                         std::as_writable_bytes(to));
  };
}

// Saves a store of the whole model as a run.
inline Status save(const fs::path& run, const config::Config& config, const runtime::TensorStore& store) {
  return run::save_model(run, config, run::shares_of(store).front(), values_of(store), {});
}

// A folder with the fixture's config and a changed copy of its tensors.
struct Changed {
  test::TemporaryFolder folder;
  Changed(const std::string& name, const std::function<void(File&)>& change,
          const std::function<void(nlohmann::json&)>& change_config = {}) {
    auto config = test::json_in(text(fixture(name) / "config.json"));
    if (change_config) change_config(config);
    std::ofstream(folder / "config.json") << json_text(config);
    File file = File::read(fixture(name) / "model.safetensors");
    change(file);
    file.write(folder / "model.safetensors");
  }
  Error error() const {
    const Error model = test::refused(import_hugging_face(folder / ""));
    INFO(model.message);
    CHECK(model.message.find('\n') == std::string::npos);
    return model;
  }
};

inline void check_error(const Error& error, ExitCode code, const std::vector<std::string>& said) {
  INFO(error.message);
  CHECK(error.code == code);
  for (const std::string& part : said) CHECK(error.message.find(part) != std::string::npos);
}

// The largest difference to the other implementation's logits, over all positions; `scale`: the largest logit.
inline double difference(const HuggingFaceModel& model, runtime::TensorStore& store, const File& expected,
                         double& scale) {
  const auto tokens = expected.values<std::int32_t>("tokens");
  const auto logits = expected.values<float>("logits");
  const auto world = comm::make_self(), stream = comm::make_self();
  runtime::ExecutorOptions options;
  options.groups[std::size_t(ir::Stream::expert)] = comm::all_ranks(stream.get());
  const ir::Plan plan =
      planner::plan_forward(model.config, planner::build_options(model.config, model::Mode::generate, 1), 1)->front();
  const auto executor = test::good(runtime::Executor::create(plan, store, options));
  REQUIRE((*executor)->input("tokens").elements() == std::ssize(tokens));
  std::ranges::copy(tokens, (*executor)->input("tokens").as<std::int32_t>());
  REQUIRE((*executor)->run().ok());
  const ops::TensorView view = (*executor)->output("logits");
  const std::int64_t vocabulary = model.config.model.vocab_size;
  double most = 0;
  scale = 0;
  for (std::int64_t s = 0; s < std::ssize(tokens); ++s)
    for (std::int64_t v = 0; v < vocabulary; ++v) {
      const double wanted = logits[std::size_t(s * vocabulary + v)];
      most = std::max(most, std::abs(wanted - double(view.as<float>()[s * view.shape().back() + v])));
      scale = std::max(scale, std::abs(wanted));
    }
  return most;
}

}  // namespace lancet::test::hf
