// The partition rows of the catalogue (Lancet, section 5.2; GShard, section 3.2): split an op's operands along a row's
// axes, run the parts in order, join the results, and get the result of the whole op: the same bits, except for results
// that are sums. What holds for parts that run one after the other holds for shards on ranks.
#include <fmt/ranges.h>

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#if defined(LANCET_HAVE_ONEDNN)
#include "backend/cpu/onednn_gemm.h"
#endif
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;
using ops::PartitionRow;

namespace {

constexpr std::uint64_t partition_seed = 23;

using Bounds = std::vector<std::int64_t>;  // part p is [bounds[p], bounds[p+1])

std::vector<Bounds> splits(std::int64_t extent) {
  std::vector<Bounds> result;
  if (extent >= 2) result.push_back({0, extent / 2, extent});
  if (extent >= 3) result.push_back({0, 1, extent});
  if (extent >= 3 && extent % 3 == 0) result.push_back({0, extent / 3, 2 * extent / 3, extent});
  if (extent >= 4) result.push_back({0, 1, extent - 1, extent});
  return result;
}

// True if all parts have the size of the first, as those of the tokens of groups and those of placed rows must.
bool are_equal(const Bounds& bounds) {
  for (std::size_t p = 1; p < bounds.size(); ++p)
    if (bounds[p] - bounds[p - 1] != bounds[1]) return false;
  return true;
}

bool is_irregular(const PartitionRow& row) {
  auto irregular = [](ops::Axis axis) { return axis == ops::irregular; };
  return std::any_of(row.operands.begin(), row.operands.end(), irregular) ||
         std::any_of(row.results.begin(), row.results.end(), irregular);
}

// A row applies to instructions with at most the operands that it names; the parts of an irregular row are those of a
// decision, which the op makes or reads.
bool applies(const PartitionRow& row, const ops::OpDef& op, const ops::Sample& sample) {
  if (sample.operands.size() > row.operands.size()) return false;
  const bool has_groups = sample.attributes.integer("groups", 1) > 1;
  if (splits_slots(row, op)) return has_groups && int(sample.operands.size()) > (op.ragged ? op.ragged->counts : 0);
  if (!is_irregular(row) || op.kind == ops::Kind::gate) return true;
  if (has_groups) return false;
  return std::any_of(sample.operands.begin(), sample.operands.end(), [](const ops::SampleOperand& operand) {
    return operand.fill == ops::Fill::expert || operand.fill == ops::Fill::rows;
  });
}

// The units of an axis that are split: an index of each block, which is as many elements of it as the block is wide.
std::int64_t units(const GuardedTensor& tensor, ops::Axis axis, const ir::Blocks& blocks) {
  return tensor.shape()[ops::index_of(axis, tensor.shape().rank())] / blocks.units;
}

// The units [begin, end) of a block.
GuardedTensor slice_of_block(const GuardedTensor& tensor, ops::Axis axis, const ir::Blocks& blocks, std::int64_t block,
                             std::int64_t begin, std::int64_t end) {
  std::int64_t first = 0;
  for (std::int64_t b = 0; b < block; ++b) first += blocks.width(b) * units(tensor, axis, blocks);
  return slice(tensor, ops::index_of(axis, tensor.shape().rank()), first + blocks.width(block) * begin,
               first + blocks.width(block) * end);
}

// The units [begin, end) of each block.
GuardedTensor slice_along(const GuardedTensor& tensor, ops::Axis axis, const ir::Blocks& blocks, std::int64_t begin,
                          std::int64_t end) {
  std::vector<GuardedTensor> pieces;
  for (std::int64_t block = 0; block < blocks.count(); ++block)
    pieces.push_back(slice_of_block(tensor, axis, blocks, block, begin, end));
  return join(pieces, ops::index_of(axis, tensor.shape().rank()));
}

GuardedTensor join_along(const std::vector<GuardedTensor>& parts, ops::Axis axis, const ir::Blocks& blocks) {
  std::vector<GuardedTensor> pieces;
  for (std::int64_t block = 0; block < blocks.count(); ++block)
    for (const GuardedTensor& part : parts)
      pieces.push_back(slice_of_block(part, axis, blocks, block, 0, units(part, axis, blocks)));
  return join(pieces, ops::index_of(axis, parts[0].shape().rank()));
}

GuardedTensor zeros(const ir::TensorType& type) {
  GuardedTensor tensor(type);
  std::memset(tensor.data(), 0, tensor.size());
  return tensor;
}

// One of `count` equal tensors whose sum is the whole. What is not written stays so.
GuardedTensor summand(const GuardedTensor& whole, std::int64_t count) {
  DoubleTensor values = to_double(whole);
  for (double& value : values.values) value /= double(count);
  const GuardedTensor quotient = from_double(values);
  GuardedTensor result = whole;
  const std::size_t size = whole.size() / values.values.size();
  for (std::size_t i = 0; i < values.values.size(); ++i)
    if (!std::isnan(values.values[i])) std::memcpy(result.data() + i * size, quotient.data() + i * size, size);
  return result;
}

// One row of one sample, split in one way.
class Split {
 public:
  Split(const ops::OpDef& op, const ops::Sample& sample, const PartitionRow& row, const SampleRoute& route)
      : op_(op),
        sample_(sample),
        row_(row),
        route_(route),
        operands_(make_operands(sample, route, partition_seed)),
        has_slots_(splits_slots(row, op)),
        whole_(run(op, operands_, sample.attributes)) {}

