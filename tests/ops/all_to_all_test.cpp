// The ops that send across ranks, on ranks that are threads: tokens reach their experts and return, whole and in parts;
// counts are sent once; only filled slots are sent.
#include <array>
#include <catch2/catch.hpp>
#include <numeric>

#include "doubles/inproc.h"
#include "lancet/base/random.h"
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// Counts the calls and the bytes that are sent.
class Counting final : public comm::Communicator {
 public:
  explicit Counting(comm::Communicator& inner) : inner_(inner) {}
  int all_to_alls = 0, reductions = 0;
  std::size_t sent = 0;

  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string transport() const override { return inner_.transport(); }
  Status send_receive(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives) override {
    ++all_to_alls;
    for (const comm::Segment& segment : sends) sent += segment.bytes;
    return inner_.send_receive(sends, receives);
  }
  Status all_reduce_sum(std::span<float> values) override {
    ++reductions;
    return inner_.all_reduce_sum(values);
  }
  Status broadcast(std::span<std::byte> bytes, int root) override { return inner_.broadcast(bytes, root); }
  Status barrier() override { return inner_.barrier(); }
  Result<std::unique_ptr<comm::Communicator>> split(std::span<const int> members) override {
    return inner_.split(members);
  }
  void abort(const std::string& why) override { inner_.abort(why); }
  void set_timeout(std::chrono::milliseconds timeout) override { inner_.set_timeout(timeout); }

 private:
  comm::Communicator& inner_;
};

enum class Routing { random, one_expert, idle_rank };

struct Setting {
  int ranks;
  std::int64_t local;  // experts of a rank
  std::int64_t capacity;
  Routing routing;
  std::vector<std::int64_t> bounds;  // parts, in sequences of the batch
  DType dtype = DType::f32;

  std::int64_t batch() const { return bounds.back(); }
  std::int64_t tokens() const { return batch() * sequence; }
  std::int64_t experts() const { return ranks * local; }
  static constexpr std::int64_t sequence = 5, width = 19;
};

// f32[batch, sequence, E] of one rank: any test thread can make any rank's.
GuardedTensor logits_of(const Setting& s, int rank) {
  GuardedTensor logits({DType::f32, {s.batch(), s.sequence, s.experts()}});
  fill_normal(logits, 5, std::uint64_t(rank));
  for (std::int64_t i = 0; i < s.tokens() * s.experts(); ++i) {
    const std::int64_t e = i % s.experts();
    if (s.routing == Routing::one_expert && e == s.experts() - 1) logits.as<float>()[i] += 50;
    if (s.routing == Routing::idle_rank && e / s.local == s.ranks - 1) logits.as<float>()[i] -= 50;
  }
  return logits;
}

// The expected routing of each token, counted in the simplest way: its expert and whether it is kept.
struct Expected {
  std::vector<std::int64_t> expert;
  std::vector<bool> kept;
  std::vector<std::int64_t> counts;  // kept, by expert

  Expected(const Setting& s, int rank) : counts(std::size_t(s.experts()), 0) {
    const GuardedTensor logits = logits_of(s, rank);
    for (std::int64_t t = 0; t < s.tokens(); ++t) {
      const float* row = logits.as<float>() + t * s.experts();
      expert.push_back(std::max_element(row, row + s.experts()) - row);
      kept.push_back(counts[std::size_t(expert.back())] < s.capacity);
      counts[std::size_t(expert.back())] += kept.back();
    }
  }
};

// The outcome of one rank: y [B,S,D] of all parts, and the rows that it received.
struct Layer {
  std::vector<GuardedTensor> y, rows;
  std::vector<Decision> decisions;
  std::vector<std::string> faults;
};

std::vector<GuardedTensor> call(Layer& layer, std::string_view op, std::vector<GuardedTensor> operands,
                                const ir::Attributes& attributes, comm::Communicator* comm = nullptr) {
  Outcome outcome = run(ops::op(op), std::move(operands), attributes, 1, comm);
  layer.faults.insert(layer.faults.end(), outcome.faults.begin(), outcome.faults.end());
  return std::move(outcome.results);
}

// Merges a part's slots or rows into those of all parts; none may have been written before.
void merge_part(Layer& layer, const GuardedTensor& part, GuardedTensor& whole) {
  if (const int twice = merge(part, whole); twice > 0)
    layer.faults.push_back(fmt::format("{} rows were written by two parts", twice));
}

