#include "banner.h"

#include <fmt/format.h>

#include <algorithm>

#include "lancet/model/gpt2_moe.h"

namespace lancet::train {
namespace {

std::string megabytes(std::int64_t bytes) { return fmt::format("{:.1f} MB", double(bytes) * 1e-6); }
std::string millions(std::int64_t count) { return fmt::format("{:.2f} M", double(count) * 1e-6); }

std::string describe(const RankResources& resources) {
  if (resources.accelerator)
    return resources.accelerator->device().name() + " (" + resources.accelerator->device().architecture() + ")";
  if (!resources.emulated) return fmt::format("cpu, {} thread{}", resources.threads, resources.threads == 1 ? "" : "s");
  const runtime::EmulatedDevice::Options& emulated = resources.emulated->options();
  return fmt::format("emulated {}: bytes / {}, times x {}, {} routing;", resources.emulated->hardware_names(),
                     emulated.scale, emulated.dilation, emulated.routing);
}

}  // namespace

std::string banner(const config::Config& config, int ranks, const RankResources& resources,
                   const comm::NetworkReport& network, const MemoryPlan& memory, const Peak& peak) {
  const config::Model& model = config.model;
  const ir::Mesh mesh = config::mesh_of(config, ranks);
  const int among = mesh[ir::Axis::expert];
  const auto count = model::count_parameters(model.on(mesh));
  const config::Train& train = config.train;
  const int copies = mesh[ir::Axis::tensor];  // of each token, and shards of each expert
  std::string text = fmt::format(
      "model      {} blocks, {} of them MoE with {} experts ({} a rank{}){}, n_embd {}, {} heads, vocabulary {}\n",
      model.n_layer, model.moe_layers(), model.experts(among), model.experts(among) / among,
      copies > 1 ? fmt::format(", 1/{} of each", copies) : "",
      model.n_shared_experts > 0 && among > 0 ? fmt::format(" and {} shared", model.n_shared_experts) : "",
      model.n_embd, model.n_head, model.vocab_size);
  text += fmt::format("parameters {} in all, {} active for a token\n", millions(count.total), millions(count.active));
  const int shares = mesh.size(ir::batch_axes);
  text += fmt::format("batch      {} tokens a step: {} rank{} x {} sequences x {} tokens x {} micro batches{}\n",
                      shares * train.micro_batch_size * train.seq_len * train.gradient_accumulation_steps, shares,
                      shares == 1 ? "" : "s", train.micro_batch_size, train.seq_len, train.gradient_accumulation_steps,
                      copies > 1 ? fmt::format(", each token on {} ranks", copies) : "");
  if (ranks > 1) text += fmt::format("mesh       {}\n", ir::describe(mesh));
  text += fmt::format("device     {} a rank, {}\n", describe(resources),
                      train.dtype != DType::bf16 ? "fp32"
                      : train.master_weights     ? "bf16 with fp32 masters"
                                                 : "bf16, rounded stochastically");
  text += comm::to_string(network) + "\n";
  if (peak.flops > 0)
    text += fmt::format(
        "peak       {:.3f} TFLOP/s a rank ({}); MFU counts products and attention's causal half, experts on kept "
        "tokens\n",
        peak.flops * 1e-12, peak.source);
  text += fmt::format("memory     {} a rank: parameters {}, optimizer {}, arena {}, workspace {}, process {}",
                      megabytes(memory.total()), megabytes(memory.parameters), megabytes(memory.state),
                      megabytes(memory.arena), megabytes(memory.workspace), megabytes(memory.process));
  if (memory.staging > 0) text += fmt::format(", saving {}", megabytes(memory.staging));
  return text;
}

std::string memory_json(const MemoryPlan& memory) {
  return fmt::format(
      "{{\"parameters\": {}, \"optimizer\": {}, \"arena\": {}, \"workspace\": {}, \"process\": {}, \"saving\": {}}}\n",
      memory.parameters, memory.state, memory.arena, memory.workspace, memory.process, memory.staging);
}

std::string describe_plan(const ir::Plan& plan, const planner::PlanReport& report, int runs) {
  std::string text =
      fmt::format("policy     {}: {} instructions", plan.header.text("policy"), plan.program.instructions.size());
  if (plan.header.has("pipeline_schedule"))
    text += fmt::format(" on the first stage, {}", plan.header.text("pipeline_schedule"));
  if (runs > 1) text += fmt::format(", {} runs a step", runs);
  std::string why = report.why.empty() ? "" : "\nwhy        " + report.why;
  if (!report.why_not_across_steps.empty())
    why += "\nborder     each step ends before the next one begins: " + report.why_not_across_steps;
  if (const auto again = std::ranges::count(plan.program.instructions, ir::Role::recompute, &ir::Instruction::role))
    why += fmt::format("\nrecompute  {} instructions run again in the backward pass", again);
  if (!plan.header.has("predicted_ms")) return text + "; predicted step time n/a (no costs measured)" + why;
  text += fmt::format("; predicted {} {:.1f} ms, exposed {:.1f} ms", runs > 1 ? "run" : "step",
                      plan.header.real("predicted_ms"), plan.header.real("exposed_ms", 0));
  for (const planner::PolicyResult& result : report.policies) {
    if (result.policy == "sequential" && report.chosen != "sequential")
      text += fmt::format(" (sequential: {:.1f} ms, {:.1f} ms)", result.timeline.makespan, result.timeline.exposed);
    if (result.policy == report.chosen) text += "\nschedule   " + result.how;
  }
  return text + why;
}

}  // namespace lancet::train
