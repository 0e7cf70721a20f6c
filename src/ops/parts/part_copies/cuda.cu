#include <memory>
#include <vector>

#include "filled.h"
#include "ops/device/pack.h"

namespace lancet::ops {
namespace {

using namespace device;

// One pack per thread. Bytes: each element read and written once.
template <class T>
struct CopyPart {
  static constexpr int threads = 256;
  const T* from;
  T* to;
  std::int64_t n;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t start = (block.index() * threads + block.thread()) * Pack<T>::size;
    if (start >= n) return;
    const Part part = part_of_row<T>(start, n);
    store(to + start, load(from + start, part, wide), part, wide);
  }
};

// The filled rows of one part. The launch has blocks for the whole buffer; blocks without a filled row end at once.
// Packs start at multiples of their size, not at row boundaries.
template <class T>
struct MergeSlots {
  static constexpr int threads = 256;
  const T* from;
  T* to;
  Filled filled;
  std::int64_t rows, columns, blocks_per_expert;
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() / blocks_per_expert, chunk = block.index() % blocks_per_expert;
    const std::int64_t begin = (e * rows + filled.begin(e)) * columns, end = (e * rows + filled.end(e)) * columns;
    const std::int64_t start = (begin / Pack<T>::size + chunk * threads + block.thread()) * Pack<T>::size;
    if (start >= end) return;
    const std::int64_t low = begin - start, high = end - start;
    const Part part{low > 0 ? int(low) : 0, high < Pack<T>::size ? int(high) : Pack<T>::size};
    store(to + start, load(from + start, part, wide), part, wide);
  }
};

// One pack of a filled row of a tile per thread. Bytes: each element read and written once.
template <class T>
struct PlaceColumns {
  static constexpr int threads = 256;
  const T* from;
  T* to;  // the tile's first column in the whole
  Filled filled;
  std::int64_t rows, columns, to_row;     // the columns of a row of the tile, and of one of the whole
  std::int64_t packs, blocks_per_expert;  // packs: of a row of the tile
  bool wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t e = block.index() / blocks_per_expert, chunk = block.index() % blocks_per_expert;
    const std::int64_t i = chunk * threads + block.thread(), row = filled.begin(e) + i / packs;
    if (row >= filled.end(e)) return;
    const std::int64_t column = i % packs * Pack<T>::size, at = e * rows + row;
    const Part part = part_of_row<T>(column, columns);
    store(to + at * to_row + column, load(from + at * columns + column, part, wide), part, wide);
  }
};

// Calls f(T{}) with a type whose loads and stores keep every bit of the elements.
template <class F>
Kernel by_size(DType dtype, F f) {
  return size_of(dtype) == 2 ? f(bf16{}) : f(float{});
}

template <class Launched>
Kernel run_each(const KernelArgs& args, std::int64_t blocks, std::vector<Launched> kernels) {
  return [stream = args.stream, blocks,
          kernels = std::make_shared<const std::vector<Launched>>(std::move(kernels))]() -> Status {
    for (const Launched& kernel : *kernels) LANCET_TRY(launch(*stream, blocks, kernel));
    return {};
  };
}

Kernel bind_concat(const KernelArgs& args) {
  return by_size(args.operands[0].dtype(), [&]<class T>(T) {
    const std::int64_t n = args.operands[0].elements();
    std::vector<CopyPart<T>> copies;
    for (const TensorView& part : args.operands) {
      const T* from = static_cast<const T*>(part.data);
      T* to = static_cast<T*>(args.results[0].data) + std::int64_t(copies.size()) * n;
      copies.push_back({from, to, n, aligned(from, to)});
    }
    return run_each(args, divide_up(n, CopyPart<T>::threads * Pack<T>::size), std::move(copies));
  });
}

Kernel bind_merge_slots(const KernelArgs& args) {
  return by_size(args.operands[0].dtype(), [&]<class T>(T) {
    const Shape& shape = args.results[0].shape();
    // One pack more than the rows fill, because rows may start within a pack.
    const std::int64_t packs = divide_up(shape[1] * shape[2], Pack<T>::size) + 1;
    const std::int64_t blocks_per_expert = divide_up(packs, MergeSlots<T>::threads);
    std::vector<MergeSlots<T>> parts;
    for (std::size_t i = 0; i < args.operands.size(); i += 2) {
      const T* from = static_cast<const T*>(args.operands[i].data);
      T* to = static_cast<T*>(args.results[0].data);
      parts.push_back(
          {from, to, Filled(args.operands[i + 1]), shape[1], shape[2], blocks_per_expert, aligned(from, to)});
    }
    return run_each(args, shape[0] * blocks_per_expert, std::move(parts));
  });
}

Kernel bind_place_columns(const KernelArgs& args) {
  return by_size(args.operands[0].dtype(), [&]<class T>(T) {
    const Shape &tile = args.operands[0].shape(), &whole = args.results[0].shape();
    const std::int64_t packs = divide_up(tile[2], Pack<T>::size);
    const T* from = static_cast<const T*>(args.operands[0].data);
    T* to = static_cast<T*>(args.results[0].data) + args.attributes.integer("part", 0) * tile[2];
    const bool wide = aligned(from, to) && aligned_rows<T>(tile[2]) && aligned_rows<T>(whole[2]);
    const std::int64_t blocks_per_expert = divide_up(tile[1] * packs, PlaceColumns<T>::threads);
    const PlaceColumns<T> kernel{from,     to,    Filled(args.operands[1]), tile[1], tile[2],
                                 whole[2], packs, blocks_per_expert,        wide};
    return run_steps(args.stream, Step{tile[0] * blocks_per_expert, kernel});
  });
}

}  // namespace

std::span<const DeviceKernel> part_copies_cuda() {
  static const DeviceKernel table[] = {{"copy", bind_concat},
                                       {"concat", bind_concat},
                                       {"merge_slots", bind_merge_slots},
                                       {"place_columns", bind_place_columns}};
  return table;
}

}  // namespace lancet::ops
