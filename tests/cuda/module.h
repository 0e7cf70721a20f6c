// The CUDA module in tests: opened, or the test is skipped with the reason.
#pragma once
#include <catch2/catch.hpp>
#include <iostream>
#include <memory>
#include <utility>

#include "lancet/runtime/accelerator.h"

namespace lancet::test {

// The value, or the end of the case with the reason.
template <class T>
T made(Result<T> result) {
  if (!result.ok()) FAIL(result.error().message);
  return std::move(result).value();
}
inline void done(const Status& status) {
  if (!status.ok()) FAIL(status.error().message);
}

inline bool driver_started = false;  // by a case of this process

// GPU `index`; null where there is none, after saying so.
inline std::unique_ptr<runtime::Accelerator> open_gpu(int index = 0) {
  const auto module = runtime::load_module(LANCET_CUDA_MODULE);
  if (!module.ok()) FAIL(module.error().message);
  driver_started = true;
  const auto found = (*module)->count();
  if (!found.ok() || *found <= index) {
    std::cout << "SKIPPED: " << (found.ok() ? "too few GPUs" : found.error().message) << std::endl;
    return nullptr;
  }
  auto accelerator = (*module)->open(index);
  if (!accelerator.ok()) FAIL(accelerator.error().message);
  return std::move(accelerator).value();
}

}  // namespace lancet::test
