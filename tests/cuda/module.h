// Opens the CUDA plugin for a test, or skips the test with the reason.
#pragma once
#include <catch2/catch.hpp>
#include <filesystem>
#include <iostream>
#include <memory>
#include <utility>

#include "good.h"
#include "lancet/runtime/accelerator.h"

namespace lancet::test {

// Returns the value, or fails the case with the error.
template <class T>
T made(Result<T> result) {
  if (!result.ok()) FAIL(result.error().message);
  return std::move(result).value();
}
inline void done(const Status& status) {
  if (!status.ok()) FAIL(status.error().message);
}

inline bool driver_started = false;  // set by a case of this process

// The plugin beside this program, if it was copied to another machine with it, else that of the build.
inline std::string module_path() {
  const std::string beside = runtime::cuda_module_path();
  return std::filesystem::exists(beside) ? beside : LANCET_CUDA_MODULE;
}

// GPU `index`; without a GPU it prints the reason for skipping and returns null.
inline std::unique_ptr<runtime::Accelerator> open_gpu(int index = 0) {
  const auto module = test::good(runtime::load_module(module_path()));
  driver_started = true;
  const auto found = (*module)->count();
  if (!found.ok() || *found <= index) {
    std::cout << "SKIPPED: " << (found.ok() ? "too few GPUs" : found.error().message) << std::endl;
    return nullptr;
  }
  auto accelerator = test::good(runtime::open_device(**module, index));
  return std::move(accelerator).value();
}

}  // namespace lancet::test
