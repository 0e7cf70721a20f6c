// The description of an op: one constant OpDef per op, in src/ops/<shelf>/<op>/op.cpp. It says nothing about devices:
// kernels are found by name (kernel.h), so that passes and planner need no device to reason about a program.
//
// A description has up to six parts, in the order of this file: the types of the results (infer), the gradient rule
// (GradientContext), the ways to split the op in parts or shards (PartitionRow), its work, the memory that results
// share with operands (Alias), and test cases (Sample). docs/howto/add-an-op.md says which files an op has.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ops {

using ir::Attributes;
using ir::TensorId;
using ir::TensorType;

// The input of an op's rules: operand types and attributes of one instruction. Shapes and work depend on these alone.
struct OpInput {
  std::span<const TensorType> operands;
  const Attributes& attributes;
};

// The interface through which a gradient rule emits the backward pass of one forward instruction. For each result whose
// gradient exists, a rule sets the gradients of the operands that the result depends on. dX and dW are separate
// instructions (Lancet, section 4).
class GradientContext {
 public:
  virtual ~GradientContext() = default;
  virtual const ir::Instruction& instruction() const = 0;  // the forward instruction
  virtual const TensorType& type(TensorId id) const = 0;
  // The gradient of result i; invalid if the loss does not depend on it.
  virtual TensorId result_gradient(int result) const = 0;
  // True if operand i needs a gradient, because it is a parameter or depends on one.
  virtual bool needs_gradient(int operand) const = 0;
  // Appends op(operands...) to the backward pass and returns its results; role is dx or dw.
  virtual std::vector<TensorId> emit(std::string_view op, std::vector<TensorId> operands, Attributes attributes,
                                     ir::Role role) = 0;
  // Adds `gradient` to operand i's gradient; the context emits the sum if there are several.
  virtual void add(int operand, TensorId gradient) = 0;
  // For weight gradients that are summed in place (a tied weight, several micro batches): returns the accumulator, the
  // sum of operand i's gradients up to here, or an invalid id if there is none. The rule appends it to the operands of
  // its dW op and calls replace() with the result, which is in the accumulator's memory.
  virtual TensorId accumulator(int operand) = 0;
  virtual void replace(int operand, TensorId gradient) = 0;
};

// Partition axis of an operand or a result (Lancet, section 5.2; for shards GShard, section 3.2): the index of the axis
// that is split, counted from the front, or one of the constants below. An instruction is split in time, in parts that
// run one after the other, or in space, in shards that run on different ranks; what is said of parts holds for both.
using Axis = std::int8_t;
inline constexpr Axis last = 64;    // the last axis of a tensor of any rank is split
inline constexpr Axis packed = 65;  // so is each of the blocks side by side that make up the last axis (PartitionRow)
inline constexpr Axis none = -1;    // every part reads the whole operand, or makes the whole result
// Every part works on the slots that its tokens fill, in memory of full size (the paper's A_irr). Of i32, which say
// what slots or rows these are, every part has a tensor of its own.
inline constexpr Axis irregular = -2;
// Of results: the whole is the sum of the parts' results. Of operands, in space only: each shard reads its own summand.
// What is summed may be counts: in a row that splits the slots of experts' buffers (Ragged), each shard has those that
// its own tokens fill.
inline constexpr Axis partial = -3;
// Weight gradients, both the result and the accumulator operand whose memory it shares: each part adds onto the result
// of the part before. The first part adds onto the instruction's own accumulator, if it has one. In space both are
// partial: each shard adds onto its own share.
inline constexpr Axis accumulated = -4;
// Each part's counts what the parts before count, too, so that the last part's result is the whole's. Of operands, in
// time only: a part reads what is counted up to it, or the whole, if that was made at once.
inline constexpr Axis cumulative = -5;
// Operands only: one part reads the operand and all others read zeros in its place, as a bias is added to one part of a
// sum only.
inline constexpr Axis once = -6;

constexpr bool is_split(Axis axis) { return axis >= 0; }
// The index of the axis of a tensor of that rank, for an entry that names one; it may be past the end.
constexpr int index_of(Axis axis, int rank) { return axis == last || axis == packed ? rank - 1 : axis; }

// Whether the parts of a row are parts in time, shards in space or either.
enum class SplitIn : std::uint8_t { time, space, both };

