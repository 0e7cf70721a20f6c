// The Program: one rank's training step as a list of instructions over named tensors.
//
// Text form (below), one statement per line:
//     program gpt2-moe {ranks=2}
//     parameter @wte.weight : bf16[8192,256]
//     parameter @h.0.moe.experts.c_fc.weight : bf16[2{expert},1024,256]      two of the experts, others on other ranks
//     state @wte.weight.m : f32[524288] shard{expert}             the elements that this rank owns (base/flat_shard.h)
//     %7 : bf16[8,128,256], %8 : f32[1024,2] = layer_norm(%6, @g, @b) {eps=1e-05}  # compute forward h.1.ln_2
//     %9 : bf16[1024,8192] in %8 = cross_entropy(%8, @targets)  # compute forward lm_head     overwrites %8's memory
//     adamw(&@wte.weight, &@wte.weight.m, %12)  # compute update wte.weight                   & is updated in place
//     output loss = %10
// The one control flow: an instruction whose body runs again and again (runtime/repeat.cpp). Before that, in the
// Programs that passes work on, the instructions of the body are ordinary ones with the number of their repeat:
//     %14 : i32[1], %15 : i32[2048], %16 : f32[8,256] in %10 = repeat(%9, %10)  # expert forward h.0.moe.rounds
//     body %17 : f32[8,256] in %15 + 0 = gelu(%8)  # compute forward h.0.moe
//     body %16 = add_to(%10, %17)  # compute forward h.0.moe
//     %17 : f32[8,256] = gelu(%8)  # compute forward h.0.moe repeated 1
// Parts of one tensor (Lancet, section 5; `#` and what follows is left out):
//     view %20 : bf16[8,128,256]                         memory that is filled part by part
//     %21 : bf16[4,128,256] in %20 + 0 = gelu(%18)       at byte 0 of %20
//     view %22 : bf16[4,128,256] in %7 + 262144          a part of a tensor that was made whole
//     %23 : bf16[4,640,256] in %19 part 0 of 2 = dispatch(%18, %17)     the slots that part 0 of 2 owns
// The extents of a rank's tensors are those of its shards. The logical Program has no ranks: there tensors of any kind
// may say how they are spread over a mesh (ir/sharding.h), and extents are those of the whole:
//     parameter @w : bf16[3072{tensor},768]
//     %25 : f32[3072{tensor},768] partial{data,expert} = linear_dw(%24, @x)
//     %26 : f32[768] whole = gelu(@b)                                   a copy on each rank, which nothing may split
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "lancet/base/dtype.h"
#include "lancet/base/result.h"
#include "lancet/base/shape.h"
#include "lancet/ir/sharding.h"

