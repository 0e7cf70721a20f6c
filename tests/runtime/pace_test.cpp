// The times that Pace gives to instructions. Bounds from above are far from what they exclude, since other processes
// may hold up this one.
#include "runtime/emulated_kernels.h"

#include <catch2/catch.hpp>
#include <thread>

#include "lancet/base/clock.h"

namespace lancet {
namespace {

using namespace std::chrono_literals;
using ir::Stream;

constexpr double ms = 1e6;  // ns

ir::Plan plan_of(std::initializer_list<Stream> streams) {
  ir::Plan plan;
  for (const Stream stream : streams) {
    ir::Instruction at;
    at.stream = stream;
    plan.program.instructions.push_back(at);
  }
  plan.waits.resize(streams.size());
  return plan;
}

class Stopwatch {
 public:
  double passed_ms() const { return seconds_since(start_) * 1e3; }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace

TEST_CASE("delays between computations do not add up, since their ideal ends follow each other") {
  const ir::Plan plan = plan_of({Stream::compute, Stream::compute, Stream::compute, Stream::compute, Stream::compute});
  runtime::Pace pace(plan, 0, 2);
  pace.begin_step();
  const Stopwatch watch;
  for (std::int32_t i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(30ms);
    pace.compute(i, 20 * ms);  // 40 ms of the host each
  }
  CHECK(watch.passed_ms() >= 200);
  CHECK(watch.passed_ms() < 300);  // 350 with the delays
  CHECK(pace.late_ns() == 0);
}

TEST_CASE("an instruction takes no time in a run that leaves it out, though it took some in the run before") {
  const ir::Plan plan = plan_of({Stream::compute, Stream::compute, Stream::compute});
  runtime::Pace pace(plan, 0, 1);
  for (const bool left_out : {false, true}) {
    pace.begin_step();
    const Stopwatch watch;
    pace.compute(0, 20 * ms);
    if (left_out)
      pace.leave_out(1);
    else
      pace.compute(1, 200 * ms);
    pace.compute(2, 20 * ms);
    CHECK(watch.passed_ms() >= (left_out ? 40 : 240));
    if (left_out) CHECK(watch.passed_ms() < 240);
  }
}

TEST_CASE("a message takes its share of the device, for no longer than it takes alone") {
  const ir::Plan plan = plan_of({Stream::expert, Stream::compute});
  const auto computed_ms = [&](double alone_ns) {
    runtime::Pace pace(plan, 0, 1);
    pace.begin_step();
    pace.begin_message(0, alone_ns, 0.5);
    const Stopwatch watch;
    pace.compute(1, 50 * ms);
    return watch.passed_ms();
  };
  CHECK(computed_ms(1000 * ms) >= 98);  // half of the device until its end
  CHECK(computed_ms(10 * ms) >= 54);
  CHECK(computed_ms(10 * ms) < 90);
}

TEST_CASE("late is what this machine adds to messages: to their start and to their latency") {
  const ir::Plan plan = plan_of({Stream::expert, Stream::expert});
  runtime::Pace pace(plan, 0, 1);
  pace.begin_step();
  std::this_thread::sleep_for(20ms);
  pace.begin_message(0, ms, 0);  // its ideal start was 0
  CHECK(pace.late_ns() >= 20 * ms);
  pace.end_message(0, -30 * ms);  // messages take 30 ms longer than they should
  CHECK(pace.late_ns() >= 50 * ms);
  pace.begin_message(1, ms, 0);  // right after the one before
  pace.end_message(1, 10 * ms);
  CHECK(pace.late_ns() < 100 * ms);
  pace.begin_step();
  CHECK(pace.late_ns() == 0);
}

}  // namespace lancet