// The experts of this test: each multiplies by its number plus two, in the type of the rows.
void apply_experts(const Setting& s, int rank, const GuardedTensor& rows, GuardedTensor& buffer) {
  const std::int64_t extent = buffer.shape()[1];
  for (std::int64_t e = 0; e < s.local; ++e)
    for (std::int64_t r = rows.as<std::int32_t>()[e * (s.ranks + 1)];
         r < rows.as<std::int32_t>()[e * (s.ranks + 1) + s.ranks]; ++r)
      for (std::int64_t i = (e * extent + r) * s.width; i < (e * extent + r + 1) * s.width; ++i) {
        const float factor = float(rank * s.local + e + 2);
        if (s.dtype == DType::f32)
          buffer.as<float>()[i] *= factor;
        else
          buffer.as<bf16>()[i] = from_f32<bf16>(to_f32(buffer.as<bf16>()[i]) * factor);
      }
}

// gate, dispatch, counts, all-to-all, experts, all-to-all, combine: stage by stage, as a pipeline of parts runs them.
Layer run_layer(const Setting& s, const GuardedTensor& x, comm::Communicator& comm) {
  Layer layer;
  const GuardedTensor logits = logits_of(s, comm.rank());
  const ir::Attributes gate_of{{"capacity", s.capacity}, {"groups", 1}}, slots_of{{"slots", s.capacity}};
  GuardedTensor slots({s.dtype, {s.experts(), s.capacity, s.width}}),
      buffer({s.dtype, {s.local, s.ranks * s.capacity, s.width}}), returned = slots;
  const std::size_t parts = s.bounds.size() - 1;
  for (std::size_t p = 0; p < parts; ++p) {
    layer.decisions.push_back(decide(slice(logits, 0, s.bounds[p], s.bounds[p + 1]), 1, "slots", gate_of,
                                     p ? &layer.decisions.back().counts : nullptr));
    const Decision& to = layer.decisions.back();
    const GuardedTensor part = slice(x, 0, s.bounds[p], s.bounds[p + 1]);
    merge_part(layer, call(layer, "dispatch", {part, to.expert, to.slot, to.filled}, slots_of)[0], slots);
  }
  for (std::size_t p = 0; p < parts; ++p) {
    const GuardedTensor& filled = layer.decisions[p].filled;
    std::vector<GuardedTensor> counts{filled};
    if (p) counts.push_back(layer.rows.back());
    layer.rows.push_back(call(layer, "all_to_all_counts", counts, {{"ranks", s.ranks}}, &comm)[0]);
    GuardedTensor received = call(layer, "all_to_all", {slots, filled, layer.rows[p]}, {}, &comm)[0];
    apply_experts(s, comm.rank(), layer.rows[p], received);
    merge_part(layer, received, buffer);
  }
  for (std::size_t p = 0; p < parts; ++p) {
    const Decision& from = layer.decisions[p];
    merge_part(layer, call(layer, "all_to_all_back", {buffer, from.filled, layer.rows[p]}, {}, &comm)[0], returned);
    layer.y.push_back(call(layer, "combine", {returned, from.expert, from.slot, from.weight, from.filled},
                           {{"batch", s.bounds[p + 1] - s.bounds[p]}})[0]);
  }
  return layer;
}

// y[t] = probability * (expert + 2) * x[t], 0 if dropped: the layer's result on one process.
Status check_tokens(const Setting& s, int rank, const GuardedTensor& x, const Layer& layer) {
  const Expected expected(s, rank);
  const DoubleTensor y = to_double(join(layer.y, 0)), in = to_double(x);
  std::vector<double> weight;
  for (const Decision& part : layer.decisions) {
    const DoubleTensor weights = to_double(part.weight);
    weight.insert(weight.end(), weights.values.begin(), weights.values.end());
  }
  for (std::int64_t t = 0; t < s.tokens(); ++t)
    for (std::int64_t d = 0; d < s.width; ++d) {
      const float factor = float(expected.expert[std::size_t(t)] + 2), w = float(weight[std::size_t(t)]);
      float value = float(in[t * s.width + d]) * factor;
      if (s.dtype == DType::bf16) value = to_f32(from_f32<bf16>(value));
      value = expected.kept[std::size_t(t)] ? value * w : 0.f;
      if (s.dtype == DType::bf16) value = to_f32(from_f32<bf16>(value));
      if (y[t * s.width + d] != double(value))
        return internal_error(
            fmt::format("rank {}, token {}, element {}: expected {}, found {}", rank, t, d, value, y[t * s.width + d]));
    }
  return {};
}