  // False if the op's rule for types refuses the first part, or makes other results of it than the row says.
  bool fits(const Bounds& bounds) const {
    if (has_slots_ && op_.kind != ops::Kind::gate && route_.groups() % (std::ssize(bounds) - 1) != 0) return false;
    const bool sums = std::ranges::count(row_.operands, ops::partial) > 0;
    if (sums && (!are_equal(bounds) || !std::has_single_bit(bounds.size() - 1))) return false;  // halves are exact
    std::vector<ir::TensorType> operands;
    for (std::size_t i = 0; i < operands_.size(); ++i)
      operands.push_back(type_of_part(operands_[i], row_.operands[i], bounds));
    const auto made = op_.infer({operands, attributes_of_part(bounds, 0)});
    if (!made.ok()) return false;
    for (std::size_t r = 0; r < made->size(); ++r)
      if ((*made)[r] != type_of_part(whole_.results[r], row_.results[r], bounds)) return false;
    return true;
  }

  // The extent that is split: the least of the axes that the row names, since tokens are split by their sequences; the
  // tokens, if it names none.
  std::int64_t extent() const {
    std::int64_t least = std::numeric_limits<std::int64_t>::max();
    for (std::size_t i = 0; i < operands_.size(); ++i)
      if (ops::is_split(row_.operands[i]))
        least = std::min(least, units(operands_[i], row_.operands[i], blocks(row_.operands[i])));
    for (std::size_t r = 0; r < whole_.results.size(); ++r)
      if (ops::is_split(row_.results[r]))
        least = std::min(least, units(whole_.results[r], row_.results[r], blocks(row_.results[r])));
    if (least < std::numeric_limits<std::int64_t>::max()) return least;
    return route_.exists() ? route_.tokens() : 2;  // summands of tensors that are no tokens' have no extent
  }

  void check(const Bounds& bounds) {
    shared_.clear();
    parts_.clear();
    decisions_.clear();
    for (std::size_t p = 0; p + 1 < bounds.size(); ++p) {
      if (has_slots_ && op_.kind != ops::Kind::gate) {
        decisions_.push_back(route_.shard(std::int64_t(p), std::ssize(bounds) - 1));
      } else if (route_.exists() && route_.groups() == 1) {
        const std::int64_t tokens = route_.tokens(), all = bounds.back();
        Decision part =
            route_.part(tokens * bounds[p] / all, tokens * bounds[p + 1] / all, p ? &decisions_.back() : nullptr);
        decisions_.push_back(std::move(part));
      }
      run_part(bounds, p);
    }
    for (std::size_t r = 0; r < whole_.results.size(); ++r) {
      INFO(fmt::format("result {} of parts {}", r, bounds));
      check_result(r);
    }
  }

