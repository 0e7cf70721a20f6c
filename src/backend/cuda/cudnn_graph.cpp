#if defined(LANCET_HAVE_CUDNN)  // the CUDA plugin is built without cuDNN too
// How a plan is made: the operations become an operation-graph descriptor; cuDNN's heuristic (mode A) proposes engine
// configurations for it, best first; the first configuration whose engine meets the caller's conditions and whose
// execution plan cuDNN can finalize is used. Each refusal is kept for the error message. Every object is a backend
// descriptor: created, given attributes, finalized, and destroyed by its shared pointer. CudnnGraph stores the first
// error in status() instead of returning one from each call, so that a graph is written without checks between its
// lines.
#include "cudnn_graph.h"

#include <fmt/format.h>

namespace lancet::backend::cuda {
namespace {

Status checked(cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return {};
  char message[512] = {};
  cudnnGetLastErrorString(message, sizeof message);
  for (char& c : message)
    if (c == '\n') c = ' ';
  return internal_error(fmt::format("cuDNN, {}: {} {}", what, cudnnGetErrorString(status), message));
}

struct Destroy {
  void operator()(void* descriptor) const { cudnnBackendDestroyDescriptor(descriptor); }
};

Result<CudnnDescriptor> make_descriptor(cudnnBackendDescriptorType_t type) {
  cudnnBackendDescriptor_t raw = nullptr;
  LANCET_TRY(checked(cudnnBackendCreateDescriptor(type, &raw), "a descriptor"));
  return CudnnDescriptor(raw, Destroy{});
}

Status set_descriptor(const CudnnDescriptor& on, cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
  void* raw = value.get();
  return checked(cudnnBackendSetAttribute(on.get(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &raw), "an attribute");
}

// Elements of an attribute, at most `most`; empty if the descriptor lacks it.
template <class T>
std::vector<T> values_of(void* descriptor, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                         std::size_t most) {
  std::vector<T> values(most);
  std::int64_t count = 0;
  if (cudnnBackendGetAttribute(descriptor, name, type, std::int64_t(most), &count, values.data()) !=
      CUDNN_STATUS_SUCCESS)
    count = 0;
  values.resize(std::min(most, static_cast<std::size_t>(count)));
  return values;
}

Status finalized(const CudnnDescriptor& descriptor, std::string_view what) {
  return checked(cudnnBackendFinalize(descriptor.get()), what);
}

Result<std::vector<CudnnDescriptor>> propose(const CudnnDescriptor& graph, const CudnnTarget& target) {
  LANCET_ASSIGN(const CudnnDescriptor heuristic, make_descriptor(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR));
  LANCET_TRY(set_descriptor(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph));
  const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
  LANCET_TRY(
      checked(cudnnBackendSetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode),
              "heuristic"));
  if (!target.handle) LANCET_TRY(set_descriptor(heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, target.description));
  LANCET_TRY(finalized(heuristic, "the heuristic"));
  std::int64_t count = 0;
  LANCET_TRY(checked(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                              CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, &count, nullptr),
                     "the heuristic's results"));
  std::vector<CudnnDescriptor> configurations;
  std::vector<void*> raw;
  for (std::int64_t i = 0; i < count; ++i) {
    LANCET_ASSIGN(configurations.emplace_back(), make_descriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    raw.push_back(configurations.back().get());
  }
  if (count)
    LANCET_TRY(checked(cudnnBackendGetAttribute(heuristic.get(), CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                                CUDNN_TYPE_BACKEND_DESCRIPTOR, count, &count, raw.data()),
                       "the heuristic's results"));
  configurations.resize(std::size_t(count));
  return configurations;
}

struct Engine {
  std::int64_t index = -1;
  bool deterministic = true;
};

Result<Engine> engine_of(const CudnnDescriptor& configuration) {
  LANCET_ASSIGN(const CudnnDescriptor descriptor, make_descriptor(CUDNN_BACKEND_ENGINE_DESCRIPTOR));
  void* raw = descriptor.get();
  std::int64_t count = 0;
  LANCET_TRY(checked(cudnnBackendGetAttribute(configuration.get(), CUDNN_ATTR_ENGINECFG_ENGINE,
                                              CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &count, &raw),
                     "a proposal's engine"));
  Engine engine;
  for (std::int64_t index : values_of<std::int64_t>(raw, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1))
    engine.index = index;
  for (cudnnBackendNumericalNote_t note : values_of<cudnnBackendNumericalNote_t>(
           raw, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, CUDNN_NUMERICAL_NOTE_TYPE_COUNT))
    engine.deterministic &= note != CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC;
  return engine;
}

Result<CudnnPlan> make_plan(const CudnnDescriptor& configuration, const CudnnTarget& target) {
  CudnnPlan plan;
  LANCET_ASSIGN(plan.descriptor, make_descriptor(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR));
  LANCET_TRY(set_descriptor(plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration));
  if (target.handle)
    LANCET_TRY(checked(cudnnBackendSetAttribute(plan.descriptor.get(), CUDNN_ATTR_EXECUTION_PLAN_HANDLE,
                                                CUDNN_TYPE_HANDLE, 1, &target.handle),
                       "a plan"));
  else
    LANCET_TRY(set_descriptor(plan.descriptor, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, target.description));
  LANCET_TRY(finalized(plan.descriptor, "a plan"));
  const auto bytes =
      values_of<std::int64_t>(plan.descriptor.get(), CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1);
  if (bytes.empty()) return internal_error("cuDNN: a plan does not say how much workspace it needs");
  plan.workspace = bytes[0];
  return plan;
}

}  // namespace

Extents dense_strides(const Extents& dims) {
  Extents strides(dims.size(), 1);
  for (std::size_t i = dims.size() - 1; i > 0; --i) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

struct CudnnGraph::Pointwise {
  cudnnPointwiseMode_t mode;
  const GraphTensor *x, *b, *t, *y;
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  std::int64_t axis = -1;
};

GraphTensor CudnnGraph::tensor(std::int64_t id, const Extents& dims, const Extents& strides, cudnnDataType_t type,
                               cudnnBackendTensorReordering_t order) {
  return make_tensor(id, dims, strides, type, false, false, order);
}
GraphTensor CudnnGraph::between(const Extents& dims, const Extents& strides, cudnnDataType_t type) {
  return make_tensor(next_between_++, dims, strides, type, true, false, CUDNN_TENSOR_REORDERING_NONE);
}
GraphTensor CudnnGraph::scalar(std::int64_t id, cudnnDataType_t type) {
  return make_tensor(id, {1, 1, 1, 1}, {1, 1, 1, 1}, type, false, true, CUDNN_TENSOR_REORDERING_NONE);
}

GraphTensor CudnnGraph::make_tensor(std::int64_t id, const Extents& dims, const Extents& strides, cudnnDataType_t type,
                                    bool between, bool by_value, cudnnBackendTensorReordering_t order) {
  GraphTensor tensor{make(CUDNN_BACKEND_TENSOR_DESCRIPTOR), dims, strides};
  const std::int64_t alignment = 16;
  const auto rank = std::int64_t(dims.size());
  set(tensor.descriptor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
  set(tensor.descriptor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
  set(tensor.descriptor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
  set(tensor.descriptor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dims.data());
  set(tensor.descriptor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides.data());
  const bool yes = true;
  if (between) set(tensor.descriptor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
  if (order != CUDNN_TENSOR_REORDERING_NONE)
    set(tensor.descriptor, CUDNN_ATTR_TENSOR_REORDERING_MODE, CUDNN_TYPE_TENSOR_REORDERING_MODE, 1, &order);
  if (by_value) set(tensor.descriptor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, &yes);
  finalize(tensor.descriptor, "a tensor");
  return tensor;
}

void CudnnGraph::matmul(const GraphTensor& a, const GraphTensor& b, const GraphTensor& c) {
  const CudnnDescriptor how = make(CUDNN_BACKEND_MATMUL_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  set(how, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  finalize(how, "a product");
  const CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_MATMUL_CDESC, c.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_MATMUL_DESC, how);
  finish(operation);
}

void CudnnGraph::reduce(cudnnReduceTensorOp_t op, const GraphTensor& x, const GraphTensor& y) {
  const CudnnDescriptor how = make(CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
  const cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  set(how, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  set(how, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &op);
  finalize(how, "a reduction");
  const CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_REDUCTION_DESC, how);
  set(operation, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, y.descriptor);
  finish(operation);
}

void CudnnGraph::reshape(const GraphTensor& x, const GraphTensor& y) {
  const CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.descriptor);
  set(operation, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, y.descriptor);
  finish(operation);
}

void CudnnGraph::unary(cudnnPointwiseMode_t mode, const GraphTensor& x, const GraphTensor& y) {
  pointwise({mode, &x, nullptr, nullptr, &y});
}
void CudnnGraph::binary(cudnnPointwiseMode_t mode, const GraphTensor& x, const GraphTensor& b, const GraphTensor& y,
                        cudnnDataType_t compute) {
  pointwise({mode, &x, &b, nullptr, &y, compute});
}
void CudnnGraph::index(const GraphTensor& x, std::int64_t axis, const GraphTensor& y) {
  pointwise({CUDNN_POINTWISE_GEN_INDEX, &x, nullptr, nullptr, &y, CUDNN_DATA_FLOAT, axis});
}
void CudnnGraph::select(const GraphTensor& x, const GraphTensor& otherwise, const GraphTensor& where,
                        const GraphTensor& y) {
  pointwise({CUDNN_POINTWISE_BINARY_SELECT, &x, &otherwise, &where, &y});
}

void CudnnGraph::pointwise(const Pointwise& what) {
  const CudnnDescriptor how = make(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  set(how, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &what.mode);
  set(how, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &what.compute);
  if (what.axis >= 0) set(how, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &what.axis);
  finalize(how, "a pointwise operation");
  const CudnnDescriptor operation = make(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  set(operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  set(operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, what.x->descriptor);
  if (what.b) set(operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, what.b->descriptor);
  if (what.t) set(operation, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, what.t->descriptor);
  set(operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, what.y->descriptor);
  finish(operation);
}

void CudnnGraph::finish(const CudnnDescriptor& operation) {
  finalize(operation, fmt::format("operation {}", operations_.size()));
  operations_.push_back(operation);
}

CudnnDescriptor CudnnGraph::make(cudnnBackendDescriptorType_t type) {
  if (!status_.ok()) return nullptr;
  auto made = make_descriptor(type);
  if (made.ok()) return *made;
  status_ = made.error();
  return nullptr;
}
void CudnnGraph::set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
                     cudnnBackendAttributeType_t type, std::int64_t count, const void* values) {
  if (status_.ok()) check(cudnnBackendSetAttribute(descriptor.get(), name, type, count, values), "an attribute");
}
void CudnnGraph::set(const CudnnDescriptor& descriptor, cudnnBackendAttributeName_t name,
                     const CudnnDescriptor& value) {
  if (status_.ok()) status_ = set_descriptor(descriptor, name, value);
}
void CudnnGraph::finalize(const CudnnDescriptor& descriptor, std::string_view what) {
  if (status_.ok()) check(cudnnBackendFinalize(descriptor.get()), what);
}
void CudnnGraph::check(cudnnStatus_t status, std::string_view what) { status_ = checked(status, what); }

Result<CudnnTarget> describe_cudnn_target(const std::string& json) {
  CudnnTarget target;
  LANCET_ASSIGN(target.description, make_descriptor(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR));
  LANCET_TRY(checked(cudnnBackendSetAttribute(target.description.get(), CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION,
                                              CUDNN_TYPE_CHAR, std::int64_t(json.size()), json.data()),
                     "a device's description"));
  LANCET_TRY(finalized(target.description, "a device's description"));
  return target;
}

Result<CudnnPlan> plan_graph(const CudnnGraph& graph, const CudnnTarget& target, std::int64_t most_workspace,
                             bool deterministic) {
  if (!graph.status().ok()) return graph.status().error();
  LANCET_ASSIGN(const CudnnDescriptor descriptor, make_descriptor(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR));
  std::vector<void*> operations;
  for (const CudnnDescriptor& operation : graph.operations()) operations.push_back(operation.get());
  LANCET_TRY(
      checked(cudnnBackendSetAttribute(descriptor.get(), CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                       std::int64_t(operations.size()), operations.data()),
              "a graph's operations"));
  if (target.handle)
    LANCET_TRY(checked(cudnnBackendSetAttribute(descriptor.get(), CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE,
                                                1, &target.handle),
                       "a graph's handle"));
  LANCET_TRY(finalized(descriptor, "a graph"));
  LANCET_ASSIGN(const auto configurations, propose(descriptor, target));
  std::string refused;
  for (const CudnnDescriptor& configuration : configurations) {
    LANCET_ASSIGN(const Engine engine, engine_of(configuration));
    if (deterministic && !engine.deterministic) {
      refused += fmt::format("; engine {} is not deterministic", engine.index);
      continue;
    }
    auto plan = make_plan(configuration, target);
    if (!plan.ok()) {
      refused += fmt::format("; engine {}: {}", engine.index, plan.error().message);
    } else if (plan->workspace > most_workspace) {
      refused += fmt::format("; engine {} needs {} bytes, at most {} are given", engine.index, plan->workspace,
                             most_workspace);
    } else {
      return plan;
    }
  }
  return internal_error(fmt::format("cuDNN {}: none of the {} proposed engines is usable{}", cudnnGetVersion(),
                                    configurations.size(), refused));
}

Status run_plan(const CudnnPlan& plan, cudnnHandle_t handle, const std::vector<std::int64_t>& ids,
                const std::vector<void*>& addresses, void* workspace) {
  LANCET_ASSIGN(const CudnnDescriptor pack, make_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR));
  const auto count = std::int64_t(ids.size());
  LANCET_TRY(checked(
      cudnnBackendSetAttribute(pack.get(), CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids.data()),
      "a call's tensors"));
  LANCET_TRY(checked(cudnnBackendSetAttribute(pack.get(), CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                                              count, addresses.data()),
                     "a call's addresses"));
  LANCET_TRY(checked(
      cudnnBackendSetAttribute(pack.get(), CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace),
      "a call's workspace"));
  LANCET_TRY(finalized(pack, "a call"));
  return checked(cudnnBackendExecute(handle, plan.descriptor.get(), pack.get()), "attention");
}

}  // namespace lancet::backend::cuda

#endif
