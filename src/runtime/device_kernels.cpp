#include "device_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <set>

#include "lancet/base/log.h"

namespace lancet::runtime {
namespace {

// The most bytes that one instruction of the stream sends and receives.
std::int64_t most_bytes_per_call(const ir::Program& program, ir::Stream stream) {
  std::int64_t most = 0;
  for (const ir::Instruction& instruction : program.instructions) {
    if (instruction.stream != stream) continue;
    std::int64_t bytes = 0;
    for (const ir::TensorId operand : instruction.operands) bytes += ir::bytes(program.type(operand));
    for (const ir::TensorId result : instruction.results) bytes += ir::bytes(program.type(result));
    most = std::max(most, bytes);
  }
  return most;
}

// Logs each remark once per process, since several plans have the same remarks.
void log_once(const std::set<std::string>& remarks) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::lock_guard lock(mutex);
  for (const std::string& remark : remarks)
    if (logged.insert(remark).second) log::info("{}", remark);
}

}  // namespace

Status DeviceKernels::bind(const ir::Plan& plan, const Addresses& addresses, const ExecutorOptions& options,
                           const DeviceQueues& queues, Workspaces& workspaces) {
  device_ = &options.accelerator->device();
  for (std::size_t stream = 1; stream < ir::stream_count; ++stream)
    if (comm::DeviceCommunicator* comm = options.device_communicators[stream])
      LANCET_TRY(comm->reserve(
          static_cast<std::size_t>(most_bytes_per_call(plan.program, static_cast<ir::Stream>(stream)))));
  const auto find = [&](std::string_view op) { return options.accelerator->find_kernel(op); };
  LANCET_ASSIGN(const auto scratch, runtime::workspace_bytes(plan, addresses, find, device_));
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
    LANCET_ASSIGN(workspaces[stream], Block::on_device(*device_, scratch[stream]));
  }
  ops::BindNotes notes;
  std::set<std::string> remarks;
  for (const ir::Instruction& instruction : plan.program.instructions) {
    const auto stream = static_cast<std::size_t>(instruction.stream);
    ops::KernelArgs args = addresses.arguments(instruction);
    args.workspace = workspaces[stream].start();
    args.device = device_;
    args.stream = queues[stream].get();
    args.device_comm = options.device_communicators[stream];
    args.notes = &notes;
    args.remarks = &remarks;
    kernels_.push_back(find(instruction.op)->bind(args));
    names_.push_back(fmt::format("{} {}", instruction.op, instruction.label));
  }
  log_once(remarks);
  return {};
}

}  // namespace lancet::runtime
