// What an op is: one constant description a folder (src/ops/<op>/op.cpp). Kernels are told apart (kernel.h), so that
// the planner knows ops without any device.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ops {

using ir::Attributes;
using ir::TensorId;
using ir::TensorType;

// What an instruction is applied to: everything that decides shapes, work and rules.
struct OpInput {
  std::span<const TensorType> operands;
  const Attributes& attributes;
};

// Emits the gradient of one forward instruction. For each result whose gradient exists, a rule sets the gradients of
// the operands it depends on; dX and dW are separate instructions (Lancet, section 4).
class GradientContext {
 public:
  virtual ~GradientContext() = default;
  virtual const ir::Instruction& instruction() const = 0;
  virtual const TensorType& type(TensorId id) const = 0;
  // The gradient of result i; invalid where nothing depends on it.
  virtual TensorId result_gradient(int result) const = 0;
  // True where operand i needs a gradient (it is a parameter or depends on one).
  virtual bool needs_gradient(int operand) const = 0;
  // Appends op(operands...) to the backward pass and returns its results; role is dx or dw.
  virtual std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> operands, Attributes attributes,
                                     ir::Role role) = 0;
  // Adds `gradient` to operand i's gradient.
  virtual void add(int operand, TensorId gradient) = 0;
  // For rules that add onto memory: what operand i's gradient is so far (invalid: nothing yet); the rule hands it on as
  // the last operand and calls replace() with the result, which lives in the same memory.
  virtual TensorId accumulator(int operand) = 0;
  virtual void replace(int operand, TensorId gradient) = 0;
};

// Partition axes (Lancet, section 5.2): an axis index; `none`: every part has the whole tensor; `irregular`: every part
// works on the slots that its route owns, in the same full-size memory (the paper's A_irr).
using Axis = std::int8_t;
inline constexpr Axis none = -1;
inline constexpr Axis irregular = -2;
inline constexpr Axis partial = -3;  // of results: the parts' results add up to the whole
// Of results, and of the operands whose memory they live in: each part adds onto what the part before made, the first
// onto what there was before, if anything (weight gradients).
inline constexpr Axis accumulated = -4;

// One way to split an instruction: the axis of each operand and of each result. Operands beyond the list are absent.
struct PartitionRow {
  std::vector<Axis> operands;
  std::vector<Axis> results;
};

struct Work {
  double flops = 0;
  double bytes = 0;  // read and written once each
};

// Result `result` lives in the memory of operand `operand`, where that operand is present.
struct Alias {
  int result;
  int operand;
};

// How a test fills an operand of a sample.
enum class Fill : std::uint8_t {
  normal,    // standard normal
  positive,  // in [0.5, 1.5]
  tokens,    // int32 in [0, attribute of the sample `vocabulary`)
  route,     // a gate's decision on random logits with the sample's `capacity`
  rows,      // the received rows that belong to the sample's route on one rank
  zero,
  load,  // the tokens per expert of the sample's route
};

struct SampleOperand {
  TensorType type;
  Fill fill = Fill::normal;
};

// A case that tests, benchmarks and the device checks share.
struct Sample {
  std::vector<SampleOperand> operands;
  Attributes attributes;
};

// What an op is to passes and reports, which know no op by its name.
enum class Kind : std::uint8_t {
  other,
  product,      // MFU counts its flops
  counts,       // says how many rows the all-to-alls of a layer bring from each rank
  all_to_all,   // moves these rows, there or back
  part_helper,  // cuts what parts need or joins what they made
};

struct OpDef {
  std::string_view name;
  // Fewest and most operands; operands past `required` are optional, in order.
  int required = 0;
  int most = 0;
  // Types of the results, or what does not fit.
  Result<std::vector<TensorType>> (*infer)(const OpInput&) = nullptr;
  // null: no gradient flows through it.
  void (*gradient)(GradientContext&) = nullptr;
  Work (*work)(const OpInput&) = nullptr;
  std::vector<Alias> aliases = {};
  std::vector<int> writes = {};  // operands updated in place
  std::vector<PartitionRow> partition = {};
  std::vector<Sample> samples = {};
  ir::Stream stream = ir::Stream::compute;
  bool in_place = false;  // result i lives in operand i, for every i (ops of any number of operands)
  bool is_loss = false;   // its gradient rule starts the backward pass
  Kind kind = Kind::other;
  // Each part but the first takes the first result of the part before as a last operand: slots and rows count on.
  bool sequential_parts = false;
};

inline constexpr int any_number = 1 << 20;  // `most` of ops of any number of operands

}  // namespace lancet::ops
