#include "replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <map>
#include <span>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/base/random.h"
#include "lancet/comm/communicator.h"
#include "lancet/cost/costs.h"
#include "lancet/ops/kernel.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::runtime {
namespace {

using backend::cpu::Buffer;
using ir::Lane;
using ir::TensorId;
using ir::TensorKind;

// As many ranks as it says, all of them this one: segment i of what is sent is segment i of what is received. With
// routes that are alike on all ranks that is as many rows for each expert as the real exchange brings.
class Loopback final : public comm::Communicator {
 public:
  explicit Loopback(int ranks) : ranks_(ranks) {}
  int rank() const override { return 0; }
  int size() const override { return ranks_; }
  std::string transport() const override { return "loopback"; }
  Status exchange(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives) override {
    for (std::size_t i = 0; i < std::min(sends.size(), receives.size()); ++i)
      std::memcpy(receives[i].data, sends[i].data, std::min(sends[i].bytes, receives[i].bytes));
    return {};
  }
  Status all_reduce_sum(std::span<float>) override { return {}; }
  Status broadcast(std::span<std::byte>, int) override { return {}; }
  Status barrier() override { return {}; }
  Result<std::unique_ptr<comm::Communicator>> duplicate() override { return internal_error("loopback has one lane"); }
  void abort(const std::string&) override {}
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  int ranks_;
};

// Weights and activations are small enough that no product of a step overflows, and are never denormal for long.
constexpr float weight_scale = 0.02f;

// One block of normals, over and over: what it costs to draw gigabytes is not worth their being different.
void fill_normal(const ops::TensorView& view, float scale, bool positive) {
  static const std::vector<float> block = [] {
    std::vector<float> values(1 << 16);
    Philox(1, stream_of("profile")).normals(0, values);
    return values;
  }();
  const std::int64_t n = view.elements();
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = block[std::size_t(i) % block.size()] * scale;
    const float y = positive ? std::abs(x) + 0.01f * scale : x;
    if (view.dtype() == DType::bf16)
      view.as<bf16>()[i] = from_f32<bf16>(y);
    else
      view.as<float>()[i] = y;
  }
}

// Experts of `tokens` tokens, as even as can be, in random order.
std::vector<std::int32_t> even_choice(std::int64_t tokens, std::int64_t experts) {
  std::vector<std::int32_t> choice(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t) choice[std::size_t(t)] = std::int32_t(t % experts);
  const Philox random(1, stream_of("route"));
  for (std::size_t t = choice.size(); t > 1; --t) std::swap(choice[t - 1], choice[random.below(t, t)]);
  return choice;
}