namespace lancet::ir {

// Typed indices, so that an index into one table cannot be used for another.
template <class Tag>
struct Id {
  std::int32_t value = -1;
  bool valid() const { return value >= 0; }
  std::size_t index() const { return static_cast<std::size_t>(value); }
  friend auto operator<=>(Id, Id) = default;
};
using TensorId = Id<struct TensorTag>;
using InstructionId = Id<struct InstructionTag>;
inline InstructionId id_of(std::size_t instruction) { return {static_cast<std::int32_t>(instruction)}; }

struct TensorType {
  DType dtype = DType::f32;
  Shape shape;
  friend bool operator==(const TensorType&, const TensorType&) = default;
};
std::int64_t bytes(const TensorType& type);
std::string to_string(const TensorType& type);  // "bf16[8,256]"

// input: filled by the trainer before each step. parameter: a trained tensor. state: kept from step to step
// (optimizer moments, master weights, sums of micro batches). value: made by an instruction in this step. view: memory
// that its readers see in other pieces than its makers: a slice of a tensor that is made whole, or a whole whose slices
// are made one by one.
enum class TensorKind : std::uint8_t { value, input, parameter, state, view };

// The purpose of a state: the last word of its name, "m" in @wte.weight.m. other: a name that ends in no such word.
enum class StateKind : std::uint8_t {
  other,
  first_moment,
  second_moment,
  master,
  gradient_sum,
  load_sum,
  keys,
  values
};
std::string state_name(std::string_view owner, StateKind kind);
// True for what an optimizer keeps of each parameter.
constexpr bool is_moment(StateKind kind) { return kind == StateKind::first_moment || kind == StateKind::second_moment; }
// True for what adds up over the micro batches of a step, and is zero between steps.
constexpr bool is_sum(StateKind kind) { return kind == StateKind::gradient_sum || kind == StateKind::load_sum; }

inline constexpr int max_parts = 64;

// The part of another tensor's memory that a tensor occupies: the bytes from `offset` on, or, if parts is not 0, the
// slots of the experts that part `part` fills. Those need not be contiguous; slots of different parts never overlap.
struct Slice {
  std::int64_t offset = 0;
  std::int32_t part = 0, parts = 0;
  friend bool operator==(const Slice&, const Slice&) = default;
};

struct Tensor {
  TensorType type;
  TensorKind kind = TensorKind::value;
  std::string name;                 // of inputs, parameters and state; printed @name
  int number = -1;                  // of values and views; printed %number
  TensorId storage{};               // the tensor in whose memory this one is stored, if any ("in" in the text)
  std::optional<Slice> slice = {};  // of that memory; without it the tensor overwrites it from the first byte on
  StateKind state = StateKind::other;
  // In the logical Program: how the tensor is spread; none: nothing is said. In a rank's: of a parameter or state, the
  // split of which `type` is a shard, none if all hold the same; of an output's value, only what it is partial over.
  std::optional<ir::Sharding> sharding = {};
  // States: the axes of the group among whose ranks the elements of the parameter that the name says, or of their shard
  // of it, are divided (base/flat_shard.h); the state has this rank's flat shard. Empty: no flat shard.
  ir::Axes flat_shard = {};
};

using AttributeValue = std::variant<std::int64_t, double, std::string>;

// A short list of name=value pairs. It keeps their order, so a printed text parses back to the same list. Copies share
// the list until one of them changes, since passes copy many instructions.
class Attributes {
 public:
  using Items = std::vector<std::pair<std::string, AttributeValue>>;
  Attributes() = default;
  Attributes(std::initializer_list<Items::value_type> items) : items_(std::make_shared<Items>(items)) {}
  void set(std::string_view name, AttributeValue value);
  bool has(std::string_view name) const { return find(name) != nullptr; }
  // The getters throw InternalError if the value has another type, or if the name is missing and no default is given.
  std::int64_t integer(std::string_view name) const;
  std::int64_t integer(std::string_view name, std::int64_t missing) const {
    return has(name) ? integer(name) : missing;
  }
  double real(std::string_view name) const;
  double real(std::string_view name, double missing) const { return has(name) ? real(name) : missing; }
  const std::string& text(std::string_view name) const;
  // The blocks of a dimension: an integer, or the text of unlike ones. A list has no entry for a single block.
  Blocks blocks(std::string_view name) const;
  void set_blocks(std::string_view name, const Blocks& blocks);
  const Items& items() const;
  friend bool operator==(const Attributes& a, const Attributes& b) { return a.items() == b.items(); }

