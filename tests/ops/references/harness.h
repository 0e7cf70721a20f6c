// Runs the ops of the catalogue on their samples: fills the operands, runs kernels on memory with guard bytes, and
// compares with the references in double.
#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lancet/ops/catalogue.h"
#include "lancet/ops/kernel.h"
#include "ops/references/reference_ops.h"

namespace lancet::test {

// A tensor with guard bytes at both ends, 64-byte aligned. Fresh memory is 0xff: NaN in both float types, -1 in
// integers.
class GuardedTensor {
 public:
  explicit GuardedTensor(ir::TensorType type);
  // Scratch: `size` bytes between guards.
  explicit GuardedTensor(std::size_t size);

  const ir::TensorType& type() const { return type_; }
  const Shape& shape() const { return type_.shape; }
  std::byte* data() { return blocks_[1].bytes; }
  const std::byte* data() const { return blocks_[1].bytes; }
  std::size_t size() const { return size_; }
  bool intact() const;  // no write outside of the tensor
  bool same_bytes(const GuardedTensor& other) const;
  // With the guards; the tensor starts at byte 64.
  std::span<std::byte> with_guards() { return std::as_writable_bytes(std::span(blocks_)); }
  ops::TensorView view() { return {data(), type_}; }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(data());
  }

 private:
  struct alignas(64) Block {
    std::byte bytes[64];
  };
  ir::TensorType type_;
  std::size_t size_;
  std::vector<Block> blocks_;
};

DoubleTensor to_double(const GuardedTensor& tensor);
GuardedTensor from_double(const DoubleTensor& tensor);  // f32, bf16 and i32

// The rows [begin, end) of an axis, and tensors put together along it.
GuardedTensor slice(const GuardedTensor& tensor, int axis, std::int64_t begin, std::int64_t end);
GuardedTensor join(const std::vector<GuardedTensor>& parts, int axis);

// Copies the rows that `part` has written (those that are not entirely fresh memory) to `whole`. Returns how many of
// them had been written before.
int merge(const GuardedTensor& part, GuardedTensor& whole);

// The outcome of an op: its operands afterwards and its results (copies, if they share an operand's memory).
struct Outcome {
  std::vector<GuardedTensor> operands, results;
  std::vector<std::string> faults;  // writes outside of the op's results
};

// Moves the tensors of a call to other memory, such as a device's.
class Elsewhere {
 public:
  virtual ~Elsewhere() = default;
  // The tensor in that memory, between its guards.
  virtual std::byte* take(GuardedTensor& tensor) = 0;
  // Waits for the call, and copies all tensors back.
  virtual Status bring_back() = 0;
};

// The kernel to run, and its memory.
struct Bound {
  ops::Kernel (*bind)(const ops::KernelArgs&);
  std::size_t (*workspace)(const ops::KernelArgs&);
  int threads = 1;
  comm::Group group = {};
  backend::Device* device = nullptr;
  backend::Stream* stream = nullptr;
  Elsewhere* memory = nullptr;
  std::set<std::string>* remarks = nullptr;
};
Outcome run(const ops::OpDef& op, std::vector<GuardedTensor> operands, const ir::Attributes& attributes,
            const Bound& kernel);
// Binds and runs the CPU kernel of `op` once. The types must fit; a kernel must exist.
Outcome run(const ops::OpDef& op, std::vector<GuardedTensor> operands, const ir::Attributes& attributes,
            int threads = 1, comm::Communicator* comm = nullptr);
// The expected operands and results, by the reference on the same operands.
ReferenceCall run_reference(const ops::OpDef& op, const std::vector<GuardedTensor>& operands,
                            const ir::Attributes& attributes);
ReferenceCall run_reference(const ops::OpDef& op, std::vector<DoubleTensor> operands, const ir::Attributes& attributes,
                            const ops::Share& share = {});

// The samples of the catalogue, and larger ones: many tokens per thread, more than one block of a product in each
// direction.
std::vector<ops::Sample> samples_of(const ops::OpDef& op);

