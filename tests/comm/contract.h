// The contract of every transport, as functions that each rank runs; they return the first violation. The in-process
// tests run them on threads, tests/comm/mpi on processes.
#pragma once
#include <fmt/format.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "lancet/comm/communicator.h"
#include "lancet/comm/network_check.h"

#define EXPECT_THAT(condition, ...)                                                                \
  do {                                                                                             \
    if (!(condition))                                                                              \
      return ::lancet::internal_error(                                                             \
          fmt::format("{}:{}: {}: {}", __FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__))); \
  } while (0)

namespace lancet::comm::contract {

using Bytes = std::vector<std::byte>;

inline std::uint32_t mix(std::uint32_t x) {
  x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x *= 0x846ca68bu;
  return x ^ (x >> 16);
}
// Byte i of message `salt` from one rank to another.
inline std::byte content(int from, int to, int salt, std::size_t i) {
  return static_cast<std::byte>(mix(static_cast<std::uint32_t>(from * 131 + to * 17 + salt * 7919) +
                                    static_cast<std::uint32_t>(i) * 2654435761u));
}
inline Bytes message(int from, int to, int salt, std::size_t bytes) {
  Bytes out(bytes);
  for (std::size_t i = 0; i < bytes; ++i) out[i] = content(from, to, salt, i);
  return out;
}

// Values of very different magnitude, so that another order of summation gives other bits.
inline float summand(int rank, std::size_t i) {
  const std::uint32_t h = mix(static_cast<std::uint32_t>(i) * 97u + static_cast<std::uint32_t>(rank) * 7u + 1u);
  const float value = static_cast<float>(static_cast<std::int32_t>(h >> 8) - (1 << 23));
  return (h & 1u) ? value : value * 1e-6f;
}

// Sends `size_of(from, to)` bytes between all pairs, each rank to itself included, and compares.
template <class SizeOf>
Status send_and_compare(Communicator& c, int salt, SizeOf size_of) {
  const int n = c.size(), me = c.rank();
  std::vector<Bytes> out, in;
  for (int peer = 0; peer < n; ++peer) {
    out.push_back(message(me, peer, salt, size_of(me, peer)));
    in.emplace_back(size_of(peer, me), std::byte{0xEE});
  }
  std::vector<Segment> sends, receives;
  for (int peer = 0; peer < n; ++peer) {
    sends.push_back({peer, out[std::size_t(peer)].data(), out[std::size_t(peer)].size()});
    receives.push_back({peer, in[std::size_t(peer)].data(), in[std::size_t(peer)].size()});
  }
  LANCET_TRY(c.send_receive(sends, receives));
  for (int peer = 0; peer < n; ++peer)
    EXPECT_THAT(in[std::size_t(peer)] == message(peer, me, salt, size_of(peer, me)), "rank {} from rank {}, salt {}",
                me, peer, salt);
  return {};
}

inline Status sends_and_receives(Communicator& c) {
  // Uneven sizes with empty pairs; 9 MB + 1 exceeds the largest fragment of a transport.
  const std::size_t sizes[] = {0, 1, 4096, 70'001, 300'000};
  LANCET_TRY(send_and_compare(c, 1, [&](int from, int to) { return sizes[(from * 3 + to * 2) % 5]; }));
  LANCET_TRY(
      send_and_compare(c, 2, [&](int from, int to) { return from == 0 && to == c.size() - 1 ? (9u << 20) + 1 : 3u; }));
  // All ranks to rank 0 (every token to one expert), then rank 0 to all; nothing at all; each rank to itself only.
  LANCET_TRY(send_and_compare(c, 3, [](int, int to) { return to == 0 ? 50'000u : 0u; }));
  LANCET_TRY(send_and_compare(c, 4, [](int from, int) { return from == 0 ? 50'000u : 0u; }));
  LANCET_TRY(send_and_compare(c, 5, [](int, int) { return 0u; }));
  LANCET_TRY(send_and_compare(c, 6, [](int from, int to) { return from == to ? 777u : 0u; }));
  LANCET_TRY(c.send_receive({}, {}));
  for (int i = 0; i < 50; ++i)
    LANCET_TRY(send_and_compare(c, 10 + i,
                                [&](int f, int t) { return std::size_t(mix(unsigned(f * 31 + t + i * 101)) % 3000); }));
  return {};
}

// Several segments to one peer match in order, empty ones do not count, and each side may interleave peers in its own
// order.
inline Status segments_in_order(Communicator& c) {
  const int n = c.size(), me = c.rank();
  std::vector<Bytes> out, in;
  for (int part = 0; part < 3; ++part)
    for (int peer = 0; peer < n; ++peer) out.push_back(message(me, peer, part, 100u + unsigned(part)));
  for (int peer = 0; peer < n; ++peer)
    for (int part = 0; part < 3; ++part) in.emplace_back(100u + unsigned(part));
  std::vector<Segment> sends, receives;
  for (std::size_t i = 0; i < out.size(); ++i) {
    sends.push_back({int(i) % n, out[i].data(), out[i].size()});
    sends.push_back({int(i) % n, nullptr, 0});
    receives.push_back({int(i) / 3, in[i].data(), in[i].size()});
  }
  LANCET_TRY(c.send_receive(sends, receives));
  for (int peer = 0; peer < n; ++peer)
    for (int part = 0; part < 3; ++part)
      EXPECT_THAT(in[std::size_t(peer * 3 + part)] == message(peer, me, part, 100u + unsigned(part)), "peer {} part {}",
                  peer, part);
  return {};
}

inline Status all_reduces(Communicator& c) {
  std::size_t order_matters = 0;
  for (std::size_t count : {0u, 1u, 15u, 1000u, 1024u, 1025u, 4099u, 100'003u, 2'100'007u}) {
    std::vector<float> values(count), expected(count);
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = summand(c.rank(), i);
      float forward = summand(0, i), backward = summand(c.size() - 1, i);
      for (int r = 1; r < c.size(); ++r) {
        forward += summand(r, i);
        backward += summand(c.size() - 1 - r, i);
      }
      expected[i] = forward;
      order_matters += forward != backward;
    }
    LANCET_TRY(c.all_reduce_sum(values));
    EXPECT_THAT(count == 0 || std::memcmp(values.data(), expected.data(), count * sizeof(float)) == 0, "{} floats",
                count);
  }
  EXPECT_THAT(c.size() < 3 || order_matters > 0, "the data cannot tell one order from another");
  return {};
}

inline Status broadcasts(Communicator& c) {
  int salt = 0;
  for (std::size_t bytes : {0u, 1u, 5000u, (4u << 20) + 3u})
    for (int root = 0; root < c.size(); ++root, ++salt) {
      Bytes data = c.rank() == root ? message(root, 0, salt, bytes) : Bytes(bytes);
      LANCET_TRY(c.broadcast(data, root));
      EXPECT_THAT(data == message(root, 0, salt, bytes), "{} bytes from {}", bytes, root);
    }
  return {};
}

// No rank leaves a barrier before the last one has entered it. (All ranks run on one host and share its clock.)
inline Status barriers(Communicator& c) {
  const auto clock = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  for (int late = 0; late < c.size(); ++late) {
    if (c.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(15));
    double came = clock();
    LANCET_TRY(c.barrier());
    const double went = clock();
    LANCET_TRY(c.broadcast(std::as_writable_bytes(std::span(&came, 1)), late));
    EXPECT_THAT(went >= came, "rank {} went {} s before rank {} came", c.rank(), came - went, late);
  }
  return {};
}

// Two streams at once, in an order that differs from rank to rank.
inline Status streams(Communicator& c) {
  LANCET_ASSIGN(auto expert, c.duplicate());
  LANCET_ASSIGN(auto reduce, c.duplicate());
  EXPECT_THAT(expert->size() == c.size() && reduce->rank() == c.rank(), "a duplicate has the same ranks");
  Status expert_status, reduce_status;
  {
    std::jthread expert_stream([&] {
      for (int i = 0; i < 40 && expert_status; ++i) {
        if ((i + c.rank()) % 8 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(2));
        expert_status = send_and_compare(
            *expert, i, [&](int f, int t) { return std::size_t(mix(unsigned(f * 5 + t * 3 + i)) % 20'000); });
      }
    });
    for (int i = 0; i < 40 && reduce_status; ++i) {
      if ((i + 3 * c.rank()) % 8 == 5) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      std::vector<float> values(10'000, static_cast<float>(c.rank() + i));
      reduce_status = reduce->all_reduce_sum(values);
      const float expected = static_cast<float>(c.size() * i + c.size() * (c.size() - 1) / 2);
      for (float v : values)
        if (v != expected && reduce_status)
          reduce_status = internal_error(fmt::format("all-reduce {}: {} != {}", i, v, expected));
    }
  }
  LANCET_TRY(expert_status);
  LANCET_TRY(reduce_status);
  return c.barrier();
}

// A segment for a rank that does not exist is an error of the caller: nothing is sent, and the communicator still
// works.
inline Status wrong_peers(Communicator& c) {
  std::byte byte{};
  const Segment wrong[] = {{c.size(), &byte, 1}};
  const Status sent = c.send_receive(wrong, {});
  EXPECT_THAT(!sent && sent.error().code == ExitCode::internal, "code");
  EXPECT_THAT(sent.error().message.find(fmt::format("send segment names rank {}", c.size())) != std::string::npos, "{}",
              sent.error().message);
  EXPECT_THAT(!c.broadcast({&byte, 1}, -1), "root -1");
  return c.barrier();
}

inline Status network(Communicator& c) {
  LANCET_ASSIGN(NetworkReport report, measure_network(c));
  EXPECT_THAT(report.ranks == c.size() && report.hosts == 1 && report.transport == c.transport(), "{}",
              to_string(report));
  EXPECT_THAT(report.megabytes_per_second > 1 && report.megabytes_per_second < 1e6, "{}", report.megabytes_per_second);
  EXPECT_THAT(report.round_trip_us > 0.1 && report.round_trip_us < 1e5, "{}", report.round_trip_us);
  double theirs = report.megabytes_per_second;
  LANCET_TRY(c.broadcast(std::as_writable_bytes(std::span(&theirs, 1)), 0));
  EXPECT_THAT(theirs == report.megabytes_per_second, "rank 0 reports {}, rank {} {}", theirs, c.rank(),
              report.megabytes_per_second);
  return {};
}

// The ranks of 0 to size - 1 whose number modulo `columns` (down) or divided by it is that of `rank`.
inline std::vector<int> line_of(int rank, int size, int columns, bool down) {
  std::vector<int> members;
  for (int other = 0; other < size; ++other)
    if (down ? other % columns == rank % columns : other / columns == rank / columns) members.push_back(other);
  return members;
}

// The groups of a grid's rows and columns, disjoint groups at the same time, and groups of groups.
inline Status groups(Communicator& c) {
  constexpr int columns = 2;
  for (const bool down : {false, true}) {
    const std::vector<int> members = line_of(c.rank(), c.size(), columns, down);
    LANCET_ASSIGN(const auto group, c.split(members));
    EXPECT_THAT(group->size() == int(members.size()) && members[std::size_t(group->rank())] == c.rank(),
                "rank {}: {} of {}", c.rank(), group->rank(), group->size());
    EXPECT_THAT(group->transport() == c.transport(), "{}", group->transport());
    std::vector<float> values(5000, 1.f + float(c.rank()));
    float expected = 0;
    for (const int member : members) expected += 1.f + float(member);
    LANCET_TRY(group->all_reduce_sum(values));
    for (const float value : values) EXPECT_THAT(value == expected, "rank {}: {} != {}", c.rank(), value, expected);
    LANCET_TRY(send_and_compare(*group, 70, [](int from, int to) { return std::size_t(100'000 + from * 7 + to); }));
    std::int32_t root = c.rank();
    LANCET_TRY(group->broadcast(std::as_writable_bytes(std::span(&root, 1)), group->size() - 1));
    EXPECT_THAT(root == members.back(), "rank {}: {} is not the last of its group", c.rank(), root);
    const int alone[] = {group->rank()};
    LANCET_ASSIGN(const auto self, group->split(alone));
    EXPECT_THAT(self->size() == 1 && self->rank() == 0, "rank {} alone", c.rank());
    LANCET_TRY(self->barrier());
    LANCET_ASSIGN(const auto twin, group->duplicate());
    EXPECT_THAT(twin->size() == group->size() && twin->rank() == group->rank(), "rank {}", c.rank());
    LANCET_TRY(twin->barrier());
  }
  return c.barrier();
}

// Wrong members are an error of the caller, groups that overlap one of all ranks; the communicator still works.
inline Status wrong_groups(Communicator& c) {
  const std::string range = fmt::format("expected ascending ranks of 0 to {} with {}", c.size() - 1, c.rank());
  const std::vector<std::vector<int>> wrong_members{
      {}, {c.size()}, {c.rank(), c.rank()}, {c.rank(), -1}, {(c.rank() + 1) % (c.size() + 1)}};
  for (const std::vector<int>& wrong : wrong_members) {
    const auto refused = c.split(wrong);
    EXPECT_THAT(!refused.ok() && refused.error().message.find(range) != std::string::npos, "rank {}: {}", c.rank(),
                refused.ok() ? "no error" : refused.error().message);
  }
  return c.barrier();
}

struct Case {
  const char* name;
  Status (*run)(Communicator&);
};
inline constexpr Case cases[] = {{"send_receive", sends_and_receives},
                                 {"segments in order", segments_in_order},
                                 {"all_reduce_sum", all_reduces},
                                 {"broadcast", broadcasts},
                                 {"barrier", barriers},
                                 {"streams", streams},
                                 {"groups", groups},
                                 {"wrong groups", wrong_groups},
                                 {"wrong peers", wrong_peers},
                                 {"network", network}};

}  // namespace lancet::comm::contract
