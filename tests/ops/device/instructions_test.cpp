// The tests' doubles of device instructions, and the instructions that a kernel states itself, against PTX's semantics.
// tests/cuda/launch_test.cpp runs the same kernel on a GPU.
#include <catch2/catch.hpp>
#include <memory>

#include "emulated_kernels.h"
#include "run_instructions.h"

using namespace lancet;
using namespace lancet::test;

TEST_CASE("device instructions have the values that PTX states") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    ops::device::emulated::order_seed = seed;
    ops::device::emulated::late_copies = seed % 2 == 0;
    const auto given = std::make_unique<Instructions>(instruction_operands(seed));
    const auto found = std::make_unique<Instructions>(*given);
    HostStream stream;
    REQUIRE(ops::device::launch(stream, 1, RunInstructions{found.get()}).ok());
    CHECK(instruction_faults(*given, *found) == std::vector<std::string>{});
  }
  ops::device::emulated::late_copies = true;
}