 private:
  // The operand in whose memory the parts write their slots or rows of result r, or -1 if each part has its own memory.
  int shared_operand(std::size_t r) const {
    return row_.results[r] == ops::irregular ? storage_operand(op_, int(r), int(operands_.size())) : -1;
  }

  void run_part(const Bounds& bounds, std::size_t p) {
    const std::int64_t begin = bounds[p], end = bounds[p + 1], all = bounds.back();
    std::vector<GuardedTensor> operands;
    for (int i = 0; i < int(row_.operands.size()); ++i) {
      std::optional<GuardedTensor> operand = slots_of_shard(i, p, bounds.size() - 1);
      if (!operand) operand = part_operand(i, begin, end, all);
      if (!operand) break;
      operands.push_back(std::move(*operand));
    }
    Outcome part = run_share(std::move(operands), attributes_of_part(bounds, p), int(p), int(bounds.size() - 1));
    INFO(fmt::format("{}", fmt::join(part.faults, "\n")));
    CHECK(part.faults.empty());
    for (std::size_t r = 0; r < whole_.results.size(); ++r)
      if (shared_operand(r) >= 0) shared_.insert_or_assign(r, part.results[r]);
    parts_.push_back(std::move(part));
  }

  // Part p of n, which by a placed row is one rank's of a group of n.
  Outcome run_share(std::vector<GuardedTensor> operands, ir::Attributes attributes, int p, int n) const {
    const ops::CpuKernel& kernel = *ops::find_cpu_kernel(op_.name);
    Bound bound{kernel.bind, kernel.workspace};
    if (row_.placed) {
      attributes.set("axes", "tensor");
      bound.group = {p, n};
    }
    return run(op_, std::move(operands), attributes, bound);
  }

  ir::Blocks blocks(ops::Axis entry) const { return ops::blocks_of(row_, entry, sample_.attributes); }

  static ir::TensorType type_of_part(const GuardedTensor& whole, ops::Axis entry, const Bounds& bounds) {
    ir::TensorType type = whole.type();
    if (!ops::is_split(entry)) return type;
    const int index = ops::index_of(entry, type.shape.rank());
    type.shape.set(index, type.shape[index] * bounds[1] / bounds.back());
    return type;
  }

  // An attribute of a part that is no equal share is in proportion. A gate counts the tokens of groups that parts in
  // time share, and must know which tokens the part has; so must what reads one of several loads of all tokens.
  ir::Attributes attributes_of_part(const Bounds& bounds, std::size_t p) const {
    const std::int64_t parts = std::ssize(bounds) - 1;
    ir::Attributes attributes = ops::attributes_of_share(row_, sample_.attributes, parts);
    for (const std::string_view name : row_.divided)
      if (!are_equal(bounds) && attributes.has(name))
        attributes.set(name, sample_.attributes.integer(name) * (bounds[p + 1] - bounds[p]) / bounds.back());
    const bool has_loads = attributes.has("load_tokens") && row_.in != ops::SplitIn::space;
    if (has_loads || (!has_slots_ && attributes.integer("groups", 1) > 1)) {
      attributes.set("part", std::int64_t(p));
      attributes.set("parts", parts);
    }
    return attributes;
  }

  // The slots of each expert that shard p fills.
  const GuardedTensor& filled(std::size_t p) const {
    return op_.kind == ops::Kind::gate ? parts_[p].results[2] : decisions_[p].filled;
  }
  // The first of the whole's slots of an expert that shard p has.
  std::int32_t first_slot(std::size_t p, std::int64_t e) const {
    std::int32_t first = 0;
    for (std::size_t q = 0; q < p; ++q) first += filled(q).as<std::int32_t>()[2 * e + 1];
    return first;
  }

