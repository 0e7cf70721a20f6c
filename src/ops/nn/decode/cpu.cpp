#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lancet/base/math.h"
#include "ops/cpu.h"
#include "ops/nn/embedding/table_rows.h"

namespace lancet::ops {
namespace {

// The rows' positions. They are data, so they are checked when the kernel runs.
struct Cursor {
  std::int64_t first, rows;  // position of row 0; number of valid rows
  Cursor(const std::int32_t* cursor, std::int64_t most_rows, std::int64_t positions)
      : first(cursor[0]), rows(cursor[1] + 1) {
    LANCET_CHECK(first >= 0 && rows >= 1 && rows <= most_rows && first + rows <= positions,
                 "{} of {} rows at position {} of {}", rows, most_rows, first, positions);
  }
};

Kernel bind_embedding(const KernelArgs& args) {
  const std::int32_t *tokens = args.operands[0].as<std::int32_t>(), *cursor = args.operands[3].as<std::int32_t>();
  const std::int64_t count = args.operands[0].elements(), sequence = args.operands[0].shape()[1];
  const std::int64_t d = args.operands[1].shape()[1], positions = args.operands[2].shape()[0];
  const TableRows table(args.operands[1].shape()[0], args.share());
  return cpu::by_dtype(args.operands[1].dtype(), [&]<class T>(T) -> Kernel {
    const T *wte = args.operands[1].as<T>(), *wpe = args.operands[2].as<T>();
    T* x = args.results[0].as<T>();
    return [=]() -> Status {
      LANCET_CHECK(cursor[0] >= 0 && cursor[0] < positions, "position {} of {}", cursor[0], positions);
      table.check(tokens, count);
      for (std::int64_t t = 0; t < count; ++t) {
        const std::int64_t position = std::min(cursor[0] + t % sequence, positions - 1);
        embed_row(d, wte, table.row(tokens[t]), wpe + position * d, x + t * d);
      }
      return {};
    };
  });
}

// One head of one sequence, of queries or of keys: keys, values [P,hd]. `stride` is the distance between two rows of q,
// k or v, in elements.
template <class T>
struct Head {
  std::int64_t head_dim, stride, out_stride;
  float scale;

  void store(const T* from, std::int64_t rows, T* cache) const {
    for (std::int64_t s = 0; s < rows; ++s)
      std::memcpy(cache + s * head_dim, from + s * stride, std::size_t(head_dim) * sizeof(T));
  }

  // The attention of one row. Scratch: `scores` of keys_count floats, `sum` of head_dim floats.
  void row(const T* q, const T* keys, const T* values, std::int64_t keys_count, float* scores, float* sum,
           T* out) const {
    float top = -std::numeric_limits<float>::infinity();
    for (std::int64_t j = 0; j < keys_count; ++j) {
      const T* key = keys + j * head_dim;
      scores[j] = cpu::sum(head_dim, [=](std::int64_t i) { return to_f32(q[i]) * to_f32(key[i]); }) * scale;
      top = std::max(top, scores[j]);
    }
    cpu::map(
        keys_count, scores, [top](float s) { return exp_f32(s - top); }, static_cast<const float*>(scores));
    const float total = cpu::sum(keys_count, [=](std::int64_t j) { return scores[j]; });
    std::fill_n(sum, head_dim, 0.f);
    for (std::int64_t j = 0; j < keys_count; ++j) add_scaled(scores[j], values + j * head_dim, sum);
    const float inverse = 1.f / total;
    cpu::map(
        head_dim, out, [inverse](float s) { return s * inverse; }, static_cast<const float*>(sum));
  }

