#include "lancet/runtime/executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <limits>
#include <optional>
#include <thread>

#include "lancet/backend/cpu/buffer.h"
#include "lancet/backend/cpu/parallel.h"
#include "lane_times.h"
#include "non_finite.h"

namespace lancet::runtime {
namespace {

using backend::cpu::Buffer;
using ir::Lane;
using ir::TensorId;

constexpr std::int32_t lane_failed = std::numeric_limits<std::int32_t>::max();

// How far a lane has come in the current step: the number of its instructions that have ended.
class Progress {
 public:
  void reset() { done_.store(0, std::memory_order_relaxed); }
  void advance(std::int32_t done) {
    done_.store(done, std::memory_order_release);
    done_.notify_all();
  }
  void fail() { advance(lane_failed); }
  // False if the lane has failed.
  bool wait(std::int32_t target) const {
    std::int32_t done = done_.load(std::memory_order_acquire);
    while (done < target) {
      done_.wait(done, std::memory_order_acquire);
      done = done_.load(std::memory_order_acquire);
    }
    return done != lane_failed;
  }

 private:
  std::atomic<std::int32_t> done_{0};
};

struct Wait {
  std::uint8_t lane;
  std::int32_t target;  // instructions of that lane that must have ended
};

struct Step {
  ops::Kernel kernel;
  std::vector<Wait> waits;
  std::int32_t instruction;
};

class CpuExecutor final : public Executor {
 public:
  CpuExecutor(const ir::Plan& plan, TensorStore& store, const ExecutorOptions& options)
      : plan_(plan), store_(store), options_(options), spans_(plan.program.instructions.size()) {
    if (!options.arena) arena_ = Buffer::raw(static_cast<std::size_t>(plan.arena_bytes));
    const Buffer& arena = options.arena ? *options.arena : arena_;
    LANCET_CHECK(arena.size() >= static_cast<std::size_t>(plan.arena_bytes),
                 "the arena has {} bytes, the plan needs {}", arena.size(), plan.arena_bytes);
    base_ = arena.as<std::byte>();
    for (const ir::Tensor& tensor : plan.program.tensors)
      if (tensor.kind == ir::TensorKind::input)
        inputs_.emplace_back(tensor.name, Buffer::zeroed(static_cast<std::size_t>(ir::bytes(tensor.type))));
  }

  ~CpuExecutor() override {
    stopping_.store(true);
    epoch_.fetch_add(1);
    epoch_.notify_all();
  }

  Status bind() {
    backend::cpu::set_threads(options_.threads);
    LANCET_TRY(plan_workspaces());
    std::array<std::int32_t, ir::lane_count> next{};
    std::vector<std::int32_t> position(plan_.program.instructions.size());
    for (std::size_t i = 0; i < plan_.program.instructions.size(); ++i) {
      const ir::Instruction& instruction = plan_.program.instructions[i];
      const auto lane = static_cast<std::size_t>(instruction.lane);
      position[i] = next[lane]++;
      Step step{kernel_of(instruction)->bind(arguments(instruction)), {}, static_cast<std::int32_t>(i)};
      for (ir::InstructionId wait : plan_.waits[i]) {
        const auto other = static_cast<std::uint8_t>(plan_.program.instructions[wait.index()].lane);
        if (other != lane) step.waits.push_back({other, position[wait.index()] + 1});
      }
      steps_[lane].push_back(std::move(step));
    }
    for (std::size_t lane = 1; lane < ir::lane_count; ++lane)
      if (!steps_[lane].empty()) threads_.emplace_back([this, lane] { serve(lane); });
    return {};
  }

  Status run() override {
    backend::cpu::set_threads(options_.threads);
    for (Progress& progress : progress_) progress.reset();
    for (auto& error : errors_) error.reset();
    failed_first_.store(-1, std::memory_order_relaxed);
    start_ = now();
    running_.store(static_cast<int>(threads_.size()), std::memory_order_relaxed);
    epoch_.fetch_add(1, std::memory_order_release);
    epoch_.notify_all();
    walk(0);
    for (int left = running_.load(std::memory_order_acquire); left > 0; left = running_.load(std::memory_order_acquire))
      running_.wait(left, std::memory_order_acquire);
    step_ns_ = now() - start_;
    return first_error();
  }

