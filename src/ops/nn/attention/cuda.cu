// Attention by cuDNN for bf16 heads of 8, 16, ... features, else by our own kernels.
#include <cmath>
#include <memory>

#include "lancet/backend/cuda/attention.h"
#include "lancet/base/dtype.h"
#include "lancet/base/math.h"
#include "ops/device/launch.h"
#include "ops/device/pack.h"

namespace lancet::ops::device {

// Causal attention on plain arithmetic, simple and slow, for f32 and for heads that cuDNN's engines do not support.
//
// Forward has a block per query i: the threads share the keys j <= i and find the largest score, the sum of
// e^(score - largest), and lse, the logarithm of the sum of e^score. The output is the sum of share * value over chunks
// of keys, where share = e^(score - largest) / sum; a chunk's shares go through shared memory, and each thread adds one
// column. Backward recomputes the shares as e^(score - lse) and needs no stored matrix. With row_sum = dout . out of a
// query, the gradient of a score is share * (dout . v - row_sum) (as in FlashAttention). A block per query computes
// row_sum and dq; then a block per key computes dk and dv, over the heads of queries that read it. No sum crosses
// blocks, so no atomics. Of a part of the positions, keys and values are those of `all`, and dk and dv are added onto
// what `later` has and kept in `sums`.

// qkv and dqkv [batch, sequence, group + 1 + 1, heads, head_dim], of which the group's heads of queries are neighbours,
// all [batch, before + sequence, ...] likewise, out and dout [batch, sequence, heads * group, head_dim], lse and
// row_sums f32 [batch, heads * group, sequence], later and sums f32 [batch, before + sequence, 2, heads, head_dim], or
// null.
template <class T>
struct PlainAttention {
  const T *qkv, *all, *dout;
  T *out, *dqkv;
  float *lse, *row_sums;
  const float* later;
  float* sums;
  std::int64_t sequence, before, heads, group, head_dim;
  float scale;
};

inline constexpr int attention_threads = 64;

// Position i of the queries, or of the keys, in head h of queries of sequence b, which reads the head of keys `key`.
struct AttentionPosition {
  std::int64_t b, h, i, key;
};
// Of a block's query, or of its key, with the first head of queries that reads it. heads_a_key: of those counted.
// positions: of queries or of keys.
template <class T>
LANCET_DEVICE AttentionPosition attention_position(const PlainAttention<T>& p, int heads_a_key, std::int64_t positions,
                                                   std::int64_t block) {
  const std::int64_t heads = p.heads * heads_a_key, head = block / positions % heads;
  const int key = int(head) / heads_a_key;
  return {block / positions / heads, heads_a_key == 1 ? key * p.group : head, block % positions, key};
}
// Offsets of position i of a head of queries: of q in qkv, in out, and in lse and row_sums. Of the head of keys that it
// reads: of k (part 0) or v (1) in `all`, or in dqkv, which has `positions`.
template <class T>
LANCET_DEVICE std::int64_t attention_query(const PlainAttention<T>& p, const AttentionPosition& at, std::int64_t i) {
  return ((at.b * p.sequence + i) * (p.group + 2) * p.heads + at.h) * p.head_dim;
}
template <class T>
LANCET_DEVICE std::int64_t attention_key(const PlainAttention<T>& p, const AttentionPosition& at, int part,
                                         std::int64_t i, std::int64_t positions) {
  return (((at.b * positions + i) * (p.group + 2) + p.group + part) * p.heads + at.key) * p.head_dim;
}
template <class T>
LANCET_DEVICE std::int64_t attention_key(const PlainAttention<T>& p, const AttentionPosition& at, int part,
                                         std::int64_t i) {
  return attention_key(p, at, part, i, p.before + p.sequence);
}
template <class T>
LANCET_DEVICE std::int64_t attention_out(const PlainAttention<T>& p, const AttentionPosition& at, std::int64_t i) {
  return ((at.b * p.sequence + i) * p.heads * p.group + at.h) * p.head_dim;
}
template <class T>
LANCET_DEVICE std::int64_t attention_row(const PlainAttention<T>& p, const AttentionPosition& at, std::int64_t i) {
  return (at.b * p.heads * p.group + at.h) * p.sequence + i;
}

template <class T>
LANCET_DEVICE float attention_dot(const T* x, const T* y, std::int64_t n) {
  float sum = 0.f;
  for (std::int64_t d = 0; d < n; ++d) sum += to_f32(x[d]) * to_f32(y[d]);
  return sum;
}

// A block per query: its out and lse.
template <class T>
struct AttentionForward {
  static constexpr int threads = attention_threads;
  struct Shared {
    float shares[threads];  // the shares of a chunk of keys
  };
  PlainAttention<T> p;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const AttentionPosition at = attention_position(p, int(p.group), p.sequence, block.index());
    const T* q = p.qkv + attention_query(p, at, at.i);
    const std::int64_t last = p.before + at.i;  // key
    auto score = [&](std::int64_t j) {
      return rounded_product(attention_dot(q, p.all + attention_key(p, at, 0, j), p.head_dim), p.scale);
    };
    float most = -__builtin_huge_valf(), sum = 0.f;
    for (std::int64_t j = block.thread(); j <= last; j += threads) most = Larger{}(most, score(j));
    most = block.max(most);
    for (std::int64_t j = block.thread(); j <= last; j += threads) sum += exp_f32(score(j) - most);
    sum = block.sum(sum);
    if (block.thread() == 0) p.lse[attention_row(p, at, at.i)] = most + log_f32(sum);

