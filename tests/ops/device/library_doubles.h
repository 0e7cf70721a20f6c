// What kernels asked of the doubles of CUDA's libraries.
#pragma once
#include <functional>
#include <vector>

#include "lancet/backend/cuda/attention.h"
#include "lancet/backend/cuda/matmul.h"

namespace lancet::test {

std::vector<backend::cuda::MatmulDesc>& products();  // that this thread has made, in order

// Called with every product that has an epilogue and with the other way to its result.
std::function<void(const backend::cuda::MatmulDesc&, const backend::cuda::Unfused&)>& on_fused();

// While it is set, the libraries compute nothing and call it instead; there is an attention for every shape of bf16.
std::function<void()>& on_library_call();

// While it is set, there is an attention for every shape of bf16, which calls it.
std::function<void(const backend::cuda::AttentionTensors&)>& on_attention();

}  // namespace lancet::test
