// The executor walks the lanes of a Plan. Everything is decided when it is made: addresses, kernels, waits. A step only
// calls kernels and sets counters: no allocation, no lookup, no shape arithmetic.
//
// The compute lane runs on the thread that calls run(); the other lanes that the plan uses have a thread each. One
// thread at a time calls run().
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/ir/plan.h"
#include "lancet/ops/kernel.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::runtime {

struct ExecutorOptions {
  int threads = 1;  // of the compute lane
  // By lane; null on the compute lane. They outlive the executor.
  std::array<comm::Communicator*, ir::lane_count> communicators{};
  // Memory of at least plan.arena_bytes that executors which never run at once share; null: its own.
  const backend::cpu::Buffer* arena = nullptr;
};

// Where an instruction ran, in nanoseconds from the start of its step.
struct Span {
  std::int64_t start = 0, end = 0;
};

// Times of one step in milliseconds. exposed: a communication lane was busy and the compute lane was not.
struct StepTimes {
  double step = 0, compute = 0, all_to_all = 0, all_reduce = 0, communication = 0, exposed = 0;
};

class Executor {
 public:
  // Binds the plan to memory: `store` must hold its parameters and states (TensorStore::add). Errors: an op without a
  // kernel on this device.
  static Result<std::unique_ptr<Executor>> create(const ir::Plan& plan, TensorStore& store,
                                                  const ExecutorOptions& options);
  virtual ~Executor() = default;

  // One pass over the plan. An error of a lane stops the others and is returned with the lane and the instruction:
  // "lane reduce: [12] all_reduce at h.0.ln_1.weight: ...".
  virtual Status run() = 0;

  virtual ops::TensorView input(std::string_view name) = 0;         // to be filled before run()
  virtual ops::TensorView output(std::string_view name) const = 0;  // to be read after run()
  virtual bool has_output(std::string_view name) const = 0;
  virtual const ir::Plan& plan() const = 0;
  virtual std::span<const Span> spans() const = 0;   // of the last run, per instruction
  virtual StepTimes times() const = 0;               // of the last run
  virtual std::int64_t workspace_bytes() const = 0;  // over all lanes
};

}  // namespace lancet::runtime
