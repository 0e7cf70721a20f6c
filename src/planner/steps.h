// The steps that all kinds of plans are made of.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/plan.h"
#include "lancet/passes/passes.h"
#include "lancet/planner/planner.h"
#include "lancet/schedule/step.h"

namespace lancet::planner {

// The driver of all passes. It runs each pass by name: skips it if requested, times it, verifies its result (the input
// of the first pass is verified as well, so that every pass runs between two checks) and keeps its text.
class Pipeline {
 public:
  // skip: names of passes that run() leaves out.
  explicit Pipeline(std::vector<std::string> skip = {}, bool keep_texts = false)
      : skip_(std::move(skip)), keep_texts_(keep_texts) {}

  // The Program that the passes start with, as the first record.
  void begin(const ir::Program& program) { record("logical", 0, program); }

  // Returns pass(state), or `state` if the pass is skipped. A result that fails verification is a broken invariant; the
  // error names the pass. State: ir::Program, schedule::Candidate or ir::Plan; a pass may return a Result of it.
  template <class State, class F>
  auto run(std::string_view name, State state, F pass) -> decltype(pass(std::move(state))) {
    if constexpr (std::is_same_v<decltype(pass(std::move(state))), State>)
      if (skips(name)) return state;
    const auto start = std::chrono::steady_clock::now();
    auto result = pass(std::move(state));
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    if constexpr (std::is_same_v<decltype(result), Result<State>>) {
      if (result.ok()) record(name, ms, *result);
    } else {
      record(name, ms, result);
    }
    return result;
  }

  const std::vector<PassRun>& runs() const { return runs_; }

 private:
  bool skips(std::string_view name) const;
  void record(std::string_view name, double ms, const ir::Program& program);
  void record(std::string_view name, double ms, const schedule::Candidate& candidate);
  void record(std::string_view name, double ms, const ir::Plan& plan);

  std::vector<std::string> skip_;
  bool keep_texts_;
  std::vector<PassRun> runs_;
};

// One rank's Program.
Result<ir::Program> spread(ir::Program logical, const ir::Mesh& mesh, Pipeline& pipeline);

// One rank's step of one micro batch, up to its gradients.
Result<ir::Program> with_gradients(const ir::Program& logical, const PlanRequest& request, Pipeline& pipeline);
// The same with their sums over the ranks and the updates. uncounted: as passes::OptimizeOptions::uncounted.
ir::Program with_updates(ir::Program program, const PlanRequest& request, Pipeline& pipeline,
                         std::vector<std::string> uncounted = {});

// The last of the passes that change single instructions; plans without a repeat do not list it.
ir::Program folded(ir::Program program, const ir::Mesh& mesh, Pipeline& pipeline);

// The last pass of all: the candidate with its memory planned, and its predicted times if it has some.
ir::Plan plan_of(schedule::Candidate candidate, Pipeline& pipeline);

// The schedule without predictions, in which compute and all-to-all take turns.
schedule::Candidate unpredicted(ir::Program program);

// A schedule under way to its plan, and the passes that made it.
struct Made {
  schedule::Candidate candidate;
  Pipeline pipeline;
};
// The pass micro_batches, if there are several.
void repeat(Made& made, int micro_batches);

// The schedules of a step of one micro batch by each of the policies, which end in their own step, within each of these
// arenas, relative to that without overlap.
std::vector<std::vector<Made>> schedule_micro_batch(const schedule::Step& step,
                                                    std::span<const std::string_view> policies,
                                                    std::span<const double> memory_factors, PlanRequest request,
                                                    const Pipeline& pipeline);

// What the plan was made from; of a training step, also the settings of the updates.
void set_header(ir::Plan& plan, const ir::Program& logical, std::string_view policy, const ir::Mesh& mesh);
void set_step_header(ir::Plan& plan, const ir::Program& logical, std::string_view policy, const PlanRequest& request);

}  // namespace lancet::planner
