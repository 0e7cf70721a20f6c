// Gradient rules against finite differences: the CPU kernels run the instructions that an op's rule emits; the results
// are compared with central differences of the op's reference in double, along random directions.
#include <catch2/catch.hpp>
#include <cmath>
#include <limits>
#include <map>

#include "lancet/base/random.h"
#include "ops/references/harness.h"

using namespace lancet;
using namespace lancet::test;
using ir::TensorId;

namespace {

constexpr std::uint64_t gradient_seed = 31;

// The context of a single instruction: everything needs a gradient, and operands may have gradients already.
class Lone final : public ops::GradientContext {
 public:
  Lone(const ops::OpDef& op, const ops::Sample& sample) {
    // States: unlike inputs, they may share their memory with a result.
    std::vector<TensorId> operands;
    for (std::size_t i = 0; i < sample.operands.size(); ++i)
      operands.push_back(
          program.add_named(ir::TensorKind::state, fmt::format("operand{}", i), sample.operands[i].type));
    ops::append(program, op.name, operands, sample.attributes, ir::Role::forward, "test");
    instruction_ = program.instructions[0];
    gradients.resize(operands.size());
    result_gradients.resize(instruction_.results.size());
  }

  ir::Program program;
  std::vector<TensorId> gradients, result_gradients;  // of the operands; of the results, as given to the rule

  const ir::Instruction& instruction() const override { return instruction_; }
  const ir::TensorType& type(TensorId id) const override { return program.type(id); }
  TensorId result_gradient(int result) const override { return result_gradients[std::size_t(result)]; }
  bool needs_gradient(int) const override { return true; }
  std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> operands, ops::Attributes attributes,
                             ir::Role role) override {
    return ops::append(program, op, std::move(operands), std::move(attributes), role, "test");
  }
  void add(int operand, TensorId gradient) override {
    TensorId& sum = gradients[std::size_t(operand)];
    sum = sum.valid() ? emit("add", {sum, gradient}, {}, ir::Role::dx)[0] : gradient;
  }
  TensorId accumulator(int operand) override { return gradients[std::size_t(operand)]; }
  void replace(int operand, TensorId gradient) override { gradients[std::size_t(operand)] = gradient; }

 private:
  ir::Instruction instruction_;
};

// Runs a program's instructions in order, each value in the memory that the program gives it.
std::map<TensorId, GuardedTensor> execute(const ir::Program& program, std::map<TensorId, GuardedTensor> memory) {
  for (const ir::Instruction& instruction : program.instructions) {
    std::vector<GuardedTensor> operands;
    for (TensorId id : instruction.operands) operands.push_back(memory.at(program.root(id)));
    const Outcome outcome = run(ops::op(instruction.op), std::move(operands), instruction.attributes);
    INFO(instruction.op << ": " << (outcome.faults.empty() ? "" : outcome.faults[0]));
    CHECK(outcome.faults.empty());
    for (std::size_t i = 0; i < instruction.operands.size(); ++i)
      memory.insert_or_assign(program.root(instruction.operands[i]), outcome.operands[i]);
    for (std::size_t r = 0; r < instruction.results.size(); ++r)
      memory.insert_or_assign(program.root(instruction.results[r]), outcome.results[r]);
  }
  return memory;
}

bool is_choice(const ops::OpDef& op) { return op.kind == ops::Kind::choice; }

// The sets of results with gradients that a rule must support.
std::vector<std::vector<std::size_t>> gradient_sets(const ops::OpDef& op) {
  if (op.kind == ops::Kind::loss) return {{}};
  if (is_choice(op)) return {{1, 2}, {1}};
  if (op.name == "add_layer_norm" || op.name == "add_rms_norm") return {{0, 1}, {1}};
  return {{0}};
}

// The scores of a choice have a gradient that all tokens of a load share [L*E]: here of two loads, if the tokens can
// have as many.
ir::TensorType gradient_type(const ops::OpDef& op, std::size_t result, const ReferenceCall& forward) {
  const ir::TensorType& type = forward.results[result].type;
  if (!is_choice(op) || result != 2) return type;
  return {DType::f32, {type.shape.back() * (type.shape[0] % 2 == 0 ? 2 : 1)}};
}

// Where element i of a tensor has its number among `shared` numbers, of which neighbouring rows share as many as a row
// has.
std::size_t in_shared(const DoubleTensor& tensor, std::size_t i, std::size_t shared) {
  const auto row = std::size_t(tensor.shape().back()), rows = tensor.values.size() / row;
  return i / row * (shared / row) / rows * row + i % row;
}

// A random functional of an op's results; the rule must give its gradient.
struct Functional {
  const ops::OpDef& op;
  const ir::Attributes& attributes;
  std::map<std::size_t, DoubleTensor> factors;  // by result

  double operator()(const std::vector<DoubleTensor>& operands) const {
    const ReferenceCall call = run_reference(op, operands, attributes);
    if (op.kind == ops::Kind::loss) return attributes.real("coefficient", 1) * call.results[0][0];
    double sum = 0;
    for (const auto& [r, factor] : factors) {
      const auto& values = call.results[r].values;
      for (std::size_t i = 0; i < values.size(); ++i)
        if (!std::isnan(values[i]))
          sum += values[i] * factor.values[in_shared(call.results[r], i, factor.values.size())];
    }
    return sum;
  }
};

// The operand of the auxiliary loss that has no gradient (it counts tokens), and those in place of whose gradient an op
// counts choices.
bool constant(const ops::OpDef& op, std::size_t operand) {
  return (op.name == "aux_loss" && operand == 1) || std::ranges::count(op.counted, int(operand)) > 0;
}

