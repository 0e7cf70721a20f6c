// reduce_scatter_flat, all_gather_flat and all_reduce with rounded messages, over ranks that are threads.
#include <cmath>

#include "lancet/ops/catalogue.h"
#include "ops/references/flat_shard_cases.h"

using namespace lancet;
using namespace lancet::test;

namespace {

Outcome run_on_cpu(const ops::OpDef& op, const std::vector<GuardedTensor>& operands, const ir::Attributes& attributes,
                   comm::Communicator& comm) {
  return run(op, operands, attributes, 1, &comm);
}

}  // namespace

TEST_CASE("reduce_scatter_flat: each rank gets its shard of the sums in the order of the ranks, to the bit") {
  const bool in_bf16 = GENERATE(false, true);
  for (const int ranks : {1, 2, 3, 4})
    on_ranks(ranks, [&](comm::Communicator& comm) { return check_scattered(run_on_cpu, comm, in_bf16); });
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
    on_ranks(ranks, [](comm::Communicator& comm) { return check_gathered<float>(run_on_cpu, comm); });
    on_ranks(ranks, [](comm::Communicator& comm) { return check_gathered<bf16>(run_on_cpu, comm); });
  }
}

TEST_CASE("all_reduce in bf16: sums of rounded values, rounded once, the same bits on all ranks") {
  for (const int ranks : {2, 3, 4})
    on_ranks(ranks, [](comm::Communicator& comm) { return check_rounded_all_reduce(run_on_cpu, comm); });
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
