// Device kernels of a plan that share work or memory with other calls of it: what they compute is what each does alone.
#include <fmt/ranges.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <set>

#include "ops/device/tensor_core.h"
#include "ops/nn/linear/rounded_bias.h"
#include "run_emulated.h"

using namespace lancet;
using namespace lancet::test;

TEST_CASE("the biases of a plan's products are rounded together, again in every run") {
  constexpr std::int64_t rows = 5, width = 16, depth = 8;
  const ir::Attributes none;
  const auto normal = [](ir::TensorType type, std::uint64_t stream) {
    GuardedTensor t(std::move(type));
    fill_normal(t, 8, stream);
    return t;
  };
  for (const char* name : {"linear", "linear_gelu"}) {
    const ops::OpDef& op = ops::op(name);
    const ops::DeviceKernel* kernel = find_emulated_kernel(name);
    HostDevice device;
    HostStream stream;
    ops::device::emulated::order_seed = 1;
    GuardedTensor x = normal({DType::bf16, {rows, depth}}, 1), w = normal({DType::bf16, {width, depth}}, 2);
    GuardedTensor biases[] = {normal({DType::f32, {width}}, 3), normal({DType::f32, {width}}, 4)};
    ir::Instruction instruction;
    {
      std::vector<ops::Kernel> kernels;
      std::vector<std::vector<GuardedTensor>> results;
      std::vector<std::vector<std::byte>> workspaces;
      ops::BindNotes notes;
      for (int i = 0; i < 3; ++i) {  // the third is another part of the first
        ops::KernelArgs args{.op = name, .operands = {}, .results = {}, .attributes = none};
        args.operands = {x.view(), w.view(), biases[i % 2].view()};
        auto& made = results.emplace_back();
        for (std::size_t r = 0; r < (op.name == "linear" ? 1u : 2u); ++r)
          made.emplace_back(ir::TensorType{DType::bf16, {rows, width}});
        for (GuardedTensor& result : made) args.results.push_back(result.view());
        workspaces.emplace_back(kernel->workspace(args) + 64);
        auto at = reinterpret_cast<std::uintptr_t>(workspaces.back().data());
        args.workspace = workspaces.back().data() + (64 - at % 64) % 64;
        args.device = &device, args.stream = &stream, args.instruction = &instruction, args.notes = &notes;
        kernels.push_back(kernel->bind(args));
      }
      CHECK(device.blocks() == 2);
      for (int turn = 0; turn < 2; ++turn) {
        for (GuardedTensor& bias : biases) fill_normal(bias, 9, std::uint64_t(10 + turn + (&bias - biases) * 5));
        for (const ops::Kernel& call : kernels) REQUIRE(call().ok());
        for (std::size_t i = 0; i < 3; ++i) {
          const Outcome alone = run_emulated(op, {x, w, biases[i % 2]}, none, 1);
          for (std::size_t r = 0; r < results[i].size(); ++r) CHECK(results[i][r].same_bytes(alone.results[r]));
        }
      }
    }
    CHECK(device.blocks() == 0);
  }
}

TEST_CASE("more biases than one launch rounds, of any length") {
  HostDevice device;
  HostStream stream;
  ops::device::emulated::order_seed = 3;
  ops::device::RoundedBiases biases(device);
  std::vector<std::vector<float>> exact;
  std::vector<bf16*> rounded;
  for (int i = 0; i < 200; ++i) {
    auto& bias = exact.emplace_back(std::size_t(i == 150 ? 1000 : 1 + i % 7));
    for (std::size_t j = 0; j < bias.size(); ++j) bias[j] = float(i) + float(j) / 3;
    rounded.push_back(biases.add(bias.data(), std::int64_t(bias.size())));
    REQUIRE(rounded.back());
  }
  CHECK(biases.add(exact[7].data(), std::int64_t(exact[7].size())) == rounded[7]);
  REQUIRE(biases.round(stream).ok());
  int differ = 0;
  for (std::size_t i = 0; i < exact.size(); ++i)
    for (std::size_t j = 0; j < exact[i].size(); ++j)
      differ += to_f32(rounded[i][j]) != to_f32(from_f32<bf16>(exact[i][j]));
  CHECK(differ == 0);
}