  Result<std::optional<NonFinite>> find_non_finite() override {
    backend::cpu::set_threads(options_.threads);
    std::optional<NonFinite> first;
    std::int64_t place = 0;
    auto look = [&](TensorId id, ir::InstructionId instruction) {
      if (first) return;
      if (const auto bad = first_non_finite(view(id)))
        first = NonFinite{place, id, instruction, bad->index, bad->value};
      ++place;
    };
    for (std::size_t i = 0; i < plan_.program.tensors.size(); ++i)
      if (const auto kind = plan_.program.tensors[i].kind;
          kind == ir::TensorKind::parameter || kind == ir::TensorKind::state)
        look(TensorId{static_cast<std::int32_t>(i)}, {});
    LANCET_TRY(walk_alone([&](const Step& step) {
      const ir::InstructionId id{step.instruction};
      for (TensorId result : plan_.program.instructions[id.index()].results) look(result, id);
    }));
    return first;
  }

  ops::TensorView input(std::string_view name) override {
    const TensorId id = plan_.program.find(name);
    LANCET_CHECK(id.valid(), "the plan has no input @{}", name);
    return view(id);
  }
  ops::TensorView output(std::string_view name) const override {
    const TensorId id = plan_.program.output(name);
    LANCET_CHECK(id.valid(), "the plan has no output {}", name);
    return view(id);
  }
  bool has_output(std::string_view name) const override { return plan_.program.output(name).valid(); }
  const ir::Plan& plan() const override { return plan_; }
  std::span<const Span> spans() const override { return spans_; }
  StepTimes times() const override { return lane_times(plan_.program, spans_, step_ns_); }
  std::int64_t workspace_bytes() const override {
    std::int64_t total = 0;
    for (const Buffer& workspace : workspaces_) total += static_cast<std::int64_t>(workspace.size());
    return total;
  }

 private:
  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
  }

  const ops::CpuKernel* kernel_of(const ir::Instruction& instruction) const {
    return ops::find_cpu_kernel(instruction.op);
  }

  ops::TensorView view(TensorId id) const {
    const ir::Region region = plan_.program.region(id);
    const TensorId root = region.root;
    const ir::Tensor& tensor = plan_.program[root];
    std::byte* data = nullptr;
    if (tensor.kind == ir::TensorKind::input) {
      for (const auto& [name, memory] : inputs_)
        if (name == tensor.name) data = memory.as<std::byte>();
    } else if (tensor.number < 0) {
      const NamedTensor& stored = store_[tensor.name];
      LANCET_CHECK(stored.type == tensor.type, "@{} is {} in the store and {} in the plan", tensor.name,
                   ir::to_string(stored.type), ir::to_string(tensor.type));
      data = stored.memory.start;
    } else if (plan_.offsets[root.index()] >= 0) {
      data = base_ + plan_.offsets[root.index()];
    }
    return {data ? data + region.begin : nullptr, plan_.program.type(id)};
  }

  ops::KernelArgs arguments(const ir::Instruction& instruction) const {
    const auto lane = static_cast<std::size_t>(instruction.lane);
    ops::KernelArgs args{instruction.op,
                         {},
                         {},
                         instruction.attributes,
                         options_.communicators[lane],
                         workspaces_[lane].as<std::byte>()};
    for (TensorId id : instruction.operands) args.operands.push_back(view(id));
    for (TensorId id : instruction.results) args.results.push_back(view(id));
    return args;
  }

  // One scratch block a lane, as large as its most demanding kernel asks.
  Status plan_workspaces() {
    std::array<std::size_t, ir::lane_count> bytes{};
    for (const ir::Instruction& instruction : plan_.program.instructions) {
      const ops::CpuKernel* kernel = kernel_of(instruction);
      if (!kernel) return internal_error(fmt::format("op {} has no kernel on the CPU", instruction.op));
      auto& most = bytes[static_cast<std::size_t>(instruction.lane)];
      if (kernel->workspace) most = std::max(most, kernel->workspace(arguments(instruction)));
    }
    for (std::size_t lane = 0; lane < ir::lane_count; ++lane) workspaces_[lane] = Buffer::raw(bytes[lane]);
    return {};
  }

  void serve(std::size_t lane) {
    backend::cpu::set_threads(1);  // what these lanes compute are copies
    for (std::uint32_t seen = 0;;) {
      epoch_.wait(seen, std::memory_order_acquire);
      seen = epoch_.load(std::memory_order_acquire);
      if (stopping_.load()) return;
      walk(lane);
      if (running_.fetch_sub(1, std::memory_order_acq_rel) == 1) running_.notify_one();
    }
  }

