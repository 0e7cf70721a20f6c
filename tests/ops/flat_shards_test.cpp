// reduce_scatter_flat, all_gather_flat and all_reduce with rounded messages, over ranks that are threads.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "lancet/base/flat_shard.h"
#include "lancet/base/random.h"
#include "lancet/ops/catalogue.h"
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

using Vector = std::vector<float>;

// Normal numbers, the same for equal arguments.
Vector shard_numbers(std::int64_t n, int rank, int tensor) {
  Vector values(std::size_t(n), 0.f);
  Philox(std::uint64_t(100 * rank + tensor), stream_of("flat shards")).normals(0, values);
  return values;
}

float rounded(float x) { return to_f32(from_f32<bf16>(x)); }

// The sums over the ranks, in their order, of shard_numbers(); bf16: of the rounded numbers.
Vector rank_sums(std::int64_t n, int ranks, int tensor, bool in_bf16) {
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

GuardedTensor f32_tensor(const Vector& values) {
  GuardedTensor tensor({DType::f32, {std::int64_t(values.size())}});
  std::copy(values.begin(), values.end(), tensor.as<float>());
  return tensor;
}

Status differs(std::string_view what, std::size_t i, float expected, float found) {
  return internal_error(fmt::format("{} {}: expected {}, found {}", what, i, expected, found));
}

// Runs the body on every rank and wants no error.
void on_ranks(int ranks, const std::function<Status(comm::Communicator&)>& body) {
  const Status status = comm::run_inproc(ranks, body);
  INFO(ranks << " ranks: " << (status.ok() ? "" : status.error().message));
  CHECK(status.ok());
}

const std::vector<std::int64_t> shard_sizes{1, 40, 16, 1000, 400'003};  // the last takes several rounds

Status check_scattered(comm::Communicator& comm, bool in_bf16) {
  std::vector<GuardedTensor> operands;
  for (std::size_t t = 0; t < shard_sizes.size(); ++t)
    operands.push_back(f32_tensor(shard_numbers(shard_sizes[t], comm.rank(), int(t))));
  ir::Attributes attributes{{"shards", std::int64_t(comm.size())}};
  if (in_bf16) attributes.set("message", std::string("bf16"));
  const Outcome outcome = run(ops::op("reduce_scatter_flat"), operands, attributes, 1, &comm);
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
Status check_gathered(comm::Communicator& comm) {
  std::vector<GuardedTensor> operands;
  for (std::size_t t = 0; t < shard_sizes.size(); ++t) {
    GuardedTensor tensor({dtype_of<T>, {shard_sizes[t]}});
    const Vector all = shard_numbers(shard_sizes[t], 7, int(t));
    const FlatRange mine = flat_range(shard_sizes[t], comm.size(), comm.rank());
    for (std::int64_t i = 0; i < shard_sizes[t]; ++i)
      tensor.as<T>()[i] = from_f32<T>(i >= mine.begin && i < mine.end ? all[std::size_t(i)] : -1.f);
    operands.push_back(std::move(tensor));
  }
  const Outcome outcome = run(ops::op("all_gather_flat"), operands, {{"shards", std::int64_t(comm.size())}}, 1, &comm);
  if (!outcome.faults.empty()) return internal_error(outcome.faults[0]);
  for (std::size_t t = 0; t < shard_sizes.size(); ++t) {
    const Vector all = shard_numbers(shard_sizes[t], 7, int(t));
    for (std::size_t i = 0; i < all.size(); ++i)
      if (const float found = to_f32(outcome.results[t].template as<T>()[i]); found != to_f32(from_f32<T>(all[i])))
        return differs("element", i, all[i], found);
  }
  return {};
}

}  // namespace

TEST_CASE("reduce_scatter_flat: each rank gets its shard of the sums in the order of the ranks, to the bit") {
  const bool in_bf16 = GENERATE(false, true);
  for (const int ranks : {1, 2, 3, 4})
    on_ranks(ranks, [&](comm::Communicator& comm) { return check_scattered(comm, in_bf16); });
}

TEST_CASE("reduce_scatter_flat: a range of each shard") {
  on_ranks(3, [](comm::Communicator& comm) -> Status {
    const std::int64_t n = 1000;  // shards of 336
    const ir::Attributes attributes{{"shards", 3}, {"begin", 160}, {"length", 176}};
    const Outcome outcome =
        run(ops::op("reduce_scatter_flat"), {f32_tensor(shard_numbers(n, comm.rank(), 0))}, attributes, 1, &comm);
    const Vector sums = rank_sums(n, 3, 0, false);
    for (std::size_t i = 0; i < 176; ++i) {
      const std::size_t element = std::size_t(comm.rank()) * 336 + 160 + i;
      const float expected = element < sums.size() ? sums[element] : 0.f;
      if (outcome.results[0].as<float>()[i] != expected)
        return differs("element", i, expected, outcome.results[0].as<float>()[i]);
    }
    return {};
  });
}

TEST_CASE("all_gather_flat completes tensors of both types, and leaves the rank's own elements") {
  for (const int ranks : {1, 2, 3, 4}) {
    on_ranks(ranks, check_gathered<float>);
    on_ranks(ranks, check_gathered<bf16>);
  }
}

TEST_CASE("all_reduce in bf16: sums of rounded values, rounded once, the same bits on all ranks") {
  for (const int ranks : {2, 3, 4})
    on_ranks(ranks, [&](comm::Communicator& comm) -> Status {
      std::vector<GuardedTensor> operands;
      for (std::size_t t = 0; t < shard_sizes.size(); ++t)
        operands.push_back(f32_tensor(shard_numbers(shard_sizes[t], comm.rank(), int(t))));
      const Outcome outcome = run(ops::op("all_reduce"), operands,
                                  {{"shards", std::int64_t(ranks)}, {"message", std::string("bf16")}}, 1, &comm);
      if (!outcome.faults.empty()) return internal_error(outcome.faults[0]);
      for (std::size_t t = 0; t < shard_sizes.size(); ++t) {
        const Vector sums = rank_sums(shard_sizes[t], ranks, int(t), true);
        for (std::size_t i = 0; i < sums.size(); ++i)
          if (outcome.results[t].as<float>()[i] != rounded(sums[i]))
            return differs("element", i, rounded(sums[i]), outcome.results[t].as<float>()[i]);
      }
      return {};
    });
}

TEST_CASE("updates of a shard change its elements as the update of the whole does") {
  const bool master = GENERATE(true, false);
  const std::int64_t n = 1000, ranks = 3, s = flat_shard_elements(n, ranks);
  const ir::Attributes settings{{"beta1", 0.9}, {"beta2", 0.95}, {"eps", 1e-8}, {"weight_decay", 0.1}};
  const auto part = [&](const GuardedTensor& whole, int place) {
    GuardedTensor shard({DType::f32, {s}});
    const FlatRange held = flat_range(n, ranks, place);
    std::fill_n(shard.as<float>(), s, 0.f);
    std::copy_n(whole.as<float>() + held.begin, held.size(), shard.as<float>());
    return shard;
  };
  GuardedTensor w({DType::bf16, {n}});
  const GuardedTensor exact = f32_tensor(shard_numbers(n, 0, 0)), m = f32_tensor(shard_numbers(n, 0, 1)),
                      gradient = f32_tensor(shard_numbers(n, 0, 3)), schedule = f32_tensor({0.01f, 0.5f, 0.5f, 3.f});
  GuardedTensor v = f32_tensor(shard_numbers(n, 0, 2));
  for (std::int64_t i = 0; i < n; ++i) {
    w.as<bf16>()[i] = from_f32<bf16>(exact.as<float>()[i]);
    v.as<float>()[i] = std::abs(v.as<float>()[i]);
  }
  ir::Attributes attributes = settings;
  if (!master) attributes.set("rounding_seed", std::int64_t(5));
  std::vector<GuardedTensor> operands{w, m, v, gradient, schedule};
  if (master) operands.push_back(exact);
  const Outcome whole = run(ops::op("adamw"), operands, attributes);
  attributes.set("shards", ranks);
  on_ranks(int(ranks), [&](comm::Communicator& comm) -> Status {
    const int place = comm.rank();
    std::vector<GuardedTensor> mine{w, part(m, place), part(v, place), part(gradient, place), schedule};
    if (master) mine.push_back(part(exact, place));
    const Outcome found = run(ops::op("adamw"), mine, attributes, 1, &comm);
    if (!found.faults.empty()) return internal_error(found.faults[0]);
    const FlatRange held = flat_range(n, ranks, place);
    for (std::int64_t i = 0; i < n; ++i) {
      const bool own = i >= held.begin && i < held.end;
      const bf16 expected = (own ? whole.operands[0] : w).as<bf16>()[i];
      if (found.operands[0].as<bf16>()[i].bits != expected.bits)
        return differs("weight", std::size_t(i), to_f32(expected), to_f32(found.operands[0].as<bf16>()[i]));
      for (const std::size_t state : {1, 2})
        if (own && found.operands[state].as<float>()[i - held.begin] != whole.operands[state].as<float>()[i])
          return differs("state", std::size_t(i), whole.operands[state].as<float>()[i],
                         found.operands[state].as<float>()[i - held.begin]);
    }
    return {};
  });
}