// More tensors than a launch takes, one of them in several pieces.
TEST_CASE("updates bound as one kernel do what each does alone, bit for bit") {
  for (const char* name : {"adamw", "sgd"}) {
    const ops::OpDef& op = ops::op(name);
    std::vector<ops::Sample> samples = op.samples;
    samples.push_back(op.samples[0]);
    for (ops::SampleOperand& operand : samples.back().operands)
      if (operand.type.shape.rank() == 2) operand.type.shape = {3, 3001};
    std::vector<std::vector<GuardedTensor>> alone, together;
    std::vector<ops::KernelArgs> calls;
    HostStream stream;
    for (std::size_t i = 0; i < 100; ++i) {
      const ops::Sample& sample = samples[i % samples.size()];
      together.push_back(make_operands(sample, SampleRoute(sample, seed), seed + i));
      alone.push_back(run_emulated(op, together.back(), sample.attributes, 1).operands);
      calls.push_back(
          {.op = op.name, .operands = {}, .results = {}, .attributes = sample.attributes, .stream = &stream});
      for (GuardedTensor& tensor : together.back()) calls.back().operands.push_back(tensor.view());
    }
    ops::device::emulated::order_seed = 2;
    REQUIRE(find_emulated_kernel(name)->bind_all(calls)().ok());
    int differ = 0;
    for (std::size_t i = 0; i < calls.size(); ++i)
      for (std::size_t k = 0; k < together[i].size(); ++k) differ += !together[i][k].same_bytes(alone[i][k]);
    INFO(name);
    CHECK(differ == 0);
  }
}

TEST_CASE("a norm's dw takes the sums of a dx before it, with the bits that it has alone") {
  for (const std::string norm : {"layer_norm", "rms_norm"})
    for (const auto& [type, d] :
         {std::pair{DType::bf16, 1000}, {DType::bf16, 40}, {DType::f32, 260}, {DType::f32, 400}})
      for (const std::int64_t rows : {1, 70, 333}) {
        INFO(norm << ", " << name(type) << ", " << rows << " rows of " << d);
        const bool centred = norm == "layer_norm";
        const ir::TensorType row_type{type, {1, rows, d}}, vector{DType::f32, {d}},
            stats{DType::f32, {1, rows, centred ? 2 : 1}};
        const ops::Sample of_dx{{{row_type}, {row_type}, {vector}, {stats, ops::Fill::positive}, {row_type}}, {}};
        auto operands = make_operands(of_dx, SampleRoute(of_dx, seed), seed);
        const Outcome dx = run_emulated(ops::op(norm + "_dx"), operands, {}, 1);
        const Outcome dw = run_emulated(ops::op(norm + "_dw"), {operands[0], operands[1], operands[3]}, {}, 1);

        const auto instruction = [](std::string op, std::vector<ir::TensorId> ids) {
          ir::Instruction at;
          at.op = std::move(op), at.operands = std::move(ids);
          return at;
        };
        const ir::Instruction dx_at = instruction(norm + "_dx", {{0}, {1}, {2}, {3}, {4}}),
                              dw_at = instruction(norm + "_dw", {{0}, {1}, {3}});
        HostDevice device;
        HostStream stream;
        {
          ops::BindNotes notes;
          GuardedTensor dx_result(row_type), dgamma(vector), dbeta(vector);
          const auto bind = [&](const ir::Instruction& at, std::vector<ops::TensorView> results) {
            ops::KernelArgs args{
                .op = at.op, .operands = {}, .results = std::move(results), .attributes = at.attributes};
            for (const ir::TensorId id : at.operands) args.operands.push_back(operands[id.index()].view());
            args.device = &device, args.stream = &stream, args.instruction = &at, args.notes = &notes;
            return find_emulated_kernel(at.op)->bind(args);
          };
          const ops::Kernel first = bind(dx_at, {dx_result.view()});
          CHECK(device.blocks() == 0);
          const ops::Kernel second = bind(dw_at, centred ? std::vector{dgamma.view(), dbeta.view()}
                                                         : std::vector{dgamma.view()});  // has no workspace
          CHECK(device.blocks() == 1);
          ops::device::emulated::order_seed = 2;
          REQUIRE(first().ok());
          std::memset(operands[0].data(), 0xff, operands[0].size());  // dw reads neither dy nor x
          REQUIRE(second().ok());
          CHECK(dx_result.same_bytes(dx.results[0]));
          CHECK(dgamma.same_bytes(dw.results[0]));
          if (centred) CHECK(dbeta.same_bytes(dw.results[1]));
          CHECK((dx_result.intact() && dgamma.intact() && dbeta.intact()));
        }
        CHECK(device.blocks() == 0);
      }
}

