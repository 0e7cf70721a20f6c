#include "ops/references/harness.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/random.h"

namespace lancet::test {
namespace {

constexpr std::byte guard{0xa5}, fresh{0xff};

double element(const GuardedTensor& tensor, std::int64_t i) {
  switch (tensor.type().dtype) {
    case DType::f32:
      return tensor.as<float>()[i];
    case DType::bf16:
      return to_f32(tensor.as<bf16>()[i]);
    case DType::i32:
      return tensor.as<std::int32_t>()[i];
    case DType::i64:
      return double(tensor.as<std::int64_t>()[i]);
  }
  LANCET_CHECK(false, "only numbers are read, not {}", ir::to_string(tensor.type()));
  return 0;
}

std::int64_t elements(const ir::TensorType& type) { return type.shape.elements(); }
std::size_t element_size(const ir::TensorType& type) { return std::size_t(size_of(type.dtype)); }

void store(GuardedTensor& tensor, std::int64_t i, double value) {
  switch (tensor.type().dtype) {
    case DType::f32:
      tensor.as<float>()[i] = float(value);
      return;
    case DType::bf16:
      tensor.as<bf16>()[i] = from_f32<bf16>(float(value));
      return;
    case DType::i32:
      tensor.as<std::int32_t>()[i] = std::int32_t(value);
      return;
    default:
      LANCET_CHECK(false, "only numbers are stored, not {}", ir::to_string(tensor.type()));
  }
}

// Elements before `axis` and after it: a tensor is [outer, extent, inner].
struct Cut {
  std::int64_t outer = 1, inner = 1;
  Cut(const Shape& shape, int axis) {
    for (int i = 0; i < axis; ++i) outer *= shape[i];
    for (int i = axis + 1; i < shape.rank(); ++i) inner *= shape[i];
  }
};

// Puts NaN in the rows of each expert that hold no token: x is [E, C, ...] or [E, W*C, ...] of one rank.
void poison_unfilled(GuardedTensor& tensor, const GuardedTensor& filled_slots) {
  const std::size_t row = std::size_t(tensor.shape()[2]) * element_size(tensor.type()),
                    rows = std::size_t(tensor.shape()[1]);
  for (std::int64_t e = 0; e < tensor.shape()[0]; ++e) {
    const std::size_t filled = std::size_t(filled_slots.as<std::int32_t>()[2 * e + 1]);
    std::memset(tensor.data() + (std::size_t(e) * rows + filled) * row, int(fresh), (rows - filled) * row);
  }
}

}  // namespace

GuardedTensor::GuardedTensor(ir::TensorType type) : GuardedTensor(std::size_t(ir::bytes(type))) { type_ = type; }

GuardedTensor::GuardedTensor(std::size_t size) : size_(size), blocks_(2 + (size + 127) / 64) {
  std::memset(blocks_.data(), int(guard), blocks_.size() * sizeof(Block));
  std::memset(data(), int(fresh), size_);
}

bool GuardedTensor::intact() const {
  const auto* first = reinterpret_cast<const std::byte*>(blocks_.data());
  const auto* last = first + blocks_.size() * sizeof(Block);
  auto untouched = [](std::byte b) { return b == guard; };
  return std::all_of(first, data(), untouched) && std::all_of(data() + size_, last, untouched);
}

bool GuardedTensor::same_bytes(const GuardedTensor& other) const {
  return size_ == other.size_ && std::memcmp(data(), other.data(), size_) == 0;
}

DoubleTensor to_double(const GuardedTensor& tensor) {
  DoubleTensor result{tensor.type(), {}};
  for (std::int64_t i = 0; i < elements(tensor.type()); ++i) result.values.push_back(element(tensor, i));
  return result;
}

GuardedTensor from_double(const DoubleTensor& tensor) {
  GuardedTensor result(tensor.type);
  for (std::int64_t i = 0; i < elements(tensor.type); ++i) store(result, i, tensor[i]);
  return result;
}

GuardedTensor slice(const GuardedTensor& tensor, int axis, std::int64_t begin, std::int64_t end) {
  ir::TensorType type = tensor.type();
  const Cut cut(type.shape, axis);
  const std::size_t unit = std::size_t(cut.inner) * element_size(type), extent = std::size_t(type.shape[axis]);
  type.shape.set(axis, end - begin);
  GuardedTensor result(type);
  const std::size_t stretch = std::size_t(end - begin) * unit;
  for (std::size_t o = 0; o < std::size_t(cut.outer); ++o)
    std::memcpy(result.data() + o * stretch, tensor.data() + (o * extent + std::size_t(begin)) * unit, stretch);
  return result;
}

GuardedTensor join(const std::vector<GuardedTensor>& parts, int axis) {
  ir::TensorType type = parts[0].type();
  std::int64_t extent = 0;
  for (const GuardedTensor& part : parts) extent += part.shape()[axis];
  type.shape.set(axis, extent);
  GuardedTensor result(type);
  const Cut cut(type.shape, axis);
  const std::size_t unit = std::size_t(cut.inner) * element_size(type);
  std::size_t begin = 0;
  for (const GuardedTensor& part : parts) {
    const std::size_t stretch = std::size_t(part.shape()[axis]) * unit;
    for (std::size_t o = 0; o < std::size_t(cut.outer); ++o)
      std::memcpy(result.data() + o * std::size_t(extent) * unit + begin, part.data() + o * stretch, stretch);
    begin += stretch;
  }
  return result;
}

int merge(const GuardedTensor& part, GuardedTensor& whole) {
  LANCET_CHECK(part.type() == whole.type(), "only tensors of one type are merged");
  const std::size_t row = std::size_t(part.shape().back()) * element_size(part.type());
  auto written = [row](const std::byte* at) {
    return std::any_of(at, at + row, [](std::byte b) { return b != fresh; });
  };
  int twice = 0;
  for (std::size_t at = 0; at < part.size(); at += row) {
    if (!written(part.data() + at)) continue;
    twice += written(whole.data() + at);
    std::memcpy(whole.data() + at, part.data() + at, row);
  }
  return twice;
}

int storage_operand(const ops::OpDef& op, int result, int operands) {
  if (op.in_place) return result;
  for (const ops::Alias& alias : op.aliases)
    if (alias.result == result && alias.operand < operands) return alias.operand;
  return -1;
}

namespace {

const ir::TensorType& type_of(const GuardedTensor& tensor) { return tensor.type(); }
const ir::TensorType& type_of(const DoubleTensor& tensor) { return tensor.type; }

template <class Tensor>
std::vector<ir::TensorType> result_types(const ops::OpDef& op, const std::vector<Tensor>& operands,
                                         const ir::Attributes& attributes) {
  std::vector<ir::TensorType> types;
  for (const Tensor& operand : operands) types.push_back(type_of(operand));
  auto results = op.infer({types, attributes});
  LANCET_CHECK(results.ok(), "{}: {}", op.name, results.error().message);
  return *results;
}

bool writes(const ops::OpDef& op, int operand, int operands, std::size_t results) {
  for (std::size_t r = 0; r < results; ++r)
    if (storage_operand(op, int(r), operands) == operand) return true;
  return std::find(op.writes.begin(), op.writes.end(), operand) != op.writes.end();
}

}  // namespace

Outcome run(const ops::OpDef& op, std::vector<GuardedTensor> operands, const ir::Attributes& attributes, int threads,
            comm::Communicator* comm) {
  const ops::CpuKernel* kernel = ops::find_cpu_kernel(op.name);
  LANCET_CHECK(kernel, "{} has no CPU kernel", op.name);
  return run(op, std::move(operands), attributes,
             {kernel->bind, kernel->workspace, threads, comm ? comm::group_of(*comm) : comm::Group()});
}

Outcome run(const ops::OpDef& op, std::vector<GuardedTensor> operands, const ir::Attributes& attributes,
            const Bound& kernel) {
  const auto types = result_types(op, operands, attributes);
  Outcome outcome{std::move(operands), {}, {}};
  const std::vector<GuardedTensor> before = outcome.operands;
  for (const ir::TensorType& type : types) outcome.results.emplace_back(type);

  const int count = int(outcome.operands.size());
  ops::KernelArgs args{op.name, {}, {}, attributes, kernel.group};
  args.device = kernel.device;
  args.stream = kernel.stream;
  args.remarks = kernel.remarks;
  const auto view = [&](GuardedTensor& tensor) {
    return ops::TensorView{kernel.memory ? kernel.memory->take(tensor) : tensor.data(), tensor.type()};
  };
  for (GuardedTensor& operand : outcome.operands) args.operands.push_back(view(operand));
  for (std::size_t r = 0; r < types.size(); ++r) {
    const int storage = storage_operand(op, int(r), count);
    args.results.push_back(storage < 0 ? view(outcome.results[r])
                                       : ops::TensorView{args.operands[std::size_t(storage)].data, types[r]});
  }
  backend::cpu::set_threads(kernel.threads);  // the workspace may depend on the threads
  GuardedTensor workspace(kernel.workspace ? kernel.workspace(args) : 0);
  args.workspace = static_cast<std::byte*>(view(workspace).data);

  const ops::Kernel call = kernel.bind(args);
  Status status = call();
  if (kernel.memory)
    if (const Status back = kernel.memory->bring_back(); status.ok()) status = back;
  backend::cpu::set_threads(1);
  if (!status.ok()) outcome.faults.push_back(status.error().message);
  if (!workspace.intact()) outcome.faults.push_back("wrote outside its workspace");
  for (int i = 0; i < count; ++i) {
    const GuardedTensor& operand = outcome.operands[std::size_t(i)];
    if (!operand.intact()) outcome.faults.push_back(fmt::format("wrote outside operand {}", i));
    if (!writes(op, i, count, types.size()) && !operand.same_bytes(before[std::size_t(i)]))
      outcome.faults.push_back(fmt::format("changed operand {}, which it only reads", i));
  }
  for (std::size_t r = 0; r < types.size(); ++r) {
    const int storage = storage_operand(op, int(r), count);
    if (storage >= 0)
      std::memcpy(outcome.results[r].data(), outcome.operands[std::size_t(storage)].data(), outcome.results[r].size());
    if (!outcome.results[r].intact()) outcome.faults.push_back(fmt::format("wrote outside result {}", r));
  }
  return outcome;
}

ReferenceCall run_reference(const ops::OpDef& op, std::vector<DoubleTensor> operands, const ir::Attributes& attributes,
                            const ops::Share& share) {
  ReferenceCall call{std::move(operands), {}, attributes};
  call.place = share.place;
  call.shares = share.shares;
  for (const ir::TensorType& type : result_types(op, call.operands, attributes))
    call.results.push_back(
        {type, std::vector<double>(std::size_t(elements(type)), std::numeric_limits<double>::quiet_NaN())});
  const Reference reference = find_reference(op.name);
  LANCET_CHECK(reference, "{} has no reference", op.name);
  reference(call);
  return call;
}

std::vector<std::string> faults_of(const ops::OpDef& op, const Outcome& outcome,
                                   const std::vector<GuardedTensor>& operands, const ReferenceCall& expected,
                                   double* largest, int roundings) {
  std::vector<std::string> faults = outcome.faults;
  auto add = [&](const char* what, std::size_t which, const std::optional<std::string>& fault) {
    if (fault) faults.push_back(fmt::format("{} {}: {}", what, which, *fault));
  };
  for (std::size_t r = 0; r < outcome.results.size(); ++r) {
    const int storage = storage_operand(op, int(r), int(operands.size()));
    const GuardedTensor before =
        storage < 0 ? GuardedTensor(outcome.results[r].type()) : operands[std::size_t(storage)];
    add("result", r,
        compare(outcome.results[r], expected.results[r], before, expected.length,
                r < expected.terms.size() ? expected.terms[r] : std::vector<double>{}, largest, roundings));
  }
  for (int i : op.writes) {
    const auto at = std::size_t(i);
    if (at < operands.size())
      add("operand", at,
          compare(outcome.operands[at], expected.operands[at], operands[at], expected.length, {}, largest, roundings));
  }
  return faults;
}

ReferenceCall run_reference(const ops::OpDef& op, const std::vector<GuardedTensor>& operands,
                            const ir::Attributes& attributes) {
  std::vector<DoubleTensor> doubles;
  for (const GuardedTensor& operand : operands) doubles.push_back(to_double(operand));
  return run_reference(op, std::move(doubles), attributes);
}

std::optional<std::string> compare(const GuardedTensor& got, const DoubleTensor& reference, const GuardedTensor& before,
                                   double length, const std::vector<double>& terms, double* largest, int roundings) {
  double squares = 0, counted = 0;
  for (double x : reference.values)
    if (!std::isnan(x)) squares += x * x, counted += 1;
  const double norm = std::sqrt(squares / std::max(counted, 1.0));
  const std::size_t size = element_size(got.type());
  std::optional<std::string> fault;
  for (std::int64_t i = 0; i < std::int64_t(reference.values.size()); ++i) {
    const double expected = reference[i], found = element(got, i);
    if (std::isnan(expected)) {
      if (!fault && std::memcmp(got.data() + std::size_t(i) * size, before.data() + std::size_t(i) * size, size) != 0)
        fault = fmt::format("element {} of {} was written, to {}", i, ir::to_string(got.type()), found);
      continue;
    }
    const DType dtype = got.type().dtype;
    const bool exact = dtype == DType::i32;
    const double scale = std::abs(expected) + (terms.empty() ? norm : terms[std::size_t(i)]);
    // A sum of `length` terms in f32 has a rounding error of about the root of its length, in units of the terms' size.
    double tolerance = exact ? 0 : (4 + 2 * std::sqrt(length)) * 0x1p-23 * scale;
    if (dtype == DType::bf16) tolerance += roundings * 0x1p-8 * scale;
    const double error = std::abs(found - expected);
    if (largest && error != 0)
      *largest = std::max(*largest, std::isnan(error) ? std::numeric_limits<double>::infinity() : error / tolerance);
    if (!fault && !(error <= tolerance))
      fault = fmt::format("element {} of {}: expected {}, found {} (tolerance {:.3g})", i, ir::to_string(got.type()),
                          expected, found, tolerance);
  }
  return fault;
}

// ---- samples

SampleRoute::SampleRoute(const ops::Sample& sample, std::uint64_t seed) {
  for (const ops::SampleOperand& operand : sample.operands) {
    if (operand.fill == ops::Fill::expert || operand.fill == ops::Fill::skipped || operand.fill == ops::Fill::weight)
      tokens_ = operand.type.shape[0], choices_ = operand.type.shape[1];
    if (operand.fill == ops::Fill::rows) experts_ = operand.type.shape[0];
    if (operand.fill == ops::Fill::load) experts_ = operand.type.shape[1];
    if (operand.fill != ops::Fill::normal) groups_ = sample.attributes.integer("groups", 1);
  }
  if (experts_ == 0 && tokens_ > 0) experts_ = sample.attributes.integer("experts");
  if (experts_ == 0) return;
  if (tokens_ == 0) tokens_ = sample.attributes.integer("tokens");
  capacity_ = sample.attributes.integer("capacity");
  load_groups_ = sample.attributes.integer("load_groups", groups_);
  const Philox random(seed, stream_of("logits"));
  for (std::int64_t i = 0; i < tokens_ * experts_; ++i)
    logits_.push_back(random.normal(std::uint64_t(i)) + (i % experts_ == 0 ? 0.7f : 0.f));
}

Decision SampleRoute::part(std::int64_t begin, std::int64_t end, const Decision* before) const {
  LANCET_CHECK(groups_ == 1 || end - begin == tokens_, "only the tokens of one group are split in time");
  return decide(begin, end, before, groups_);
}

Decision SampleRoute::shard(std::int64_t place, std::int64_t shards) const {
  LANCET_CHECK(groups_ % shards == 0, "{} groups are split over {} ranks", groups_, shards);
  return decide(place * tokens_ / shards, (place + 1) * tokens_ / shards, nullptr, groups_ / shards);
}

Decision SampleRoute::decide(std::int64_t begin, std::int64_t end, const Decision* before, std::int64_t groups) const {
  GuardedTensor logits({DType::f32, {1, end - begin, experts_}});
  std::copy_n(logits_.begin() + begin * experts_, (end - begin) * experts_, logits.as<float>());
  const ir::Attributes attributes{
      {"capacity", capacity_}, {"groups", groups}, {"load_groups", std::min(load_groups_, groups)}};
  return test::decide(logits, choices_, "slots", attributes, before ? &before->counts : nullptr);
}

Decision decide(const GuardedTensor& logits, std::int64_t choices, std::string_view gate, ir::Attributes attributes,
                const GuardedTensor* before, const Runner& runner) {
  const auto results = [&](std::string_view op, std::vector<GuardedTensor> operands, const ir::Attributes& of) {
    return runner ? runner(ops::op(op), std::move(operands), of).results : run(ops::op(op), operands, of).results;
  };
  const bool experts_choose = gate == "slots_by_weight";
  const auto choice =
      experts_choose ? results("every_expert", {logits}, {}) : results("top_k", {logits}, {{"k", choices}});
  std::vector<GuardedTensor> operands{choice[experts_choose ? 1 : 0]};
  if (ops::op(gate).required == 2) operands.push_back(choice[1]);
  if (before) operands.push_back(*before);
  attributes.set("experts", logits.shape().back());
  return {choice, results(gate, operands, attributes)};
}

Decision::Decision(const std::vector<GuardedTensor>& choice, const std::vector<GuardedTensor>& gate)
    : expert(choice[0]),
      weight(choice[1]),
      scores(choice[2]),
      slot(gate[0]),
      counts(gate[1]),
      filled(gate[2]),
      load(gate[3]) {}

const GuardedTensor& Decision::of(ops::Fill fill) const {
  switch (fill) {
    case ops::Fill::expert:
      return expert;
    case ops::Fill::slot:
      return slot;
    case ops::Fill::weight:
      return weight;
    case ops::Fill::load:
      return load;
    default:
      return filled;
  }
}

namespace {

// Skips about half of the choices after the first, of which every second one counts towards its expert's capacity.
void skip_choices(GuardedTensor& expert, std::int32_t experts, const Philox& random) {
  for (std::int64_t i = 0; i < elements(expert.type()); ++i) {
    std::int32_t& e = expert.as<std::int32_t>()[i];
    const std::uint64_t drawn = random.below(std::uint64_t(i), 4);
    if (i % expert.shape()[1] != 0 && drawn < 2) e = drawn == 0 ? -1 - e : -1 - experts;
  }
}

}  // namespace

void fill_normal(GuardedTensor& tensor, std::uint64_t seed, std::uint64_t stream) {
  const Philox random(seed, stream);
  for (std::int64_t i = 0; i < elements(tensor.type()); ++i) store(tensor, i, random.normal(std::uint64_t(i)));
}

std::vector<GuardedTensor> make_operands(const ops::Sample& sample, const SampleRoute& route, std::uint64_t seed) {
  std::vector<GuardedTensor> operands;
  for (std::size_t i = 0; i < sample.operands.size(); ++i) {
    const ops::SampleOperand& operand = sample.operands[i];
    const Philox random(seed, i);
    GuardedTensor tensor(operand.type);
    auto each = [&](auto value) {
      for (std::int64_t j = 0; j < elements(operand.type); ++j) store(tensor, j, double(value(std::uint64_t(j))));
    };
    switch (operand.fill) {
      case ops::Fill::normal:
        fill_normal(tensor, seed, i);
        break;
      case ops::Fill::positive:
        each([&](std::uint64_t j) { return 0.5f + random.uniform(j); });
        break;
      case ops::Fill::zero:
        each([](std::uint64_t) { return 0; });
        break;
      case ops::Fill::tokens:
        each([&](std::uint64_t j) { return random.below(j, std::uint64_t(sample.attributes.integer("vocabulary"))); });
        break;
      case ops::Fill::skipped:
        tensor = route.whole().expert;
        skip_choices(tensor, std::int32_t(route.experts()), random);
        break;
      default:
        tensor = route.whole().of(operand.fill);
        break;
    }
    LANCET_CHECK(tensor.type() == operand.type, "operand {} is {}, expected {}", i, ir::to_string(tensor.type()),
                 ir::to_string(operand.type));
    const Shape& shape = operand.type.shape;
    const bool buffer = operand.fill == ops::Fill::normal && route.exists() && shape.rank() == 3 &&
                        shape[0] == route.experts() && shape[1] == route.slots();
    if (buffer) poison_unfilled(tensor, route.whole().filled);
    operands.push_back(std::move(tensor));
  }
  return operands;
}

bool splits_slots(const ops::PartitionRow& row, const ops::OpDef& op) {
  if (op.kind == ops::Kind::gate) return row.in == ops::SplitIn::space;
  if (!op.ragged) return false;
  const int counts = op.ragged->counts;
  if (counts >= 0 && (counts >= int(row.operands.size()) || row.operands[std::size_t(counts)] != ops::partial))
    return false;
  if (op.ragged->operands.empty() && op.ragged->results.empty()) return row.in == ops::SplitIn::space;  // windows
  auto splits = [](const std::vector<int>& buffers, const std::vector<ops::Axis>& entries) {
    return std::ranges::any_of(buffers, [&](int i) { return entries[std::size_t(i)] == 1; });
  };
  return splits(op.ragged->operands, row.operands) || splits(op.ragged->results, row.results);
}

}  // namespace lancet::test
