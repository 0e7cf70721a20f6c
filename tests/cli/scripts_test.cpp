// Output of the scripts.
#include <catch2/catch.hpp>

#include "program.h"

namespace lancet {

TEST_CASE("the last line of scripts/test.sh counts skipped tests by reason") {
  const test::TemporaryFolder folder;
  const auto skipped = [&](const std::string& log) {
    return test::shell("bash -c '. " LANCET_SOURCE_DIR "/scripts/common.sh; skipped_tests " + folder.write("log", log) +
                       "'")
        .output;
  };
  CHECK(skipped("<testcase name=\"a\">\nall is well\n<testcase name=\"b\">\n3 passed\n").empty());
  CHECK(skipped("<testcase name=\"a\">\nSKIPPED: no GPU\nand again\nSKIPPED: no GPU\n"
                "<testcase name=\"b\">\nb.cpp:3: warning:\n  SKIPPED: no chromium here: apt-get install chromium\n"
                "<testcase name=\"c\">\npassed\n<testcase name=\"d\">\nSKIPPED: no GPU\n") ==
        "3 skipped: 2 (no GPU), 1 (no chromium here: apt-get install chromium)\n");
}

}  // namespace lancet
