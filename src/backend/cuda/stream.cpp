#include "stream.h"

#include <fmt/format.h>

#include <chrono>

#include "check.h"
#include "copy.h"
#include "delay.h"
#include "lancet/backend/device.h"

namespace lancet::backend::cuda {
namespace {

Status check_driver(CUresult error, const char* what) {
  if (error == CUDA_SUCCESS) return {};
  return internal_error(fmt::format("{}: driver error {}", what, static_cast<int>(error)));
}

class CudaGraph final : public Graph {
 public:
  explicit CudaGraph(cudaGraphExec_t graph) : graph_(graph) {}
  ~CudaGraph() override { cudaGraphExecDestroy(graph_); }
  cudaGraphExec_t native() const { return graph_; }

 private:
  cudaGraphExec_t graph_;
};

class CudaStream final : public Stream, public PacedStream {
 public:
  CudaStream(cudaStream_t stream, const FlagCalls& flags, int copy_blocks)
      : stream_(stream), flags_(flags), copy_blocks_(copy_blocks) {}
  ~CudaStream() override {
    cudaStreamDestroy(stream_);
    cudaFree(mark_);
  }

  Status copy(void* to, const void* from, std::size_t bytes) override {
    if (bytes == 0) return {};
    return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "cudaMemcpyAsync");
  }
  Status copy_all(std::span<const Copy> copies) override { return cuda::copy_all(copies, copy_blocks_, stream_); }
  std::size_t copy_commands(std::size_t copies) const override { return cuda::copy_commands(copies); }
  Status zero(void* memory, std::size_t bytes) override {
    if (bytes == 0) return {};
    return check(cudaMemsetAsync(memory, 0, bytes, stream_), "cudaMemsetAsync");
  }
  // The write is ordered after a fence, so a reader that sees the flag sees all earlier writes of the stream.
  Status signal(Flag* flag) override {
    return check_driver(flags_.write(stream_, address(flag), 1, CU_STREAM_WRITE_VALUE_DEFAULT), "cuStreamWriteValue32");
  }
  Status wait(Flag* flag) override {
    return check_driver(flags_.wait(stream_, address(flag), 1, CU_STREAM_WAIT_VALUE_EQ), "cuStreamWaitValue32");
  }
  Status record(Event& event) override {
    return check(cudaEventRecord(native_event(event), stream_), "cudaEventRecord");
  }
  Status scale(float* values, std::size_t count, float factor) override {
    return cuda::scale(values, count, factor, stream_);
  }
  Status delay(double milliseconds) override { return cuda::delay(milliseconds, stream_); }
  PacedStream* paced() override { return this; }
  Status mark() override {
    if (!mark_) {
      void* memory = nullptr;
      LANCET_TRY(check(cudaMalloc(&memory, sizeof *mark_), "cudaMalloc"));
      mark_ = static_cast<unsigned long long*>(memory);
    }
    return cuda::mark(mark_, stream_);
  }
  Status delay_from_mark(double milliseconds) override {
    if (!mark_) return internal_error("expected a mark on the stream before a delay from it, found none");
    return cuda::delay_from(mark_, milliseconds, stream_);
  }

  // The capture restricts this thread only; threads of other streams may allocate and synchronize meanwhile.
  Status begin_capture() override {
    return check(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  }
  Result<std::unique_ptr<Graph>> end_capture() override {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t executable = nullptr;
    if (const Status ended = check(cudaStreamEndCapture(stream_, &graph), "cudaStreamEndCapture"); !ended.ok()) {
      cudaGetLastError();  // the stream remains usable
      return ended.error();
    }
    const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphDestroy(graph);
    LANCET_TRY(check(error, "cudaGraphInstantiate"));
    LANCET_TRY(check(cudaGraphUpload(executable, stream_), "cudaGraphUpload"));
    return std::unique_ptr<Graph>(std::make_unique<CudaGraph>(executable));
  }
  Status launch(Graph& graph) override {
    return check(cudaGraphLaunch(static_cast<CudaGraph&>(graph).native(), stream_), "cudaGraphLaunch");
  }
  Status synchronize() override { return check(cudaStreamSynchronize(stream_), "the stream's work"); }
  Result<bool> idle() override {
    const cudaError_t error = cudaStreamQuery(stream_);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // so that the next call does not report it
      return false;
    }
    LANCET_TRY(check(error, "the stream's work"));
    return true;
  }
  // A query takes the driver's lock, which the threads that put work on streams need.
  Status watch() override {
    constexpr std::chrono::microseconds between_queries(200);
    const auto now = std::chrono::steady_clock::now();
    if (now - queried_ < between_queries) return {};
    queried_ = now;
    LANCET_TRY(idle());
    return {};
  }
  void* native() override { return stream_; }

 private:
  static CUdeviceptr address(Flag* flag) { return reinterpret_cast<CUdeviceptr>(flag); }
  cudaStream_t stream_;
  FlagCalls flags_;
  const int copy_blocks_;
  unsigned long long* mark_ = nullptr;  // on the device
  std::chrono::steady_clock::time_point queried_{};
};

}  // namespace

Result<FlagCalls> FlagCalls::find() {
  FlagCalls calls;
  if (!find_call("cuStreamWriteValue32", 11070, calls.write) || !find_call("cuStreamWaitValue32", 11070, calls.wait))
    return config_error(
        "device: expected a driver with cuStreamWriteValue32 and cuStreamWaitValue32, found one without");
  return calls;
}

Result<std::unique_ptr<Stream>> make_stream(const FlagCalls& flags, int priority, int copy_blocks) {
  cudaStream_t stream = nullptr;
  LANCET_TRY(check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority), "cudaStreamCreate"));
  return std::unique_ptr<Stream>(std::make_unique<CudaStream>(stream, flags, copy_blocks));
}

}  // namespace lancet::backend::cuda