// Over all parts, each expert of this rank got from each source the tokens that the source kept for it.
Status check_rows(const Setting& s, int rank, const Layer& layer) {
  for (std::int64_t e = 0; e < s.local; ++e)
    for (int source = 0; source < s.ranks; ++source) {
      std::int64_t got = 0;
      for (const GuardedTensor& rows : layer.rows) {
        const std::int32_t* row = rows.as<std::int32_t>() + e * (s.ranks + 1) + source;
        got += row[1] - row[0];
      }
      const std::int64_t kept = Expected(s, source).counts[std::size_t(rank * s.local + e)];
      if (got != kept)
        return internal_error(
            fmt::format("rank {}, expert {}, source {}: expected {} rows, found {}", rank, e, source, kept, got));
    }
  return {};
}

Status check_traffic(const Setting& s, const Counting& comm) {
  const int parts = int(s.bounds.size()) - 1;
  if (comm.all_to_alls != 3 * parts)
    return internal_error(fmt::format("expected {} all_to_alls, found {}", 3 * parts, comm.all_to_alls));
  const Expected mine(s, comm.rank());
  std::int64_t rows = std::accumulate(mine.counts.begin(), mine.counts.end(), std::int64_t{0});  // dispatch
  for (int source = 0; source < s.ranks; ++source) {                                             // and return
    const Expected theirs(s, source);
    rows += std::accumulate(theirs.counts.begin() + comm.rank() * s.local,
                            theirs.counts.begin() + (comm.rank() + 1) * s.local, std::int64_t{0});
  }
  const std::int64_t expected = rows * s.width * size_of(s.dtype) + parts * s.experts() * 4;
  if (std::int64_t(comm.sent) != expected)
    return internal_error(fmt::format("expected {} bytes sent, found {}", expected, comm.sent));
  return {};
}

void check(const Setting& setting) {
  const Status status = comm::run_inproc(setting.ranks, [&](comm::Communicator& inner) -> Status {
    Counting comm(inner);
    GuardedTensor x({setting.dtype, {setting.batch(), setting.sequence, setting.width}});
    fill_normal(x, 6, std::uint64_t(comm.rank()));
    const Layer layer = run_layer(setting, x, comm);
    if (!layer.faults.empty()) return internal_error(layer.faults[0]);
    LANCET_TRY(check_tokens(setting, comm.rank(), x, layer));
    LANCET_TRY(check_rows(setting, comm.rank(), layer));
    return check_traffic(setting, comm);
  });
  INFO(setting.ranks << " ranks, " << setting.local << " experts each, capacity " << setting.capacity << ", routing "
                     << int(setting.routing) << ", " << setting.bounds.size() - 1 << " parts");
  INFO((status.ok() ? "" : status.error().message));
  CHECK(status.ok());
}

}  // namespace

TEST_CASE("tokens reach their experts on other ranks and return") {
  for (int ranks : {1, 2, 3, 4})
    for (std::int64_t local : {1, 2})
      for (std::int64_t capacity : {1, 4, 30})
        for (Routing routing : {Routing::random, Routing::one_expert, Routing::idle_rank}) {
          if (ranks == 1 && routing == Routing::idle_rank) continue;
          check({ranks, local, capacity, routing, {0, 6}});
          check({ranks, local, capacity, routing, {0, 3, 6}});
          check({ranks, local, capacity, routing, {0, 1, 4, 6}});
        }
  check({2, 2, 5, Routing::random, {0, 2, 6}, DType::bf16});
}

