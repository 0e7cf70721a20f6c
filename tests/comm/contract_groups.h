// The contract of split(): groups of ranks.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/contract_values.h"

namespace lancet::comm::contract {

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

}  // namespace lancet::comm::contract
