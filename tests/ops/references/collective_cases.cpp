#include "ops/references/collective_cases.h"

#include <algorithm>

namespace lancet::test {
namespace {

// Numbers of very different magnitude, so that another order of summation gives other bits.
GuardedTensor mixed(ir::TensorType type, int rank) {
  GuardedTensor tensor(type), scale(type);
  fill_normal(tensor, 21, std::uint64_t(rank));
  fill_normal(scale, 22, std::uint64_t(rank));
  for (std::int64_t i = 0; i < type.shape.elements(); ++i) {
    if (type.dtype == DType::f32 && scale.as<float>()[i] > 0) tensor.as<float>()[i] *= 1e-5f;
    if (type.dtype == DType::bf16 && to_f32(scale.as<bf16>()[i]) > 0)
      tensor.as<bf16>()[i] = from_f32<bf16>(to_f32(tensor.as<bf16>()[i]) * 0.0078125f);
  }
  return tensor;
}

// Shard `number` of n of a dimension, by the definition of ir/sharding.h: the number-th n-th of each block.
GuardedTensor shard_of(const GuardedTensor& whole, int axis, const ir::Blocks& blocks, std::int64_t n,
                       std::int64_t number) {
  std::vector<GuardedTensor> parts;
  std::int64_t begin = 0;
  for (std::int64_t b = 0; b < blocks.count(); ++b) {
    const std::int64_t block = whole.shape()[axis] / blocks.units * blocks.width(b);
    parts.push_back(slice(whole, axis, begin + number * block / n, begin + (number + 1) * block / n));
    begin += block;
  }
  return join(parts, axis);
}

// The sum over the ranks' tensors in their order, in f32, rounded once.
GuardedTensor sum_of(const std::vector<GuardedTensor>& ranks) {
  GuardedTensor sum(ranks[0].type());
  for (std::int64_t i = 0; i < sum.shape().elements(); ++i) {
    float total = 0;
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      const float x = sum.type().dtype == DType::f32 ? ranks[r].as<float>()[i] : to_f32(ranks[r].as<bf16>()[i]);
      total = r == 0 ? x : total + x;
    }
    if (sum.type().dtype == DType::f32)
      sum.as<float>()[i] = total;
    else
      sum.as<bf16>()[i] = from_f32<bf16>(total);
  }
  return sum;
}

ir::Attributes attributes_of(int ranks) { return {{"axes", "data"}, {"shards", std::int64_t{ranks}}}; }

// The ops that have one split dimension.
void add_dimension(std::vector<CollectiveCase>& cases, int ranks, DType dtype, int axis, const ir::Blocks& blocks,
                   std::int64_t length) {
  ir::TensorType type{dtype, {2, 3, 5}};
  type.shape.set(axis, blocks.units * ranks * length);
  ir::Attributes attributes = attributes_of(ranks);
  attributes.set("axis", std::int64_t{axis});
  attributes.set_blocks("blocks", blocks);
  CollectiveCase gather{"all_gather", attributes, {}, {}}, scatter{"reduce_scatter", attributes, {}, {}},
      take{"take_shard", attributes, {}, {}}, window{"take_window", attributes, {}, {}};
  window.attributes.set("part", std::int64_t{ranks - 1});
  for (int r = 0; r < ranks; ++r) scatter.operands.push_back(mixed(type, r));
  const GuardedTensor whole = mixed(type, 9), sum = sum_of(scatter.operands);
  for (int r = 0; r < ranks; ++r) {
    gather.operands.push_back(shard_of(whole, axis, blocks, ranks, r));
    gather.expected.push_back(whole);
    scatter.expected.push_back(shard_of(sum, axis, blocks, ranks, r));
    take.operands.push_back(whole);
    take.expected.push_back(shard_of(whole, axis, blocks, ranks, r));
    window.operands.push_back(whole);
    window.expected.push_back(shard_of(whole, axis, blocks, ranks, (r + ranks - 1) % ranks));
  }
  cases.push_back(gather);
  cases.push_back(scatter);
  cases.push_back(take);
  cases.push_back(window);
}

void add_permutes(std::vector<CollectiveCase>& cases, int ranks, DType dtype) {
  for (std::int64_t shift = 1; shift < std::max(ranks, 2); ++shift) {
    CollectiveCase permute{"permute_shards", attributes_of(ranks), {}, {}};
    permute.attributes.set("of", "all_gather");
    permute.attributes.set("shift", shift);
    for (int r = 0; r < ranks; ++r) {
      permute.operands.push_back(mixed({dtype, {3, 7}}, r));
      permute.expected.push_back(mixed({dtype, {3, 7}}, int(r + shift) % ranks));
    }
    cases.push_back(permute);
  }
}

void add_sums(std::vector<CollectiveCase>& cases, int ranks, DType dtype, std::int64_t length) {
  const ir::TensorType type{dtype, {3, length}};
  CollectiveCase sum{"sum_shards", attributes_of(ranks), {}, {}}, one{"one_summand", {{"axes", "data"}}, {}, {}};
  GuardedTensor zeros(type);
  std::fill_n(zeros.data(), zeros.size(), std::byte{0});
  for (int r = 0; r < ranks; ++r) {
    sum.operands.push_back(mixed(type, r));
    one.operands.push_back(mixed(type, 9));
    one.expected.push_back(r == 0 ? one.operands[0] : zeros);
  }
  sum.expected.assign(std::size_t(ranks), sum_of(sum.operands));
  cases.push_back(sum);
  cases.push_back(one);
}

void add_swap(std::vector<CollectiveCase>& cases, int ranks, DType dtype, int from, int to,
              const ir::Blocks& from_blocks, const ir::Blocks& to_blocks) {
  ir::TensorType type{dtype, {2, 3, 5}};
  type.shape.set(from, from_blocks.units * ranks * 3);
  type.shape.set(to, to_blocks.units * ranks * 2);
  ir::Attributes attributes = attributes_of(ranks);
  attributes.set("from", std::int64_t{from});
  attributes.set("to", std::int64_t{to});
  attributes.set_blocks("from_blocks", from_blocks);
  attributes.set_blocks("to_blocks", to_blocks);
  CollectiveCase swap{"swap_shards", attributes, {}, {}};
  const GuardedTensor whole = mixed(type, 9);
  for (int r = 0; r < ranks; ++r) {
    swap.operands.push_back(shard_of(whole, from, from_blocks, ranks, r));
    swap.expected.push_back(shard_of(whole, to, to_blocks, ranks, r));
  }
  cases.push_back(swap);
}

}  // namespace

std::vector<CollectiveCase> collective_cases(int ranks) {
  std::vector<CollectiveCase> cases;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int axis : {0, 1, 2})
      for (const ir::Blocks& blocks : {ir::Blocks(1), ir::Blocks(2), ir::Blocks(3), ir::Blocks::of({4, 1, 1})})
        for (const std::int64_t length : {1, 3, 8}) add_dimension(cases, ranks, dtype, axis, blocks, length);
    for (const std::int64_t length : {1, 21, 22, 64, 85, 1000, 5001}) add_sums(cases, ranks, dtype, length);
    add_permutes(cases, ranks, dtype);
    for (const int from : {0, 1, 2})
      for (const int to : {0, 1, 2})
        for (const ir::Blocks& from_blocks : {ir::Blocks(1), ir::Blocks(2), ir::Blocks::of({1, 2})})
          for (const ir::Blocks& to_blocks : {ir::Blocks(1), ir::Blocks(3)})
            if (from != to) add_swap(cases, ranks, dtype, from, to, from_blocks, to_blocks);
  }
  return cases;
}

}  // namespace lancet::test