namespace {

// In parts one way, as a whole back, and as a whole again: each time with equal slots or rows.
Status check_wholes(const Setting& s, comm::Communicator& inner) {
  Layer layer;
  GuardedTensor x({s.dtype, {s.batch(), s.sequence, s.width}});
  fill_normal(x, 8, std::uint64_t(inner.rank()));
  const Decision whole = decide(logits_of(s, inner.rank()), 1, "slots", {{"capacity", s.capacity}, {"groups", 1}});
  const GuardedTensor slots =
      call(layer, "dispatch", {x, whole.expert, whole.slot, whole.filled}, {{"slots", s.capacity}})[0];
  GuardedTensor buffer({s.dtype, {s.local, s.ranks * s.capacity, s.width}});
  std::vector<GuardedTensor> filled, pairs;
  for (std::size_t p = 0; p + 1 < s.bounds.size(); ++p) {
    const std::int64_t first = s.bounds[p] * s.sequence, last = s.bounds[p + 1] * s.sequence;
    std::vector<GuardedTensor> split{slice(whole.expert, 0, first, last), slice(whole.slot, 0, first, last)}, counts;
    if (p) split.push_back(filled.back());
    filled.push_back(call(layer, "split_filled", split, {{"experts", s.experts()}})[0]);
    counts.push_back(filled.back());
    if (p) counts.push_back(layer.rows.back());
    layer.rows.push_back(call(layer, "all_to_all_counts", counts, {{"ranks", s.ranks}}, &inner)[0]);
    merge_part(layer, call(layer, "all_to_all", {slots, filled[p], layer.rows[p]}, {}, &inner)[0], buffer);
    pairs.insert(pairs.end(), {filled[p], layer.rows[p]});
  }
  Counting comm(inner);
  auto sent = [&](std::string_view op, const GuardedTensor& from) {
    std::vector<GuardedTensor> operands{from};
    operands.insert(operands.end(), pairs.begin(), pairs.end());
    return call(layer, op, operands, {}, &comm)[0];
  };
  if (!sent("all_to_all_back", buffer).same_bytes(slots)) return internal_error("the slots that came back differ");
  if (!sent("all_to_all", slots).same_bytes(buffer)) return internal_error("the rows sent as a whole differ");
  if (comm.all_to_alls != 2) return internal_error(fmt::format("expected 2 all_to_alls, found {}", comm.all_to_alls));
  if (!layer.faults.empty()) return internal_error(layer.faults[0]);
  return {};
}

}  // namespace

TEST_CASE("rows that were sent in parts return as a whole") {
  for (int ranks : {1, 2, 3})
    for (std::int64_t capacity : {1, 4, 30})
      for (Routing routing : {Routing::random, Routing::one_expert, Routing::idle_rank})
        for (const std::vector<std::int64_t>& bounds :
             {std::vector<std::int64_t>{0, 6}, {0, 3, 6}, {0, 1, 4, 6}, {0, 1, 2, 3, 4, 5, 6}}) {
          if (ranks == 1 && routing == Routing::idle_rank) continue;
          const Setting setting{ranks, 2, capacity, routing, bounds, capacity == 4 ? DType::bf16 : DType::f32};
          const Status status =
              comm::run_inproc(ranks, [&](comm::Communicator& comm) { return check_wholes(setting, comm); });
          INFO(ranks << " ranks, capacity " << capacity << ", routing " << int(routing) << ", " << bounds.size() - 1
                     << " parts");
          INFO((status.ok() ? "" : status.error().message));
          CHECK(status.ok());
        }
}

TEST_CASE("all_reduce sums over the ranks, and joins neighbours in memory") {
  const Status status = comm::run_inproc(3, [](comm::Communicator& inner) -> Status {
    Counting comm(inner);
    alignas(64) std::array<float, 32> memory;
    for (std::size_t i = 0; i < memory.size(); ++i) memory[i] = float(i) + 100.f * float(comm.rank());
    const ir::Attributes none;
    ops::KernelArgs args{"all_reduce", {}, {}, none, comm::group_of(comm)};
    auto view = [&](std::size_t first, std::int64_t n) {
      return ops::TensorView{memory.data() + first, {DType::f32, {n}}};
    };
    args.operands = args.results = {view(0, 5), view(5, 7), view(12, 1), view(16, 4), view(24, 4)};
    LANCET_TRY(ops::find_cpu_kernel("all_reduce")->bind(args)());
    for (std::size_t i = 0; i < memory.size(); ++i) {
      // [13, 16) pads up to an aligned tensor, and its sums do not matter; the gap [20, 24) ends at one that is not
      // aligned.
      if (i >= 13 && i < 16) continue;
      const bool between = (i >= 20 && i < 24) || i >= 28;
      const float expected = between ? float(i) + 100.f * float(comm.rank()) : 3.f * float(i) + 300.f;
      if (memory[i] != expected)
        return internal_error(fmt::format("element {}: expected {}, found {}", i, expected, memory[i]));
    }
    if (comm.reductions != 2) return internal_error(fmt::format("expected 2 calls, found {}", comm.reductions));
    return {};
  });
  INFO((status.ok() ? "" : status.error().message));
  CHECK(status.ok());
}
