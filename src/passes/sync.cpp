// Copies the program and inserts all-reduces. Gradients of parameters that all ranks share fill a bucket in the order
// in which they are made; a full bucket is closed by an all-reduce right after the instruction that completes it, so
// the all-reduce can run beside the rest of the backward pass. At the end one more all-reduce sums the loss, aux and
// load outputs, except those that an all-reduce of the forward pass has summed. The outputs become the all-reduces'
// results.
#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

using ir::TensorId;

class Sync {
 public:
  Sync(const ir::Program& program, std::int64_t bucket_bytes, bool gradients) : source_(program) {
    std::int64_t total = 0;
    result_ = program;
    result_.instructions.clear();
    for (std::size_t i = 0; gradients && i < program.outputs.size(); ++i) {
      const ir::Output& output = program.outputs[i];
      if (output.kind != ir::OutputKind::gradient || program[output.parameter].local) continue;
      gradients_[output.tensor.value] = i;
      total += ir::bytes(program.type(output.tensor));
    }
    // A model smaller than a bucket would send everything at the end, hidden by nothing. It gets about eight buckets,
    // if they are large enough that bandwidth, not latency, decides their time.
    bucket_bytes_ = std::min(bucket_bytes, std::max(total / 8, std::int64_t{256} << 10));
  }

  ir::Program run() {
    for (const ir::Instruction& instruction : source_.instructions) {
      result_.instructions.push_back(instruction);
      for (TensorId id : instruction.results) {
        if (instruction.stream == ir::Stream::reduce) reduced_.push_back(id);
        if (const auto it = gradients_.find(id.value); it != gradients_.end()) add_to_bucket(it->second);
      }
    }
    close_bucket();
    reduce_shares();
    return std::move(result_);
  }

 private:
  void add_to_bucket(std::size_t output) {
    bucket_.push_back(output);
    filled_ += ir::bytes(result_.type(result_.outputs[output].tensor));
    if (filled_ >= bucket_bytes_) close_bucket();
  }

  void close_bucket() {
    reduce(bucket_, fmt::format("bucket.{}", buckets_++));
    bucket_.clear();
    filled_ = 0;
  }

  void reduce_shares() {
    std::vector<std::size_t> shares;
    for (std::size_t i = 0; i < result_.outputs.size(); ++i)
      if (ir::is_share(result_.outputs[i].kind) &&
          std::find(reduced_.begin(), reduced_.end(), result_.outputs[i].tensor) == reduced_.end())
        shares.push_back(i);
    reduce(shares, "metrics");
  }

  // One all-reduce of these outputs; they become its results.
  void reduce(const std::vector<std::size_t>& outputs, std::string label) {
    if (outputs.empty()) return;
    std::vector<TensorId> operands;
    for (std::size_t i : outputs) operands.push_back(result_.outputs[i].tensor);
    const auto results = ops::append(result_, "all_reduce", operands, {}, ir::Role::sync, std::move(label));
    for (std::size_t i = 0; i < outputs.size(); ++i) result_.outputs[outputs[i]].tensor = results[i];
  }

  const ir::Program& source_;
  std::int64_t bucket_bytes_ = 0;
  ir::Program result_;
  std::unordered_map<std::int32_t, std::size_t> gradients_;  // tensor -> output; looked up only, never walked
  std::vector<TensorId> reduced_;
  std::vector<std::size_t> bucket_;  // outputs
  std::int64_t filled_ = 0;
  int buckets_ = 0;
};

}  // namespace

ir::Program sync(const ir::Program& program, int ranks, std::int64_t bucket_bytes, bool gradients) {
  if (ranks == 1) return program;
  return Sync(program, bucket_bytes, gradients).run();
}

}  // namespace lancet::passes
