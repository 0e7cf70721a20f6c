// Busy, exposed and hidden time of spans made by hand.
#include "runtime/device_times.h"

#include <vector>

#include "support.h"

using namespace lancet;
using runtime::Span;

namespace {

constexpr std::int64_t ms = 1'000'000;

ir::Program streams_of(const std::string& letters) {  // c, e, r
  ir::Program p;
  for (char letter : letters) {
    const ir::Stream stream = letter == 'c'   ? ir::Stream::compute
                              : letter == 'e' ? ir::Stream::expert
                                              : ir::Stream::reduce;
    p.instructions.push_back({"f", {}, {}, {}, {}, stream, ir::Role::forward, ""});
  }
  return p;
}

void check_times(const std::string& letters, std::vector<Span> spans, std::int64_t step,
                 const runtime::StepTimes& expected) {
  for (Span& span : spans) span = {span.start * ms, span.end * ms};
  const runtime::StepTimes times = runtime::stream_times(streams_of(letters), spans, step * ms);
  INFO(letters);
  CHECK(times.step == Approx(expected.step));
  CHECK(times.compute == Approx(expected.compute));
  CHECK(times.all_to_all == Approx(expected.all_to_all));
  CHECK(times.all_reduce == Approx(expected.all_reduce));
  CHECK(times.communication == Approx(expected.communication));
  CHECK(times.exposed == Approx(expected.exposed));
}

}  // namespace

TEST_CASE("exposed time is communication while compute is idle") {
  // step, compute, all_to_all, all_reduce, communication, exposed
  check_times("", {}, 3, {3, 0, 0, 0, 0, 0});
  check_times("c", {{1, 4}}, 5, {5, 3, 0, 0, 0, 0});
  check_times("e", {{1, 4}}, 5, {5, 0, 3, 0, 3, 3});
  check_times("cec", {{0, 2}, {2, 5}, {5, 6}}, 6, {6, 3, 3, 0, 3, 3});  // in turns: all exposed
  check_times("ce", {{0, 10}, {2, 5}}, 10, {10, 10, 3, 0, 3, 0});       // all hidden
  check_times("ce", {{0, 4}, {2, 7}}, 7, {7, 4, 5, 0, 5, 3});           // its end is exposed
  check_times("ec", {{0, 5}, {3, 9}}, 9, {9, 6, 5, 0, 5, 3});           // its beginning is exposed
  check_times("ec", {{0, 9}, {3, 5}}, 9, {9, 2, 9, 0, 9, 7});           // both are exposed
  check_times("er", {{0, 4}, {2, 6}}, 6, {6, 0, 4, 4, 6, 6});           // two streams at once count once
  check_times("cer", {{3, 5}, {0, 4}, {2, 6}}, 6, {6, 2, 4, 4, 6, 4});
  check_times("ccee", {{0, 2}, {6, 8}, {1, 3}, {5, 9}}, 9, {9, 4, 6, 0, 6, 3});  // gaps
  check_times("cc", {{2, 2}, {2, 4}}, 4, {4, 2, 0, 0, 0, 0});                    // a span without length
  check_times("eccc", {{1, 6}, {0, 1}, {1, 2}, {2, 3}}, 6, {6, 3, 5, 0, 5, 3});  // adjacent
}
