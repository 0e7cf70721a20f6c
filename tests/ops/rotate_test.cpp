// Rotary positions, wide norms and grouped queries beyond their samples: decoding, the accuracy of angles, and what is
// refused.
#include <fmt/format.h>

#include <catch2/catch.hpp>
#include <cmath>

#include "ops/nn/rotate/rotation.h"
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

GuardedTensor random_tensor(ir::TensorType type, std::uint64_t stream) {
  GuardedTensor tensor(type);
  fill_normal(tensor, 3, stream);
  return tensor;
}

GuardedTensor cursor_of(std::int32_t first, std::int32_t rows) {
  GuardedTensor cursor({DType::i32, {2}});
  cursor.as<std::int32_t>()[0] = first;
  cursor.as<std::int32_t>()[1] = rows - 1;
  return cursor;
}

std::string refused(std::string_view op, std::vector<ir::TensorType> operands, const ir::Attributes& attributes) {
  const auto inferred = ops::op(op).infer({operands, attributes});
  return inferred.ok() ? "accepted " + ir::to_string((*inferred)[0]) : inferred.error().message;
}

ir::Attributes with(ir::Attributes attributes, std::string_view name, ir::AttributeValue value) {
  attributes.set(name, std::move(value));
  return attributes;
}

}  // namespace

TEST_CASE("rotate: sine and cosine of angles of up to a million positions") {
  double worst = 0;
  for (std::int64_t position = 0; position < 1'000'000; position += 997)
    for (const float inverse : {1.f, 0.7498942f, 0.01f, 1e-5f}) {
      const float angle = float(position) * inverse;
      const ops::SineCosine found = ops::sine_cosine(angle);
      worst = std::max(
          {worst, std::abs(found.sine - std::sin(double(angle))), std::abs(found.cosine - std::cos(double(angle)))});
    }
  CHECK(worst < 1.5e-7);
}

TEST_CASE("rotate: decoded rows have the bits of the whole sequence") {
  const ir::Attributes attributes{{"heads", 2}, {"group", 2}, {"head_dim", 10}, {"theta", 1e4}, {"eps", 1e-6}};
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const bool norm : {false, true}) {
      const GuardedTensor qkv = random_tensor({dtype, {2, 9, 80}}, 1);
      std::vector<GuardedTensor> gammas;
      if (norm) gammas = {random_tensor({DType::f32, {10}}, 2), random_tensor({DType::f32, {10}}, 3)};
      std::vector<GuardedTensor> operands = gammas;
      operands.insert(operands.begin(), qkv);
      const GuardedTensor whole = run(ops::op("rotate"), operands, attributes).results[0];
      CHECK_FALSE(slice(whole, 1, 4, 7).same_bytes(slice(qkv, 1, 4, 7)));
      CHECK(slice(whole, 2, 60, 80).same_bytes(slice(qkv, 2, 60, 80)));  // v
      operands = gammas;
      operands.insert(operands.begin(), {slice(qkv, 1, 4, 7), cursor_of(4, 3)});
      const Outcome rows = run(ops::op("rotate_at"), operands, attributes);
      CHECK(rows.results[0].same_bytes(slice(whole, 1, 4, 7)));
    }
}

TEST_CASE("attention: rows that are decoded one by one are those of the whole sequence, with groups") {
  constexpr std::int64_t sequence = 7, head_dim = 12;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const std::int64_t group : {1, 2, 4}) {
      INFO(name(dtype) << ", group " << group);
      const ir::Attributes attributes{{"heads", 2}, {"group", group}};
      const GuardedTensor qkv = random_tensor({dtype, {2, sequence, (group + 2) * 2 * head_dim}}, 1);
      const DoubleTensor whole = to_double(run(ops::op("attention"), {qkv}, attributes).results[0]);
      GuardedTensor keys({dtype, {2, 2, sequence, head_dim}}), values = keys;
      for (std::int64_t s = 0; s < sequence; ++s) {
        const Outcome row = run(ops::op("attention_decode"),
                                {slice(qkv, 1, s, s + 1), keys, values, cursor_of(std::int32_t(s), 1)}, attributes);
        keys = row.operands[1], values = row.operands[2];
        const DoubleTensor out = to_double(row.results[0]);
        double worst = 0;
        const std::int64_t width = 2 * group * head_dim;
        for (std::int64_t b = 0; b < 2; ++b)
          for (std::int64_t i = 0; i < width; ++i)
            worst = std::max(worst, std::abs(out[b * width + i] - whole[(b * sequence + s) * width + i]));
        CHECK(worst <= (dtype == DType::f32 ? 2e-6 : 4e-2));
      }
    }
}

