// The executor walks the streams of a Plan. Everything is decided when it is made: addresses, kernels, waits. A step only
// calls kernels and sets counters: no allocation, no lookup, no shape arithmetic.
//
// On the CPU the compute stream runs on the thread that calls run(); the other streams that the plan uses have a thread
// each. On a device that works from queues those threads put each stream's work on a stream of its own, where flags join
// the streams; inputs and outputs have mirrors in host memory, which travel at the start and the end of a step. One
// thread at a time calls run().
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/kernel.h"
#include "lancet/runtime/accelerator.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::runtime {

struct ExecutorOptions {
  int threads = 1;  // of the compute stream
  // By stream; null on the compute stream. They outlive the executor.
  std::array<comm::Communicator*, ir::stream_count> communicators{};
  // Memory of at least plan.arena_bytes that executors which never run at once share, on the accelerator where there
  // is one. Without a start: its own.
  Memory arena{};
  // Null: the CPU. It outlives the executor, and so do the streams' communicators for tensors that lie on it.
  Accelerator* accelerator = nullptr;
  std::array<comm::DeviceCommunicator*, ir::stream_count> device_communicators{};
  // How long, on an accelerator, an instruction of a communication stream may take whose operands are there.
  std::chrono::milliseconds timeout = std::chrono::seconds(300);
};

// Where an instruction ran, in nanoseconds from the start of its step.
struct Span {
  std::int64_t start = 0, end = 0;
};

// Times of one step in milliseconds. exposed: a communication stream was busy and the compute stream was not.
struct StepTimes {
  double step = 0, compute = 0, all_to_all = 0, all_reduce = 0, communication = 0, exposed = 0;
};

// The first tensor with a number that is infinite or none. place: counts the tensors looked at before it; the same
// number is the same tensor on every rank, and a smaller one is nearer to the cause.
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
  // Binds the plan to memory: `store` must hold its parameters and states (TensorStore::add). Errors: an op without a
  // kernel on this device.
  static Result<std::unique_ptr<Executor>> create(const ir::Plan& plan, TensorStore& store,
                                                  const ExecutorOptions& options);
  virtual ~Executor() = default;

  // One pass over the plan. An error of a stream stops the others and is returned with the stream and the instruction:
  // "stream reduce: [12] all_reduce at h.0.ln_1.weight: ...".
  virtual Status run() = 0;

  // What went wrong in a step whose loss is not finite: looks at parameters and state, then runs the plan again, one
  // instruction at a time on the calling thread and without the updates of parameters and state, and looks at each
  // result. Slow. Collective, and to the end whatever it finds, since other ranks may find it later or not at all.
  virtual Result<std::optional<NonFinite>> find_non_finite() = 0;

  virtual ops::TensorView input(std::string_view name) = 0;         // to be filled before run()
  virtual ops::TensorView output(std::string_view name) const = 0;  // to be read after run()
  virtual bool has_output(std::string_view name) const = 0;
  virtual const ir::Plan& plan() const = 0;
  // Of the last run, per instruction. On an accelerator: of the last one that was timed (the first two, each eighth,
  // and those that time_next_run() asked for), and the instructions of a recorded stretch share its time as the plan
  // predicts it, unless it was asked for.
  virtual std::span<const Span> spans() const = 0;
  virtual StepTimes times() const = 0;  // of the run that spans() tells of
  // The next run takes the time of every instruction, at some cost.
  virtual void time_next_run() {}
  virtual std::int64_t workspace_bytes() const = 0;  // over all streams
};

}  // namespace lancet::runtime
