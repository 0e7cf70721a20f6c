// Output of the scripts.
#include <catch2/catch.hpp>

#include "program.h"

namespace lancet {

namespace {

// What a function of scripts/common.sh prints for ctest's results.
std::string printed(const std::string& function, const std::string& results) {
  const test::TemporaryFolder folder;
  return test::shell("bash -c '. " LANCET_SOURCE_DIR "/scripts/common.sh; " + function + " " +
                     folder.write("results", results) + "'")
      .output;
}

}  // namespace

TEST_CASE("the last line of scripts/test.sh counts skipped tests by reason") {
  const auto skipped = [](const std::string& results) { return printed("skipped_tests", results); };
  CHECK(skipped("<testcase name=\"a\">\nall is well\n<testcase name=\"b\">\n3 passed\n").empty());
  CHECK(skipped("<testcase name=\"a\">\nSKIPPED: no GPU\nand again\nSKIPPED: no GPU\n"
                "<testcase name=\"b\">\nb.cpp:3: warning:\n  SKIPPED: no chromium here: apt-get install chromium\n"
                "<testcase name=\"c\">\npassed\n<testcase name=\"d\">\nSKIPPED: no GPU\n") ==
        "3 skipped: 2 (no GPU), 1 (no chromium here: apt-get install chromium)\n");
}
TEST_CASE("scripts/test.sh ends with the last lines of each failed test") {
  std::string many;
  for (int line = 0; line < 100; ++line) many += std::to_string(line) + "\n";
  const std::string first = "<testcase name=\"";
  CHECK(printed("failed_tests", first + "a\" classname=\"a\" status=\"run\">\n<system-out>well\n</system-out>\n" +
                                    first +
                                    "b c\" classname=\"b c\" status=\"fail\">\n<failure/>\n<system-out>1 == 2\nits end"
                                    "</system-out>\n") == "-- b c\n1 == 2\nits end\n");
  const std::string of_many =
      printed("failed_tests", first + "d\" classname=\"d\" status=\"fail\">\n<system-out>" + many + "</system-out>\n");
  CHECK(of_many.starts_with("-- d\n41\n42\n"));
  CHECK(of_many.ends_with("\n98\n99\n\n"));
}

}  // namespace lancet
