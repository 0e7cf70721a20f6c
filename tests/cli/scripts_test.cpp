// What the scripts say.
#include <catch2/catch.hpp>

#include "program.h"

namespace lancet {

TEST_CASE("the tests' last line counts what was skipped, by what was missing") {
  const test::TemporaryFolder folder;
  const auto skipped = [&](const std::string& log) {
    return test::shell("bash -c '. " LANCET_SOURCE_DIR "/scripts/common.sh; skipped_tests " + folder.write("log", log) +
                       "'")
        .output;
  };
  CHECK(skipped("1/4 Testing: a\nOutput:\nall is well\n2/4 Testing: b\n3 passed\n").empty());
  CHECK(skipped("1/4 Testing: a\nOutput:\nSKIPPED: no GPU\nand again\nSKIPPED: no GPU\n"
                "2/4 Testing: b\nb.cpp:3: warning:\n  SKIPPED: no chromium here: apt-get install chromium\n"
                "3/4 Testing: c\npassed\n4/4 Testing: d\nSKIPPED: no GPU\n") ==
        "3 skipped: 2 (no GPU), 1 (no chromium here: apt-get install chromium)\n");
}

}  // namespace lancet
