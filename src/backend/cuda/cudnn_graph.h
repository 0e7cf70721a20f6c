// cuDNN's operation graphs through its C backend interface: tensors and operations as descriptors, and the plan that an
// engine makes of them. Only run_plan needs a GPU: plans can also be made for a device that is described by a file, so
// that tests check on machines without one whether cuDNN supports a graph.
#pragma once
#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::backend::cuda {

using CudnnDescriptor = std::shared_ptr<void>;  // of cudnnBackendDescriptor_t
using Extents = std::vector<std::int64_t>;

struct GraphTensor {
  CudnnDescriptor descriptor;
  Extents dims, strides;
};

Extents dense_strides(const Extents& dims);

// Collects operations. The first call that cuDNN refuses is kept in status(); later ones do nothing.
class CudnnGraph {
 public:
  // A tensor in memory; run_plan gets its address by the id.
  GraphTensor tensor(std::int64_t id, const Extents& dims, const Extents& strides, cudnnDataType_t type,
                     cudnnBackendTensorReordering_t order = CUDNN_TENSOR_REORDERING_NONE);
  // A tensor that exists only between operations (virtual).
  GraphTensor between(const Extents& dims, const Extents& strides, cudnnDataType_t type = CUDNN_DATA_FLOAT);
  GraphTensor between(const Extents& dims, cudnnDataType_t type = CUDNN_DATA_FLOAT) {
    return between(dims, dense_strides(dims), type);
  }
  // A number in host memory; run_plan gets its address by the id.
  GraphTensor scalar(std::int64_t id, cudnnDataType_t type = CUDNN_DATA_FLOAT);

  void matmul(const GraphTensor& a, const GraphTensor& b, const GraphTensor& c);
  void reduce(cudnnReduceTensorOp_t op, const GraphTensor& x, const GraphTensor& y);
  void reshape(const GraphTensor& x, const GraphTensor& y);
  void unary(cudnnPointwiseMode_t mode, const GraphTensor& x, const GraphTensor& y);
  void binary(cudnnPointwiseMode_t mode, const GraphTensor& x, const GraphTensor& b, const GraphTensor& y,
              cudnnDataType_t compute = CUDNN_DATA_FLOAT);
  void index(const GraphTensor& x, std::int64_t axis, const GraphTensor& y);  // y = the position along `axis`
  // y = where ? x : otherwise
  void select(const GraphTensor& x, const GraphTensor& otherwise, const GraphTensor& where, const GraphTensor& y);

  const Status& status() const { return status_; }
  const std::vector<CudnnDescriptor>& operations() const { return operations_; }

 private:
  GraphTensor make_tensor(std::int64_t id, const Extents& dims, const Extents& strides, cudnnDataType_t type,
                          bool between, bool by_value, cudnnBackendTensorReordering_t order);
  struct Pointwise;
  void pointwise(const Pointwise& what);
  void finish(const CudnnDescriptor& operation);
  CudnnDescriptor make(cudnnBackendDescriptorType_t type);
  void set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
           std::int64_t count, const void* values);
  void set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name, const CudnnDescriptor& value);
  void finalize(const CudnnDescriptor& descriptor, std::string_view what);
  void check(cudnnStatus_t status, std::string_view what);

  Status status_;
  std::vector<CudnnDescriptor> operations_;
  std::int64_t next_between_ = 1000;
};

// The device for which plans are made: a GPU by its handle, or a description of one.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  CudnnDescriptor description;
};
// json: the device's properties as cuDNN names them (tests/backend/cuda/h200.json).
Result<CudnnTarget> describe_cudnn_target(const std::string& json);

struct CudnnPlan {
  CudnnDescriptor descriptor;
  std::int64_t workspace = 0;  // bytes
};

// Returns the first of cuDNN's proposals that needs at most `most_workspace` bytes and, if `deterministic` is set,
// whose engine always sums in the same order.
Result<CudnnPlan> plan_graph(const CudnnGraph& graph, const CudnnTarget& target, std::int64_t most_workspace,
                             bool deterministic);

Status run_plan(const CudnnPlan& plan, cudnnHandle_t handle, const std::vector<std::int64_t>& ids,
                const std::vector<void*>& addresses, void* workspace);

}  // namespace lancet::backend::cuda