// The width of a block beside others, relative to theirs: a number, or an attribute, which is 1 where there is none.
struct BlockWidth {
  std::int64_t constant = 1;
  std::string_view attribute = {};
  friend bool operator==(const BlockWidth&, const BlockWidth&) = default;
};

// One way to split an instruction in parts: the axis of each operand and of each result, and the attributes that count
// what is split, of which a part has its share. Entries of operands that the instruction does not have are ignored; an
// instruction with more operands than entries is not split by this row. An op without rows is never split.
//
// Example: layer_norm(x [B,S,D], gamma [D], beta [D]) -> y [B,S,D], stats [B,S,2] has a row {{0, none, none}, {0, 0}}:
// part p of n reads [p B/n, (p+1) B/n) of x's axis 0 and all of gamma and beta, and makes that range of y and stats.
// linear(x [...,K], w [N,K], b [N]) -> y [...,N] has a row {{last, 1, once}, {partial}} for its contraction: part p
// multiplies a share of the K columns of x and w, and the first of them adds b.
//
// placed: what a share computes depends on which one it is, as the tokens that a share of an embedding's table holds.
// Such a row splits in space, in equal shares. The attribute axes names the group of ranks that have the shares
// (ir/groups.h), and kernels find their own by KernelArgs::share().
struct PartitionRow {
  std::vector<Axis> operands;
  std::vector<Axis> results;
  SplitIn in = SplitIn::both;
  std::vector<std::string_view> divided = {};
  bool placed = false;
  std::vector<const PartitionRow*> body = {};  // of a repeat: the rows of the instructions of its body
  std::vector<BlockWidth> packed = {};         // the blocks of entries that are `packed`; others have none
  bool in_time() const { return in != SplitIn::space; }
  bool in_space() const { return in != SplitIn::time; }
};

// The work of one instruction, from which times are predicted on declared hardware and MFU is computed.
struct Work {
  double flops = 0;
  double bytes = 0;     // of memory traffic, if each element is read or written once
  double sent = 0;      // bytes to other ranks, of a collective
  double launches = 1;  // kernels of a device that run one after the other, if that is more than the op's size explains
};

// Result `result` is in the memory of operand `operand`, if the instruction has that operand.
struct Alias {
  int result;
  int operand;
};

// The values that tests and benchmarks give to an operand of a sample. `capacity` and `vocabulary` are attributes of
// the sample. expert, slot, weight, rows and load describe one decision about T tokens with K choices each: that of the
// ops top_k and slots on random logits.
enum class Fill : std::uint8_t {
  normal,    // standard normal
  positive,  // uniform in [0.5, 1.5)
  tokens,    // i32, uniform in [0, vocabulary)
  expert,    // i32[T,K]: the experts that each token chose
  skipped,   // the same, but some of the choices after the first are skipped (src/ops/token_slots.h)
  slot,      // i32[T,K]: their slots among each expert's `capacity` slots
  weight,    // f32[T,K]: the scores of its experts
  rows,      // i32[E,2]: the slots of each expert that are filled, on one rank the rows that it received
  zero,      // 0
  load,      // f32[2L,E]: choices per expert, all and kept, of each of L loads
};

struct SampleOperand {
  TensorType type;
  Fill fill = Fill::normal;
};

// One case, which correctness tests, gradient tests, benchmarks and the checks on a GPU share.
//
// Of an op with forms, `extents` may stand for the operands: "b=2 s=4 d=40 gamma=positive", "...=2,4,37 bf16 +b". Words
// are the extents of axes and of attributes, which the sample then has; the type of activations, if not f32; operands
// filled with `positive` or `zero`; and with a + optional operands, and accumulators by the names of their results.
// Other operands are filled by their names: expert, slot, weight, rows, filled and load as Fill says, i32 with tokens.
struct Sample {
  std::vector<SampleOperand> operands;
  Attributes attributes;
  std::string_view extents = {};
};

