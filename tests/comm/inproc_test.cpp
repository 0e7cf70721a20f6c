#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "comm/contract.h"
#include "doubles/inproc.h"
#include "lancet/comm/collect.h"
#include "lancet/comm/communicator.h"

namespace lancet {

using namespace comm;
using namespace std::chrono_literals;
using Catch::Matchers::Contains;

namespace {

// Far more than any call without a timeout needs, even on a busy machine; the timeouts are a minute.
constexpr double at_once = 30;

double elapsed(std::chrono::steady_clock::time_point since) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

}  // namespace

TEST_CASE("in-process ranks keep the contract") {
  for (int ranks : {1, 2, 3, 4})
    for (const auto& test : contract::cases) {
      if (ranks == 1 && std::string(test.name) == "network") continue;  // nothing to measure
      INFO(test.name << " on " << ranks << " ranks");
      const Status status = run_inproc(ranks, test.run);
      if (!status) FAIL(status.error().message);
    }
}

TEST_CASE("groups of in-process ranks keep the contract, disjoint ones at the same time") {
  for (const bool down : {false, true})  // ranks 0, 1; 2, 3; 4, or ranks 0, 2, 4; 1, 3
    for (const auto& test : contract::cases) {
      INFO(test.name << ", " << down);
      const Status status = run_inproc(5, [&](Communicator& world) -> Status {
        LANCET_ASSIGN(const auto group, world.split(contract::line_of(world.rank(), 5, 2, down)));
        if (group->size() > 1 || std::string(test.name) != "network") LANCET_TRY(test.run(*group));
        return world.barrier();
      });
      if (!status) FAIL(status.error().message);
    }
}

TEST_CASE("calls that do not match are an error on all ranks, at once") {
  const auto run = [](auto rank0, auto rank1) {
    std::atomic<int> failed = 0;
    const Status status = run_inproc(2, [&](Communicator& c) -> Status {
      Status s = c.rank() == 0 ? rank0(c) : rank1(c);
      if (!s) ++failed;
      return s;
    });
    REQUIRE_FALSE(status);
    CHECK(failed == 2);
    CHECK(status.error().code == ExitCode::communication);
    return status.error().message;
  };
  const auto barrier = [](Communicator& c) { return c.barrier(); };
  const auto broadcast = [](std::size_t bytes, int root) {
    return [=](Communicator& c) {
      std::vector<std::byte> data(bytes);
      return c.broadcast(data, root);
    };
  };
  const auto send_receive = [](std::size_t send, std::size_t receive) {
    return [=](Communicator& c) {
      std::vector<std::byte> out(send), in(receive);
      const Segment s{1 - c.rank(), out.data(), send}, r{1 - c.rank(), in.data(), receive};
      return c.send_receive({&s, 1}, {&r, 1});
    };
  };
  const auto reduce = [](std::size_t count) {
    return [=](Communicator& c) {
      std::vector<float> values(count);
      return c.all_reduce_sum(values);
    };
  };
  CHECK_THAT(run(barrier, broadcast(16, 1)),
             Contains("barrier of 0 bytes on rank 0 of 2") && Contains("broadcast of 16 bytes on rank 1 of 2"));
  CHECK_THAT(run(broadcast(16, 0), broadcast(16, 1)), Contains("the ranks' calls do not match"));
  CHECK_THAT(run(broadcast(16, 0), broadcast(24, 0)), Contains("of 16 bytes") && Contains("of 24 bytes"));
  CHECK_THAT(run(reduce(10), reduce(11)), Contains("of 40 bytes") && Contains("of 44 bytes"));
  CHECK_THAT(run(send_receive(8, 400), send_receive(800, 8)),
             Contains("rank 0 expects 400 bytes from rank 1, which sends 800"));
  CHECK_THAT(run(send_receive(8, 400), send_receive(0, 8)),
             Contains("rank 0 expects 400 bytes from rank 1, which sends 0"));
}

TEST_CASE("abort wakes the waiting calls of every stream") {
  std::atomic<int> woken = 0;
  const auto start = std::chrono::steady_clock::now();
  const Status status = run_inproc(2, [&](Communicator& c) -> Status {
    LANCET_ASSIGN(auto stream, c.duplicate());
    if (c.rank() == 1) {
      std::this_thread::sleep_for(100ms);
      c.abort("rank 1 has seen a signal");
      return {};
    }
    Status of_stream;
    {
      std::jthread other([&] { of_stream = stream->barrier(); });
      std::vector<float> values(8);
      const Status s = c.all_reduce_sum(values);
      if (!s && s.error().message == "communication was aborted: rank 1 has seen a signal") ++woken;
    }
    if (!of_stream && of_stream.error().message == "communication was aborted: rank 1 has seen a signal") ++woken;
    if (!stream->barrier() && !stream->duplicate()) ++woken;
    return {};
  });
  CHECK(status);
  CHECK(woken == 3);
  CHECK(elapsed(start) < at_once);
}

TEST_CASE("the first error is returned, the first exception rethrown, without waiting for other ranks") {
  const auto start = std::chrono::steady_clock::now();
  const Status status = run_inproc(3, [](Communicator& c) -> Status {
    if (c.rank() == 2) return data_error("shard 7 is not there");
    return c.barrier();
  });
  REQUIRE_FALSE(status);
  CHECK(status.error().code == ExitCode::data);
  CHECK(status.error().message == "shard 7 is not there");
  const auto throwing = [](Communicator& c) -> Status {
    if (c.rank() == 1) throw std::out_of_range("index 9 of 4");
    return c.barrier();
  };
  CHECK_THROWS_AS((void)run_inproc(3, throwing), std::out_of_range);
  // A rank that finishes too early is not waited for either.
  const Status early = run_inproc(3, [](Communicator& c) -> Status { return c.rank() == 1 ? Status{} : c.barrier(); });
  REQUIRE_FALSE(early);
  CHECK_THAT(early.error().message, Contains("waited for rank 1, which ended without it"));
  CHECK(elapsed(start) < at_once);
}

TEST_CASE("groups that overlap are an error on all ranks, which names both") {
  std::atomic<int> failed = 0;
  const Status status = run_inproc(3, [&](Communicator& c) -> Status {
    const std::vector<int> members = c.rank() == 2 ? std::vector<int>{1, 2} : std::vector<int>{0, 1};
    const auto group = c.split(members);
    failed += !group.ok();
    return group.ok() ? Status() : Status(group.error());
  });
  REQUIRE_FALSE(status);
  CHECK(failed == 3);
  CHECK(status.error().message ==
        "split: expected equal or disjoint groups, found ranks 1, 2 on rank 2 and ranks 0, 1 on rank 1");
}

TEST_CASE("abort reaches the groups, from a group or from the world") {
  for (const bool from_group : {false, true}) {
    std::atomic<int> woken = 0;
    const Status status = run_inproc(4, [&](Communicator& c) -> Status {
      LANCET_ASSIGN(const auto group, c.split(contract::line_of(c.rank(), 4, 2, false)));
      if (c.rank() == 3) {
        std::this_thread::sleep_for(50ms);
        (from_group ? *group : c).abort("rank 3 has seen a signal");
        return {};
      }
      // Ranks 0 and 1 wait for rank 3 in the world, rank 2 in their group.
      const Status s = c.rank() == 2 ? group->barrier() : c.barrier();
      woken += !s && s.error().message == "communication was aborted: rank 3 has seen a signal";
      return {};
    });
    CHECK(status);
    CHECK(woken == 3);
  }
}

}  // namespace lancet

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
      if (text.compare(sent) != 0) return internal_error("rank " + std::to_string(c.rank()) + " has '" + text + "'");
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
