// Decoding on a GPU: attention of a few rows over a cache of keys and values.
//
// attention_decode is two or three launches. StoreRow copies the rows' keys and values into the cache. AttendRow has a
// block per row and head that reads the keys in chunks, one key per thread, with an online softmax: the sums are scaled
// down when a larger score appears. If rows and heads are too few to fill a device, as for a single token, several
// blocks share the keys of a row, each writes the sums of its range of keys, and JoinParts combines them (Dao et al.,
// "Flash-Decoding", 2023).
//
// The position of the rows is data on the device (`cursor`), so kernels check it where they read it: for an invalid
// position the results are NaN and nothing is stored.
#include <cmath>

#include "lancet/base/math.h"
#include "ops/nn/embedding/embed.h"

namespace lancet::ops {
namespace {

using namespace device;

struct Cursor {
  std::int64_t first, rows;  // position of row 0; number of valid rows
  bool sound;
  LANCET_DEVICE Cursor(const std::int32_t* cursor, std::int64_t most_rows, std::int64_t positions)
      : first(cursor[0]), rows(std::int64_t(cursor[1]) + 1) {
    sound = first >= 0 && rows >= 1 && rows <= most_rows && first + rows <= positions;
  }
};

// qkv [B,S,G+1+1,H,hd], of which the G heads of queries of a head of keys are neighbours, keys and values [B,H,P,hd],
// out [B,S,H*G,hd]
template <class T>
struct Cached {
  const T* qkv;
  T *keys, *values, *out;
  const std::int32_t* cursor;
  std::int64_t heads, group, rows, positions, head_dim;
  float scale;
  bool wide;

  // The offset in qkv of row s of sequence b: of head h of the queries; of k (part 0) or v (1) of head h of the keys.
  LANCET_DEVICE std::int64_t query(std::int64_t b, std::int64_t s, std::int64_t h) const {
    return ((b * rows + s) * (group + 2) * heads + h) * head_dim;
  }
  LANCET_DEVICE std::int64_t key(std::int64_t b, std::int64_t s, int part, std::int64_t h) const {
    return query(b, s, (group + part) * heads + h);
  }
  // The result of a row, numbered over sequences, heads of queries and rows in this order (that of the caches).
  LANCET_DEVICE T* result(std::int64_t row) const {
    const std::int64_t s = row % rows, head = row / rows, queries = heads * group;
    return out + ((head / queries * rows + s) * queries + head % queries) * head_dim;
  }
  // The result of a filler row (zeros), or of a row at an invalid position (NaN).
  template <class Block>
  LANCET_DEVICE void fill(Block& block, std::int64_t row, bool sound) const {
    const float filler = sound ? 0.f : __builtin_nanf("");
    T* to = result(row);
    for (std::int64_t i = block.thread(); i < head_dim; i += block.threads()) to[i] = from_f32<T>(filler);
  }
};

// A block per row: stores its keys and values in the cache.
template <class T>
struct StoreRow {
  static constexpr int threads = 128;
  Cached<T> c;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t b = block.index() / c.rows, s = block.index() % c.rows;
    const Cursor cursor(c.cursor, c.rows, c.positions);
    if (!cursor.sound || s >= cursor.rows) return;
    const std::int64_t packs = divide_up(c.head_dim, Pack<T>::size);
    for (std::int64_t i = block.thread(); i < c.heads * packs; i += threads) {
      const std::int64_t h = i / packs, start = i % packs * Pack<T>::size;
      const std::int64_t to = ((b * c.heads + h) * c.positions + cursor.first + s) * c.head_dim + start;
      const Part part = part_of_row<T>(start, c.head_dim);
      store(c.keys + to, load(c.qkv + c.key(b, s, 0, h) + start, part, c.wide), part, c.wide);
      store(c.values + to, load(c.qkv + c.key(b, s, 1, h) + start, part, c.wide), part, c.wide);
    }
  }
};

// The split of a row's keys over several blocks. Split s begins at key s * span for any number of keys. A part is the
// sum of shares times values [head_dim], then the largest score and the sum of shares.
struct Splits {
  static constexpr std::int64_t span = 256;  // keys

  std::int64_t count;  // splits per row; 1: no parts
  float* parts;        // [rows of all heads, count, head_dim + 2]

