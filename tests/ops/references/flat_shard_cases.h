// Cases of the ops over flat shards, for the kernels of any device: numbers, and the values that each rank must get.
#pragma once
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <functional>

#include "doubles/inproc.h"
#include "lancet/base/flat_shard.h"
#include "lancet/base/random.h"
#include "ops/references/harness.h"

namespace lancet::test {

using Vector = std::vector<float>;
// Runs an op on one rank.
using RunOp = std::function<Outcome(const ops::OpDef&, const std::vector<GuardedTensor>&, const ir::Attributes&,
                                    comm::Communicator&)>;

// Normal numbers, the same for equal arguments.
inline Vector shard_numbers(std::int64_t n, int rank, int tensor) {
  Vector values(std::size_t(n), 0.f);
  Philox(std::uint64_t(100 * rank + tensor), stream_of("flat shards")).normals(0, values);
  return values;
}

inline float rounded(float x) { return to_f32(from_f32<bf16>(x)); }

// The sums over the ranks, in their order, of shard_numbers(); bf16: of the rounded numbers.
inline Vector rank_sums(std::int64_t n, int ranks, int tensor, bool in_bf16) {
  Vector sums;
  for (int rank = 0; rank < ranks; ++rank) {
    Vector values = shard_numbers(n, rank, tensor);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float x = in_bf16 ? rounded(values[i]) : values[i];
      rank == 0 ? sums.push_back(x) : void(sums[i] += x);
    }
  }
  return sums;
}

inline GuardedTensor f32_tensor(const Vector& values) {
  GuardedTensor tensor({DType::f32, {std::int64_t(values.size())}});
  std::copy(values.begin(), values.end(), tensor.as<float>());
  return tensor;
}

inline Status differs(std::string_view what, std::size_t i, float expected, float found) {
  return internal_error(fmt::format("{} {}: expected {}, found {}", what, i, expected, found));
}

// Runs the body on every rank and wants no error.
inline void on_ranks(int ranks, const std::function<Status(comm::Communicator&)>& body) {
  const Status status = comm::run_inproc(ranks, body);
  INFO(ranks << " ranks: " << (status.ok() ? "" : status.error().message));
  CHECK(status.ok());
}

inline const std::vector<std::int64_t> shard_sizes{1, 40, 16, 1000, 400'003};  // the last takes several rounds

inline Status check_scattered(const RunOp& run_op, comm::Communicator& comm, bool in_bf16) {
  std::vector<GuardedTensor> operands;
  for (std::size_t t = 0; t < shard_sizes.size(); ++t)
    operands.push_back(f32_tensor(shard_numbers(shard_sizes[t], comm.rank(), int(t))));
  ir::Attributes attributes{{"shards", std::int64_t(comm.size())}};
  if (in_bf16) attributes.set("message", std::string("bf16"));
  const Outcome outcome = run_op(ops::op("reduce_scatter_flat"), operands, attributes, comm);
  if (!outcome.faults.empty()) return internal_error(outcome.faults[0]);
  for (std::size_t t = 0; t < shard_sizes.size(); ++t) {
    const Vector sums = rank_sums(shard_sizes[t], comm.size(), int(t), in_bf16);
    const FlatRange mine = flat_range(shard_sizes[t], comm.size(), comm.rank());
    const GuardedTensor& shard = outcome.results[t];
    for (std::int64_t i = 0; i < shard.shape()[0]; ++i) {
      const float expected = i < mine.size() ? sums[std::size_t(mine.begin + i)] : 0.f;
      if (shard.as<float>()[i] != expected) return differs("element", std::size_t(i), expected, shard.as<float>()[i]);
    }
  }
  return {};
}

template <class T>
Status check_gathered(const RunOp& run_op, comm::Communicator& comm) {
  std::vector<GuardedTensor> operands;
  for (std::size_t t = 0; t < shard_sizes.size(); ++t) {
    GuardedTensor tensor({dtype_of<T>, {shard_sizes[t]}});
    const Vector all = shard_numbers(shard_sizes[t], 7, int(t));
    const FlatRange mine = flat_range(shard_sizes[t], comm.size(), comm.rank());
    for (std::int64_t i = 0; i < shard_sizes[t]; ++i)
      tensor.as<T>()[i] = from_f32<T>(i >= mine.begin && i < mine.end ? all[std::size_t(i)] : -1.f);
    operands.push_back(std::move(tensor));
  }
  const Outcome outcome = run_op(ops::op("all_gather_flat"), operands, {{"shards", std::int64_t(comm.size())}}, comm);
  if (!outcome.faults.empty()) return internal_error(outcome.faults[0]);
  for (std::size_t t = 0; t < shard_sizes.size(); ++t) {
    const Vector all = shard_numbers(shard_sizes[t], 7, int(t));
    for (std::size_t i = 0; i < all.size(); ++i)
      if (const float found = to_f32(outcome.results[t].template as<T>()[i]); found != to_f32(from_f32<T>(all[i])))
        return differs("element", i, all[i], found);
  }
  return {};
}

// all_reduce with message=bf16: the sums of the rounded values, rounded.
inline Status check_rounded_all_reduce(const RunOp& run_op, comm::Communicator& comm) {
  std::vector<GuardedTensor> operands;
  for (std::size_t t = 0; t < shard_sizes.size(); ++t)
    operands.push_back(f32_tensor(shard_numbers(shard_sizes[t], comm.rank(), int(t))));
  const Outcome outcome = run_op(ops::op("all_reduce"), operands,
                                 {{"shards", std::int64_t(comm.size())}, {"message", std::string("bf16")}}, comm);
  if (!outcome.faults.empty()) return internal_error(outcome.faults[0]);
  for (std::size_t t = 0; t < shard_sizes.size(); ++t) {
    const Vector sums = rank_sums(shard_sizes[t], comm.size(), int(t), true);
    for (std::size_t i = 0; i < sums.size(); ++i)
      if (outcome.results[t].as<float>()[i] != rounded(sums[i]))
        return differs("element", i, rounded(sums[i]), outcome.results[t].as<float>()[i]);
  }
  return {};
}

}  // namespace lancet::test
