// Copies the program and inserts all-reduces. A gradient is summed over the axes that it is partial over: those along
// which ranks hold the same parameter and other tokens. The gradients of a group fill a bucket in the order in
// which they are made; a full bucket is closed by an all-reduce, or with ZeRO-1 by a reduce-scatter, right after
// the instruction that completes it, so that it can run beside the rest of the backward pass. At the end one more
// all-reduce of each group sums the loss, aux and load outputs. Counts of choices that stand in the place of gradients
// (ops::OpDef::counted) must be exact and whole: one all-reduce in f32 of each group sums them. The outputs become the
// results.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>

#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

using ir::Axes;
using ir::TensorId;

class Sync {
 public:
  Sync(const ir::Program& program, const ir::Mesh& mesh, std::int64_t bucket_bytes, bool gradients,
       const GradientSums& sums)
      : source_(program), mesh_(mesh), sums_(sums), counted_(ops::find_counted(program)), with_gradients_(gradients) {
    result_ = program.without_instructions();
    std::map<Axes, std::int64_t> total;
    for (std::size_t i = 0; gradients && i < program.outputs.size(); ++i) {
      const ir::Output& output = program.outputs[i];
      if (output.kind != ir::OutputKind::gradient || is_count(output)) continue;
      const Axes group = partial_axes(output);
      if (group.empty()) continue;
      gradients_[output.tensor.value] = {i, group};
      total[group] += ir::bytes(program.type(output.tensor));
    }
    // A model smaller than a bucket would send everything at the end, hidden by nothing. It gets about eight buckets,
    // if they are large enough that bandwidth, not latency, decides their time.
    for (const auto& [group, bytes] : total)
      buckets_[group].bytes = std::min(bucket_bytes, std::max(bytes / 8, std::int64_t{256} << 10));
  }

  ir::Program run() {
    for (const ir::Instruction& instruction : source_.instructions) {
      result_.instructions.push_back(instruction);
      for (TensorId id : instruction.results) {
        if (const auto it = gradients_.find(id.value); it != gradients_.end()) add_to_bucket(it->second);
      }
    }
    for (auto& [group, bucket] : buckets_) close(group, bucket);
    if (with_gradients_) reduce_all("counts", [&](const ir::Output& output) { return is_count(output); });
    reduce_all("metrics", [](const ir::Output& output) { return ir::is_share(output.kind); });
    return std::move(result_);
  }

 private:
  struct Gradient {
    std::size_t output = 0;
    Axes group;
  };
  struct Bucket {
    std::int64_t bytes = 0, filled = 0;
    std::vector<std::size_t> outputs;
  };

  Axes partial_axes(const ir::Output& output) const {
    const auto& sharding = source_[output.tensor].sharding;
    return sharding ? sharding->partial : Axes{};
  }

  // True for counts of choices in the place of a gradient.
  bool is_count(const ir::Output& output) const {
    return output.kind == ir::OutputKind::gradient && counted_[output.parameter.index()];
  }

  void add_to_bucket(const Gradient& gradient) {
    Bucket& bucket = buckets_.at(gradient.group);
    bucket.outputs.push_back(gradient.output);
    bucket.filled += ir::bytes(result_.type(result_.outputs[gradient.output].tensor));
    if (bucket.filled >= bucket.bytes) close(gradient.group, bucket);
  }

  void close(Axes group, Bucket& bucket) {
    if (bucket.outputs.empty()) return;
    reduce(bucket.outputs, group, fmt::format("bucket.{}", closed_++), sums_);
    bucket.outputs.clear();
    bucket.filled = 0;
  }

  // One all-reduce of each group of the outputs for which `is_one` is true.
  template <class Predicate>
  void reduce_all(const char* label, const Predicate& is_one) {
    std::map<Axes, std::vector<std::size_t>> groups;
    for (std::size_t i = 0; i < source_.outputs.size(); ++i)
      if (const Axes group = partial_axes(source_.outputs[i]); is_one(source_.outputs[i]) && !group.empty())
        groups[group].push_back(i);
    for (const auto& [group, outputs] : groups) reduce(outputs, group, label, {});
  }

  // One all-reduce, or reduce-scatter, of these outputs; they become its results.
  void reduce(const std::vector<std::size_t>& outputs, Axes group, std::string label, const GradientSums& sums) {
    std::vector<TensorId> operands;
    for (std::size_t i : outputs) operands.push_back(result_.outputs[i].tensor);
    ops::Attributes attributes;
    ir::set_group(attributes, mesh_, group);
    const bool rounded = sums.message != DType::f32;
    if (sums.shards || rounded) attributes.set("shards", std::int64_t(mesh_.size(group)));
    if (rounded) attributes.set("message", std::string(name(sums.message)));
    const auto results = ops::append(result_, sums.shards ? "reduce_scatter_flat" : "all_reduce", operands,
                                     std::move(attributes), ir::Role::sync, std::move(label));
    for (std::size_t i = 0; i < outputs.size(); ++i) result_.outputs[outputs[i]].tensor = results[i];
  }

  const ir::Program& source_;
  const ir::Mesh mesh_;
  const GradientSums sums_;
  const std::vector<bool> counted_;  // by tensor
  const bool with_gradients_;
  ir::Program result_;
  std::unordered_map<std::int32_t, Gradient> gradients_;  // by tensor; looked up only, never walked
  std::map<Axes, Bucket> buckets_;                        // by group
  int closed_ = 0;
};

}  // namespace

ir::Program sync(const ir::Program& program, const ir::Mesh& mesh, std::int64_t bucket_bytes, bool gradients,
                 const GradientSums& sums) {
  return Sync(program, mesh, bucket_bytes, gradients, sums).run();
}

}  // namespace lancet::passes
