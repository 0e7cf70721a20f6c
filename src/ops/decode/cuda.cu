// Where the rows stand is data (`place`), so it is checked where it is read: rows at a place that cannot be are no
// number, and nothing is stored.
#include <cmath>

#include "lancet/base/math.h"
#include "ops/embedding/embed.h"

namespace lancet::ops {
namespace {

using namespace device;

struct Place {
  std::int64_t first, rows;  // position of row 0; rows that count
  bool sound;
  LANCET_DEVICE Place(const std::int32_t* place, std::int64_t most_rows, std::int64_t positions)
      : first(place[0]), rows(std::int64_t(place[1]) + 1) {
    sound = first >= 0 && rows >= 1 && rows <= most_rows && first + rows <= positions;
  }
};

// qkv [B,S,3,H,hd], keys and values [B,H,P,hd], out [B,S,H,hd]
template <class T>
struct Cached {
  const T* qkv;
  T *keys, *values, *out;
  const std::int32_t* place;
  std::int64_t heads, rows, positions, head_dim;
  float scale;
  bool wide;

  // Of row s of sequence b: q (part 0), k (1) or v (2) of head h.
  LANCET_DEVICE std::int64_t at(std::int64_t b, std::int64_t s, int part, std::int64_t h) const {
    return (((b * rows + s) * 3 + part) * heads + h) * head_dim;
  }
};

// A block puts away the keys and values of one row.
template <class T>
struct StoreRow {
  static constexpr int lanes = 128;
  Cached<T> c;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t b = block.index() / c.rows, s = block.index() % c.rows;
    const Place place(c.place, c.rows, c.positions);
    if (!place.sound || s >= place.rows) return;
    const std::int64_t packs = divide_up(c.head_dim, Pack<T>::size);
    for (std::int64_t i = block.lane(); i < c.heads * packs; i += lanes) {
      const std::int64_t h = i / packs, start = i % packs * Pack<T>::size;
      const std::int64_t to = ((b * c.heads + h) * c.positions + place.first + s) * c.head_dim + start;
      const Part part = part_of_row<T>(start, c.head_dim);
      store(c.keys + to, load(c.qkv + c.at(b, s, 1, h) + start, part, c.wide), part, c.wide);
      store(c.values + to, load(c.qkv + c.at(b, s, 2, h) + start, part, c.wide), part, c.wide);
    }
  }
};

// A block has one row of one head. Keys go by in chunks, one a lane, and the softmax is carried along: what was summed
// so far is scaled down when a larger score comes up. A row's bits do not depend on the rows beside it.
template <class T>
struct AttendRow {
  static constexpr int lanes = 256;
  struct Shared {
    float shares[lanes];  // of a chunk's keys
    float sums[lanes];
  };
  Cached<T> c;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t s = block.index() % c.rows, head = block.index() / c.rows, b = head / c.heads,
                       h = head % c.heads;
    const Place place(c.place, c.rows, c.positions);
    T* out = c.out + ((b * c.rows + s) * c.heads + h) * c.head_dim;
    if (!place.sound || s >= place.rows) {
      const float filler = place.sound ? 0.f : __builtin_nanf("");
      for (std::int64_t i = block.lane(); i < c.head_dim; i += lanes) out[i] = from_f32<T>(filler);
      return;
    }
    const std::int64_t cache = head * c.positions * c.head_dim;
    for (std::int64_t first = 0; first < c.head_dim; first += lanes)
      columns(block, c.qkv + c.at(b, s, 0, h), c.keys + cache, c.values + cache, place.first + s + 1, first, out);
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

  // out[first, first + lanes). A column's lanes, as many as there are, share the keys of a chunk.
  template <class Block>
  LANCET_DEVICE void columns(Block& block, const T* q, const T* keys, const T* values, std::int64_t count,
                             std::int64_t first, T* out) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t left = c.head_dim - first;
    const int lane = block.lane(), width = left < lanes ? int(left) : lanes, groups = lanes / width;
    const int group = lane / width, column = lane % width;
    float top = -__builtin_huge_valf(), total = 0.f, sum = 0.f;
    for (std::int64_t chunk = 0; chunk < count; chunk += lanes) {
      const std::int64_t j = chunk + lane;
      const float score = j < count ? c.scale * dot(q, keys + j * c.head_dim) : -__builtin_huge_valf();
      const float higher = Larger{}(top, block.max(score)), shrink = exp_f32(top - higher);
      const float share = j < count ? exp_f32(score - higher) : 0.f;
      shared.shares[lane] = share;
      total = total * shrink + block.sum(share);
      block.sync();
      sum *= shrink;
      const int keys_here = count - chunk < lanes ? int(count - chunk) : lanes;
      if (group < groups)
        for (int t = group; t < keys_here; t += groups)
          sum += shared.shares[t] * to_f32(values[(chunk + t) * c.head_dim + first + column]);
      block.sync();
      top = higher;
    }
    shared.sums[lane] = sum;
    block.sync();
    if (lane < width) {
      float whole = 0.f;
      for (int g = 0; g < groups; ++g) whole += shared.sums[g * width + lane];
      out[first + lane] = from_f32<T>(whole / total);
    }
    block.sync();
  }
};

// attention_decode(qkv [B,S,3D], &keys, &values, place) -> out [B,S,D]
Kernel bind_attention(const KernelArgs& args) {
  const Shape &qkv = args.operands[0].shape(), &cache = args.operands[1].shape();  // [B,H,P,hd]
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T *from = args.operands[0].as<T>(), *keys = args.operands[1].as<T>(), *values = args.operands[2].as<T>();
    const Cached<T> cached{from,
                           args.operands[1].as<T>(),
                           args.operands[2].as<T>(),
                           args.results[0].as<T>(),
                           args.operands[3].as<std::int32_t>(),
                           cache[1],
                           qkv[1],
                           cache[2],
                           cache[3],
                           1.f / std::sqrt(float(cache[3])),
                           aligned_rows<T>(cache[3]) && aligned(from, keys, values)};
    return run_steps(args.stream, Step{qkv[0] * qkv[1], StoreRow<T>{cached}},
                     Step{qkv[0] * cache[1] * qkv[1], AttendRow<T>{cached}});
  });
}

// embedding_at(tokens [B,S], wte, wpe, place) -> x [B,S,D]
Kernel bind_embedding(const KernelArgs& args) {
  return by_dtype(args.operands[1].dtype(),
                  [&]<class T>(T) { return embed<T>(args, args.operands[3].as<std::int32_t>()); });
}

template <class T>
struct TakeRow {
  static constexpr int lanes = 256;
  const T* x;
  T* out;
  const std::int32_t* place;
  std::int64_t rows, d, tiles;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t b = block.index() / tiles, row = place[1];
    const std::int64_t start = (block.index() % tiles * lanes + block.lane()) * Pack<T>::size;
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

// take_row(x [B,S,D], place) -> [B,1,D]
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
                            divide_up(shape[2], TakeRow<T>::lanes * Pack<T>::size),
                            aligned_rows<T>(shape[2]) && aligned(x, out)};
    return run_steps(args.stream, Step{shape[0] * kernel.tiles, kernel});
  });
}

const DeviceKernel table[] = {
    {"embedding_at", bind_embedding}, {"attention_decode", bind_attention}, {"take_row", bind_row}};

}  // namespace

std::span<const DeviceKernel> decode_cuda() { return table; }

}  // namespace lancet::ops