  // Copies the slots that the tokens of shard p fill from the whole buffer to the shard's, or back.
  void copy_slots(GuardedTensor& whole, GuardedTensor& part, std::size_t p, bool back) const {
    const std::int64_t of_expert = whole.shape()[1], of_part = part.shape()[1];
    const std::size_t row = whole.size() / std::size_t(whole.shape()[0] * of_expert);
    for (std::int64_t e = 0; e < whole.shape()[0]; ++e) {
      std::byte* in_whole = whole.data() + std::size_t(e * of_expert + first_slot(p, e)) * row;
      std::byte* in_part = part.data() + std::size_t(e * of_part) * row;
      const std::size_t bytes = std::size_t(filled(p).as<std::int32_t>()[2 * e + 1]) * row;
      std::memcpy(back ? in_whole : in_part, back ? in_part : in_whole, bytes);
    }
  }

  // What shard p has of operand i, if it is about slots.
  std::optional<GuardedTensor> slots_of_shard(int i, std::size_t p, std::size_t shards) const {
    if (!has_slots_ || !op_.ragged) return std::nullopt;
    if (i == op_.ragged->counts) return decisions_[p].filled;
    if (i == op_.ragged->slots) return decisions_[p].slot;
    if (std::ranges::count(op_.ragged->operands, i) == 0) return std::nullopt;
    GuardedTensor whole = operands_[std::size_t(i)];
    ir::TensorType type = whole.type();
    type.shape.set(1, type.shape[1] / std::int64_t(shards));
    GuardedTensor part(type);
    copy_slots(whole, part, p, false);
    return part;
  }

  void check_buffer(std::size_t r) {
    GuardedTensor joined(whole_.results[r].type());
    for (std::size_t p = 0; p < parts_.size(); ++p) copy_slots(joined, parts_[p].results[r], p, true);
    CHECK(joined.same_bytes(whole_.results[r]));
  }

  // The slots of choices: those of a shard begin at 0. Where experts choose, choice k is expert k.
  void check_slots() const {
    const auto* whole = whole_.results[0].as<std::int32_t>();
    const bool experts_choose = whole_.operands[0].type().dtype != DType::i32;
    for (std::size_t p = 0; p < parts_.size(); ++p)
      for (std::int64_t i = 0; i < parts_[p].results[0].shape().elements(); ++i, ++whole) {
        const std::int32_t slot = parts_[p].results[0].as<std::int32_t>()[i];
        const std::int32_t expert = experts_choose ? std::int32_t(i % whole_.results[0].shape()[1])
                                                   : parts_[p].operands[0].as<std::int32_t>()[i];
        CHECK(*whole == (slot < 0 ? slot : slot + first_slot(p, expert)));
      }
  }

  // The part [begin, end) of `all`; an axis of another extent is split in proportion.
  std::optional<GuardedTensor> part_operand(int i, std::int64_t begin, std::int64_t end, std::int64_t all) const {
    const ops::Axis axis = row_.operands[std::size_t(i)];
    const bool given = i < int(operands_.size());
    if (ops::is_split(axis)) {
      if (!given) return std::nullopt;
      const std::int64_t extent = units(operands_[std::size_t(i)], axis, blocks(axis));
      return slice_along(operands_[std::size_t(i)], axis, blocks(axis), extent * begin / all, extent * end / all);
    }
    if (axis == ops::partial && given) return summand(operands_[std::size_t(i)], all / (end - begin));
    if (axis == ops::once && given && begin > 0) return zeros(operands_[std::size_t(i)].type());
    if (axis == ops::once) return given ? std::optional(operands_[std::size_t(i)]) : std::nullopt;
    if (axis == ops::none) return given ? std::optional(operands_[std::size_t(i)]) : std::nullopt;
    for (std::size_t r = 0; r < whole_.results.size(); ++r)
      if (shared_operand(r) == i) {
        const auto memory = shared_.find(r);
        return memory == shared_.end() ? operands_[std::size_t(i)] : memory->second;
      }
    if (axis == ops::accumulated) {
      if (parts_.empty()) return given ? std::optional(operands_[std::size_t(i)]) : std::nullopt;
      for (const ops::Alias& alias : op_.aliases)
        if (alias.operand == i && alias.result < int(parts_.back().results.size()))
          return parts_.back().results[std::size_t(alias.result)];
      return std::nullopt;
    }
    if (!given) return parts_.empty() ? std::nullopt : std::optional(parts_.back().results[*op_.continued]);
    if (sample_.operands[std::size_t(i)].fill == ops::Fill::rows) return decisions_.back().filled;
    return operands_[std::size_t(i)];
  }