TEST_CASE("wide_norm: q and k have a mean square of 1 over their features, and shards of the heads that of the whole") {
  const ir::Attributes whole{{"heads", 4}, {"group", 2}, {"head_dim", 6}, {"all_heads", 4}, {"eps", 0.}};
  const GuardedTensor qkv = random_tensor({DType::f32, {2, 3, 96}}, 1);  // q 48, k 24, v 24
  GuardedTensor q_gamma({DType::f32, {48}}), k_gamma({DType::f32, {24}});
  std::fill_n(q_gamma.as<float>(), 48, 1.f);
  std::fill_n(k_gamma.as<float>(), 24, 1.f);
  const GuardedTensor squares = run(ops::op("wide_norm_squares"), {qkv}, whole).results[0];
  const GuardedTensor y = run(ops::op("wide_norm"), {qkv, q_gamma, k_gamma, squares}, whole).results[0];
  for (std::int64_t row = 0; row < 6; ++row) {
    double of_q = 0, of_k = 0;
    for (std::int64_t i = 0; i < 72; ++i) (i < 48 ? of_q : of_k) += std::pow(y.as<float>()[row * 96 + i], 2);
    CHECK(of_q / 48 == Approx(1));
    CHECK(of_k / 24 == Approx(1));
  }
  const ir::Attributes half = with(whole, "heads", std::int64_t{2});
  std::vector<double> sums(12);
  for (const std::int64_t shard : {0, 1}) {
    const GuardedTensor part =
        join({slice(qkv, 2, 24 * shard, 24 * (shard + 1)), slice(qkv, 2, 48 + 12 * shard, 48 + 12 * (shard + 1)),
              slice(qkv, 2, 72 + 12 * shard, 72 + 12 * (shard + 1))},
             2);
    const GuardedTensor of_part = run(ops::op("wide_norm_squares"), {part}, half).results[0];
    for (std::size_t i = 0; i < 12; ++i) sums[i] += of_part.as<float>()[i];
    const GuardedTensor normed =
        run(ops::op("wide_norm"), {part, slice(q_gamma, 0, 0, 24), slice(k_gamma, 0, 0, 12), squares}, half).results[0];
    CHECK(slice(normed, 2, 0, 24).same_bytes(slice(y, 2, 24 * shard, 24 * (shard + 1))));
    CHECK(slice(normed, 2, 24, 36).same_bytes(slice(y, 2, 48 + 12 * shard, 48 + 12 * (shard + 1))));
  }
  for (std::size_t i = 0; i < 12; ++i) CHECK(sums[i] == Approx(squares.as<float>()[i]));
}

TEST_CASE("attention and rotate: what is refused") {
  const ir::TensorType qkv{DType::f32, {2, 4, 64}};  // (2 + 1 + 1) * 2 * 8
  CHECK(refused("attention", {qkv}, {{"heads", 2}, {"group", 2}}) == "accepted f32[2,4,32]");
  CHECK(refused("attention", {qkv}, {{"heads", 2}, {"group", 3}}) ==
        "expected qkv[b,s,(@group?+1+1)*@heads*c] of f32 or bf16");
  CHECK(refused("attention", {qkv}, {{"heads", 2}, {"group", 0}}) == "expected group of at least 1");
  CHECK(refused("attention_decode", {qkv, {DType::f32, {2, 4, 9, 8}}, {DType::f32, {2, 4, 9, 8}}, {DType::i32, {2}}},
                {{"heads", 2}, {"group", 2}}) == "expected keys[b,@heads,p,c] of f32 or bf16");

  const ir::Attributes plain{{"heads", 2}, {"group", 2}, {"head_dim", 8}, {"theta", 1e4}};
  const ir::TensorType gamma{DType::f32, {8}};
  CHECK(refused("rotate", {qkv}, plain) == "accepted f32[2,4,64]");
  CHECK(refused("rotate", {qkv, gamma, gamma}, with(plain, "eps", 1e-6)) == "accepted f32[2,4,64]");
  CHECK(refused("rotate", {qkv}, with(plain, "head_dim", std::int64_t{16})) ==
        "expected qkv[b,s,(@group?+1+1)*@heads*@head_dim] of f32 or bf16");
  CHECK(refused("rotate", {qkv, gamma}, plain) == "expected gammas of q and of k, or none");
  CHECK(refused("rotate", {qkv, gamma, gamma}, with(plain, "eps", -1.)) == "expected eps of at least 0");
  CHECK(refused("rotate_dx", {qkv, qkv}, plain) == "expected qkv and both gammas, or none of them");
  CHECK(refused("rotate", {{DType::f32, {2, 4, 24}}}, {{"heads", 2}, {"group", 2}, {"head_dim", 3}, {"theta", 1e4}}) ==
        "expected heads of an even number of features, at most 512");
  const ir::TensorType q_gamma{DType::f32, {32}}, k_gamma{DType::f32, {16}}, squares{DType::f32, {2, 4, 2}};
  CHECK(refused("wide_norm", {qkv, q_gamma, k_gamma, squares},
                with(with(plain, "all_heads", std::int64_t{1}), "eps", 0.)) == "expected all_heads of at least heads");
  CHECK(refused("wide_norm", {qkv, q_gamma, k_gamma, squares},
                with(with(with(plain, "all_heads", std::int64_t{4}), "eps", 0.), "clip", -1.)) ==
        "expected eps and clip of at least 0");
  CHECK(refused("rotate", {qkv}, with(plain, "theta", 0.)) == "expected theta above 1");
  const ir::Attributes scaled = with(plain, "factor", 4.);
  CHECK(refused("rotate", {qkv}, with(scaled, "scaling", "dynamic")) == "expected scaling linear, yarn or llama3");
  CHECK(refused("rotate", {qkv}, with(with(plain, "factor", 0.5), "scaling", "linear")) ==
        "expected a factor of at least 1");
  const ir::Attributes original = with(scaled, "original_max_position_embeddings", std::int64_t{64});
  CHECK(refused("rotate", {qkv}, with(with(original, "scaling", "yarn"), "beta_fast", 0.5)) ==
        "expected beta_fast of at least beta_slow, above 0");
  CHECK(refused("rotate", {qkv},
                with(with(with(original, "scaling", "llama3"), "low_freq_factor", 4.), "high_freq_factor", 1.)) ==
        "expected high_freq_factor above low_freq_factor");
}
