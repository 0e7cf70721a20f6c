// Communicators that behave as a test sets them, and plans from text.
#pragma once
#include <catch2/catch.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <utility>

#include "good.h"
#include "lancet/comm/communicator.h"
#include "lancet/ir/plan.h"
#include "lancet/runtime/executor.h"

namespace lancet::test {

// A fake of two ranks; the test supplies the all-reduce. Counts its aborts.
class FakeCommunicator final : public comm::Communicator {
 public:
  using AllReduce = std::function<Status(std::span<float>)>;
  explicit FakeCommunicator(AllReduce all_reduce) : all_reduce_(std::move(all_reduce)) {}

  int rank() const override { return 0; }
  int size() const override { return 2; }
  std::string transport() const override { return "fake"; }
  Status send_receive(std::span<const comm::Segment>, std::span<const comm::Segment>) override { return unexpected(); }
  Status all_reduce_sum(std::span<float> values) override { return all_reduce_(values); }
  Status broadcast(std::span<std::byte>, int) override { return unexpected(); }
  Status barrier() override { return unexpected(); }
  Result<std::unique_ptr<comm::Communicator>> split(std::span<const int>) override {
    return internal_error("no groups of a fake");
  }
  void abort(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    ++aborts_;
    why_ = why;
    changed_.notify_all();
  }
  void set_timeout(std::chrono::milliseconds) override {}

  int aborts() const {
    const std::lock_guard lock(mutex_);
    return aborts_;
  }
  // Blocks like a call to peers; returns an error after abort().
  Status block() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, std::chrono::seconds(60), [&] { return aborts_ > 0; }))
      return internal_error("no abort came");
    return communication_error("aborted: " + why_);
  }

 private:
  static Status unexpected() { return internal_error("a call that the test does not expect"); }
  AllReduce all_reduce_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int aborts_ = 0;
  std::string why_;
};

inline Status doubled(std::span<float> values) {
  for (float& value : values) value *= 2;
  return {};
}

// A plan that verify() accepts, a store with its named tensors, and the executor.
struct Run {
  ir::Plan plan;
  runtime::TensorStore store;
  std::unique_ptr<runtime::Executor> executor;

  explicit Run(std::string_view text, const runtime::ExecutorOptions& options = {}) {
    auto parsed = test::good(ir::parse_plan(text));
    plan = *parsed;
    if (const Status sound = ir::verify(plan); !sound.ok()) FAIL(sound.error().message);
    store.add(plan.program);
    auto made = test::good(runtime::Executor::create(plan, store, options));
    executor = std::move(*made);
  }
  std::span<float> input(std::string_view name) { return span(executor->input(name)); }
  std::span<float> output(std::string_view name) { return span(executor->output(name)); }
  std::span<float> state(std::string_view name) { return store[name].memory.span<float>(); }
  static std::span<float> span(const ops::TensorView& view) { return {view.as<float>(), std::size_t(view.elements())}; }
};

inline void require_done(const Status& status) {
  if (!status.ok()) FAIL(status.error().message);
}

// Streams 1 and 2: all-to-all ("expert") and all-reduce ("reduce").
inline runtime::ExecutorOptions streams(comm::Communicator* expert, comm::Communicator* reduce) {
  runtime::ExecutorOptions options;
  options.groups = {comm::Groups(), comm::all_ranks(expert), comm::all_ranks(reduce)};
  return options;
}

// All three streams: compute adds while expert and reduce each sum a tensor over the ranks.
inline constexpr std::string_view three_streams = R"(plan {policy=test}
arena 320
input @x : f32[4]
state @s : f32[4]
[0] %0 : f32[4] = add(@x, @x)  # compute forward a | at 0
[1] %1 : f32[4] = add(@x, %0)  # compute forward b | at 64
[2] %2 : f32[4] in %0 = all_reduce(%0)  # expert sync c | wait 1 | at -
[3] %3 : f32[4] in %1 = all_reduce(%1)  # reduce sync d | wait 1 | at -
[4] %4 : f32[4] = add(@x, @s)  # compute forward e | at 128
[5] %5 : f32[4] = add(%2, %3)  # compute forward f | wait 2 3 | at 192
[6] %6 : f32[4] = add(%5, %4)  # compute forward g | at 256
output y = %6
)";

// Fails the test instead of hanging if run() does not return.
inline Status within(std::chrono::seconds limit, runtime::Executor& executor) {
  auto result = std::async(std::launch::async, [&] { return executor.run(); });
  if (result.wait_for(limit) != std::future_status::ready) {
    WARN("run() hangs");
    std::abort();  // its threads cannot be joined
  }
  return result.get();
}

}  // namespace lancet::test