  void add_scaled(float factor, const T* value, float* sum) const {
#pragma omp simd
    for (std::int64_t i = 0; i < head_dim; ++i) sum[i] += factor * to_f32(value[i]);
  }
};

// The scratch of one thread: the scores of a row and the sum of its values.
std::int64_t scratch_floats(std::int64_t positions, std::int64_t head_dim) {
  return (positions + 15) / 16 * 16 + (head_dim + 15) / 16 * 16;
}

std::size_t attention_workspace(const KernelArgs& args) {
  const Shape& cache = args.operands[1].shape();
  return std::size_t(backend::cpu::threads()) * std::size_t(scratch_floats(cache[2], cache[3])) * sizeof(float);
}

Kernel bind_attention(const KernelArgs& args) {
  const Shape &qkv_shape = args.operands[0].shape(), &cache = args.operands[1].shape();
  const std::int64_t batch = cache[0], heads = cache[1], positions = cache[2], head_dim = cache[3];
  const std::int64_t group = args.attributes.integer("group", 1), queries = heads * group;
  const std::int64_t most_rows = qkv_shape[1], d = queries * head_dim, stride = qkv_shape[2];
  const std::int32_t* cursor = args.operands[3].as<std::int32_t>();
  auto* workspace = reinterpret_cast<float*>(args.workspace);
  return cpu::by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* qkv = args.operands[0].as<T>();
    T *keys = args.operands[1].as<T>(), *values = args.operands[2].as<T>(), *out = args.results[0].as<T>();
    const Head<T> head{head_dim, stride, d, 1.f / std::sqrt(float(head_dim))};
    return [=]() -> Status {
      const Cursor at(cursor, most_rows, positions);
      cpu::parallel_for(batch * heads, cpu::row_grain(2 * at.rows * head_dim),
                        [&](std::int64_t begin, std::int64_t end) {
                          for (std::int64_t i = begin; i < end; ++i) {
                            const T* key = qkv + i / heads * most_rows * stride + d + i % heads * head_dim;
                            const std::int64_t to = (i * positions + at.first) * head_dim;
                            head.store(key, at.rows, keys + to);
                            head.store(key + heads * head_dim, at.rows, values + to);
                          }
                        });
      const std::int64_t all = batch * queries, shares = std::min<std::int64_t>(backend::cpu::threads(), all);
      cpu::parallel_for(shares, 1, [&](std::int64_t begin, std::int64_t end) {
        float* scores = workspace + begin * scratch_floats(positions, head_dim);
        float* sum = scores + (positions + 15) / 16 * 16;
        for (std::int64_t i = all * begin / shares; i < all * end / shares; ++i) {
          const std::int64_t b = i / queries, h = i % queries, cached = i / group * positions * head_dim;
          const T* q = qkv + b * most_rows * stride + h * head_dim;
          for (std::int64_t s = 0; s < most_rows; ++s) {
            T* to = out + (b * most_rows + s) * d + h * head_dim;
            if (s < at.rows)
              head.row(q + s * stride, keys + cached, values + cached, at.first + s + 1, scores, sum, to);
            else
              std::fill_n(to, head_dim, from_f32<T>(0.f));
          }
        }
      });
      return {};
    };
  });
}

Kernel bind_row(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t batch = shape[0], rows = shape[1];
  const std::size_t row_bytes = std::size_t(shape[2]) * std::size_t(size_of(args.operands[0].dtype()));
  const auto* x = args.operands[0].as<std::byte>();
  const std::int32_t* cursor = args.operands[1].as<std::int32_t>();
  auto* out = args.results[0].as<std::byte>();
  return [=]() -> Status {
    LANCET_CHECK(cursor[1] >= 0 && cursor[1] < rows, "row {} of {}", cursor[1], rows);
    for (std::int64_t b = 0; b < batch; ++b)
      std::memcpy(out + std::size_t(b) * row_bytes, x + std::size_t(b * rows + cursor[1]) * row_bytes, row_bytes);
    return {};
  };
}

const CpuKernel table[] = {{"embedding_at", bind_embedding},
                           {"attention_decode", bind_attention, attention_workspace},
                           {"take_row", bind_row}};

}  // namespace

std::span<const CpuKernel> decode_cpu() { return table; }

}  // namespace lancet::ops
