// Orders of pipeline stages, and their bubbles against the formulas of the papers.
#include "lancet/schedule/stage_graph.h"

#include <catch2/catch.hpp>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ir/plan.h"
#include "lancet/schedule/overlap.h"
#include "lancet/schedule/plan_memory.h"

using namespace lancet;

namespace {

using Schedule = config::PipelineSchedule;

// Each pass of a stage is one instruction: F "a" forward, B "a" dx, W "a" dw; of a second chunk "b".
ir::Program stage_of(int stage, int stages, int chunks) {
  const auto of_chunk = [](int chunk) { return chunk > 0 ? "chunk=" + std::to_string(chunk) : std::string(); };
  const auto type = [&](int chunk) {
    return (chunk > 0 ? "{" + of_chunk(chunk) + ", " : std::string("{")) + R"(dtype=f32, shape="4"})";
  };
  const auto sent = [&](int chunk) { return chunk > 0 ? " {" + of_chunk(chunk) + "}" : std::string(); };
  const int last = stages * chunks - 1;
  std::string text = "program p\ninput @x : f32[4]\n";
  int next = 0;
  std::vector<std::string> in;
  std::string out;
  const auto value = [&](const std::string& op, const std::string& place) {
    out = "%" + std::to_string(next++);
    text += out + " : f32[4] = " + op + "  # " + place + "\n";
  };
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const std::string label(1, char('a' + chunk));
    const int at = chunk * stages + stage;
    if (at > 0)
      value("receive_previous() " + type(chunk), "receive_previous forward " + label);
    else
      value("gelu(@x)", "compute forward embedding");
    in.push_back(out);
    value("gelu(" + out + ")", "compute forward " + label);
    if (at < last) text += "send_next(" + out + ")" + sent(chunk) + "  # send_next forward " + label + "\n";
  }
  for (int chunk = chunks - 1; chunk >= 0; --chunk) {
    const std::string label(1, char('a' + chunk));
    const int at = chunk * stages + stage;
    if (at < last)
      value("receive_next() " + type(chunk), "receive_next dx " + label);
    else
      value("gelu(" + out + ")", "compute dx head");
    const std::string gradient = out, operands = "(" + gradient + ", " + in[std::size_t(chunk)] + ")";
    value("add" + operands, "compute dx " + label);
    if (at > 0) text += "send_previous(" + out + ")" + sent(chunk) + "  # send_previous dx " + label + "\n";
    value("add" + operands, "compute dw " + label);
  }
  const auto parsed = ir::parse(text);
  if (!parsed.ok()) FAIL(parsed.error().message);
  return *parsed;
}

bool is_pass(const ir::Instruction& at) {
  return at.stream == ir::Stream::compute && (at.label == "a" || at.label == "b");
}

struct Pipeline {
  std::vector<schedule::PipelineOrder> stages;
  std::vector<std::vector<cost::OpCost>> costs;
  ir::Mesh mesh;

  // Times: of a chunk.
  Pipeline(int count, int micro_batches, Schedule schedule, double forward, double backward, double weights,
           int chunks = 1) {
    mesh[ir::Axis::stage] = count;
    for (int stage = 0; stage < count; ++stage) {
      schedule::Candidate one;
      one.program = stage_of(stage, count, chunks);
      one.needed = ir::dependencies(one.program);
      const schedule::Candidate all = schedule::in_micro_batches(one, micro_batches);
      stages.push_back(schedule::in_pipeline_order(all.program, all.needed, schedule, stage, count, {stage, true}));
      auto& of_stage = costs.emplace_back();
      for (const ir::Instruction& at : stages.back().program.instructions) {
        of_stage.push_back({!is_pass(at)                   ? 0
                            : at.role == ir::Role::forward ? forward
                            : at.role == ir::Role::dx      ? backward
                                                           : weights});
      }
    }
  }

  schedule::StagesTimeline simulated() const {
    std::vector<schedule::RankClass> work;
    for (std::size_t s = 0; s < stages.size(); ++s)
      work.push_back({stages[s].program, stages[s].needed, costs[s], {1, 1}});
    return schedule::simulate(work, mesh);
  }

  // F0 F1 B0 W0 ..., of a stage; F0' of its second chunk.
  std::string passes(std::size_t stage) const {
    std::string text;
    for (const ir::Instruction& at : stages[stage].program.instructions)
      if (is_pass(at))
        text += std::string(text.empty() ? "" : " ") +
                (at.role == ir::Role::forward ? "F"
                 : at.role == ir::Role::dx    ? "B"
                                              : "W") +
                std::to_string(at.micro_batch) + (at.label == "b" ? "'" : "");
    return text;
  }

  // The most passes of a stage whose F has run and whose W has not.
  int most_in_flight(std::size_t stage) const {
    int now = 0, most = 0;
    for (const ir::Instruction& at : stages[stage].program.instructions)
      if (is_pass(at)) {
        now += at.role == ir::Role::forward ? 1 : at.role == ir::Role::dw ? -1 : 0;
        most = std::max(most, now);
      }
    return most;
  }
};

}  // namespace

TEST_CASE("pipeline order: 1F1B and zero bubble as the papers draw them") {
  const Pipeline plain(3, 4, Schedule::one_forward_one_backward, 1, 1, 1);
  CHECK(plain.passes(0) == "F0 F1 F2 B0 W0 F3 B1 W1 B2 W2 B3 W3");
  CHECK(plain.passes(1) == "F0 F1 B0 W0 F2 B1 W1 F3 B2 W2 B3 W3");
  CHECK(plain.passes(2) == "F0 B0 W0 F1 B1 W1 F2 B2 W2 F3 B3 W3");
  const Pipeline zero(3, 4, Schedule::zero_bubble, 1, 1, 1);
  CHECK(zero.passes(0) == plain.passes(0));
  CHECK(zero.passes(1) == "F0 F1 B0 F2 B1 W0 F3 B2 W1 B3 W2 W3");
  CHECK(zero.passes(2) == "F0 B0 F1 B1 F2 B2 W0 F3 B3 W1 W2 W3");
}