// A warp copies its rows two ahead into a ring of three: here it has none, one, or up to nine. The widths take three
// packs per thread and four, whole and in part.
TEST_CASE("layer norm's dx of rows that warps copy ahead, whether copies arrive at once or late") {
  struct Rows {
    DType type;
    std::int64_t rows, d;
  };
  for (const auto& [type, rows, d] : {Rows{DType::bf16, 1, 8},
                                      {DType::bf16, 8500, 40},
                                      {DType::bf16, 70, 768},
                                      {DType::bf16, 9, 776},
                                      {DType::bf16, 40, 1024},
                                      {DType::f32, 8500, 12},
                                      {DType::f32, 70, 384},
                                      {DType::f32, 9, 388},
                                      {DType::f32, 40, 512}})
    for (const bool direct : {false, true}) {
      INFO(name(type) << ", " << rows << " rows of " << d << (direct ? ", a direct gradient" : ""));
      const ir::TensorType row_type{type, {1, rows, d}};
      ops::Sample sample{
          {{row_type}, {row_type}, {{DType::f32, {d}}}, {{DType::f32, {1, rows, 2}}, ops::Fill::positive}}, {}};
      if (direct) sample.operands.push_back({row_type});
      const ops::OpDef& op = ops::op("layer_norm_dx");
      const auto operands = make_operands(sample, SampleRoute(sample, seed), seed);
      const Outcome late = run_emulated(op, operands, {}, 1);
      const auto faults = faults_of(op, late, operands, run_reference(op, operands, {}));
      INFO(fmt::format("{}", fmt::join(faults, "\n")));
      CHECK(faults.empty());
      ops::device::emulated::late_copies = false;
      const Outcome at_once = run_emulated(op, operands, {}, 2);
      ops::device::emulated::late_copies = true;
      CHECK(at_once.faults.empty());
      CHECK(at_once.results[0].same_bytes(late.results[0]));
    }
}

TEST_CASE("layer norm's dw has memory of its own where a warp has a row: one piece of the rows a multiprocessor") {
  HostDevice device;
  const auto bytes = [&](DType type, std::int64_t rows, std::int64_t d) {
    const ir::Attributes none;
    ops::KernelArgs args{.op = "layer_norm_dw", .operands = {}, .results = {}, .attributes = none};
    const ir::TensorType row_type{type, {1, rows, d}}, stats{DType::f32, {1, rows, 2}};
    args.operands = {{nullptr, row_type}, {nullptr, row_type}, {nullptr, stats}};
    args.device = &device;
    return find_emulated_kernel("layer_norm_dw")->own_memory(args);
  };
  CHECK(bytes(DType::bf16, 70, 1024) == 3 * 2 * 1024 * 4);  // at least 32 rows each
  CHECK(bytes(DType::bf16, 100000, 1024) == 132 * 2 * 1024 * 4);
  CHECK(bytes(DType::bf16, 70, 1032) == 0);
  CHECK(bytes(DType::bf16, 70, 1001) == 0);  // rows that are not whole packs
  CHECK(bytes(DType::f32, 70, 512) == 3 * 2 * 512 * 4);
  CHECK(bytes(DType::f32, 70, 516) == 0);
}

TEST_CASE("layer norm's dw says that it reads the rows again where its sums get no memory") {
  struct Full final : HostDevice {
    Result<std::byte*> allocate(std::size_t) override { return config_error("the device is full"); }
  };
  const ir::TensorType row_type{DType::f32, {1, 70, 40}}, vector{DType::f32, {40}};
  const ops::Sample of_dx{{{row_type}, {row_type}, {vector}, {{DType::f32, {1, 70, 2}}, ops::Fill::positive}}, {}};
  auto operands = make_operands(of_dx, SampleRoute(of_dx, seed), seed);
  Full device;
  HostStream stream;
  ops::BindNotes notes;
  std::set<std::string> remarks;
  GuardedTensor dx(row_type), dgamma(vector), dbeta(vector);
  struct alignas(64) Words {
    float words[16];
  };
  std::vector<Words> workspace(3 * 2 * 40 / 16);  // three pieces of the rows, two sums for each column
  const auto run = [&](std::string op, std::vector<ir::TensorId> ids, std::vector<ops::TensorView> results) {
    ir::Instruction at;
    at.op = std::move(op), at.operands = std::move(ids);
    ops::KernelArgs args{.op = at.op, .operands = {}, .results = std::move(results), .attributes = at.attributes};
    for (const ir::TensorId id : at.operands) args.operands.push_back(operands[id.index()].view());
    args.device = &device, args.stream = &stream, args.instruction = &at, args.notes = &notes, args.remarks = &remarks;
    args.workspace = reinterpret_cast<std::byte*>(workspace.data());
    REQUIRE(find_emulated_kernel(at.op)->bind(args)().ok());
  };
  run("layer_norm_dx", {{0}, {1}, {2}, {3}}, {dx.view()});
  run("layer_norm_dw", {{0}, {1}, {3}}, {dgamma.view(), dbeta.view()});
  const Outcome alone = run_emulated(ops::op("layer_norm_dw"), {operands[0], operands[1], operands[3]}, {}, 1);
  CHECK(dgamma.same_bytes(alone.results[0]));
  CHECK(dbeta.same_bytes(alone.results[1]));
  CHECK(remarks == std::set<std::string>{"layer_norm_dw reads its rows again, since its sums have no memory beside the "
                                         "arena: the device is full"});
}
