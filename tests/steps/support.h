// Programs from text for the passes' tests.
#pragma once
#include <catch2/catch.hpp>
#include <string>
#include <string_view>

#include "good.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::test {

inline void require_sound(const Status& status) {
  if (!status.ok()) FAIL(status.error().message);
}

// A Program that fits the catalogue.
inline ir::Program program(std::string_view text) {
  auto parsed = test::good(ir::parse(text));
  require_sound(ops::verify(*parsed));
  return *parsed;
}

// A pass's result, read back from its text: passes see the same Program either way.
inline std::string text_of(const ir::Program& p) {
  require_sound(ops::verify(p));
  const std::string text = ir::print(p);
  REQUIRE(ir::print(program(text)) == text);
  return text;
}

// What one rank of the mesh executes of a logical Program.
inline ir::Program of_rank(const ir::Program& logical, const ir::Mesh& mesh) {
  const auto sharded = test::good(passes::shard(logical, mesh));
  auto rank = test::good(passes::partition_spmd(*sharded, mesh));
  return *rank;
}

}  // namespace lancet::test