struct Case {
  const ops::OpDef& op;
  const ops::Sample& sample;
  std::vector<std::size_t> given;  // results with a gradient
  bool accumulate;                 // operands have gradients already

  void check() const;
  void check_operand(std::size_t i, const std::vector<DoubleTensor>& operands, const Functional& functional,
                     const std::optional<GuardedTensor>& gradient, const std::optional<GuardedTensor>& before) const;
};

void Case::check() const {
  const SampleRoute route(sample, gradient_seed);
  const auto operands = make_operands(sample, route, gradient_seed);
  std::vector<DoubleTensor> doubles;
  for (const GuardedTensor& operand : operands) doubles.push_back(to_double(operand));
  const ReferenceCall forward = run_reference(op, doubles, sample.attributes);

  Lone context(op, sample);
  std::map<TensorId, GuardedTensor> memory;
  for (std::size_t i = 0; i < operands.size(); ++i) memory.emplace(context.instruction().operands[i], operands[i]);
  Functional functional{op, sample.attributes, {}};
  for (std::size_t r : given) {
    GuardedTensor factor(gradient_type(op, r, forward));
    fill_normal(factor, gradient_seed, 100 + r);
    functional.factors.emplace(r, to_double(factor));
    if (factor.type() == forward.results[r].type)  // slots without a token have no gradient
      for (std::size_t j = 0; j < forward.results[r].values.size(); ++j)
        if (std::isnan(forward.results[r].values[j])) factor.as<float>()[j] = std::numeric_limits<float>::quiet_NaN();
    const TensorId id = context.program.add_named(ir::TensorKind::state, fmt::format("gradient{}", r), factor.type());
    context.result_gradients[r] = id;
    memory.emplace(id, factor);
  }
  std::vector<std::optional<GuardedTensor>> before(operands.size());
  for (std::size_t i = 0; i < operands.size() && accumulate; ++i) {
    if (operands[i].type().dtype != DType::f32 || op.name == "aux_loss") continue;
    before[i].emplace(operands[i].type());
    fill_normal(*before[i], gradient_seed, 200 + i);
    context.gradients[i] =
        context.program.add_named(ir::TensorKind::state, fmt::format("accumulator{}", i), operands[i].type());
    memory.emplace(context.gradients[i], *before[i]);
  }
  op.gradient(context);
  const Status verified = ops::verify(context.program);
  INFO((verified.ok() ? "" : verified.error().message));
  CHECK(verified.ok());
  memory = execute(context.program, std::move(memory));
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].type().dtype != DType::f32 || constant(op, i)) continue;
    INFO("operand " << i);
    std::optional<GuardedTensor> gradient;
    if (context.gradients[i].valid()) gradient = memory.at(context.program.root(context.gradients[i]));
    check_operand(i, doubles, functional, gradient, before[i]);
  }
}

void Case::check_operand(std::size_t i, const std::vector<DoubleTensor>& operands, const Functional& functional,
                         const std::optional<GuardedTensor>& gradient,
                         const std::optional<GuardedTensor>& before) const {
  constexpr double step = 1e-5;
  const std::size_t count = operands[i].values.size();
  // The auxiliary loss gives one gradient for all tokens of a load.
  const std::size_t shared = gradient ? std::size_t(gradient->type().shape.elements()) : 1;
  for (std::uint64_t direction = 0; direction < 3; ++direction) {
    const Philox random(gradient_seed, 300 + direction);
    auto up = operands, down = operands;
    double derivative = 0, squares = 0;
    for (std::size_t j = 0; j < count; ++j) {
      if (std::isnan(operands[i].values[j])) continue;  // no token uses it
      const double u = double(random.normal(j));
      up[i].values[j] += step * u;
      down[i].values[j] -= step * u;
      if (!gradient) continue;
      const double start = before ? double(before->as<float>()[j]) : 0,
                   g = double(gradient->as<float>()[in_shared(operands[i], j, shared)]);
      derivative += u * (g - start);
      squares += u * u * (g * g + start * start);
    }
    const double expected = (functional(up) - functional(down)) / (2 * step);
    // Errors of f32 gradients are independent: their squares add up. 1e-8 is the error of the differences themselves.
    const double tolerance = 64 * 0x1p-23 * std::sqrt(squares) + 1e-8 * (1 + std::abs(expected));
    INFO("expected " << expected << ", found " << derivative << ", tolerance " << tolerance);
    CHECK(std::abs(derivative - expected) <= tolerance);
  }
}

bool is_f32(const ops::Sample& sample) {
  return std::none_of(sample.operands.begin(), sample.operands.end(),
                      [](const ops::SampleOperand& operand) { return operand.type.dtype == DType::bf16; });
}

}  // namespace

TEST_CASE("gradient rules against finite differences") {
  int rules = 0;
  for (const ops::OpDef* op : ops::all_ops()) {
    if (!op->gradient) continue;
    int checked = 0;
    for (std::size_t s = 0; s < op->samples.size(); ++s) {
      if (!is_f32(op->samples[s])) continue;
      for (const auto& given : gradient_sets(*op))
        for (bool accumulate : {false, true}) {
          INFO(op->name << ", sample " << s << ", " << given.size() << " gradients given"
                        << (accumulate ? ", adding" : ""));
          Case{*op, op->samples[s], given, accumulate}.check();
          ++checked;
        }
    }
    INFO(op->name);
    CHECK(checked > 0);
    ++rules;
  }
  CHECK(rules >= 15);
}
