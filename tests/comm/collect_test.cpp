#include <catch2/catch.hpp>

#include "doubles/inproc.h"
#include "lancet/comm/collect.h"

namespace lancet::comm {

TEST_CASE("every rank receives every rank's value") {
  const Status status = run_inproc(3, [](Communicator& c) -> Status {
    LANCET_ASSIGN(const auto all, collect(c, 10.0 + c.rank() * c.rank()));
    LANCET_ASSIGN(const double most, largest(c, -double(c.rank())));
    LANCET_ASSIGN(const double middle, mean(c, double(c.rank() * 3)));
    if (all != std::vector<double>{10, 11, 14} || most != 0 || middle != 3)
      return internal_error("rank " + std::to_string(c.rank()) + " has other values");
    return {};
  });
  CHECK((status.ok() ? "" : status.error().message) == "");
}

TEST_CASE("every rank receives one rank's text, an empty one too") {
  const Status status = run_inproc(3, [](Communicator& c) -> Status {
    for (const std::string sent : {"a longer text", ""}) {
      LANCET_ASSIGN(const std::string text, broadcast_text(c, c.rank() == 1 ? sent : "mine", 1));
      if (text != sent) return internal_error("rank " + std::to_string(c.rank()) + " has '" + text + "'");
    }
    return {};
  });
  CHECK((status.ok() ? "" : status.error().message) == "");
}

TEST_CASE("the all-to-all sends equal bytes to every other rank, and nothing with one rank") {
  const Status status = run_inproc(3, [](Communicator& c) -> Status {
    AllToAll all_to_all(c, 1001);
    if (all_to_all.bytes() != 1000) return internal_error(std::to_string(all_to_all.bytes()));
    return all_to_all(c);
  });
  CHECK((status.ok() ? "" : status.error().message) == "");
  const auto self = make_self();
  AllToAll alone(*self, 1000);
  CHECK(alone.bytes() == 0);
  CHECK(alone(*self).ok());
}

}  // namespace lancet::comm