 private:
  const AttributeValue* find(std::string_view name) const;
  std::shared_ptr<Items> items_;  // null: none
};

// A queue that runs in order. compute: everything local. expert: all-to-all, change of sharding. reduce: all-reduce.
// The others are between neighbouring pipeline stages, one a direction and side, so that none waits for another one:
// send_next meets the receive_previous of the stage after it, send_previous the receive_next of the stage before it.
enum class Stream : std::uint8_t { compute, expert, reduce, send_next, receive_previous, send_previous, receive_next };
inline constexpr int stream_count = 7;
constexpr bool between_stages(Stream stream) { return stream >= Stream::send_next; }
// The number of streams, the first ones, that plans of this number of pipeline stages use.
constexpr int streams_with(std::int64_t stages) { return stages > 1 ? stream_count : int(Stream::send_next); }
// The purpose of an instruction. dx, dw: gradients with respect to activations and to weights (Lancet, section 4).
// recompute: makes a value of the forward pass a second time, for the backward pass (passes/passes.h).
enum class Role : std::uint8_t { forward, dx, dw, sync, update, recompute };
std::string_view name(Stream stream);
std::string_view name(Role role);
std::string_view name(TensorKind kind);
std::optional<Stream> parse_stream(std::string_view text);
std::optional<Role> parse_role(std::string_view text);
std::optional<TensorKind> parse_tensor_kind(std::string_view text);

struct Instruction {
  std::string op;
  std::vector<TensorId> operands;
  std::vector<TensorId> results;
  std::vector<TensorId> writes;  // operands that it updates in place
  Attributes attributes;
  Stream stream = Stream::compute;
  Role role = Role::forward;
  std::string label;                   // its module of the model: "h.1.attn.c_attn"
  std::int32_t repeated = 0;           // 0, or the number of the repeat in whose body it will be; then it has a label
  std::vector<Instruction> body = {};  // of a repeat: what it runs, in order
  std::int32_t micro_batch = 0;        // of the step (micro_batches.h); 0 also in what closes it, -1: the step before
  bool writes_operand(TensorId id) const;
};

// A range of bytes in the memory of `root`. For the slots of a part, begin and end are those of the tensor with all
// slots.
struct Region {
  TensorId root;
  std::int64_t begin = 0, end = 0;  // bytes
  std::int32_t part = 0, parts = 0;
  friend bool operator==(const Region&, const Region&) = default;
};
bool overlap(const Region& a, const Region& b);
bool contains(const Region& outer, const Region& inner);

// The meaning of an output: the first word of its name, "aux" in aux.h.0. gradient ("grad"): of the parameter that the
// rest names. aux, load, z_loss, bias, rounds: of the MoE layer that the rest names. norm ("grad_norm"): of all
// gradients. logits: every rank chooses tokens by them. other: a name that begins with no such word.
enum class OutputKind : std::uint8_t { other, loss, aux, load, gradient, z_loss, bias, rounds, norm, logits };
std::string output_name(OutputKind kind, std::string_view subject);
// True if each rank makes its share, and the value is the sum over the ranks.
constexpr bool is_share(OutputKind kind) {
  return kind == OutputKind::loss || kind == OutputKind::aux || kind == OutputKind::load || kind == OutputKind::z_loss;
}

struct Output {
  std::string name;
  TensorId tensor;
  OutputKind kind = OutputKind::other;
  TensorId parameter = {};       // of a gradient
  std::int32_t micro_batch = 0;  // that it is of; 0 also for outputs of the whole step
};

struct Program {
  std::string name;
  Attributes attributes;
  std::vector<Tensor> tensors;
  std::vector<Instruction> instructions;
  std::vector<Output> outputs;

  Program without_instructions() const;  // a copy of all else, for a pass that makes the instructions again

  const Tensor& operator[](TensorId id) const { return tensors[id.index()]; }
  Tensor& operator[](TensorId id) { return tensors[id.index()]; }
  const TensorType& type(TensorId id) const { return tensors[id.index()].type; }