    float* shares = block.template shared<Shared>().shares;
    for (std::int64_t first = 0; first < p.head_dim; first += threads) {
      const std::int64_t d = first + block.thread();
      float result = 0.f;
      for (std::int64_t chunk = 0; chunk <= last; chunk += threads) {
        const std::int64_t j = chunk + block.thread();
        shares[block.thread()] = j <= last ? exp_f32(score(j) - most) / sum : 0.f;
        block.sync();
        for (std::int64_t t = 0; t < threads && chunk + t <= last && d < p.head_dim; ++t)
          result += shares[t] * to_f32(p.all[attention_key(p, at, 1, chunk + t) + d]);
        block.sync();
      }
      if (d < p.head_dim) p.out[attention_out(p, at, at.i) + d] = from_f32<T>(result);
    }
  }
};

// Query i and key j: the share of the key, and the gradient of q . k (that of the score times the scale).
struct AttentionPair {
  float share, dscore;
};
template <class T>
LANCET_DEVICE AttentionPair attention_pair(const PlainAttention<T>& p, const AttentionPosition& at, std::int64_t i,
                                           std::int64_t j, float row_sum) {
  const T *q = p.qkv + attention_query(p, at, i), *k = p.all + attention_key(p, at, 0, j);
  const T *v = p.all + attention_key(p, at, 1, j), *dout = p.dout + attention_out(p, at, i);
  const float share =
      exp_f32(rounded_product(attention_dot(q, k, p.head_dim), p.scale) - p.lse[attention_row(p, at, i)]);
  return {share, share * (attention_dot(dout, v, p.head_dim) - row_sum) * p.scale};
}

// A block per query: its row_sums and dq.
template <class T>
struct AttentionQueryGradient {
  static constexpr int threads = attention_threads;
  struct Shared {
    float dscores[threads];
  };
  PlainAttention<T> p;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const AttentionPosition at = attention_position(p, int(p.group), p.sequence, block.index());
    const std::int64_t out = attention_out(p, at, at.i), last = p.before + at.i;
    float row_sum = 0.f;
    for (std::int64_t d = block.thread(); d < p.head_dim; d += threads)
      row_sum += to_f32(p.dout[out + d]) * to_f32(p.out[out + d]);
    row_sum = block.sum(row_sum);
    if (block.thread() == 0) p.row_sums[attention_row(p, at, at.i)] = row_sum;
    float* dscores = block.template shared<Shared>().dscores;
    for (std::int64_t first = 0; first < p.head_dim; first += threads) {
      const std::int64_t d = first + block.thread();
      float result = 0.f;
      for (std::int64_t chunk = 0; chunk <= last; chunk += threads) {
        const std::int64_t j = chunk + block.thread();
        dscores[block.thread()] = j <= last ? attention_pair(p, at, at.i, j, row_sum).dscore : 0.f;
        block.sync();
        for (std::int64_t t = 0; t < threads && chunk + t <= last && d < p.head_dim; ++t)
          result += dscores[t] * to_f32(p.all[attention_key(p, at, 0, chunk + t) + d]);
        block.sync();
      }
      if (d < p.head_dim) p.dqkv[attention_query(p, at, at.i) + d] = from_f32<T>(result);
    }
  }
};