  void walk(std::size_t lane) {
    std::int32_t done = 0;
    for (Step& step : steps_[lane]) {
      for (const Wait& wait : step.waits)
        if (!progress_[wait.lane].wait(wait.target)) return progress_[lane].fail();
      Span& span = spans_[static_cast<std::size_t>(step.instruction)];
      span.start = now() - start_;
      if (!call(lane, step)) {
        // What the other lanes wait for will not come; a communicator that blocks them is woken too.
        for (comm::Communicator* comm : options_.communicators)
          if (comm) comm->abort(errors_[lane]->message);
        return progress_[lane].fail();
      }
      span.end = now() - start_;
      progress_[lane].advance(++done);
    }
  }

  // All lanes in turn on this thread, each as far as its waits allow: the same order on all ranks.
  template <class After>
  Status walk_alone(const After& after) {
    for (auto& error : errors_) error.reset();
    std::vector<bool> made(plan_.program.tensors.size());
    std::array<std::size_t, ir::lane_count> done{};
    auto ready = [&](const Step& step) {
      return std::all_of(step.waits.begin(), step.waits.end(),
                         [&](const Wait& wait) { return done[wait.lane] >= static_cast<std::size_t>(wait.target); });
    };
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t lane = 0; lane < ir::lane_count; ++lane)
        for (; done[lane] < steps_[lane].size() && ready(steps_[lane][done[lane]]); ++done[lane], moved = true) {
          Step& step = steps_[lane][done[lane]];
          const ir::Instruction& instruction = plan_.program.instructions[static_cast<std::size_t>(step.instruction)];
          if (instruction.role == ir::Role::update && !instruction.writes.empty()) continue;
          clear_fresh(instruction, made);
          if (call(lane, step)) {
            after(step);
            continue;
          }
          for (comm::Communicator* comm : options_.communicators)
            if (comm) comm->abort(errors_[lane]->message);
          return *errors_[lane];
        }
    }
    return {};
  }

  // Zeroes the memory of results that nothing has been written to yet: slots without a token never are, and what lay
  // there before must not pass for a result.
  void clear_fresh(const ir::Instruction& instruction, std::vector<bool>& made) const {
    for (TensorId id : instruction.results) {
      const TensorId root = plan_.program.root(id);
      if (made[root.index()] || plan_.offsets[root.index()] < 0) continue;
      made[root.index()] = true;
      const ops::TensorView whole = view(root);
      std::memset(whole.data, 0, static_cast<std::size_t>(ir::bytes(whole.type)));
    }
  }

  bool call(std::size_t lane, Step& step) {
    auto named = [&](const std::string& message) {  // as plan.ir numbers the instructions
      const ir::Instruction& instruction = plan_.program.instructions[static_cast<std::size_t>(step.instruction)];
      return fmt::format("lane {}: [{}] {} at {}: {}", ir::name(instruction.lane), step.instruction, instruction.op,
                         instruction.label, message);
    };
    try {
      Status status = step.kernel();
      if (status.ok()) return true;
      errors_[lane] = Error{status.error().code, named(status.error().message), false};
    } catch (const std::exception& error) {
      errors_[lane] = internal_error(named(error.what()));
    }
    int none = -1;
    failed_first_.compare_exchange_strong(none, static_cast<int>(lane));
    return false;
  }

  Status first_error() {
    const int lane = failed_first_.load();
    if (lane < 0) return {};
    return *errors_[static_cast<std::size_t>(lane)];
  }

  const ir::Plan plan_;
  TensorStore& store_;
  const ExecutorOptions options_;
  Buffer arena_;               // unless shared
  std::byte* base_ = nullptr;  // of the arena
  std::vector<std::pair<std::string, Buffer>> inputs_;
  std::array<Buffer, ir::lane_count> workspaces_;
  std::array<std::vector<Step>, ir::lane_count> steps_;
  std::array<Progress, ir::lane_count> progress_;
  std::array<std::optional<Error>, ir::lane_count> errors_;
  std::atomic<int> failed_first_{-1};
  std::vector<Span> spans_;
  std::int64_t start_ = 0, step_ns_ = 0;
  std::atomic<std::uint32_t> epoch_{0};
  std::atomic<int> running_{0};
  std::atomic<bool> stopping_{false};
  std::vector<std::jthread> threads_;  // last: they use all of the above and end first
};

}  // namespace

Result<std::unique_ptr<Executor>> Executor::create(const ir::Plan& plan, TensorStore& store,
                                                   const ExecutorOptions& options) {
  auto executor = std::make_unique<CpuExecutor>(plan, store, options);
  LANCET_TRY(executor->bind());
  return std::unique_ptr<Executor>(std::move(executor));
}

}  // namespace lancet::runtime
