// Which instructions an accelerator binds as one kernel.
#include "runtime/device_kernels.h"

#include <algorithm>

#include "host_accelerator.h"
#include "support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// Binds additions as one.
class JoiningAccelerator final : public runtime::Accelerator {
 public:
  backend::Device& device() override { return host_.device(); }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override {
    return op == "add" ? &add_ : host_.find_kernel(op);
  }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) override {
    return host_.make_communicator(stream);
  }
  std::string build() const override { return "test"; }
  static inline std::vector<std::size_t> joined;  // calls by kernel

 private:
  static ops::Kernel bind_all(std::span<const ops::KernelArgs> calls) {
    joined.push_back(calls.size());
    std::vector<ops::Kernel> kernels;
    for (const ops::KernelArgs& args : calls) kernels.push_back(HostAccelerator().find_kernel("add")->bind(args));
    return [kernels]() -> Status {
      for (const ops::Kernel& kernel : kernels) LANCET_TRY(kernel());
      return {};
    };
  }
  HostAccelerator host_;
  ops::DeviceKernel add_ = [this] {
    ops::DeviceKernel add = *host_.find_kernel("add");
    add.bind_all = bind_all;
    return add;
  }();
};

// Other streams wait for [1] and [3].
constexpr std::string_view plan_text = R"(plan {policy=test}
arena 576
input @x : f32[4]
state @s : f32[4]
[0] %0 : f32[4] = add(@x, @x)  # compute forward a | at 0
[1] %1 : f32[4] = add(@x, @s)  # compute forward b | at 64
[2] %2 : f32[4] = add(@s, @s)  # compute forward c | at 128
[3] %3 : f32[4] = add(@x, @s)  # compute forward d | at 192
[4] %4 : f32[4] in %1 = all_reduce(%1)  # expert sync e | wait 1 | at -
[5] %5 : f32[4] in %3 = all_reduce(%3)  # reduce sync f | wait 3 | at -
[6] %6 : f32[4] = add(%0, %2)  # compute forward g | at 256
[7] zero(&@s)  # compute update h
[8] %7 : f32[4] = add(%4, %5)  # compute forward i | wait 4 5 | at 320
[9] %8 : f32[4] = add(%6, @x)  # compute forward j | at 384
[10] %9 : f32[4] = add(%7, %8)  # compute forward k | at 448
output y = %9
)";

}  // namespace

TEST_CASE("instructions of one op are bound as one up to a flag or another op, and keep their values") {
  auto plan = ir::parse_plan(plan_text);
  if (!plan.ok()) FAIL(plan.error().message);
  JoiningAccelerator accelerator;
  const runtime::Streams streams = runtime::streams_of(*plan);
  const auto flags = runtime::plan_flags(streams, [](std::int32_t) { return true; });
  const std::vector<runtime::InstructionRun> expected{{0, 1}, {2, 3}, {8, 9, 10}};
  CHECK(runtime::runs_of(plan->program, streams, flags, accelerator) == expected);
  CHECK(runtime::runs_of(plan->program, streams, flags, HostAccelerator()).empty());

  FakeCommunicator expert([](std::span<float> data) -> Status {
    for (float& v : data) v *= 10;
    return {};
  });
  HostQueueCommunicator on_device(expert);
  runtime::TensorStore store;
  store.place_on(accelerator.device());
  store.add(plan->program);
  JoiningAccelerator::joined.clear();
  auto executor = runtime::Executor::create(
      *plan, store, {.accelerator = &accelerator, .device_communicators = {nullptr, &on_device, &on_device}});
  if (!executor.ok()) FAIL(executor.error().message);
  CHECK(JoiningAccelerator::joined == std::vector<std::size_t>{2, 2, 3});
  const std::vector<float> s{1, 2, 3, 4};
  for (int step = 0; step < 3; ++step) {
    REQUIRE(store.write(store["s"], 0, std::as_bytes(std::span(s))).ok());
    std::ranges::fill(Run::span((*executor)->input("x")), 1.f);
    REQUIRE((*executor)->run().ok());
    const std::span<float> y = Run::span((*executor)->output("y"));
    // 10 (x + s) + 10 (x + s) + 2 x + 2 s + x
    for (std::size_t i = 0; i < 4; ++i) CHECK(y[i] == 23 + 22 * s[i]);
  }
}