  TensorId add_value(TensorType type, TensorId storage = {}, std::optional<Slice> slice = {});
  TensorId add_view(TensorType type, TensorId storage = {}, std::optional<Slice> slice = {});
  TensorId add_named(TensorKind kind, std::string name, TensorType type, std::optional<ir::Sharding> sharding = {});
  TensorId add_state(StateKind kind, std::string_view owner, TensorType type,
                     std::optional<ir::Sharding> sharding = {}) {
    return add_named(TensorKind::state, state_name(owner, kind), std::move(type), std::move(sharding));
  }
  void add_output(std::string name, TensorId tensor);  // of a gradient: its parameter is there already
  TensorId find(std::string_view name) const;          // invalid if no tensor has the name
  TensorId output(std::string_view name) const;        // likewise
  // The tensor whose memory this one uses: the end of the chain of `storage`.
  TensorId root(TensorId id) const;
  Region region(TensorId id) const;
  std::string display(TensorId id) const;  // "%7" or "@wte.weight"; "%?" for an invalid id

 private:
  friend class ProgramParser;
  int next_number_ = 0;
  std::map<std::string, TensorId, std::less<>> names_;
};

// The only control flow of a Plan: an instruction with a body, which it runs several times.
//
//     repeat(count i32[1], what the body reads...) -> round i32[1], scratch i32[n], what the body updates...
//
// It sets `round` to 1 and runs the body, and so on up to count - 1: what stands outside of the body was round 0. So it
// runs nothing where count is 1, and what it updates then keeps its value: every result but the first two is in the
// memory of an operand, and the body works on it in place. All other tensors of the body are slices of `scratch`, and
// exist while it runs. The host reads the count when the instruction starts; it is the same on all ranks that the
// collectives of the body go over.
//
// The body runs in order on the instruction's stream. To all that looks at streams, memory or collectives of ranks, a
// repeat is one instruction with operands and results as any other.
inline constexpr std::size_t repeat_count = 0;                      // operand
inline constexpr std::size_t repeat_round = 0, repeat_scratch = 1;  // results

inline bool is_repeat(const Instruction& instruction) { return !instruction.body.empty(); }

// Makes these the body of a repeat that has its count and its round: completes its operands and results by what they
// read and update outside, and puts what they make in memory of its own in a new scratch. Throws InternalError if the
// body is not closed.
void set_body(Program& program, Instruction& repeat, std::vector<Instruction> body);

// The program with each body in place of its repeat, as instructions like any other, which make values of their own. It
// runs each body once, for the round that the input `round` names.
Program inline_bodies(const Program& program);
inline constexpr std::string_view round_input = "round";

// Success if the instruction has no body, or one that is closed: it reads operands of the repeat, the round and what it
// has made itself and not overwritten; it makes slices of the scratch, and the repeat's other results, each of them, in
// the memory of its operands; no instruction in it has a body. The error says which instruction of the body is wrong.
Status verify_body(const Program& program, const Instruction& instruction);

// Calls f(instruction, stream) for each instruction that has a kernel, with the stream that it runs on: the body of a
// repeat in its place. f returns a Status; the first error ends the loop.
template <class F>
Status for_each_kernel(const Program& program, F f) {
  for (const Instruction& instruction : program.instructions) {
    if (!is_repeat(instruction)) LANCET_TRY(f(instruction, instruction.stream));
    for (const Instruction& part : instruction.body) LANCET_TRY(f(part, instruction.stream));
  }
  return {};
}

// Programs as text: parse(print(p)) is p, and print(parse(t)) is t, except that print() omits views that nothing names.
std::string print(const Program& program);
std::string print(const Program& program, const Instruction& instruction);  // one line, without the newline
std::string print(const Tensor& named);  // the line that declares an input, parameter or state, without the newline
// Errors (exit code 2) name the line and what was expected there.
Result<Program> parse(std::string_view text);

// Checks that a Program is structurally sound, independent of its ops: every value is made once and before its use, a
// tensor fits into the tensor in whose memory it is stored, a value whose memory was overwritten is not read again,
// shardings fit the shapes, outputs exist, and what the step before has left may run beside this one (dependencies.h).
// verify() of ops/catalogue.h checks types.

// Errors (ExitCode::internal) name the tensor and the instruction.
Status verify(const Program& program);

}  // namespace lancet::ir
