// Embeddings on a GPU. Forward is one warp per token (embed.h).
//
// embedding_dw adds the rows of equal tokens without atomics. It sorts the positions by token, so that
// the rows of one token are a run of the sorted order, and cuts this order in pieces of 32 rows. AddRuns adds the rows
// of each run within a piece. A run that is whole within a piece goes to dw. A run that comes in from the piece before,
// or continues into the next, is written to `parts`; JoinRuns then adds the parts of each such run in order.
#include "embed.h"
#include "ops/device/counting.h"

namespace lancet::ops::embedding {

// Sorts the positions of a batch's tokens by token id, equal ids by position, for embedding_dw. An id is a row of dw.
//
// It is a radix sort from the lowest digit up, with 8 bits per pass. A pass is a stable counting sort
// (device/counting.h) in three launches: CountDigits counts the digits in each chunk of 256 positions; ScanChunks adds
// up, for each digit, the counts of the chunks before; PlaceDigits writes each position to begin of its digit + count
// of the chunks before + number of equal digits before it in the chunk. The passes write to two buffers in turn. The
// result is the same in every run, so embedding_dw adds rows in the same order.

using namespace device;

inline constexpr int radix = 256;
inline constexpr int chunk = 256;  // positions per block

// Rows of dw by position, of the tokens from `first` on. Tokens of no row get the id `rows`, which sorts last.
struct Ids {
  const std::int32_t* tokens;
  std::int32_t rows;
  std::int64_t first;

  LANCET_DEVICE std::int32_t operator()(std::int32_t position) const {
    const std::int64_t id = tokens[position] - first;
    return id >= 0 && id < rows ? std::int32_t(id) : rows;
  }
};

// One pass over the digit at bit `shift`.
struct Pass {
  Ids ids;
  const std::int32_t* from;  // [n] result of the pass before; null: positions in order
  std::int32_t* to;          // [n]
  std::int32_t n, shift;
  std::int32_t* counts;  // [radix, chunks]
  std::int32_t* totals;  // [radix]
  std::int64_t chunks;

  LANCET_DEVICE std::int32_t position(std::int64_t i) const { return from ? from[i] : std::int32_t(i); }
  LANCET_DEVICE std::int32_t digit(std::int32_t position) const { return (ids(position) >> shift) & (radix - 1); }
};

struct CountDigits {
  static constexpr int threads = chunk;
  struct Shared {
    std::int32_t counts[radix];
  };
  Pass pass;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t i = block.index() * chunk + block.thread();
    shared.counts[block.thread()] = 0;
    block.sync();
    if (i < pass.n) block.atomic_add(&shared.counts[pass.digit(pass.position(i))], 1);
    block.sync();
    pass.counts[block.thread() * pass.chunks + block.index()] = shared.counts[block.thread()];
  }
};

struct PlaceDigits {
  static constexpr int threads = chunk;
  struct Shared {
    std::int32_t digits[chunk], first[radix];
  };
  Pass pass;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t i = block.index() * chunk + block.thread();
    const std::int32_t position = i < pass.n ? pass.position(i) : 0, digit = i < pass.n ? pass.digit(position) : -1;
    std::int32_t total;
    shared.first[block.thread()] = block.exclusive_scan(pass.totals[block.thread()], total);
    shared.digits[block.thread()] = digit;
    block.sync();
    if (i >= pass.n) return;
    const std::int32_t rank = count_equal(shared.digits, block.thread(), digit);
    pass.to[shared.first[digit] + pass.counts[digit * pass.chunks + block.index()] + rank] = position;
  }
};

// The launches of all passes; allocates its buffers from `scratch`.
class Sort {
 public:
  Sort(Scratch& scratch, const TensorView& tokens, std::int64_t rows, std::int64_t first)
      : ids_{tokens.as<std::int32_t>(), std::int32_t(rows), first},
        n_(tokens.elements()),
        chunks_(divide_up(n_, chunk)) {
    for (auto& order : orders_) order = scratch.take<std::int32_t>(n_);
    counts_ = scratch.take<std::int32_t>(radix * chunks_);
    totals_ = scratch.take<std::int32_t>(radix);
    while (rows >> (8 * passes_)) ++passes_;  // enough digits for the id `rows`
  }

  const Ids& ids() const { return ids_; }
  const std::int32_t* order() const { return orders_[passes_ % 2]; }

  Status run(backend::Stream& stream) const {
    for (int p = 0; p < passes_; ++p) {
      const Pass pass{
          ids_,   p == 0 ? nullptr : orders_[p % 2], orders_[(p + 1) % 2], std::int32_t(n_), 8 * p, counts_, totals_,
          chunks_};
      LANCET_TRY(launch(stream, chunks_, CountDigits{pass}));
      LANCET_TRY(launch(stream, radix, ScanChunks{counts_, chunks_, totals_}));
      LANCET_TRY(launch(stream, chunks_, PlaceDigits{pass}));
    }
    return {};
  }