// What an op takes and makes, and where it may be cut. Axes have names; an axis that several tensors have is the same.
//   "x[b,s,d] gamma:f32[d] beta:f32[d] -> y[b,s,d] stats:f32[b,s,2]"
//   type: f32, bf16 or i32; without one that of the activations, f32 or bf16, the same for all; any: also i32, the same
//     for all; @dtype: what the attribute says
//   extent: a product, outermost factor first, of numbers, axes and @attributes; of these `@group?` is 1 where there is
//     none; the first factor may be a sum of numbers and attributes in parentheses, the widths of blocks side by side;
//     `[...,k]`: any axes before k, the same for all; `[e,*]`: any extent from 2 on, in samples 2
//   operand: `b?` is optional, and so are those after it; `&w` is updated in place
//   result: `dx@dy` is in the memory of dy; `+dw` adds onto an accumulator, if the instruction has accumulators, which
//     follow the operands; `db?bias` exists if the attribute bias is not 0, `db?!bias` if it is
//   `~` marks the axis of the experts' slots (Ragged): x[e,~r,d] is a buffer, rows:i32[e,~*] counts what is filled
//
// cuts: the partition rows, with commas between them: "b, s, n time, v placed wpe=once". A row names the axes that are
// cut together, joined by +; `~`: the experts' slots; a number: an axis of [...]; -: none. Then follow time, space
// (both without a word), or placed; "/tokens", an attribute that is divided; and what names an entry that is not as
// follows. A tensor is split where the axis is the outermost factor of an extent, or the factor after blocks: a number
// n, which is n equal ones, or a sum of widths. An operand without the axis is whole, a result without it is the sum of
// the parts (partial), or accumulated. A cut of slots in time is irregular; in space the counts are partial. Words for
// entries: whole, once, partial, irregular, cumulative.
struct Form {
  std::string_view signature, cuts = {};
};

// The role of an op in a program. Passes and reports branch on it instead of on op names.
enum class Kind : std::uint8_t {
  other,
  product,              // a matrix product: MFU counts its flops
  attention,            // the products of attention: MFU counts their flops
  loss,                 // its gradient rule starts the backward pass
  round,                // its result is the round of the repeat that follows (ir/program.h), its operand the count
  choice,               // chooses each token's experts; by their logits, if operand 0 is f32[B,S,E]
  gate,                 // gives slots to the choices of tokens, operand 0
  counts,               // finds how many rows the all-to-alls of a layer receive from each rank
  all_to_all,           // moves these rows to the experts' ranks, or back
  collective,           // moves or sums shards of a tensor over a group of ranks, on the expert stream
  share,                // what a rank keeps of a tensor that all ranks of a group have; no message is sent
  part_helper,          // splits the operands or joins the results of an instruction that is split in parts
  flat_reduce_scatter,  // sums gradients; its results are this rank's flat shards of the sums (base/flat_shard.h)
  flat_all_gather,      // completes parameters of which each rank has updated its flat shard
  send,                 // a value to a neighbouring pipeline stage
  receive,              // likewise from there
};

// Collectives that permutes of windows can take the place of (schedule/ring_rewrite.cpp): gather brings the shards of a
// dimension to all ranks, scatter gives each rank its shard of a sum.
enum class Ring : std::uint8_t { none, gather, scatter };

// Two ops that one op does at once: `product`, and `reader`, whose operand 0 is the product's result. rows: both work
// on filled rows, their last operand. In the forward pass the fused op has the product's operands and both results; in
// the backward pass it takes the reader's operand 1 as its operand 2 and has the reader's results.
struct Fusion {
  std::string_view product, reader;
  bool rows = false;
};

// The experts' buffers [E,C,...] of an op have slots in dimension 1; of each expert's, tokens fill the range that
// `counts` says. A shard of slots has the slots of the tokens of its ranks, without gaps from 0 on, and changes its
// sharding by the irregular all-to-all, never by one that sends slots without a token (Lancet, section 6).
struct Ragged {
  std::vector<int> operands = {}, results = {};  // the buffers
  int counts = -1;                               // the operand with the counts; -1: the op needs none
  int slots = -1;                                // the operand i32[T,K] with the tokens' slots in them, or -1
  // The result i32[1] with the windows (ops/parts/window) that the slots take, or -1; the result before it is the
  // counts of the first window. In space a shard has the number of its own tokens, and the whole is the largest of
  // them, which comes with the counts: `partial` names it.
  int windows = -1;
};