  void check_result(std::size_t r) {
    const GuardedTensor& whole = whole_.results[r];
    const ops::Axis axis = row_.results[r];
    if (has_slots_ && op_.kind == ops::Kind::gate && r == 0) return check_slots();
    if (has_slots_ && op_.ragged && std::ranges::count(op_.ragged->results, int(r)) > 0) return check_buffer(r);
    if (axis == ops::partial) return check_sum(r);
    if (axis == ops::accumulated) return check_near(to_double(parts_.back().results[r]), r);
    if (axis == ops::cumulative) {
      CHECK(parts_.back().results[r].same_bytes(whole));
    } else if (axis == ops::none) {
      for (const Outcome& part : parts_) CHECK(part.results[r].same_bytes(whole));
    } else if (ops::is_split(axis)) {
      std::vector<GuardedTensor> parts;
      for (const Outcome& part : parts_) parts.push_back(part.results[r]);
      CHECK(join_along(parts, axis, blocks(axis)).same_bytes(whole));
    } else if (whole.type().dtype == DType::i32) {
      check_rows(r);
    } else if (shared_operand(r) >= 0) {
      CHECK(shared_.at(r).same_bytes(whole));
    } else {
      check_rows_written(r);
    }
  }

  // At most one part writes each slot or row; together they write those of the whole.
  void check_rows_written(std::size_t r) const {
    GuardedTensor merged(whole_.results[r].type());
    for (const Outcome& part : parts_) CHECK(merge(part.results[r], merged) == 0);
    CHECK(merged.same_bytes(whole_.results[r]));
  }

  // Each part is rounded to the type of the result, so the error is in proportion to the parts, which may cancel out.
  void check_sum(std::size_t r) const {
    DoubleTensor sum = to_double(parts_[0].results[r]);
    std::vector<double> sizes;
    for (double value : sum.values) sizes.push_back(std::abs(value));
    for (std::size_t p = 1; p < parts_.size(); ++p) {
      const DoubleTensor more = to_double(parts_[p].results[r]);
      for (std::size_t i = 0; i < sum.values.size(); ++i) {
        sum.values[i] += more.values[i];
        sizes[i] += std::abs(more.values[i]);
      }
    }
    const double mean = mean_size(sizes);  // that of the terms of a part, which may cancel out, too
    for (double& size : sizes) size += mean;
    check_near(sum, r, sizes);
  }

  // Of the elements that were written.
  static double mean_size(const std::vector<double>& sizes) {
    double sum = 0, count = 0;
    for (double size : sizes)
      if (!std::isnan(size)) sum += size, count += 1;
    return sum / std::max(count, 1.0);
  }

  // The sums have another order.
  void check_near(const DoubleTensor& sum, std::size_t r, const std::vector<double>& terms = {}) const {
    const GuardedTensor& whole = whole_.results[r];
    const auto fault = compare(whole, sum, GuardedTensor(whole.type()), double(operands_[0].shape().elements()), terms);
    INFO(fault.value_or(""));
    CHECK_FALSE(fault.has_value());
  }

  // Each part's rows begin at the end of the part before; together they are the whole's.
  void check_rows(std::size_t r) const {
    const GuardedTensor& whole = whole_.results[r];
    const std::int64_t columns = whole.shape()[1];
    for (std::int64_t e = 0; e < whole.shape()[0]; ++e) {
      std::int32_t end = 0;
      for (const Outcome& part : parts_) {
        const std::int32_t* row = part.results[r].as<std::int32_t>() + e * columns;
        CHECK(row[0] == end);
        end = row[columns - 1];
      }
      CHECK(end == whole.as<std::int32_t>()[e * columns + columns - 1]);
    }
  }