  // One if the rows alone give each multiprocessor two blocks.
  static std::int64_t count_for(std::int64_t rows, std::int64_t positions, const backend::DeviceTraits& device) {
    return rows < 2 * device.multiprocessors ? divide_up(positions, span) : 1;
  }
  LANCET_DEVICE float* part(std::int64_t row, std::int64_t split, std::int64_t head_dim) const {
    return parts + (row * count + split) * (head_dim + 2);
  }
};

// A block per row of one head and split of its keys. The result of a row depends on the number of rows, which decides
// the number of splits, but not on the contents of other rows.
template <class T>
struct AttendRow {
  static constexpr int threads = 256;
  struct Shared {
    float shares[threads];  // shares of a chunk's keys
    float sums[threads];
  };
  Cached<T> c;
  Splits splits;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t row = block.index() / splits.count, split = block.index() % splits.count;
    const std::int64_t s = row % c.rows, head = row / c.rows, queries = c.heads * c.group;
    const std::int64_t b = head / queries, h = head % queries;
    const Cursor cursor(c.cursor, c.rows, c.positions);
    if (!cursor.sound || s >= cursor.rows) {
      if (split == 0) c.fill(block, row, cursor.sound);
      return;
    }
    std::int64_t begin = 0, end = cursor.first + s + 1;
    float* part = nullptr;
    if (splits.count > 1) {
      begin = split * Splits::span;
      if (begin >= end) return;
      end = begin + Splits::span < end ? begin + Splits::span : end;
      part = splits.part(row, split, c.head_dim);
    }
    const std::int64_t cache = (head / c.group * c.positions + begin) * c.head_dim;
    for (std::int64_t first = 0; first < c.head_dim; first += threads)
      columns(block, c.qkv + c.query(b, s, h), c.keys + cache, c.values + cache, end - begin, first, c.result(row),
              part);
  }

 private:
  LANCET_DEVICE float dot(const T* q, const T* key) const {
    float sum = 0.f;
    for (std::int64_t start = 0; start < c.head_dim; start += Pack<T>::size) {
      const Part part = part_of_row<T>(start, c.head_dim);
      const Floats<T> x = to_floats(load(q + start, part, c.wide)), y = to_floats(load(key + start, part, c.wide));
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) sum += x.v[i] * y.v[i];
    }
    return sum;
  }

  // Computes the columns [first, first + threads) of `out`, or of the part. Threads beyond the number of columns form
  // more groups, which share the keys of a chunk.
  template <class Block>
  LANCET_DEVICE void columns(Block& block, const T* q, const T* keys, const T* values, std::int64_t count,
                             std::int64_t first, T* out, float* part) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t left = c.head_dim - first;
    const int thread = block.thread(), width = left < threads ? int(left) : threads, groups = threads / width;
    const int group = thread / width, column = thread % width;
    float top = -__builtin_huge_valf(), total = 0.f, sum = 0.f;
    for (std::int64_t chunk = 0; chunk < count; chunk += threads) {
      const std::int64_t j = chunk + thread;
      const float score = j < count ? rounded_product(dot(q, keys + j * c.head_dim), c.scale) : -__builtin_huge_valf();
      const float higher = Larger{}(top, block.max(score)), shrink = exp_f32(top - higher);
      const float share = j < count ? exp_f32(score - higher) : 0.f;
      shared.shares[thread] = share;
      total = total * shrink + block.sum(share);
      block.sync();
      sum *= shrink;
      const int keys_here = count - chunk < threads ? int(count - chunk) : threads;
      if (group < groups)
        for (int t = group; t < keys_here; t += groups)
          sum += shared.shares[t] * to_f32(values[(chunk + t) * c.head_dim + first + column]);
      block.sync();
      top = higher;
    }
    shared.sums[thread] = sum;
    block.sync();
    if (thread < width) {
      float whole = 0.f;
      for (int g = 0; g < groups; ++g) whole += shared.sums[g * width + thread];
      if (part)
        part[first + thread] = whole;
      else
        out[first + thread] = from_f32<T>(whole / total);
    }
    if (part && first == 0 && thread == 0) part[c.head_dim] = top, part[c.head_dim + 1] = total;
    block.sync();
  }
};