std::int64_t read(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return std::int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

class CpuReplay final : public Replay {
 public:
  CpuReplay(const ir::Plan& plan, int threads)
      : plan_(plan), program_(plan.program), threads_(threads), kernels_(program_.instructions.size()) {}

  Status bind() {
    backend::cpu::set_threads(threads_);
    arena_ = Buffer::raw(static_cast<std::size_t>(plan_.arena_bytes));
    fill_normal({arena_.data(), {DType::f32, {plan_.arena_bytes / 4}}}, 1, false);
    store_.add(program_);
    for (const auto& [_, tensor] : store_.all())  // second moments are roots' arguments: not negative
      fill_normal({tensor.memory.data(), tensor.type}, weight_scale, tensor.kind == TensorKind::state);
    place_aside();
    std::vector<ops::KernelArgs> arguments;
    std::size_t workspace = 0;
    for (const ir::Instruction& instruction : program_.instructions) {
      const ops::CpuKernel* kernel = ops::find_cpu_kernel(instruction.op);
      if (!kernel) return internal_error(fmt::format("op {} has no kernel on the CPU", instruction.op));
      arguments.push_back(arguments_of(instruction));
      if (kernel->workspace) workspace = std::max(workspace, kernel->workspace(arguments.back()));
    }
    workspace_ = Buffer::raw(workspace);
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      if (program_.instructions[i].lane == Lane::reduce) continue;
      arguments[i].workspace = workspace_.as<std::byte>();
      kernels_[i] = ops::find_cpu_kernel(arguments[i].op)->bind(arguments[i]);
    }
    return {};
  }

  Status sweep(const std::vector<bool>& chosen, std::vector<std::int64_t>& nanoseconds) override {
    backend::cpu::set_threads(threads_);
    nanoseconds.assign(kernels_.size(), 0);
    for (std::size_t i = 0; i < kernels_.size(); ++i) {
      if (!chosen[i] || !kernels_[i]) continue;
      // The processor's clock is read outside of the wall's, so it is the smaller one only where the thread had to
      // wait.
      const std::int64_t cpu = read(CLOCK_THREAD_CPUTIME_ID), wall = read(CLOCK_MONOTONIC);
      LANCET_TRY(kernels_[i]());
      nanoseconds[i] = read(CLOCK_MONOTONIC) - wall;
      if (threads_ == 1) nanoseconds[i] = std::min(nanoseconds[i], read(CLOCK_THREAD_CPUTIME_ID) - cpu);
    }
    return {};
  }

 private:
  // What decides addresses lies outside the arena, where nothing overwrites it when a sweep leaves instructions out:
  // token ids, routes, and the rows that came of them.
  void place_aside() {
    for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
      const ir::Tensor& tensor = program_.tensors[i];
      const bool value = tensor.number >= 0 && !tensor.storage.valid() &&
                         (tensor.type.dtype == DType::route || tensor.type.dtype == DType::i32);
      if (!value && tensor.kind != TensorKind::input) continue;
      const ops::TensorView view{
          aside_.emplace(i, Buffer::zeroed(static_cast<std::size_t>(ir::bytes(tensor.type)))).first->second.data(),
          tensor.type};
      if (tensor.kind != TensorKind::input) continue;
      if (tensor.type.dtype == DType::i32)
        fill_tokens(view, TensorId{std::int32_t(i)});
      else
        fill_normal(view, 1e-3f, true);  // the schedule: rates and corrections
    }
  }

  // Below the rows of every table that the ids are looked up in, and every count of classes.
  void fill_tokens(const ops::TensorView& view, TensorId id) {
    std::int64_t bound = std::int64_t{1} << 31;
    for (const ir::Instruction& instruction : program_.instructions) {
      const auto at = std::find_if(instruction.operands.begin(), instruction.operands.end(),
                                   [&](TensorId operand) { return program_.root(operand) == id; });  // or a slice of it
      if (at == instruction.operands.end()) continue;
      if (instruction.attributes.has("vocabulary"))
        bound = std::min(bound, instruction.attributes.integer("vocabulary"));
      else if (at + 1 != instruction.operands.end())
        bound = std::min(bound, program_.type(*(at + 1)).shape[0]);
    }
    const Philox random(1, stream_of("tokens"));
    for (std::int64_t i = 0; i < view.elements(); ++i)
      view.as<std::int32_t>()[i] = std::int32_t(random.below(std::uint64_t(i), std::uint64_t(bound)));
  }

  ops::TensorView view(TensorId id) {
    const ir::Region region = program_.region(id);
    const ir::Tensor& tensor = program_[region.root];
    std::byte* data = nullptr;
    if (const auto it = aside_.find(region.root.index()); it != aside_.end()) {
      data = it->second.as<std::byte>();
    } else if (tensor.number < 0) {
      data = store_[tensor.name].memory.start;
    } else {
      const std::int64_t offset = plan_.offsets[region.root.index()];
      LANCET_CHECK(offset >= 0, "{} has no place in the arena", program_.display(region.root));
      data = arena_.as<std::byte>() + offset;
    }
    return {data + region.begin, program_.type(id)};
  }

  // Logits f32[.., E] that choose experts evenly, whatever the router made.
  ops::TensorView even_logits(const ir::TensorType& type) {
    const std::int64_t experts = type.shape.back(), tokens = type.shape.rows();
    Buffer& buffer = logits_.emplace_back(Buffer::raw(static_cast<std::size_t>(ir::bytes(type))));
    const ops::TensorView view{buffer.data(), type};
    fill_normal(view, 0.1f, false);
    const auto choice = even_choice(tokens, experts);
    for (std::int64_t t = 0; t < tokens; ++t) view.as<float>()[t * experts + choice[std::size_t(t)]] += 4;
    return view;
  }

  ops::KernelArgs arguments_of(const ir::Instruction& instruction) {
    ops::KernelArgs args{instruction.op, {}, {}, instruction.attributes, nullptr, nullptr};
    for (TensorId id : instruction.operands) args.operands.push_back(view(id));
    for (TensorId id : instruction.results) args.results.push_back(view(id));
    const bool gate =
        !args.results.empty() && args.results[0].dtype() == DType::route && args.operands[0].dtype() == DType::f32;
    if (gate) args.operands[0] = even_logits(args.operands[0].type);
    if (instruction.lane == Lane::expert) args.comm = loopback(int(cost::exchange_ranks(program_, instruction)));
    return args;
  }

  comm::Communicator* loopback(int ranks) {
    if (ranks == 1) return nullptr;  // the kernels copy
    return &loopbacks_.try_emplace(ranks, ranks).first->second;
  }

  const ir::Plan& plan_;
  const ir::Program& program_;
  const int threads_;
  TensorStore store_;
  Buffer arena_, workspace_;
  std::map<std::size_t, Buffer> aside_;  // by tensor
  std::vector<Buffer> logits_;
  std::map<int, Loopback> loopbacks_;
  std::vector<ops::Kernel> kernels_;  // by instruction; none of the reduce lane
};

}  // namespace

Result<std::unique_ptr<Replay>> Replay::create(const ir::Plan& plan, int threads) {
  auto replay = std::make_unique<CpuReplay>(plan, threads);
  LANCET_TRY(replay->bind());
  return std::unique_ptr<Replay>(std::move(replay));
}

}  // namespace lancet::runtime