// The operand whose memory holds result `result`, or -1.
int storage_operand(const ops::OpDef& op, int result, int operands);

// Compares `got` with the reference: each element within the rounding of its type and of sums of `length` terms (see
// ReferenceCall::terms); integers exactly. Where the reference is NaN, the bytes must equal
// those of `before`. Returns the first fault. largest: raised to the largest error of an element over its tolerance,
// infinity for a wrong integer or a NaN; null: not wanted. roundings: to bf16, one after the other.
std::optional<std::string> compare(const GuardedTensor& got, const DoubleTensor& reference, const GuardedTensor& before,
                                   double length, const std::vector<double>& terms = {}, double* largest = nullptr,
                                   int roundings = 1);

// Compares an outcome with the reference on the same operands; one line per fault, and per result or operand that
// compare() refuses. largest, roundings: as in compare(), over all of these.
std::vector<std::string> faults_of(const ops::OpDef& op, const Outcome& outcome,
                                   const std::vector<GuardedTensor>& operands, const ReferenceCall& expected,
                                   double* largest = nullptr, int roundings = 1);

// The results of a choice of experts (src/ops/moe/top_k/op.cpp) and of a gate (src/ops/moe/slots/op.cpp).
struct Decision {
  GuardedTensor expert, weight, scores, slot, counts, filled, load;
  Decision(const std::vector<GuardedTensor>& choice, const std::vector<GuardedTensor>& gate);
  // The operand of a sample that is one of these.
  const GuardedTensor& of(ops::Fill fill) const;
};

using Runner = std::function<Outcome(const ops::OpDef&, std::vector<GuardedTensor>, const ir::Attributes&)>;
// What top_k and a gate decide about logits f32[B,S,E], of which a token chooses `choices` experts; where experts
// choose, every_expert and slots_by_weight. attributes: of the gate, without the experts. before: the counts of the
// part before, or null. runner: what runs the two ops; null: the CPU's kernels.
Decision decide(const GuardedTensor& logits, std::int64_t choices, std::string_view gate, ir::Attributes attributes,
                const GuardedTensor* before = nullptr, const Runner& runner = nullptr);

// The routing that a sample's operands share: random logits, uneven so that an expert overflows if capacity is scarce.
// A token has as many choices as the operand with the experts says, else one.
class SampleRoute {
 public:
  SampleRoute(const ops::Sample& sample, std::uint64_t seed);
  bool exists() const { return tokens_ > 0; }
  std::int64_t tokens() const { return tokens_; }
  std::int64_t experts() const { return experts_; }
  std::int64_t groups() const { return groups_; }
  std::int64_t slots() const { return groups_ * capacity_; }
  // What a gate decides on tokens [begin, end), after the part whose decision is `before` (null: the first).
  Decision part(std::int64_t begin, std::int64_t end, const Decision* before) const;
  Decision whole() const { return part(0, tokens_, nullptr); }
  // What rank `place` of `shards` decides on its share of the groups.
  Decision shard(std::int64_t place, std::int64_t shards) const;

 private:
  Decision decide(std::int64_t begin, std::int64_t end, const Decision* before, std::int64_t groups) const;

  std::int64_t tokens_ = 0, choices_ = 1, experts_ = 0, capacity_ = 0, groups_ = 1, load_groups_ = 1;
  std::vector<float> logits_;
};

// The operands of a sample. Slots or rows without a token are NaN: nothing may read them.
std::vector<GuardedTensor> make_operands(const ops::Sample& sample, const SampleRoute& route, std::uint64_t seed);

// Standard normal numbers in f32 or bf16.
void fill_normal(GuardedTensor& tensor, std::uint64_t seed, std::uint64_t stream);

// True if the parts of a row have slots of their own, which their tokens fill from 0 on.
bool splits_slots(const ops::PartitionRow& row, const ops::OpDef& op);

}  // namespace lancet::test
