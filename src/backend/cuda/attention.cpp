// Attention as a cuDNN operation graph (attention_graph.h). Making a plan takes some tenths of a second, so plans and
// failures are kept per device and shape. If no plan for the whole batch fits into the workspace limit, a plan for a
// fraction of the batch runs several times. cuDNN handles are pooled per device.
#include "lancet/backend/cuda/attention.h"

#include <cuda_runtime.h>
#include <fmt/format.h>

#if defined(LANCET_HAVE_CUDNN)
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

#include "attention_graph.h"
#include "lancet/base/log.h"
#endif

namespace lancet::backend::cuda {

#if defined(LANCET_HAVE_CUDNN)
namespace {

// Limit of a plan's workspace. The deterministic backward pass needs batch * heads * sequence^2 * 2 bytes: 805 MB for
// 32 sequences of 1,024 tokens and 12 heads.
constexpr std::int64_t most_workspace = std::int64_t{1} << 30;

struct Plan {
  CudnnPlan plan;
  AttentionDesc desc;  // of one call: the batch may be a piece of the whole
};

Status checked(cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  return internal_error(fmt::format("cuDNN, {}: {}", what, cudnnGetErrorString(status)));
}

Result<int> current_device() {
  int device = 0;
  if (const cudaError_t error = cudaGetDevice(&device); error != cudaSuccess)
    return internal_error(fmt::format("CUDA, the thread's device: {}", cudaGetErrorString(error)));
  return device;
}

// Borrows a cuDNN handle of the thread's device, bound to a stream, and returns it to the device's pool when the work
// is queued. So there are as many handles as streams that queue work at the same time. Handles live until the
// process ends.
class Handle {
 public:
  static Result<Handle> on(cudaStream_t stream) {
    LANCET_ASSIGN(const int device, current_device());
    Handle borrowed(device);
    if (!borrowed.take_free(stream)) LANCET_TRY(checked(cudnnCreate(&borrowed.held_.handle), "start"));
    if (borrowed.held_.stream != stream) LANCET_TRY(checked(cudnnSetStream(borrowed.held_.handle, stream), "a stream"));
    borrowed.held_.stream = stream;
    return borrowed;
  }
  Handle(Handle&& other) noexcept : device_(other.device_), held_(std::exchange(other.held_, {})) {}
  Handle& operator=(Handle&&) = delete;
  ~Handle() {
    if (!held_.handle) return;
    const std::lock_guard lock(mutex);
    free[device_].push_back(held_);
  }
  cudnnHandle_t get() const { return held_.handle; }

 private:
  struct OnStream {
    cudnnHandle_t handle = nullptr;
    cudaStream_t stream = nullptr;
  };
  explicit Handle(int device) : device_(device) {}

  // Takes a free handle, preferably one that is bound to the stream already; false if none is free.
  bool take_free(cudaStream_t stream) {
    const std::lock_guard lock(mutex);
    std::vector<OnStream>& handles = free[device_];
    if (handles.empty()) return false;
    auto at = std::find_if(handles.begin(), handles.end(), [&](const OnStream& h) { return h.stream == stream; });
    if (at == handles.end()) at = std::prev(handles.end());
    held_ = *at;
    handles.erase(at);
    return true;
  }

  static inline std::mutex mutex;
  static inline std::map<int, std::vector<OnStream>> free;  // by device
  int device_;
  OnStream held_;
};

Result<Plan> make_plan(const AttentionDesc& desc, cudnnHandle_t handle) {
  Plan made{{}, desc};
  std::string refused;
  for (std::int64_t pieces = 1; pieces <= desc.batch; ++pieces) {
    if (desc.batch % pieces) continue;
    made.desc.batch = desc.batch / pieces;
    auto plan =
        plan_graph(attention_graph(made.desc), {handle, nullptr}, most_workspace, desc.backward && desc.deterministic);
    if (plan.ok()) {
      made.plan = *plan;
      return made;
    }
    refused = plan.error().message;
  }
  return internal_error("cuDNN has no engine for it: " + refused);
}

Result<Plan> plan_of(const AttentionDesc& desc) {
  static std::mutex mutex;
  static std::map<std::pair<int, AttentionDesc>, Result<Plan>> plans;
  LANCET_ASSIGN(const int device, current_device());
  LANCET_ASSIGN(const Handle handle, Handle::on(nullptr));
  const std::lock_guard lock(mutex);
  auto at = plans.find({device, desc});
  if (at == plans.end()) at = plans.emplace(std::pair{device, desc}, make_plan(desc, handle.get())).first;
  return at->second;
}

std::size_t padded(std::int64_t bytes) { return std::size_t(bytes + 255) / 256 * 256; }

class CudnnAttention : public Attention {
 public:
  CudnnAttention(const AttentionDesc& desc, Plan plan)
      : desc_(desc),
        plan_(std::move(plan)),
        scale_(1.f / std::sqrt(float(desc.head_dim))),
        before_(std::int32_t(desc.before)) {}