TEST_CASE("pipeline order: fewer micro batches than stages") {
  const Pipeline zero(4, 2, Schedule::zero_bubble, 1, 1, 1);
  CHECK(zero.passes(0) == "F0 F1 B0 W0 B1 W1");
  CHECK(zero.passes(3) == "F0 B0 F1 B1 W0 W1");
  CHECK(Pipeline(4, 1, Schedule::one_forward_one_backward, 1, 1, 1).passes(1) == "F0 B0 W0");
}

TEST_CASE("pipeline order: bubbles of equal passes are those of the formulas, in the memory of the first stage") {
  for (const int stages : {2, 3, 4, 8})
    for (const int micro_batches : {8, 16}) {
      INFO(stages << " stages, " << micro_batches << " micro batches");
      const double f = 1, b = 1, w = 1, work = micro_batches * (f + b + w);
      const Pipeline plain(stages, micro_batches, Schedule::one_forward_one_backward, f, b, w);
      // A gradient leaves a stage before its W runs, so that the pipeline fills and drains over F and B alone.
      CHECK(plain.simulated().makespan - work == Approx((stages - 1) * (f + b)));
      const Pipeline zero(stages, micro_batches, Schedule::zero_bubble, f, b, w);
      CHECK(zero.simulated().makespan - work == Approx((stages - 1) * (f + b - w)).epsilon(0.05));
      for (std::size_t stage = 0; stage < std::size_t(stages); ++stage) {
        CHECK(plain.most_in_flight(stage) <= stages);
        CHECK(zero.most_in_flight(stage) <= stages);
      }
    }
}

TEST_CASE("pipeline order: two chunks a stage are interleaved") {
  const Pipeline pipeline(2, 4, Schedule::one_forward_one_backward, 1, 1, 1, 2);
  CHECK(pipeline.passes(0) == "F0 F1 F0' F1' B0' W0' F2 B1' W1' F3 B0 W0 F2' B1 W1 F3' B2' W2' B3' W3' B2 W2 B3 W3");
  CHECK(pipeline.passes(1) == "F0 F1 F0' B0' W0' F1' B1' W1' F2 B0 W0 F3 B1 W1 F2' B2' W2' F3' B3' W3' B2 W2 B3 W3");
  // The third micro batch is alone in the last round of the stages.
  CHECK(Pipeline(2, 3, Schedule::one_forward_one_backward, 1, 1, 1, 2).passes(0) ==
        "F0 F1 F0' F1' B0' W0' F2 B1' W1' B0 W0 F2' B1 W1 B2' W2' B2 W2");
}

TEST_CASE("pipeline order: with two chunks a stage, bubbles are half of those of one, in the same memory") {
  for (const int stages : {2, 3, 4, 8})
    for (const int rounds : {1, 2, 4})
      for (const auto& [f, b, w] : {std::array{0.5, 0.5, 0.5}, {0.5, 1.0, 0.5}, {0.5, 1.0, 0.0}}) {
        const int micro_batches = rounds * stages;
        INFO(stages << " stages, " << micro_batches << " micro batches, " << f << ' ' << b << ' ' << w);
        const Pipeline pipeline(stages, micro_batches, Schedule::one_forward_one_backward, f, b, w, 2);
        const double work = 2 * micro_batches * (f + b + w);
        CHECK(pipeline.simulated().makespan - work == Approx((stages - 1) * (f + b)));
        for (std::size_t stage = 0; stage < std::size_t(stages); ++stage)
          CHECK(pipeline.most_in_flight(stage) <= 2 * stages);
      }
}

TEST_CASE("pipeline order: any number of micro batches ends with two chunks a stage") {
  for (const int stages : {2, 3, 4})
    for (int micro_batches = 1; micro_batches <= 9; ++micro_batches) {
      INFO(stages << " stages, " << micro_batches << " micro batches");
      const Pipeline pipeline(stages, micro_batches, Schedule::one_forward_one_backward, 1, 1, 1, 2);
      CHECK(pipeline.simulated().makespan <= 6 * (micro_batches + stages) + 2 * stages);
    }
}

TEST_CASE("pipeline order: the plans of stages end together, and one that leaves out a message is named") {
  for (const Schedule schedule : {Schedule::one_forward_one_backward, Schedule::zero_bubble}) {
    const Pipeline pipeline(4, 8, schedule, 1, 1, 1);
    std::vector<ir::Plan> plans;
    for (const schedule::PipelineOrder& stage : pipeline.stages)
      plans.push_back(schedule::plan_memory(stage.program, stage.needed));
    for (const ir::Plan& plan : plans) {
      const Status sound = ir::verify(plan);
      INFO((sound.ok() ? "" : sound.error().message));
      CHECK(sound.ok());
    }
    const std::vector<const ir::Plan*> all{&plans[0], &plans[1], &plans[2], &plans[3]};
    CHECK(ir::verify_ranks(all, pipeline.mesh).ok());
    // The messages of two middle stages are alike.
    const std::vector<const ir::Plan*> alike{&plans[0], &plans[1], &plans[1], &plans[3]};
    CHECK(ir::verify_ranks(alike, pipeline.mesh).ok());
    const std::vector<const ir::Plan*> missing{&plans[0], &plans[3], &plans[2], &plans[3]};
    CHECK_FALSE(ir::verify_ranks(missing, pipeline.mesh).ok());
  }
}
