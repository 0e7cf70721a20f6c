// Tests without a GPU that cuDNN accepts attention's graphs and makes plans of them for an H200 and an A100: files
// describe the devices, and the driver does nothing. The values that the plans compute are not tested here.
#include <catch2/catch.hpp>

#if defined(LANCET_HAVE_CUDNN)
#include <dlfcn.h>

#include <fstream>
#include <iterator>

#include "backend/cuda/attention_graph.h"

using namespace lancet;
using namespace lancet::backend::cuda;

namespace {

constexpr std::int64_t any_workspace = std::int64_t{1} << 40;

// cuDNN opens libcuda.so.1 and gets the library of this name that the process has loaded already.
void use_fake_driver() {
  static void* const driver = dlopen(LANCET_FAKE_DRIVER, RTLD_NOW | RTLD_GLOBAL);
  INFO(dlerror());
  REQUIRE(driver);
}

CudnnTarget target_of(const std::string& device) {
  use_fake_driver();
  std::ifstream file(std::string(LANCET_SOURCE_DIR) + "/tests/backend/cuda/" + device + ".json");
  std::string json((std::istreambuf_iterator<char>(file)), {});
  while (!json.empty() && json.back() == '\n') json.pop_back();
  auto target = describe_cudnn_target(json);
  REQUIRE(target.ok());
  return *target;
}

CudnnPlan plan(const CudnnTarget& target, const AttentionDesc& desc) {
  const auto made = plan_graph(attention_graph(desc), target, any_workspace, desc.backward && desc.deterministic);
  INFO("sequence " << desc.sequence << ", heads of " << desc.head_dim << (desc.backward ? ", backward: " : ": ")
                   << (made.ok() ? "" : made.error().message));
  REQUIRE(made.ok());
  return *made;
}

}  // namespace

TEST_CASE("cuDNN plans attention on an H200 and an A100") {
  for (const std::string device : {"h200", "a100"}) {
    INFO(device);
    const CudnnTarget target = target_of(device);
    for (const AttentionDesc& shape :
         {AttentionDesc{4, 1024, 12, 64}, AttentionDesc{2, 1000, 16, 128}, AttentionDesc{1, 128, 3, 32},
          AttentionDesc{.batch = 2, .sequence = 1024, .heads = 4, .head_dim = 128, .group = 8}}) {
      AttentionDesc desc = shape;
      CHECK(plan(target, desc).workspace <= 1 << 20);
      desc.backward = true;
      // dq from whole products: the gradients of the scores are stored in memory.
      const std::int64_t heads = desc.heads * desc.group,
                         scores = desc.batch * heads * desc.sequence * desc.sequence * 2;
      const std::int64_t dq = desc.batch * heads * desc.sequence * desc.head_dim * 4;
      // Of groups, the gradients of keys and values of each head of queries are stored in memory, too.
      const std::int64_t of_groups = desc.group > 1 ? 2 * dq : 0;
      CHECK(plan(target, desc).workspace <= 2 * scores + of_groups + (1 << 20));
      CHECK(plan(target, desc).workspace >= scores);
      // Sums of dq in any order: the gradients of the scores stay within the engine.
      desc.deterministic = false;
      CHECK(plan(target, desc).workspace <= dq + of_groups + (1 << 20));
    }
  }
}

TEST_CASE("cuDNN plans a later part of the positions, whose queries read the keys before them, too") {
  const CudnnTarget target = target_of("h200");
  AttentionDesc desc{
      .batch = 1, .sequence = 2048, .heads = 4, .head_dim = 128, .group = 8, .part = true, .before = 2048};
  plan(target, desc);
  desc.backward = true;
  plan(target, desc);
  desc.deterministic = false;
  plan(target, desc);
}

TEST_CASE("a plan that needs more workspace than the limit is rejected") {
  AttentionDesc desc{4, 1024, 12, 64};
  desc.backward = true;
  const auto made = plan_graph(attention_graph(desc), target_of("h200"), 1 << 20, true);
  REQUIRE_FALSE(made.ok());
  CHECK_THAT(made.error().message, Catch::Matchers::Contains("at most 1048576 are given"));
}

TEST_CASE("a graph that cuDNN rejects is an error of one line") {
  const auto made = plan_graph(attention_graph({4, 64, 2, 12}), target_of("h200"), any_workspace, false);
  REQUIRE_FALSE(made.ok());
  CHECK_THAT(made.error().message, Catch::Matchers::StartsWith("cuDNN"));
  CHECK(made.error().message.find('\n') == std::string::npos);
  use_fake_driver();
  const auto nonsense = describe_cudnn_target("no device");
  REQUIRE_FALSE(nonsense.ok());
  CHECK_THAT(nonsense.error().message, Catch::Matchers::StartsWith("cuDNN"));
}

#else

TEST_CASE("cuDNN plans attention on an H200 and an A100") { WARN("SKIPPED: this build has no cuDNN"); }

#endif