  const ops::OpDef& op_;
  const ops::Sample& sample_;
  const PartitionRow& row_;
  const SampleRoute& route_;
  std::vector<GuardedTensor> operands_;
  bool has_slots_;
  Outcome whole_;
  std::vector<Decision> decisions_;
  std::vector<Outcome> parts_;
  std::map<std::size_t, GuardedTensor> shared_;
};

// Each shard of slots takes windows of its own, so that in no round the shards together have the choices of the whole
// (window_test.cpp compares all rounds).
bool takes_own_windows(const ops::OpDef& op, const PartitionRow& row) {
  return (op.name == "first_window" || op.name == "window") && row.in == ops::SplitIn::space;
}

// True for the gradient of a choice of which tokens have several loads: a row in time splits it, another one in space.
bool must_split(const ops::OpDef& op, const PartitionRow& row, const ops::Sample& sample) {
  return op.name.ends_with("top_k_dx") && sample.attributes.has("load_tokens") && row.in != ops::SplitIn::space;
}

// True for a weight gradient of one row in bf16 where oneDNN has a matrix unit, which it leaves for such a product:
// then the bits are not those of more rows.
bool is_one_row_of_onednn([[maybe_unused]] const ops::OpDef& op, [[maybe_unused]] const ops::Sample& sample,
                          [[maybe_unused]] const PartitionRow& row, [[maybe_unused]] const Bounds& bounds) {
#if defined(LANCET_HAVE_ONEDNN)
  if (op.name != "linear_dw" || sample.operands[0].type.dtype != DType::bf16 || row.operands[0] != ops::last)
    return false;
  const auto single = std::ranges::adjacent_find(bounds, [](std::int64_t a, std::int64_t b) { return b - a == 1; });
  return single != bounds.end() && backend::cpu::onednn_has_matrix_unit();
#else
  return false;
#endif
}

// Returns how many splits of a row were checked, over all samples that it applies to.
int check_row(const ops::OpDef& op, const PartitionRow& row) {
  int checked = 0;
  const auto samples = samples_of(op);
  for (std::size_t s = 0; s < samples.size(); ++s) {
    const ops::Sample& sample = samples[s];
    const SampleRoute route(sample, partition_seed);
    if (!applies(row, op, sample)) continue;
    Split split(op, sample, row, route);
    const bool equal_parts = sample.attributes.integer("groups", 1) > 1 || sample.attributes.has("load_tokens");
    const int before = checked;
    for (const Bounds& bounds : splits(split.extent())) {
      if ((equal_parts || row.placed) && !are_equal(bounds)) continue;
      if (!split.fits(bounds) || is_one_row_of_onednn(op, sample, row, bounds)) continue;
      INFO(op.name << ", sample " << s << fmt::format(", operands {}, results {}", row.operands, row.results));
      split.check(bounds);
      ++checked;
    }
    INFO(op.name << ", sample " << s);
    if (must_split(op, row, sample)) CHECK(checked > before);
  }
  return checked;
}

}  // namespace

TEST_CASE("partition rows: split, run, join, compare") {
  int total = 0;
  std::string table = "partition rows (operands -> results): splits checked\n";
  for (const ops::OpDef* op : ops::all_ops()) {
    if (!ops::find_cpu_kernel(op->name)) continue;  // kernel_test reports it
    for (const PartitionRow& row : op->partition) {
      if (takes_own_windows(*op, row)) continue;
      const int checked = check_row(*op, row);
      const std::string line = fmt::format("  {:<24} {} -> {}: {}\n", op->name, row.operands, row.results, checked);
      table += line;
      INFO(line);
      CHECK(checked > 0);
      total += checked;
    }
  }
  fmt::print("{}  {} splits in all\n", table, total);
  CHECK(total > 0);
}
