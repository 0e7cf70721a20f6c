// Executor: runs the instructions of a Plan, stream by stream. Addresses, kernels and waits are decided when it is
// made. A step only calls kernels and sets counters: no allocation, no lookup, no shape arithmetic.
//
// On the CPU the compute stream runs on the thread that calls run(); each other stream that the plan uses has a thread
// of its own. On an accelerator each of these threads enqueues its stream's work on a device stream, and flags order
// the device streams; inputs and outputs have mirrors in host memory, which are copied at the start and the end of a
// step. One thread at a time calls run().
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/device_communicator.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/kernel.h"
#include "lancet/runtime/accelerator.h"
#include "lancet/runtime/emulated_device.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::runtime {

struct ExecutorOptions {
  int threads = 1;  // of the compute stream
  // By stream: the ranks that its instructions go over. On the compute stream they have no communicators. Without a
  // group of all ranks, the rank is alone. The communicators outlive the executor.
  std::array<comm::Groups, ir::stream_count> groups{};
  // Memory of at least plan.arena_bytes, on the accelerator if there is one; executors that never run at the same time
  // may share it. If start is null, the executor allocates its own.
  Memory arena{};
  // Null: the CPU. The accelerator outlives the executor; the groups have device communicators then.
  Accelerator* accelerator = nullptr;
  // If not null, ops take declared times in place of computing; it outlives the executor.
  EmulatedDevice* emulated = nullptr;
  // On an accelerator: the longest time from when a communication instruction's operands are ready to its end.
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
  // Returns the order in which this rank can run one instruction at a time beside ranks with other plans that do the
  // same (ir::order_of_stage). Empty: the order in which the plan lists them, as ranks of one plan can.
  std::function<Result<std::vector<ir::PlacedInstruction>>()> order{};
};

// When an instruction ran, in nanoseconds from the start of its step; on an emulated device, of its own time.
struct Span {
  std::int64_t start = 0, end = 0;
};

// Times of one step in milliseconds; on an emulated device, of its own time. exposed: a communication stream was busy
// while the compute stream was idle.
struct StepTimes {
  double step = 0, compute = 0, all_to_all = 0, all_reduce = 0, communication = 0, exposed = 0;
  double late = 0;  // on an emulated device: how much later than ideal messages started, in all
};

// The first tensor that holds an infinity or a NaN. place: among the tensors that are searched on all ranks. What
// causes another tensor's values has a smaller place than that tensor; ranks that run one plan have the same place for
// the same tensor.
struct NonFinite {
  std::int64_t place = 0;
  ir::TensorId tensor;
  ir::InstructionId instruction;  // that made it; invalid for a parameter or state
  std::int64_t element = 0;
  float value = 0;
};
// "%52 : f32[2,16,32] = layer_norm at h.0.ln_1 (forward), element 3 is nan"
std::string to_string(const ir::Program& program, const NonFinite& found);

class Executor {
 public:
  // Binds the plan to memory: `store` must hold its parameters and states (TensorStore::add). Errors: an op has no
  // kernel on this device; an instruction goes over a group of ranks that the options lack.
  static Result<std::unique_ptr<Executor>> create(const ir::Plan& plan, TensorStore& store,
                                                  const ExecutorOptions& options);
  virtual ~Executor() = default;

  // What a run executes: the instructions of the step before (ir/dependencies.h), those of this step that do not close
  // it (ir::closes_step), and those that do. The gradients of several runs add up before the last one closes the step.
  struct Run {
    bool before = true, body = true, closing = true;
    static const Run last, earlier;  // all; all but what closes the step

    static constexpr std::size_t kinds = 8;
    std::size_t kind() const { return std::size_t(before) + 2 * std::size_t(body) + 4 * std::size_t(closing); }
  };

  // Runs the plan once. An error of a stream stops the others and is returned with the stream and the instruction:
  // "stream reduce: [12] all_reduce at h.0.ln_1.weight: ...".
  virtual Status run(Run which) = 0;
  Status run() { return run(Run::last); }

  // Finds the cause of a loss that is not finite: searches parameters and state, then runs the plan again, one
  // instruction at a time on the calling thread and without the updates of parameters and state, and searches each
  // result. What a plan lists of the step before is run last, as of this step. Slow. Collective; it always runs to the
  // end, since other ranks may find a number later or not at all.
  virtual Result<std::optional<NonFinite>> find_non_finite(Run which) = 0;
  Result<std::optional<NonFinite>> find_non_finite() { return find_non_finite(Run::last); }

  virtual ops::TensorView input(std::string_view name) = 0;         // to be filled before run()
  virtual ops::TensorView output(std::string_view name) const = 0;  // to be read after run()
  virtual bool has_output(std::string_view name) const = 0;
  virtual const ir::Plan& plan() const = 0;
  // The spans, per instruction, of the last run with a body. On an accelerator: those of the last timed run. The first
  // two runs, every eighth, and those requested by time_next_run() are timed. Unless the run was requested, the time of
  // a recorded section is divided among its instructions in proportion to the plan's predictions.
  virtual std::span<const Span> spans() const = 0;
  virtual StepTimes times() const = 0;  // of the run that spans() describes
  // Requests that the next run times every instruction, which slows that run down.
  virtual void time_next_run() {}
  virtual std::int64_t workspace_bytes() const = 0;  // sum over all streams
};

inline constexpr Executor::Run Executor::Run::last{};
inline constexpr Executor::Run Executor::Run::earlier{.closing = false};

// Prints a step's timeline as a Chrome trace for Perfetto (ui.perfetto.dev): the plan's prediction and the times
// measured on each rank, one row per stream.

// stages: the plan of each pipeline stage, or the one plan of all ranks. measured: by rank, the span of each
// instruction of its stage's plan from the start of that rank's step; the ranks are as many for each stage, stage after
// stage. Process (pid) r is rank r. A stage's prediction, if its plan has one, is listed before the stage's ranks; its
// pid is the number of ranks plus that of the stage. tid: the stream. Each instruction is one event: its name is "op
// label", its args are its number in the stage's plan file and the numbers of its waits. With several stages, the names
// of processes hold their stage, and so does the arg `stage` beside the name.
std::string trace_json(std::span<const ir::Plan> stages, std::span<const std::vector<Span>> measured);

// Computes how much scratch memory a plan's kernels need, before the plan is bound to memory.

// Bytes of scratch that an executor of the plan allocates for its kernels, summed over all streams, and of the memory
// that kernels may allocate for themselves: on the accelerator or, if it is null, on the CPU with `threads` threads.
// Error: an op has no kernel there.
Result<std::int64_t> planned_workspace(const ir::Plan& plan, Accelerator* accelerator, int threads);

}  // namespace lancet::runtime
