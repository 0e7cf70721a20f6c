// Floors of ops: made-up rows, a device whose events are one millisecond apart, and what the program prints.
#include "cli/bench_ops.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>

#include "cli/support.h"
#include "host_accelerator.h"
#include "lancet/config/config.h"

namespace lancet {
namespace {

struct Expected {
  std::string op;
  std::optional<double> floor_ms;
  bool cached;
};

}  // namespace

TEST_CASE("floors of made-up rows, sorted by the time that is lost") {
  const auto row = [](const char* op, const char* stream, double flops, double bytes, double ms) {
    return cli::OpRow{op, "forward", stream, 1, flops, bytes, ms};
  };
  std::vector<cli::OpRow> rows{
      row("all_to_all", "expert", 0, 1e8, 9),      row("above_its_ceiling", "compute", 5e9, 1e8, 4),
      row("from_a_cache", "compute", 0, 2e8, 1.5), row("product", "compute", 5e9, 1e8, 6),
      row("all_reduce", "reduce", 0, 1e8, 1),      row("copy", "compute", 1e6, 3e8, 7)};
  cli::add_floors(rows, {.flops = 1e12, .bandwidth = 1e11});
  const std::vector<Expected> expected{{"copy", 3, false},        {"product", 5, false},
                                       {"from_a_cache", 2, true}, {"above_its_ceiling", 5, false},
                                       {"all_to_all", {}, false}, {"all_reduce", {}, false}};
  REQUIRE(rows.size() == expected.size());
  for (std::size_t i = 0; i < rows.size(); ++i) {
    INFO(rows[i].op);
    CHECK(rows[i].op == expected[i].op);
    REQUIRE(rows[i].floor_ms.has_value() == expected[i].floor_ms.has_value());
    if (rows[i].floor_ms) CHECK(*rows[i].floor_ms == Approx(*expected[i].floor_ms));
    CHECK(rows[i].cached == expected[i].cached);
  }
}

TEST_CASE("ops on a device: each between two events, the device's ceilings, and the work of kept tokens") {
  std::atomic<std::int64_t> events = 0;
  test::HostAccelerator accelerator({.events = &events});
  const std::vector<std::string> changes{"overlap.policy=sequential", "model.capacity_factor=1"};
  const auto config = config::parse(test::small_config_text, "small.json", changes).value();
  const auto self = comm::make_self();
  const auto times = cli::measure_ops(
      config, {.steps = 2, .accelerator = &accelerator, .product_size = 64, .copied_bytes = 1 << 20}, *self);
  REQUIRE(times.ok());
  CHECK(times->device == "host queue");
  CHECK(times->ceilings.flops == Approx(2.0 * 64 * 64 * 64 / 1e-3));
  CHECK(times->ceilings.bandwidth == Approx(2.0 * (1 << 20) / 1e-3));
  CHECK(times->step_ms > 0);
  CHECK(times->rows.size() > 20);
  CHECK(times->expert_rows > 0.25);
  CHECK(times->expert_rows < 1);
  const auto experts = std::ranges::find(times->rows, "expert_linear", &cli::OpRow::op);
  REQUIRE(experts != times->rows.end());
  CHECK(experts->flops == 2 * 2 * 32 * 128 * std::round(64 * times->expert_rows));  // two products of 64 tokens
  for (const cli::OpRow& row : times->rows) {
    INFO(row.op << " " << row.role);
    CHECK(row.stream == "compute");
    CHECK(row.ms == Approx(row.calls));  // shares of a recorded section would be less than a millisecond a call
    CHECK(*row.floor_ms ==
          Approx(1e3 * std::max(row.flops / times->ceilings.flops, row.bytes / times->ceilings.bandwidth)));
  }
}

TEST_CASE("bench ops prints floors as a table and as JSON") {
  const test::TemporaryFolder folder;
  const std::string command = "bench ops --steps 2 " + folder.write("small.json", test::small_config_text);
  const auto table = test::lancet(command);
  INFO(table.output);
  CHECK(table.code == 0);
  CHECK(table.lines_with("ceilings, 1 thread") == 1);
  CHECK(table.lines_with("floor ms") == 1);
  CHECK(table.lines_with("total ") == 1);
  for (const char* op : {"linear_dw", "expert_linear ", "dispatch ", "adamw", "cross_entropy_train"})
    CHECK(table.lines_with(op) >= 1);
  const auto json = test::lancet(command + " --json");
  INFO(json.output);
  REQUIRE(json.code == 0);
  const auto found = test::json_in(json.output);
  const double gflop_per_ms = found["ceilings"]["tflops"], mbyte_per_ms = found["ceilings"]["gb_per_s"];
  CHECK(found["device"] == "1 thread");
  CHECK(found["dtype"] == "f32");
  CHECK(found["expert_rows"] == 1);
  double ms = 0, floor_ms = 0, last_lost_ms = 1e30;
  for (const auto& row : found["rows"]) {
    INFO(row);
    const double floor = std::max(double(row["gflop"]) / gflop_per_ms, double(row["mbyte"]) / mbyte_per_ms);
    CHECK(row["floor_ms"] == Approx(floor));
    CHECK(row["lost_ms"] == Approx(double(row["ms"]) - floor));
    CHECK(double(row["lost_ms"]) <= last_lost_ms);
    CHECK(row["cached"] == (double(row["mbyte"]) / double(row["ms"]) > mbyte_per_ms));
    CHECK(int(row["calls"]) > 0);
    last_lost_ms = row["lost_ms"];
    ms += double(row["ms"]);
    floor_ms += std::min(floor, double(row["ms"]));
  }
  CHECK(found["total"]["ms"] == Approx(ms));
  CHECK(found["total"]["floor_ms"] == Approx(floor_ms));
  CHECK(found["total"]["lost_ms"] == Approx(ms - floor_ms));
}

TEST_CASE("bench ops refuses emulated devices, whose ops have declared times") {
  const test::TemporaryFolder folder;
  const auto outcome =
      test::lancet("bench ops " + folder.write("small.json", test::small_config_text) + " --set device=emulated");
  test::check_said(outcome, 2, {"device: expected cpu or cuda, whose ops are measured, found emulated"});
}

}  // namespace lancet
