#include "steps.h"

#include <fmt/format.h>
#include <algorithm>

#include "lancet/base/hash.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/catalogue.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"
#include "lancet/schedule/simulate.h"

namespace lancet::planner {

using schedule::Candidate;

Result<ir::Program> spread(ir::Program logical, const ir::Mesh& mesh, Pipeline& pipeline) {
  LANCET_ASSIGN(ir::Program sharded, pipeline.run("shard", std::move(logical),
                                                  [&](const ir::Program& p) { return passes::shard(p, mesh); }));
  return pipeline.run("partition_spmd", std::move(sharded),
                      [&](const ir::Program& p) { return passes::partition_spmd(p, mesh); });
}

Result<ir::Program> with_gradients(const ir::Program& logical, const PlanRequest& request, Pipeline& pipeline) {
  pipeline.begin(logical);
  ir::Program whole =
      pipeline.run("autodiff", logical, [&](ir::Program p) { return passes::autodiff(p, request.accumulate); });
  LANCET_ASSIGN(ir::Program program, spread(std::move(whole), request.mesh, pipeline));
  return request.fuse ? pipeline.run("fuse", std::move(program), passes::fuse) : program;
}

ir::Program with_updates(ir::Program program, const PlanRequest& request, Pipeline& pipeline,
                         std::vector<std::string> uncounted) {
  program = pipeline.run("sync", std::move(program), [&](ir::Program p) {
    return passes::sync(p, request.mesh, request.overlap.bucket_bytes, true, request.gradient_sums);
  });
  passes::OptimizeOptions optimizer = request.optimizer;
  optimizer.bucket_bytes = request.overlap.bucket_bytes;
  optimizer.uncounted = std::move(uncounted);
  program = pipeline.run("optimize", std::move(program), [&](ir::Program p) { return passes::optimize(p, optimizer); });
  return folded(std::move(program), request.mesh, pipeline);
}

ir::Program folded(ir::Program program, const ir::Mesh& mesh, Pipeline& pipeline) {
  if (!passes::has_unfolded_repeats(program)) return program;
  return pipeline.run("fold_repeats", std::move(program),
                      [&](const ir::Program& p) { return passes::fold_repeats(p, mesh); });
}

ir::Plan plan_of(Candidate candidate, Pipeline& pipeline) {
  return pipeline.run("plan_memory", std::move(candidate), [](const Candidate& c) {
    ir::Plan plan = schedule::plan_memory(c.program, c.needed);
    if (!c.timeline.when.empty()) plan.predicted = c.timeline.when;
    return plan;
  });
}

Candidate unpredicted(ir::Program program) {
  Candidate candidate;
  candidate.needed = schedule::turns(program, ir::dependencies(program));
  candidate.program = std::move(program);
  return candidate;
}

void repeat(Made& made, int micro_batches) {
  if (micro_batches > 1)
    made.candidate = made.pipeline.run("micro_batches", std::move(made.candidate), [&](const Candidate& one) {
      return schedule::in_micro_batches(one, micro_batches);
    });
}

void set_header(ir::Plan& plan, const ir::Program& logical, std::string_view policy, const ir::Mesh& mesh) {
  plan.header = {{"policy", std::string(policy)},
                 {"model", hex(hash64(ir::print(logical)))},
                 {"ranks", std::int64_t(mesh.ranks())},
                 {"build", std::string(cost::kernel_build())}};
  // Without it the mesh is that of experts alone (plan_file.cpp).
  if (mesh != ir::of_experts(mesh.ranks())) plan.header.set("mesh", ir::to_string(mesh));
}

// The settings of the updates are not part of the model's hash.
void set_step_header(ir::Plan& plan, const ir::Program& logical, std::string_view policy, const PlanRequest& request) {
  const passes::OptimizeOptions& o = request.optimizer;
  const passes::GradientSums& sums = request.gradient_sums;
  const std::string rule = o.kind == passes::OptimizeOptions::Kind::adamw
                               ? fmt::format("adamw beta1={} beta2={} eps={}", o.beta1, o.beta2, o.eps)
                               : fmt::format("sgd momentum={}", o.momentum);
  const std::string how = (sums.shards ? " zero=1" : "") +
                          (sums.message == DType::f32 ? "" : fmt::format(" reduce_dtype={}", name(sums.message)));
  set_header(plan, logical, policy, request.mesh);
  plan.header.set(
      "optimizer",
      fmt::format("{} weight_decay={} clip_grad={}{}{}{}{}", rule, o.weight_decay, o.clip_grad,
                  o.balance_rate > 0 ? fmt::format(" balance_rate={}", o.balance_rate) : "", o.guard ? " guard" : "",
                  o.masters ? std::string() : fmt::format(" stochastic rounding seed={}", o.seed), how));
}

bool Pipeline::skips(std::string_view name) const { return std::find(skip_.begin(), skip_.end(), name) != skip_.end(); }

void Pipeline::record(std::string_view name, double ms, const ir::Program& program) {
  const Status status = ops::verify(program);
  LANCET_CHECK(status.ok(), "after pass {}: {}", name, status.error().message);
  runs_.push_back({std::string(name), ms, program.instructions.size(), keep_texts_ ? ir::print(program) : ""});
}

void Pipeline::record(std::string_view name, double ms, const schedule::Candidate& candidate) {
  record(name, ms, candidate.program);
  const schedule::Dependencies least = ir::dependencies(candidate.program), &needed = candidate.needed;
  const std::size_t costs = candidate.op_costs.size();  // none if the request has none
  LANCET_CHECK(needed.size() == least.size() && (costs == least.size() || costs == 0),
               "after pass {}: {} instructions, {} lists of dependencies, {} costs", name, least.size(), needed.size(),
               costs);
  for (std::size_t i = 0; i < least.size(); ++i)
    for (ir::InstructionId before : least[i])
      LANCET_CHECK(std::ranges::count(needed[i], before) > 0, "after pass {}: [{}] does not wait for [{}]", name, i,
                   before.index());
}

void Pipeline::record(std::string_view name, double ms, const ir::Plan& plan) {
  const Status status = ir::verify(plan);
  LANCET_CHECK(status.ok(), "after pass {}: {}", name, status.error().message);
  record(name, ms, plan.program);
  if (keep_texts_) runs_.back().text = ir::print(plan);
}

}  // namespace lancet::planner