  std::size_t workspace_bytes() const override {
    return padded(row_sums_bytes()) + padded(dq_sums_bytes()) + padded(plan_.plan.workspace);
  }

  Status run(Stream& stream, const AttentionTensors& tensors, std::byte* workspace) override {
    LANCET_ASSIGN(const Handle handle, Handle::on(static_cast<cudaStream_t>(stream.native())));
    const std::int64_t rows = desc_.sequence * desc_.group * desc_.heads, heads = rows * desc_.head_dim;
    const std::int64_t row = (desc_.group + 2) * desc_.heads * desc_.head_dim, packed = desc_.sequence * row;
    for (std::int64_t first = 0; first < desc_.batch; first += plan_.desc.batch) {
      AttentionTensors piece = tensors;
      piece.qkv = bytes(tensors.qkv) + first * packed * 2;
      piece.all = bytes(tensors.all) + first * desc_.keys() * row * 2;
      piece.out = bytes(tensors.out) + first * heads * 2;
      piece.lse = tensors.lse + first * rows;
      if (desc_.backward) {
        piece.dout = bytes(tensors.dout) + first * heads * 2;
        piece.dqkv = bytes(tensors.dqkv) + first * packed * 2;
        piece.dkeys = bytes(tensors.dkeys) + first * desc_.keys() * 2 * desc_.heads * desc_.head_dim * 2;
      }
      if (dq_sums_bytes()) LANCET_TRY(stream.zero(workspace + padded(row_sums_bytes()), std::size_t(dq_sums_bytes())));
      LANCET_TRY(run_piece(handle.get(), piece, workspace));
    }
    return {};
  }

 private:
  static std::byte* bytes(const void* p) { return static_cast<std::byte*>(const_cast<void*>(p)); }
  std::int64_t row_sums_bytes() const {
    const std::int64_t rows = plan_.desc.batch * desc_.group * desc_.heads * desc_.sequence;
    return desc_.backward ? rows * std::int64_t(sizeof(float)) : 0;
  }

  std::int64_t dq_sums_bytes() const {
    return desc_.backward && !desc_.deterministic ? row_sums_bytes() * desc_.head_dim : 0;
  }

  Status run_piece(cudnnHandle_t handle, const AttentionTensors& t, std::byte* workspace) {
    const std::int64_t v_of_k = desc_.heads * desc_.head_dim * 2, k_of_q = desc_.group * v_of_k;  // of one position
    std::byte *all = bytes(t.all), *dqkv = bytes(t.dqkv), *dk = desc_.part ? bytes(t.dkeys) : dqkv + k_of_q;
    std::vector<std::int64_t> ids{id_q, id_k, id_v, id_out, id_lse, id_scale, id_masked};
    std::vector<void*> addresses{bytes(t.qkv), all + k_of_q, all + k_of_q + v_of_k, t.out, t.lse, &scale_, &masked_};
    if (desc_.before > 0) {
      ids.push_back(id_before);
      addresses.push_back(&before_);
    }
    if (desc_.backward) {
      ids.insert(ids.end(), {id_dout, id_dq, id_dk, id_dv, id_row_sums, id_one});
      addresses.insert(addresses.end(), {bytes(t.dout), dqkv, dk, dk + v_of_k, workspace, static_cast<void*>(&one_)});
    }
    workspace += padded(row_sums_bytes());
    if (dq_sums_bytes()) {
      ids.push_back(id_dq_sums);
      addresses.push_back(workspace);
    }
    return run_plan(plan_.plan, handle, ids, addresses, workspace + padded(dq_sums_bytes()));
  }

  AttentionDesc desc_;
  Plan plan_;
  float scale_, masked_ = -std::numeric_limits<float>::infinity(), one_ = 1.f;
  std::int32_t before_;
};

// Once in a process, since all layers have the same attention and each binds it several times.
void say_once(const std::string& why) {
  static std::once_flag said;
  std::call_once(said, [&] {
    log::info("attention: the backward pass is deterministic although train.deterministic=false, since {}", why);
  });
}

}  // namespace

Result<std::unique_ptr<Attention>> make_attention(const AttentionDesc& wanted) {
  AttentionDesc desc = wanted;
  auto plan = plan_of(desc);
  if (!plan.ok() && !desc.deterministic) {
    const std::string why = plan.error().message;
    desc.deterministic = true;
    plan = plan_of(desc);
    if (plan.ok()) say_once(why);
  }
  if (!plan.ok()) return plan.error();
  return std::unique_ptr<Attention>(new CudnnAttention(desc, std::move(*plan)));
}

#else

Result<std::unique_ptr<Attention>> make_attention(const AttentionDesc&) {
  return internal_error("this build has no cuDNN");
}

#endif

}  // namespace lancet::backend::cuda