 private:
  Ids ids_;
  std::int64_t n_, chunks_;
  int passes_ = 0;
  std::int32_t *orders_[2], *counts_, *totals_;
};

}  // namespace lancet::ops::embedding

namespace lancet::ops {
namespace {

using namespace device;

Kernel bind_embedding(const KernelArgs& args) {
  return by_dtype(args.operands[1].dtype(), [&]<class T>(T) { return embed<T>(args, nullptr); });
}

// Rows of the sorted order per piece. A run, the rows of one id, may span several pieces.
constexpr int piece_rows = 32;

template <class T>
struct Runs {
  static constexpr int threads = 128;
  static constexpr int tile = threads * Pack<T>::size;  // columns of a block
  const T* dx;                                          // [n, d]
  embedding::Ids ids;
  const std::int32_t* order;  // [n]
  float* parts;               // [pieces, 2, d]: sums of the run that came in and of the run that continues
  float* dw;                  // [rows, d]
  std::int64_t n, d, tiles;
  bool accumulate, wide, wide_floats;

  LANCET_DEVICE std::int32_t id(std::int64_t i) const { return i >= 0 && i < n ? ids(order[i]) : -1; }

  LANCET_DEVICE void add_to_dw(std::int32_t token, std::int64_t start, Floats<T> sum, Part part) const {
    if (token == ids.rows) return;  // no token of this rank's
    float* to = dw + token * d + start;
    if (accumulate) {
      const Floats<T> accumulator = load_floats<T>(to, part, wide_floats);
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) sum.v[i] += accumulator.v[i];
    }
    store_floats<T>(to, sum, part, wide_floats);
  }
};

// A block per piece: runs that begin and end in it go to dw, others to parts. Bytes: dx once; dw of the batch's ids.
template <class T>
struct AddRuns {
  static constexpr int threads = Runs<T>::threads;
  struct Shared {
    std::int32_t id[piece_rows + 2], row[piece_rows];  // id: with one neighbour on both sides
  };
  Runs<T> runs;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    Shared& shared = block.template shared<Shared>();
    const std::int64_t piece = block.index() / runs.tiles, first = piece * piece_rows;
    const int count = runs.n - first < piece_rows ? int(runs.n - first) : piece_rows;
    if (block.thread() < piece_rows + 2) shared.id[block.thread()] = runs.id(first - 1 + block.thread());
    if (block.thread() < count) shared.row[block.thread()] = runs.order[first + block.thread()];
    block.sync();
    const std::int64_t start = (block.index() % runs.tiles * threads + block.thread()) * Pack<T>::size;
    const Part part = part_of_row<T>(start, runs.d);
    if (part.empty()) return;
    bool came_in = shared.id[0] == shared.id[1];
    Floats<T> sum = {};
    constexpr int ahead = 4;  // rows in flight at once
    for (int k = 0; k < count; k += ahead) {
      Pack<T> rows[ahead];
#pragma unroll
      for (int j = 0; j < ahead; ++j)
        if (k + j < count) rows[j] = load(runs.dx + shared.row[k + j] * runs.d + start, part, runs.wide);
#pragma unroll
      for (int j = 0; j < ahead; ++j) {
        if (k + j >= count) break;
        const Floats<T> row = to_floats(rows[j]);
#pragma unroll
        for (int i = 0; i < Pack<T>::size; ++i) sum.v[i] += row.v[i];
        const bool last = k + j + 1 == count, continues = shared.id[k + j + 2] == shared.id[k + j + 1];
        if (continues && !last) continue;
        if (came_in || continues)
          store_floats<T>(runs.parts + (piece * 2 + (came_in ? 0 : 1)) * runs.d + start, sum, part, runs.wide_floats);
        else
          runs.add_to_dw(shared.id[k + j + 1], start, sum, part);
        sum = {};
        came_in = false;
      }
    }
  }
};

// Runs that span several pieces: the block of the piece in which a run begins adds its parts.
template <class T>
struct JoinRuns {
  static constexpr int threads = Runs<T>::threads;
  Runs<T> runs;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    std::int64_t piece = block.index() / runs.tiles;
    const std::int64_t first = piece * piece_rows;
    const std::int64_t start = (block.index() % runs.tiles * threads + block.thread()) * Pack<T>::size;
    const Part part = part_of_row<T>(start, runs.d);
    const std::int32_t id = runs.id(first + piece_rows - 1);
    const bool continues = first + piece_rows < runs.n && runs.id(first + piece_rows) == id;
    const bool came_in = runs.id(first - 1) == id;  // then the run began in an earlier piece
    if (part.empty() || !continues || came_in) return;
    Floats<T> sum = load_floats<T>(runs.parts + (piece * 2 + 1) * runs.d + start, part, runs.wide_floats);
    do {
      ++piece;
      const Floats<T> more = load_floats<T>(runs.parts + piece * 2 * runs.d + start, part, runs.wide_floats);
#pragma unroll
      for (int i = 0; i < Pack<T>::size; ++i) sum.v[i] += more.v[i];
    } while (runs.id((piece + 1) * piece_rows) == id);
    runs.add_to_dw(id, start, sum, part);
  }
};