// How results of an instruction are made a second time with the same bits (passes/passes.h). Its own op on its own
// operands does so; an op that does more than is needed names another one.
struct Again {
  std::string_view op = {};        // with the same attributes; empty: its own, with all operands and results
  std::vector<int> operands = {};  // by operand of that op: of the instruction the operand i, or as -1 - i the result i
  std::vector<int> results = {};   // by result of that op: which of the instruction's results it makes
};

// How an op is split in parts of the positions of one sequence (the cut `positions`), of an op whose results at a
// position depend on other positions, or on which one it is. Others are split as along the batch.
struct PositionParts {
  PartitionRow row = {};  // empty: that of the batch
  bool before = false;    // a part has the attribute `before`: how many positions are before its own
  int up_to = -1;         // of this operand a part also reads, as a further one, all positions up to its own last one
  // Parts add onto one sum, result 1, which only parts have, from the last to the first. Every part but the last gets
  // its own positions of the sum, and those before them, as a further operand.
  bool sums = false;
  int as = -1;  // it is in the parts of the instruction that makes this operand
};

// Attributes that tell the parts of an instruction apart.
inline constexpr std::array<std::string_view, 3> part_attributes{"part", "parts", "before"};
// Attributes that only parts have, and by which their times differ: the columns of a tile (OpDef::column_tiles), and of
// an all-to-all the other ranks that it reaches, whether they are all on this rank's host, and 1 if some of its rows
// stay on this rank.
inline constexpr std::array<std::string_view, 4> tile_attributes{"columns", "peers", "near", "own"};

struct OpDef {
  std::string_view name;
  // An op whose tensors have fixed axes is described by a form for each number of operands that differs in them. The
  // catalogue then gives it required, most, infer, aliases, ragged, and its rows and writes before those that follow.
  std::vector<Form> forms = {};
  // What the forms do not say: an error, "expected ...", or another type of a result.
  Status (*check)(const OpInput&, std::vector<TensorType>& results) = nullptr;
  // Least and greatest number of operands. Operands from `required` on are optional, and present in order.
  int required = 0, most = required;
  // The types of the results; an error, "expected ...", if the operands or attributes do not fit.
  std::function<Result<std::vector<TensorType>>(const OpInput&)> infer = nullptr;
  void (*gradient)(GradientContext&) = nullptr;  // null: no gradient flows through the op
  Work (*work)(const OpInput&) = nullptr;        // null: no flops, and the bytes of all operands and results
  std::vector<Alias> aliases = {};
  std::vector<int> writes = {};  // operands that are updated in place
  // Operands that are weights: weight decay applies to a parameter there. Biases and layer norms are none.
  std::vector<int> weights = {};
  // Operands that balance the load of the experts. No loss has a gradient of a parameter there: the gradient rule
  // counts choices in its place. These counts are summed over the ranks exactly, stay out of the gradients' norm, and
  // balance_bias makes the update.
  std::vector<int> counted = {};
  std::vector<PartitionRow> partition = {};
  std::optional<PositionParts> positions = {};
  std::vector<Sample> samples = {};
  ir::Stream stream = ir::Stream::compute;
  // Result 0 can be made in tiles of its last axis, each a dense tensor: with the attribute `columns`, an instruction
  // makes the columns [part * columns, (part + 1) * columns) alone. Operands are whole; of weights it reads what it
  // needs in their place. Tiles have the bits of the whole, where products sum in the same order.
  bool column_tiles = false;
  bool in_place = false;   // result i is in the memory of operand i, for every i (ops of any number of operands)
  bool is_router = false;  // makes the scores by which a gate chooses experts
  Kind kind = Kind::other;
  bool to_experts = false;  // an all-to-all to the experts' ranks; the others go back
  Ring ring = Ring::none;
  std::optional<Fusion> fuses = {};
  // None: the results are made once and kept. So it is for gates and random choices, whose decisions are made once a
  // step, and for communication.
  std::optional<Again> again = {};
  std::optional<Ragged> ragged = {};  // applies to instructions that have the operand `counts`
  // If a result's index: parts run one after the other, because each continues the count of the part before. Every
  // part but the first gets this result of the part before as an additional last operand. A gate thus gives out slots,
  // and all_to_all_counts begins its rows, where the part before ended.
  std::optional<std::size_t> continued = {};
};

inline constexpr int any_number = 1 << 20;  // `most` of ops of any number of operands

}  // namespace lancet::ops
