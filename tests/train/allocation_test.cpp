// A training step allocates nothing after the first. This file counts every allocation of the test program.
#include <catch2/catch.hpp>

#include "count_allocations.h"
#include "good.h"
#include "lancet/data/token_file.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {
namespace {

// The number of allocations of each of ten steps after the first, on one rank.
std::vector<long> allocations_a_step(const config::Config& config) {
  const auto world = comm::make_self();
  auto trainer = test::good(train::Trainer::create(config, *world));
  REQUIRE((*trainer)->step(0).ok());
  std::vector<long> counts(10);
  bool ok = true;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const long before = test::allocations.load();
    ok = ok && (*trainer)->step(std::int64_t(i) + 1).ok();
    counts[i] = test::allocations.load() - before;
  }
  REQUIRE(ok);
  return counts;
}

}  // namespace

TEST_CASE("a training step allocates nothing after the first") {
  auto config = test::small_config();
  config.train.dtype = GENERATE(DType::f32, DType::bf16);
  config.train.gradient_accumulation_steps = GENERATE(1, 2);
  config.threads = GENERATE(1, 2);
  SECTION("synthetic tokens") {}
  const test::TemporaryFolder folder;
  SECTION("a token file") {
    std::vector<data::TokenId> tokens(4096);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = data::TokenId(i * i % 67);
    auto writer = test::good(data::TokenWriter::create(folder / "train.bin", 67, 0));
    REQUIRE(writer->append(tokens).ok());
    REQUIRE(writer->finish().ok());
    config.data.synthetic = false;
    config.data.train = folder / "train.bin";
  }
  REQUIRE(test::allocations.load() > 0);  // the counter counts
  CHECK(allocations_a_step(config) == std::vector<long>(10, 0));
}

}  // namespace lancet
