// sync copies the program and inserts all-reduces. A gradient is summed over the axes that it is partial over: those
// along which ranks hold the same parameter and other tokens. The gradients of a group fill a bucket in the order in
// which they are made; a full bucket is closed by an all-reduce, or with ZeRO-1 by a reduce-scatter, right after
// the instruction that completes it, so that it can run beside the rest of the backward pass. At the end one more
// all-reduce of each group sums the loss, aux and load outputs. Counts of choices that stand in the place of gradients
// (ops::OpDef::counted) must be exact and whole: one all-reduce in f32 of each group sums them. The outputs become the
// results.
//
// optimize appends one update instruction per parameter that has a grad.* output, in the order in which the gradients
// are made, so that an update can run as soon as its gradient is ready. With clipping or a guard the global norm comes
// first and every update reads its factor; else the norm comes last, for the metrics alone. The squares of a gradient
// are summed over the axes among whose ranks its elements are divided: those that split the parameter and, with ZeRO-1,
// those of its flat shards. Ranks along the other axes have the same sums, to the bit, and none counts twice. Where
// choices are counted in the place of a gradient (ops::OpDef::counted), the counts are not part of the norm, and the
// update is one of its own, without states.
//
// With ZeRO-1 a parameter whose shard a rank has updated waits in a bucket, of its group of ranks and its type; a full
// bucket is closed by an all-gather.
#include <fmt/format.h>
#include <algorithm>
#include <functional>
#include <map>
#include <ranges>
#include <unordered_map>
#include <utility>

#include "lancet/base/random.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {

namespace {

using ir::Axes;
using ir::Role;
using ir::TensorId;
using ir::TensorKind;

// The bytes of a bucket. A model smaller than a bucket would send everything at the end, hidden by nothing. It gets
// about eight buckets, if they are large enough that bandwidth, not latency, decides their time.
std::int64_t bucket_size(std::int64_t most, std::int64_t all) {
  return std::min(most, std::max(all / 8, std::int64_t{256} << 10));
}

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
    for (const auto& [group, bytes] : total) buckets_[group].bytes = bucket_size(bucket_bytes, bytes);
  }

  ir::Program run() {
    for (const ir::Instruction& instruction : source_.instructions) {
      result_.instructions.push_back(instruction);
      for (TensorId id : instruction.results) {
        const auto found = gradients_.find(id.value);
        if (found == gradients_.end()) continue;
        const auto& [output, group] = found->second;
        Bucket& bucket = buckets_.at(group);
        bucket.outputs.push_back(output);
        bucket.filled += ir::bytes(result_.type(result_.outputs[output].tensor));
        if (bucket.filled >= bucket.bytes) close(group, bucket);
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

namespace {

class Optimize {
 public:
  Optimize(const ir::Program& program, const OptimizeOptions& options) : program_(program), options_(options) {}

  ir::Program run() {
    collect();
    if (updates_.empty() && balances_.empty()) return std::move(program_);
    std::int64_t gathered = 0;
    for (const Update& update : updates_)
      if (update.sharded()) gathered += ir::bytes(program_.type(update.parameter));
    bucket_bytes_ = bucket_size(options_.bucket_bytes, gathered);
    const TensorId schedule = program_.add_named(TensorKind::input, "schedule", {DType::f32, {4}});
    if (options_.clip_grad > 0 || options_.guard) {
      const TensorId clip = clip_scale();
      const TensorId clipped = ops::append(program_, "clipped_schedule", {schedule, clip}, {}, Role::update, "norm")[0];
      update_all(clipped);
    } else {  // the norm is only a metric: no update waits for it
      update_all(schedule);
      clip_scale();
    }
    zero_accumulated();
    std::erase_if(program_.outputs, [&](const ir::Output& output) {
      const bool zeroed = program_[program_.root(output.tensor)].kind == TensorKind::state;
      return output.kind == ir::OutputKind::gradient && (zeroed || !options_.keep_gradients);
    });
    return std::move(program_);
  }

 private:
  struct Update {
    TensorId parameter, gradient;
    // Of a flat shard: the group of ranks among which the elements are divided, and their number. Else empty.
    ir::Axes group = {};
    ops::Attributes sharing = {};
    bool sharded() const { return !group.empty(); }
  };
  // Updated parameters of one group and type that wait for their all-gather.
  struct Bucket {
    ops::Attributes sharing;
    std::vector<TensorId> parameters;
    std::int64_t bytes = 0;
  };

  void collect() {
    const std::vector<bool> counted = ops::find_counted(program_);
    for (const ir::Output& output : program_.outputs)
      if (output.kind == ir::OutputKind::gradient)
        (counted[output.parameter.index()] ? balances_ : updates_).push_back({output.parameter, output.tensor});
    const std::vector<std::size_t> made = ir::makers_of(program_);
    find_weights();
    std::ranges::stable_sort(updates_, {}, [&](const Update& update) { return made[update.gradient.index()]; });
    for (Update& update : updates_) {
      const ir::Instruction& maker = program_.instructions[made[update.gradient.index()]];
      if (ops::kind(maker) != ops::Kind::flat_reduce_scatter) continue;
      update.group = ir::group_of(maker, options_.mesh);
      ir::set_group(update.sharing, options_.mesh, update.group);
      update.sharing.set("shards", maker.attributes.integer("shards"));
    }
  }

  // A weight may be read in another sharding than the parameter has, so changes of sharding are followed to their
  // operand.
  void find_weights() {
    is_weight_.resize(program_.tensors.size());
    for (const ir::Instruction& at : program_.instructions | std::views::reverse) {
      for (int operand : ops::op(at.op).weights)
        if (std::size_t(operand) < at.operands.size()) is_weight_[at.operands[std::size_t(operand)].index()] = true;
      const ops::Kind kind = ops::kind(at);
      if ((kind == ops::Kind::collective || kind == ops::Kind::share) && is_weight_[at.results[0].index()])
        is_weight_[at.operands[0].index()] = true;
    }
  }

  // The axes among whose ranks the elements of the gradient are divided.
  ir::Axes divided(const Update& update) const {
    const auto& sharding = program_[update.parameter].sharding;
    return update.group | (sharding ? sharding->used() : ir::Axes{});
  }

  // Sums that wait for an all-reduce come first.
  TensorId clip_scale() {
    std::map<ir::Axes, std::vector<TensorId>, std::greater<>> gradients;
    for (const Update& update : updates_)
      if (std::ranges::count(options_.uncounted, program_[update.parameter].name) == 0)
        gradients[divided(update)].push_back(update.gradient);
    std::vector<TensorId> sums;
    for (const auto& [group, all] : gradients) {
      std::string label = "norm." + (group.empty() ? "whole" : ir::to_string(group));
      std::ranges::replace(label, ',', '.');
      sums.push_back(ops::append(program_, "squared_norm", all, {}, Role::update, label)[0]);
      if (group.empty()) continue;
      ops::Attributes attributes;
      ir::set_group(attributes, options_.mesh, group);
      sums.back() = ops::append(program_, "all_reduce", {sums.back()}, attributes, Role::sync, label)[0];
    }
    if (options_.mesh[ir::Axis::stage] > 1) sums = {sum_over_stages(sums)};
    const TensorId clip =
        ops::append(program_, "clip_scale", sums, {{"max_norm", options_.clip_grad}}, Role::update, "norm")[0];
    program_.add_output("grad_norm", clip);
    return clip;
  }

  TensorId sum_over_stages(const std::vector<TensorId>& sums) {
    TensorId sum = sums.front();
    for (std::size_t i = 1; i < sums.size(); ++i)
      sum = ops::append(program_, "add", {sum, sums[i]}, {}, Role::update, "norm")[0];
    ops::Attributes attributes;
    ir::set_group(attributes, options_.mesh, {ir::Axis::stage});
    return ops::append(program_, "all_reduce", {sum}, attributes, Role::sync, "norm.stage")[0];
  }

  // A state of the gradient's shape, which is that of the parameter or of its flat shard.
  TensorId state(const Update& update, ir::StateKind kind) {
    const ir::Tensor source = program_[update.parameter];  // a copy: the table grows
    const auto sharding = update.sharded() ? std::nullopt : source.sharding;
    const TensorId id = program_.add_state(kind, source.name, program_.type(update.gradient), sharding);
    program_[id].flat_shard = update.group;
    return id;
  }

  // Each tensor is rounded with its own random numbers.
  std::int64_t rounding_seed(const std::string& name) const {
    return std::int64_t(Philox(std::uint64_t(options_.seed), stream_of(name)).block(0)[0] >> 1);
  }

  void update_all(TensorId schedule) {
    for (const Update& update : updates_) this->update(update, schedule);
    for (auto& [_, by_type] : buckets_)
      for (auto& [type, bucket] : by_type) close(bucket);
    for (const Update& balance : balances_)
      ops::append(program_, "balance_bias", {balance.parameter, balance.gradient, schedule},
                  {{"rate", options_.balance_rate}}, Role::update, program_[balance.parameter].name);
  }

  void update(const Update& update, TensorId schedule) {
    const ir::Tensor parameter = program_[update.parameter];
    const double decay = is_weight_[update.parameter.index()] ? options_.weight_decay : 0;
    const bool rounded = parameter.type.dtype != DType::f32, master = rounded && options_.masters;
    std::vector<TensorId> operands{update.parameter, state(update, ir::StateKind::first_moment)};
    ops::Attributes attributes;
    if (options_.kind == OptimizeOptions::Kind::adamw) {
      operands.push_back(state(update, ir::StateKind::second_moment));
      attributes = {
          {"beta1", options_.beta1}, {"beta2", options_.beta2}, {"eps", options_.eps}, {"weight_decay", decay}};
    } else {
      attributes = {{"momentum", options_.momentum}, {"weight_decay", decay}};
    }
    operands.push_back(update.gradient);
    operands.push_back(schedule);
    if (master) operands.push_back(state(update, ir::StateKind::master));
    if (rounded && !master) attributes.set("rounding_seed", rounding_seed(parameter.name));
    for (const auto& [name, value] : update.sharing.items()) attributes.set(name, value);
    const char* op = options_.kind == OptimizeOptions::Kind::adamw ? "adamw" : "sgd";
    ops::append(program_, op, operands, attributes, Role::update, parameter.name);
    if (update.sharded()) gather(update);
  }

  void gather(const Update& update) {
    const ir::TensorType& type = program_.type(update.parameter);
    Bucket& bucket = buckets_[update.group][type.dtype];
    bucket.sharing = update.sharing;
    bucket.parameters.push_back(update.parameter);
    bucket.bytes += ir::bytes(type);
    if (bucket.bytes >= bucket_bytes_) close(bucket);
  }

  void close(Bucket& bucket) {
    if (bucket.parameters.empty()) return;
    ops::append(program_, "all_gather_flat", std::move(bucket.parameters), bucket.sharing, Role::sync,
                fmt::format("weights.{}", gathers_++));
    bucket = {};
  }

  void zero_accumulated() {
    for (const std::vector<Update>* all : {&updates_, &balances_})
      for (const Update& update : *all) {
        const std::string& name = program_[update.parameter].name;
        if (const TensorId sum = program_.find(ir::state_name(name, ir::StateKind::gradient_sum)); sum.valid())
          ops::append(program_, "zero", {sum}, {}, Role::update, name);
      }
    for (std::size_t i = 0; i < program_.tensors.size(); ++i)
      if (program_.tensors[i].state == ir::StateKind::load_sum)
        ops::append(program_, "zero", {TensorId{std::int32_t(i)}}, {}, Role::update, program_.tensors[i].name);
  }

  ir::Program program_;
  const OptimizeOptions& options_;
  std::vector<Update> updates_, balances_;                               // balances_: of counts
  std::vector<bool> is_weight_;                                          // by tensor
  std::map<ir::Axes, std::map<DType, Bucket>, std::greater<>> buckets_;  // by group and type
  std::int64_t bucket_bytes_ = 0;
  int gathers_ = 0;
};

}  // namespace

ir::Program optimize(const ir::Program& program, const OptimizeOptions& options) {
  return Optimize(program, options).run();
}

}  // namespace lancet::passes