struct WorkspaceDw {
  Scratch scratch;
  embedding::Sort sort;
  float* parts;

  explicit WorkspaceDw(const KernelArgs& args)
      : scratch(args.workspace),
        sort(scratch, args.operands[1], args.results[0].shape()[0], args.results[0].shape()[0] * args.share().place),
        parts(scratch.take<float>(divide_up(args.operands[1].elements(), piece_rows) * 2 *
                                  args.operands[0].shape().back())) {}
};
std::size_t workspace_embedding_dw(const KernelArgs& args) { return WorkspaceDw(args).scratch.bytes(); }

Kernel bind_embedding_dw(const KernelArgs& args) {
  const WorkspaceDw memory(args);
  const std::int64_t n = args.operands[1].elements(), d = args.operands[0].shape().back();
  float* dw = args.results[0].as<float>();
  const std::size_t dw_bytes = std::size_t(args.results[0].elements()) * sizeof(float);
  const bool accumulate = args.has(2);
  backend::Stream* stream = args.stream;
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) -> Kernel {
    const T* dx = args.operands[0].as<T>();
    const std::int64_t tiles = divide_up(d, Runs<T>::tile);
    const Runs<T> runs{dx,
                       memory.sort.ids(),
                       memory.sort.order(),
                       memory.parts,
                       dw,
                       n,
                       d,
                       tiles,
                       accumulate,
                       aligned_rows<T>(d) && aligned(dx),
                       d % 4 == 0 && aligned(dw)};
    const std::int64_t blocks = tiles * divide_up(n, piece_rows);
    return [stream, sort = memory.sort, runs, blocks, dw_bytes]() -> Status {
      if (!runs.accumulate) LANCET_TRY(stream->zero(runs.dw, dw_bytes));
      LANCET_TRY(sort.run(*stream));
      LANCET_TRY(launch(*stream, blocks, AddRuns<T>{runs}));
      return launch(*stream, blocks, JoinRuns<T>{runs});
    };
  });
}

// A block per position: sums over the batch in order. Bytes: dx and dw once.
template <class T>
struct AddPositions {
  static constexpr int threads = 128;
  const T* dx;  // [batch, sequence, d]
  float* dw;    // [positions, d]
  std::int64_t batch, sequence, d, tiles;
  bool accumulate, wide;

  template <class Block>
  LANCET_DEVICE void operator()(Block& block) const {
    const std::int64_t s = block.index() / tiles;
    const std::int64_t start = (block.index() % tiles * threads + block.thread()) * Pack<T>::size;
    const Part part = part_of_row<T>(start, d);
    if (part.empty()) return;
    Floats<T> sum = {};
    if (accumulate) sum = load_floats<T>(static_cast<const float*>(dw) + s * d + start, part, wide);
    if (s < sequence) {
#pragma unroll 4
      for (std::int64_t b = 0; b < batch; ++b) {
        const Floats<T> row = to_floats(load(dx + (b * sequence + s) * d + start, part, wide));
#pragma unroll
        for (int i = 0; i < Pack<T>::size; ++i) sum.v[i] += row.v[i];
      }
    }
    store_floats<T>(dw + s * d + start, sum, part, wide);
  }
};

Kernel bind_position_dw(const KernelArgs& args) {
  const Shape& shape = args.operands[0].shape();
  const std::int64_t d = shape[2];
  float* dw = args.results[0].as<float>();
  return by_dtype(args.operands[0].dtype(), [&]<class T>(T) {
    const T* dx = args.operands[0].as<T>();
    const std::int64_t tiles = divide_up(d, AddPositions<T>::threads * Pack<T>::size);
    const AddPositions<T> kernel{dx, dw,    shape[0],    shape[1],
                                 d,  tiles, args.has(1), aligned_rows<T>(d) && aligned(dx) && aligned(dw)};
    return run_steps(args.stream, Step{tiles * args.results[0].shape()[0], kernel});
  });
}

}  // namespace

std::span<const DeviceKernel> embedding_cuda() {
  static const DeviceKernel table[] = {{"embedding", bind_embedding},
                                       {"embedding_dw", bind_embedding_dw, workspace_embedding_dw},
                                       {"position_dw", bind_position_dw}};
  return table;
}

}  // namespace lancet::ops