// A block per key: its dk and dv. Reads the row_sums of all queries of its group.
template <class T>
struct AttentionKeyGradient {
  static constexpr int threads = attention_threads;
  static constexpr int blocks_per_sm = 12;  // registers for the offsets of queries, keys and sums
  struct Shared {
    AttentionPair pairs[threads];
  };
  PlainAttention<T> p;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const AttentionPosition key = attention_position(p, 1, p.before + p.sequence, block.index());
    const std::int64_t own = key.i - p.before;  // among the queries; the first one that reads the key if not negative
    AttentionPair* pairs = block.template shared<Shared>().pairs;
    for (std::int64_t first = 0; first < p.head_dim; first += threads) {
      const std::int64_t d = first + block.thread();
      float dk = 0.f, dv = 0.f;
      AttentionPosition at = key;  // of the heads of queries, one after the other
      for (std::int64_t g = 0; g < p.group; ++g, ++at.h)
        for (std::int64_t chunk = own < 0 ? 0 : own; chunk < p.sequence; chunk += threads) {
          const std::int64_t i = chunk + block.thread();
          pairs[block.thread()] = i < p.sequence ? attention_pair(p, at, i, key.i, p.row_sums[attention_row(p, at, i)])
                                                 : AttentionPair{0.f, 0.f};
          block.sync();
          for (std::int64_t t = 0; t < threads && chunk + t < p.sequence && d < p.head_dim; ++t) {
            dk += pairs[t].dscore * to_f32(p.qkv[attention_query(p, at, chunk + t) + d]);
            dv += pairs[t].share * to_f32(p.dout[attention_out(p, at, chunk + t) + d]);
          }
          block.sync();
        }
      if (d >= p.head_dim) continue;
      if (p.sums) {
        const std::int64_t to_value = p.heads * p.head_dim;
        const std::int64_t k = ((key.b * (p.before + p.sequence) + key.i) * 2 * p.heads + key.key) * p.head_dim + d;
        if (p.later) dk += p.later[k], dv += p.later[k + to_value];
        p.sums[k] = dk, p.sums[k + to_value] = dv;
      }
      if (own < 0) continue;
      p.dqkv[attention_key(p, key, 0, own, p.sequence) + d] = from_f32<T>(dk);
      p.dqkv[attention_key(p, key, 1, own, p.sequence) + d] = from_f32<T>(dv);
    }
  }
};

// A thread per element of dkeys: sums = later + dkeys, and of the part's own positions dqkv, rounded.
struct AddKeyGradients {
  static constexpr int threads = 256;
  const bf16* dkeys;
  const float* later;  // null: zeros
  float* sums;
  bf16* dqkv;
  std::int64_t count, width, keys, before, queries;  // width: of a row of dkeys; queries: of those in a row of dqkv

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t i = block.index() * threads + block.thread(), row = i / width, position = row % keys - before;
    if (i >= count) return;
    const float sum = to_f32(dkeys[i]) + (later ? later[i] : 0.f);
    sums[i] = sum;
    if (position < 0) return;
    const std::int64_t own = row / keys * (keys - before) + position;
    dqkv[own * (queries + width) + queries + i % width] = from_f32<bf16>(sum);
  }
};

}  // namespace lancet::ops::device

