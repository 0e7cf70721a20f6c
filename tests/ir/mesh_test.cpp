// Coordinates and groups of ranks, and the text of axes.
#include "lancet/ir/mesh.h"

using namespace lancet;
using ir::Axes;
using ir::Axis;
using ir::Mesh;

TEST_CASE("mesh: coordinates stand with the tensor axis innermost") {
  const Mesh mesh{{1, 2, 2, 2}};
  CHECK(mesh.ranks() == 8);
  CHECK(mesh.coordinate(5, Axis::data) == 1);
  CHECK(mesh.coordinate(5, Axis::expert) == 0);
  CHECK(mesh.coordinate(5, Axis::tensor) == 1);
  CHECK(mesh.coordinate(5, Axis::stage) == 0);
}

TEST_CASE("mesh: a group has the ranks that differ on its axes only") {
  const Mesh mesh{{1, 2, 3, 2}};
  CHECK(mesh.group(7, {Axis::tensor}) == std::vector{6, 7});
  CHECK(mesh.group(7, {Axis::expert}) == std::vector{7, 9, 11});
  CHECK(mesh.group(7, {Axis::data}) == std::vector{1, 7});
  CHECK(mesh.group(7, {Axis::data, Axis::expert}) == std::vector{1, 3, 5, 7, 9, 11});
  CHECK(mesh.group(7, {}) == std::vector{7});
}

TEST_CASE("mesh: each rank's place is its index in its group, on every mesh of up to 24 ranks") {
  for (int stage = 1; stage <= 2; ++stage)
    for (int data = 1; data <= 3; ++data)
      for (int expert = 1; expert <= 2; ++expert)
        for (int tensor = 1; tensor <= 2; ++tensor) {
          const Mesh mesh{{stage, data, expert, tensor}};
          for (const Axes axes : {Axes{}, Axes{Axis::data}, Axes{Axis::data, Axis::expert},
                                  Axes{Axis::stage, Axis::tensor}, Axes{Axis::data, Axis::expert, Axis::tensor}})
            for (int rank = 0; rank < mesh.ranks(); ++rank) {
              const std::vector<int> group = mesh.group(rank, axes);
              REQUIRE(int(group.size()) == mesh.size(axes));
              REQUIRE(group[std::size_t(mesh.place(rank, axes))] == rank);
            }
        }
}

TEST_CASE("mesh: sets of axes") {
  constexpr Axes a{Axis::data, Axis::expert}, b{Axis::expert, Axis::tensor};
  CHECK((a | b) == Axes{Axis::data, Axis::expert, Axis::tensor});
  CHECK((a & b) == Axes{Axis::expert});
  CHECK(a - b == Axes{Axis::data});
  CHECK(a - a == Axes{});
  CHECK(Axes{}.count() == 0);
  CHECK((a | b).count() == 3);
  CHECK(Axes(ir::all_axes).count() == ir::axis_count);
  CHECK(Axes(std::vector{Axis::tensor, Axis::data}) == Axes{Axis::data, Axis::tensor});
}

TEST_CASE("mesh: texts of axes and meshes") {
  CHECK(to_string(Axes{Axis::expert, Axis::data}) == "data,expert");
  CHECK(ir::parse_axes("data,expert") == Axes{Axis::data, Axis::expert});
  CHECK(ir::parse_axes("") == Axes{});
  for (const char* wrong : {"expert,data", "data,", ",data", "data,data", "rank", "Data"})
    CHECK_FALSE(ir::parse_axes(wrong).has_value());
  CHECK(to_string(Mesh{{1, 2, 4, 1}}) == "data 2 x expert 4");
  CHECK(to_string(Mesh{}) == "1 rank");
  CHECK(Mesh{{1, 2, 1, 4}}.wide() == Axes{Axis::data, Axis::tensor});
  CHECK(ir::of_experts(4) == Mesh{{1, 1, 4, 1}});
  CHECK(describe(Mesh{{1, 2, 4, 1}}) == "data 2 x expert 4; rank r: data r / 4, expert r % 4");
  CHECK(describe(Mesh{{2, 2, 2, 1}}) ==
        "stage 2 x data 2 x expert 2; rank r: stage r / 4, data r / 2 % 2, expert r % 2");
  CHECK(describe(ir::of_experts(4)) == "expert 4; rank r: expert r");
  CHECK(describe(Mesh{}) == "1 rank");
}
