// Initial values: equal at any number of ranks, with GPT-2's deviations, and different experts.
#include "lancet/model/transformer.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "lancet/base/random.h"

using namespace lancet;

namespace {

config::Model small() {
  config::Model m;
  m.n_layer = 2;
  m.n_head = 2;
  m.n_embd = 64;
  m.n_positions = 32;
  m.vocab_size = 100;
  m.num_local_experts = 4;
  return m;
}

using Values = std::vector<float>;

Values whole_values(const model::Parameter& parameter, std::uint64_t seed) {
  Values values(std::size_t(parameter.shape.elements()), -1);
  model::initialize(parameter, seed, ir::held_elements(parameter.shape, {}, {}, 0), values);
  return values;
}

std::map<std::string, Values> all_parameters(const config::Model& m, std::uint64_t seed) {
  std::map<std::string, Values> result;
  for (const model::Parameter& parameter : model::parameters(m)) result[parameter.name] = whole_values(parameter, seed);
  return result;
}

struct Moments {
  double mean = 0, deviation = 0;
};
Moments moments(std::span<const float> values) {
  double sum = 0, squares = 0;
  for (float v : values) sum += v, squares += double(v) * v;
  const double n = double(values.size()), mean = sum / n;
  return {mean, std::sqrt(squares / n - mean * mean)};
}

// Five standard errors of n normal numbers.
void check_normal(std::span<const float> values, double deviation) {
  const double n = double(values.size());
  const Moments found = moments(values);
  CHECK(std::abs(found.mean) < 5 * deviation / std::sqrt(n));
  CHECK(std::abs(found.deviation - deviation) < 5 * deviation / std::sqrt(2 * n));
  std::size_t beyond = 0;  // outside two deviations: 4.55%
  for (float v : values) beyond += std::abs(v) > 2 * deviation;
  CHECK(std::abs(double(beyond) / n - 0.0455) < 5 * std::sqrt(0.0455 * 0.9545 / n));
}

}  // namespace

TEST_CASE("initial values are a function of the element, whatever a rank holds") {
  const auto one = all_parameters(small(), 3);
  REQUIRE(one.size() == 2 + 2 + 13 + 12);
  const ir::Mesh mesh{{1, 1, 2, 2}};
  std::size_t wrong = 0;
  for (const model::Parameter& parameter : model::parameters(small()))
    for (int dimension = 0; dimension < parameter.shape.rank(); ++dimension)
      for (const std::int64_t blocks : {1, 2})
        for (int rank = 0; rank < 4; ++rank) {
          ir::Sharding sharding = ir::Sharding::whole(std::size_t(parameter.shape.rank()));
          sharding.dimensions[0].axes = {ir::Axis::expert};
          sharding.dimensions[std::size_t(dimension)].axes.push_back(ir::Axis::tensor);
          sharding.dimensions[std::size_t(dimension)].blocks = parameter.shape[dimension] % 8 == 0 ? blocks : 1;
          if (!ir::shard_shape(parameter.shape, sharding, mesh).ok()) continue;
          const auto held = ir::held_elements(parameter.shape, sharding, mesh, rank);
          Values values(std::size_t(elements_of(held)), -1);
          model::initialize(parameter, 3, held, values);
          for (const ir::HeldRun& run : held)
            for (std::int64_t i = 0; i < run.count; ++i)
              wrong += values[std::size_t(run.held + i)] != one.at(parameter.name)[std::size_t(run.whole + i)];
        }
  REQUIRE(wrong == 0);
  const auto other = all_parameters(small(), 4);
  for (const model::Parameter& parameter : model::parameters(small()))  // another seed gives other numbers
    REQUIRE((other.at(parameter.name) != one.at(parameter.name)) == parameter.deviation.has_value());
}

TEST_CASE("values have GPT-2's deviations") {
  config::Model m = small();
  m.initializer_range = 0.05;
  for (const auto& [name, values] : all_parameters(m, 1)) {
    INFO(name);
    const bool residual = name.ends_with("c_proj.weight");  // projections into the residual stream
    if (name.ends_with(".bias")) {
      REQUIRE((values == Values(values.size(), 0.f)));
    } else if (name.find("ln_") != std::string::npos) {
      REQUIRE((values == Values(values.size(), 1.f)));
    } else if (name == "wte.weight") {
      check_normal(std::span(values).first(100 * 64), 0.05);
    } else {
      check_normal(values, residual ? 0.05 / 2 : 0.05);  // sqrt(2 * 2 layers)
    }
  }
}

TEST_CASE("the table of parameters is that of the forward program") {
  const ir::Program program = model::build_forward(small(), {});
  std::size_t found = 0;
  for (const ir::Tensor& tensor : program.tensors) found += tensor.kind == ir::TensorKind::parameter;
  const std::vector<model::Parameter> table = model::parameters(small());
  REQUIRE(table.size() == found);
  for (const model::Parameter& parameter : table) {
    INFO(parameter.name);
    CHECK(program.type(program.find(parameter.name)).shape == parameter.shape);
    CHECK(parameter.is_experts == (parameter.name.find(".experts.") != std::string::npos));
    CHECK(parameter.unused == (parameter.name == "wte.weight" ? 28 * 64 : 0));
  }
}

TEST_CASE("the padded rows of the vocabulary are zero") {
  const Values wte = all_parameters(small(), 1).at("wte.weight");
  REQUIRE(wte.size() == 128 * 64);
  std::size_t zeros = 0;
  for (std::size_t i = 0; i < 100 * 64; ++i) zeros += wte[i] == 0;
  REQUIRE(zeros == 0);
  for (std::size_t i = 100 * 64; i < wte.size(); ++i) REQUIRE(wte[i] == 0);
}

TEST_CASE("experts, layers and tensors draw different numbers") {
  const auto all = all_parameters(small(), 1);
  const Values& fc = all.at("h.0.moe.experts.c_fc.weight");
  const std::size_t each = fc.size() / 4;
  for (std::size_t a = 0; a < 4; ++a)
    for (std::size_t b = 0; b < a; ++b) {
      double product = 0;  // uncorrelated: mean 0, deviation 0.02^2 * sqrt(n)
      for (std::size_t i = 0; i < each; ++i) product += double(fc[a * each + i]) * fc[b * each + i];
      REQUIRE(std::abs(product) < 5 * 4e-4 * std::sqrt(double(each)));
    }
  const Values &wte = all.at("wte.weight"), &wpe = all.at("wpe.weight");
  REQUIRE(wte[0] != wpe[0]);
  REQUIRE(all.at("h.0.attn.c_proj.weight")[0] != all.at("h.1.attn.c_proj.weight")[0]);
}

TEST_CASE("large tensors hold the numbers of their random stream at any number of threads") {
  const Philox random(3, stream_of("wpe.weight"));
  Values values(1100003);
  model::initialize({.name = "wpe.weight", .shape = {1100003}, .deviation = 0.02f}, 3, {{0, 0, 1100003}}, values);
  std::size_t wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) wrong += values[i] != random.normal(i) * 0.02f;
  REQUIRE(wrong == 0);
}

TEST_CASE("a span of the wrong length, and elements beyond the parameter, are internal errors") {
  Values values(5);
  REQUIRE_THROWS_AS(model::initialize({.name = "wpe.weight", .shape = {2, 3}}, 1, {{0, 0, 6}}, values), InternalError);
  REQUIRE_THROWS_AS(model::initialize({.name = "wpe.weight", .shape = {2, 3}}, 1, {{2, 0, 5}}, values), InternalError);
}
