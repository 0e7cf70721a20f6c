// How many ranks of a group share a host.
#include "lancet/cost/costs.h"

#include <catch2/catch.hpp>

namespace lancet::cost {

TEST_CASE("hosts are told apart where each has as many ranks, and more than one") {
  CHECK(Layout{8, 2}.ranks_sharing_host() == 4);
  CHECK(Layout{6, 2}.ranks_sharing_host() == 3);
  CHECK(Layout{.ranks = 6, .hosts = 2, .even = false}.ranks_sharing_host() == 1);  // four and two
  CHECK(Layout{7, 2}.ranks_sharing_host() == 1);
  CHECK(Layout{8, 8}.ranks_sharing_host() == 1);
  CHECK(Layout{8, 1}.ranks_sharing_host() == 1);
}

TEST_CASE("hosts are told apart in groups of which each host has as many ranks") {
  const ir::Axes data{ir::Axis::data}, expert{ir::Axis::expert};
  // Twelve ranks, four on each of three hosts: a group of six has four ranks on one host and two on another.
  CHECK(Layout{12, 3, ir::Mesh{{1, 2, 6, 1}}}.ranks_sharing_host(expert) == 1);
  CHECK(Layout{12, 3, ir::Mesh{{1, 2, 6, 1}}}.ranks_sharing_host(data) == 1);
  CHECK(Layout{12, 4, ir::Mesh{{1, 2, 6, 1}}}.ranks_sharing_host(expert) == 3);
  // Six ranks on each of two hosts: the first group of four is on one host, the second on both.
  CHECK(Layout{12, 2, ir::Mesh{{1, 3, 4, 1}}}.ranks_sharing_host(expert) == 1);
  CHECK(Layout{12, 2, ir::Mesh{{1, 4, 3, 1}}}.ranks_sharing_host(data) == 2);
  CHECK(Layout{12, 2, ir::Mesh{{1, 4, 3, 1}}}.ranks_sharing_host(expert) == 1);
  CHECK(Layout{12, 2, ir::Mesh{{1, 4, 3, 1}}}.ranks_sharing_host(data | expert) == 6);
  CHECK(Layout{12, 2, ir::Mesh{{1, 4, 3, 1}}, 1, false}.ranks_sharing_host(data) == 1);
  CHECK_FALSE(Layout{12, 3, ir::Mesh{{1, 2, 6, 1}}}.group(expert).even);
  CHECK(Layout{12, 4, ir::Mesh{{1, 2, 6, 1}}}.group(expert).even);
}

TEST_CASE("ranks fill one host after the other") {
  CHECK(hosts_of(6, 4) == 2);
  CHECK(hosts_of(8, 4) == 2);
  CHECK(hosts_of(1, 1) == 1);
}

}  // namespace lancet::cost
