// A fake cuBLASLt whose proposals, refusals and times a test sets. A product takes its time by the fake runtime's clock
// and computes nothing.
#pragma once
#include <cstdint>
#include <functional>
#include <vector>

namespace lancet::test {

struct FakeProduct {
  std::int64_t m = 0, n = 0, k = 0;  // row-major, as in MatmulDesc
  bool epilogue = false;
};
struct FakeCall {
  FakeProduct product;
  int algorithm = 0;
  const void* a = nullptr;  // the first operand, row-major
};

struct FakeCublas {
  std::function<std::vector<int>(const FakeProduct&)> proposals = [](const FakeProduct&) { return std::vector{1}; };
  std::function<bool(const FakeProduct&, int algorithm)> accepts = [](const FakeProduct&, int) { return true; };
  std::function<float(const FakeProduct&, int algorithm)> milliseconds = [](const FakeProduct&, int) { return 1.f; };
  std::vector<FakeCall> calls;
};
FakeCublas& fake_cublas();

}  // namespace lancet::test
