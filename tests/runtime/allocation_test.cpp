// The step loop allocates nothing. This file counts every allocation of the test program.
#include "count_allocations.h"
#include "support.h"

using namespace lancet;
using namespace lancet::test;

TEST_CASE("a step allocates nothing") {
  FakeCommunicator expert(doubled), reduce(doubled);
  Run run(three_streams, streams(&expert, &reduce));
  const long before_first = allocations.load();
  REQUIRE(before_first > 0);  // the counter counts
  require_done(run.executor->run());
  long counts[3] = {};
  bool ok = true;
  double total = 0;
  for (long& count : counts) {
    const long before = allocations.load();
    for (int step = 0; step < 20; ++step) {
      ok = ok && run.executor->run().ok();
      total += run.executor->times().step;
    }
    count = allocations.load() - before;
  }
  REQUIRE(ok);
  REQUIRE(total > 0);
  for (long count : counts) REQUIRE(count == 0);
}