// A block per row of one head: adds its parts, each scaled to the largest score of all parts.
template <class T>
struct JoinParts {
  static constexpr int threads = 128;
  Cached<T> c;
  Splits splits;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t row = block.index(), s = row % c.rows;
    const Cursor cursor(c.cursor, c.rows, c.positions);
    if (!cursor.sound || s >= cursor.rows) return;  // AttendRow has filled it
    const std::int64_t used = divide_up(cursor.first + s + 1, Splits::span);
    const float* parts = splits.part(row, 0, c.head_dim);
    const std::int64_t stride = c.head_dim + 2;
    float mine = -__builtin_huge_valf();
    for (std::int64_t p = block.thread(); p < used; p += threads) mine = Larger{}(mine, parts[p * stride + c.head_dim]);
    const float top = block.max(mine);
    float share = 0.f;
    for (std::int64_t p = block.thread(); p < used; p += threads)
      share += parts[p * stride + c.head_dim + 1] * exp_f32(parts[p * stride + c.head_dim] - top);
    const float total = block.sum(share);
    T* out = c.result(row);
    for (std::int64_t i = block.thread(); i < c.head_dim; i += threads) {
      float sum = 0.f;
      for (std::int64_t p = 0; p < used; ++p)
        sum += parts[p * stride + i] * exp_f32(parts[p * stride + c.head_dim] - top);
      out[i] = from_f32<T>(sum / total);
    }
  }
};

// The number of rows over all sequences and heads of queries.
std::int64_t rows_of(const KernelArgs& args) {
  return args.results[0].shape().elements() / args.operands[1].shape()[3];
}

std::size_t attention_workspace(const KernelArgs& args) {
  const Shape& cache = args.operands[1].shape();
  const std::int64_t splits = Splits::count_for(rows_of(args), cache[2], args.device->traits());
  if (splits == 1) return 0;
  return std::size_t(rows_of(args) * splits * (cache[3] + 2)) * sizeof(float);
}

Kernel bind_attention_decode(const KernelArgs& args) {
  const Shape &qkv = args.operands[0].shape(), &cache = args.operands[1].shape();  // [B,H,P,hd]
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *from = args.operands[0].as<T>(), *keys = args.operands[1].as<T>(), *values = args.operands[2].as<T>();
    const Cached<T> cached{from,
                           args.operands[1].as<T>(),
                           args.operands[2].as<T>(),
                           args.results[0].as<T>(),
                           args.operands[3].as<std::int32_t>(),
                           cache[1],
                           args.attributes.integer("group", 1),
                           qkv[1],
                           cache[2],
                           cache[3],
                           1.f / std::sqrt(float(cache[3])),
                           aligned_rows<T>(cache[3]) && aligned(from, keys, values)};
    const std::int64_t rows = rows_of(args);
    const Splits splits{Splits::count_for(rows, cache[2], args.device->traits()),
                        reinterpret_cast<float*>(args.workspace)};
    return run_steps(args.stream, Step{qkv[0] * qkv[1], StoreRow<T>{cached}},
                     Step{rows * splits.count, AttendRow<T>{cached, splits}},
                     Step{splits.count > 1 ? rows : 0, JoinParts<T>{cached, splits}});
  });
}

Kernel bind_embedding_at(const KernelArgs& args) {
  return by_dtype(args.operands[1].dtype(),
                  [&]<class T>(T) { return embed<T>(args, args.operands[3].as<std::int32_t>()); });
}

template <class T>
struct TakeRow {
  static constexpr int threads = 256;
  const T* x;
  T* out;
  const std::int32_t* cursor;
  std::int64_t rows, d, tiles;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t b = block.index() / tiles, row = cursor[1];
    const std::int64_t start = (block.index() % tiles * threads + block.thread()) * Pack<T>::size;
    if (start >= d) return;
    const Part part = part_of_row<T>(start, d);
    Pack<T> pack;
    if (row >= 0 && row < rows) {
      pack = load(x + (b * rows + row) * d + start, part, wide);
    } else {
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) pack.v[i] = from_f32<T>(__builtin_nanf(""));
    }
    store(out + b * d + start, pack, part, wide);
  }
};

Kernel bind_row(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* x = args.operands[0].as<T>();
    T* out = args.results[0].as<T>();
    const TakeRow<T> kernel{x,
                            out,
                            args.operands[1].as<std::int32_t>(),
                            shape[1],
                            shape[2],
                            divide_up(shape[2], TakeRow<T>::threads * Pack<T>::size),
                            aligned_rows<T>(shape[2]) && aligned(x, out)};
    return run_steps(args.stream, Step{shape[0] * kernel.tiles, kernel});
  });
}

}  // namespace

std::span<const DeviceKernel> decode_cuda() {
  static const DeviceKernel table[] = {{"embedding_at", bind_embedding_at},
                                       {"attention_decode", bind_attention_decode, attention_workspace},
                                       {"take_row", bind_row}};
  return table;
}

}  // namespace lancet::ops