namespace lancet::ops {
namespace {

using backend::cuda::Attention;
using backend::cuda::AttentionDesc;
using backend::cuda::AttentionTensors;

// qkv, all: indices of operands.
AttentionDesc describe(const KernelArgs& args, std::size_t qkv, std::size_t all, bool backward) {
  const Shape& shape = args.operands[qkv].shape();  // [B, S, (group + 1 + 1) * heads * head_dim]
  const ir::Attributes& attributes = args.attributes;
  const std::int64_t heads = attributes.integer("heads"), group = attributes.integer("group", 1);
  return {.batch = shape[0],
          .sequence = shape[1],
          .heads = heads,
          .head_dim = shape[2] / ((group + 2) * heads),
          .backward = backward,
          .deterministic = attributes.integer("deterministic", 1) != 0,
          .group = group,
          .part = args.has(int(all)),
          .before = args.has(int(all)) ? args.operands[all].shape()[1] - shape[1] : 0};
}

// cuDNN's attention, or as an error the reason why cuDNN does not support it.
Result<std::shared_ptr<Attention>> library_attention(const AttentionDesc& desc, DType dtype) {
  if (dtype != DType::bf16) return internal_error("cuDNN's engines take bf16, found " + std::string(name(dtype)));
  if (desc.head_dim % 8)
    return internal_error("cuDNN's engines take heads of 8, 16, ... features, found " + std::to_string(desc.head_dim));
  LANCET_ASSIGN(auto made, backend::cuda::make_attention(desc));
  return std::shared_ptr<Attention>(std::move(made));
}

// The warning about a fallback:
// "attention backward over bf16[8,512,3,12,60]: by plain kernels, which are slow, since ..."
std::string slow_way(const AttentionDesc& desc, DType dtype, const std::string& why) {
  std::string text = desc.backward ? "attention backward over " : "attention over ";
  text.append(name(dtype)).append("[");
  for (const std::int64_t length : {desc.batch, desc.sequence, desc.group + 2, desc.heads, desc.head_dim})
    text.append(text.back() == '[' ? "" : ",").append(std::to_string(length));
  return text + "]: by plain kernels, which are slow, since " + why;
}

// Of dkeys, which come before the library's own scratch.
std::size_t dkeys_bytes(const AttentionDesc& desc) {
  const std::int64_t bytes = desc.batch * desc.keys() * 2 * desc.heads * desc.head_dim * 2;
  return desc.part && desc.backward ? std::size_t(device::divide_up(bytes, 256) * 256) : 0;
}

std::size_t workspace_bytes(const AttentionDesc& desc, DType dtype) {
  if (const auto attention = library_attention(desc, dtype); attention.ok())
    return dkeys_bytes(desc) + (*attention)->workspace_bytes();
  return desc.backward ? std::size_t(desc.batch * desc.group * desc.heads * desc.sequence) * sizeof(float)
                       : 0;  // row_sums
}

struct ByLibrary {
  std::shared_ptr<Attention> attention;  // shared: a Kernel is copyable
  backend::Stream* stream;
  AttentionTensors tensors;
  std::byte* workspace_attention;
  Status operator()() const { return attention->run(*stream, tensors, workspace_attention); }
};

// later, sums: of a part in the backward pass, which may be the first to run and have no `later`.
Kernel bind_pass(const KernelArgs& args, const AttentionDesc& desc, DType dtype, AttentionTensors t,
                 const float* later = nullptr, float* sums = nullptr) {
  auto attention = library_attention(desc, dtype);
  if (attention.ok()) {
    t.dkeys = args.workspace;
    const ByLibrary products{*attention, args.stream, t, args.workspace + dkeys_bytes(desc)};
    if (!sums) return products;
    const std::int64_t keys = 2 * desc.heads * desc.head_dim, count = desc.batch * desc.keys() * keys;
    const device::AddKeyGradients add{reinterpret_cast<const bf16*>(args.workspace),
                                      later,
                                      sums,
                                      static_cast<bf16*>(t.dqkv),
                                      count,
                                      keys,
                                      desc.keys(),
                                      desc.before,
                                      desc.group * keys / 2};
    const Kernel adding = device::run_steps(args.stream, device::Step{device::divide_up(count, add.threads), add});
    return [products, adding]() -> Status {
      LANCET_TRY(products());
      return adding();
    };
  }
  if (args.remarks) args.remarks->insert(slow_way(desc, dtype, attention.error().message));
  return device::by_dtype(dtype, [&]<class T>(T) -> Kernel {
    const device::PlainAttention<T> p{static_cast<const T*>(t.qkv),
                                      static_cast<const T*>(t.all),
                                      static_cast<const T*>(t.dout),
                                      static_cast<T*>(t.out),
                                      static_cast<T*>(t.dqkv),
                                      t.lse,
                                      reinterpret_cast<float*>(args.workspace),
                                      later,
                                      sums,
                                      desc.sequence,
                                      desc.before,
                                      desc.heads,
                                      desc.group,
                                      desc.head_dim,
                                      1.f / std::sqrt(float(desc.head_dim))};
    const std::int64_t keys = desc.batch * desc.heads * desc.keys();
    const std::int64_t blocks = desc.batch * desc.heads * desc.group * desc.sequence;
    if (!desc.backward) return device::run_steps(args.stream, device::Step{blocks, device::AttentionForward<T>{p}});
    return device::run_steps(args.stream, device::Step{blocks, device::AttentionQueryGradient<T>{p}},
                             device::Step{keys, device::AttentionKeyGradient<T>{p}});
  });
}

Kernel bind_attention(const KernelArgs& args) {
  const TensorView& qkv = args.operands[0];
  AttentionTensors t;
  t.qkv = qkv.data, t.out = args.results[0].data, t.lse = args.results[1].as<float>();
  t.all = args.operands[args.has(1) ? 1 : 0].data;
  return bind_pass(args, describe(args, 0, 1, false), qkv.dtype(), t);
}
std::size_t workspace_attention(const KernelArgs& args) {
  return workspace_bytes(describe(args, 0, 1, false), args.operands[0].dtype());
}

Kernel bind_attention_dx(const KernelArgs& args) {
  const TensorView& qkv = args.operands[1];
  AttentionTensors t;
  t.dout = args.operands[0].data, t.qkv = qkv.data, t.out = args.operands[2].data;
  t.lse = args.operands[3].as<float>(), t.dqkv = args.results[0].data;
  t.all = args.operands[args.has(4) ? 4 : 1].data;
  return bind_pass(args, describe(args, 1, 4, true), qkv.dtype(), t,
                   args.has(5) ? args.operands[5].as<float>() : nullptr,
                   args.has(4) ? args.results[1].as<float>() : nullptr);
}
std::size_t workspace_attention_dx(const KernelArgs& args) {
  return workspace_bytes(describe(args, 1, 4, true), args.operands[1].dtype());
}

}  // namespace

std::span<const DeviceKernel> attention_cuda() {
  static const DeviceKernel table[] = {{"attention", bind_attention, workspace_attention},
                                       {"attention_dx", bind_attention_dx, workspace_attention_dx}};
  return table;
}

}  // namespace lancet::ops
