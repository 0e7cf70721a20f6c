// Which instructions an accelerator binds as one kernel.
#include "runtime/device_kernels.h"

#include <algorithm>

#include "good.h"
#include "host_accelerator.h"
#include "support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

// Binds updates as one, and makes them in reverse order, since no order is promised.
class JoiningAccelerator final : public runtime::Accelerator {
 public:
  backend::Device& device() override { return host_.device(); }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override {
    return op == "sgd" ? &sgd_ : host_.find_kernel(op);
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
    for (const ops::KernelArgs& args : calls) kernels.push_back(HostAccelerator().find_kernel("sgd")->bind(args));
    std::ranges::reverse(kernels);
    return [kernels]() -> Status {
      for (const ops::Kernel& kernel : kernels) LANCET_TRY(kernel());
      return {};
    };
  }
  HostAccelerator host_;
  ops::DeviceKernel sgd_ = [this] {
    ops::DeviceKernel sgd = *host_.find_kernel("sgd");
    sgd.bind_all = bind_all;
    return sgd;
  }();
};

// [4] waits for another stream, [6] reads what [5] updates, and [8] updates what [6] reads.
constexpr std::string_view plan_text = R"(plan {policy=test}
arena 64
input @g : f32[4]
input @schedule : f32[4]
state @a : f32[4]
state @va : f32[4]
state @b : f32[4]
state @vb : f32[4]
state @c : f32[4]
state @vc : f32[4]
state @d : f32[4]
state @vd : f32[4]
state @e : f32[4]
state @ve : f32[4]
state @f : f32[4]
state @vf : f32[4]
[0] %0 : f32[4] = add(@g, @g)  # compute forward x | at 0
[1] %1 : f32[4] in %0 = all_reduce(%0)  # expert sync x | wait 0 | at -
[2] sgd(&@a, &@va, @g, @schedule) {momentum=0.0, weight_decay=0.0}  # compute update a
[3] sgd(&@b, &@vb, @g, @schedule) {momentum=0.0, weight_decay=0.0}  # compute update b
[4] sgd(&@c, &@vc, %1, @schedule) {momentum=0.0, weight_decay=0.0}  # compute update c | wait 1
[5] sgd(&@d, &@vd, @a, @schedule) {momentum=0.0, weight_decay=0.0}  # compute update d
[6] sgd(&@e, &@ve, @d, @schedule) {momentum=0.0, weight_decay=0.0}  # compute update e
[7] sgd(&@f, &@vf, @g, @schedule) {momentum=0.0, weight_decay=0.0}  # compute update f
[8] sgd(&@d, &@vd, @g, @schedule) {momentum=0.0, weight_decay=0.0}  # compute update d
[9] zero(&@va)  # compute update z
[10] sgd(&@a, &@va, @g, @schedule) {momentum=0.0, weight_decay=0.0}  # compute update a
output y = %1
)";

}  // namespace

TEST_CASE("updates are bound as one up to a flag, another op or a dependency, and keep their values") {
  auto plan = test::good(ir::parse_plan(plan_text));
  JoiningAccelerator accelerator;
  const runtime::Streams streams = runtime::streams_of(*plan);
  const auto flags = runtime::plan_flags(streams, [](std::int32_t) { return true; });
  const std::vector<runtime::InstructionRun> expected{{2, 3}, {4, 5}, {6, 7}};
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
  auto executor = test::good(
      runtime::Executor::create(*plan, store,
                                {.groups = {comm::Groups(), comm::all_ranks(&on_device), comm::all_ranks(&on_device)},
                                 .accelerator = &accelerator}));
  CHECK(JoiningAccelerator::joined == std::vector<std::size_t>{2, 2, 2});
  const std::vector<float> start{1, 2, 3, 4};
  for (int step = 0; step < 3; ++step) {
    for (const char* weight : {"a", "b", "c", "d", "e", "f"})
      REQUIRE(store.write(store[weight], 0, std::as_bytes(std::span(start))).ok());
    std::ranges::fill(Run::span((*executor)->input("g")), 1.f);
    std::ranges::fill(Run::span((*executor)->input("schedule")), 1.f);  // a learning rate of 1
    REQUIRE((*executor)->run().ok());
    const auto check = [&](const char* weight, const std::vector<float>& expected) {
      std::vector<float> found(4);
      REQUIRE(store.read(store[weight], 0, std::as_writable_bytes(std::span(found))).ok());
      INFO(weight);
      CHECK(found == expected);
    };
    check("a", {-1, 0, 1, 2});         // start - 2 g
    check("b", {0, 1, 2, 3});          // start - g
    check("c", {-19, -18, -17, -16});  // start - 10 (g + g)
    check("d", {0, 0, 0, 0});          // start - (start - g) - g
    check("e", {0, 1, 2, 3});          // start - (start - (start - g))
    check("f", {0, 1, 2, 3});
  }
}
