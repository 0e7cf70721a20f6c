#include "device_kernels.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>

#include "lancet/base/log.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ops/catalogue.h"

namespace lancet::runtime {
namespace {

// The bytes that a call of an instruction sends and receives, at most. A collective sends and receives its larger
// tensor, or all of them, and, if it cuts a sum in pieces, some elements more from each rank (ops/comm/collective).
std::size_t bytes_of_call(const ir::Program& program, const ir::Instruction& instruction) {
  std::int64_t bytes = 0, largest = 0;
  for (const auto& ids : {instruction.operands, instruction.results})
    for (const ir::TensorId id : ids) {
      bytes += ir::bytes(program.type(id));
      largest = std::max(largest, ir::bytes(program.type(id)));
    }
  if (ops::kind(instruction) == ops::Kind::collective)
    bytes = std::max(bytes, 2 * largest) + 256 * instruction.attributes.integer("shards");
  return static_cast<std::size_t>(bytes);
}

// Reserves in each communicator the memory of the largest of its calls.
Status reserve_calls(const ir::Program& program, const ExecutorOptions& options) {
  std::map<comm::DeviceCommunicator*, std::size_t> most;
  LANCET_TRY(ir::for_each_kernel(program, [&](const ir::Instruction& instruction, ir::Stream) -> Status {
    LANCET_ASSIGN(const comm::Group group, find_group(options, instruction));
    if (!group.device_comm) return {};
    std::size_t& bytes = most[group.device_comm];
    bytes = std::max(bytes, bytes_of_call(program, instruction));
    return {};
  }));
  for (const auto& [comm, bytes] : most) LANCET_TRY(comm->reserve(bytes));
  return {};
}

// Logs each remark once per process, since several plans have the same remarks.
void log_once(const std::set<std::string>& remarks) {
  static std::mutex mutex;
  static std::set<std::string> logged;
  const std::lock_guard lock(mutex);
  for (const std::string& remark : remarks)
    if (logged.insert(remark).second) log::info("{}", remark);
}

// Whether the instruction may be in one kernel with those of the run. Instructions with results are in none: the memory
// of a result may be that of an operand of another one, whose last use it follows.
bool joins(const ir::Instruction& instruction, const std::vector<ir::InstructionId>& needs, const InstructionRun& run) {
  return instruction.results.empty() &&
         std::ranges::none_of(needs, [&](ir::InstructionId id) { return std::ranges::count(run, id.value) > 0; });
}

}  // namespace

std::vector<InstructionRun> runs_of(const ir::Program& program, const Streams& streams, const FlagPlan& flags,
                                    const Accelerator& accelerator) {
  const std::vector<std::vector<ir::InstructionId>> dependencies = ir::dependencies(program);
  std::vector<InstructionRun> runs;
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream)
    for (const Section& section : flags.streams[stream]) {
      InstructionRun run;
      std::string_view op;
      bool before = false;
      const auto end_run = [&] {
        const ops::DeviceKernel* kernel = run.size() > 1 ? accelerator.find_kernel(op) : nullptr;
        if (kernel && kernel->bind_all) runs.push_back(run);
        run.clear();
      };
      for (std::size_t i = section.begin; i < section.end; ++i) {
        const std::int32_t number = streams[stream][i].instruction;
        const ir::Instruction& next = program.instructions[static_cast<std::size_t>(number)];
        const bool alike = next.op == op && ir::of_step_before(next) == before;  // no run of the plan leaves some out
        if (!alike || !joins(next, dependencies[static_cast<std::size_t>(number)], run)) end_run();
        op = next.op;
        before = ir::of_step_before(next);
        run.push_back(number);
      }
      end_run();
    }
  return runs;
}

std::vector<comm::DeviceCommunicator*> device_communicators(const comm::Groups& groups) {
  std::vector<comm::DeviceCommunicator*> found;
  for (const auto& [axes, group] : groups)
    if (group.device_comm && std::ranges::count(found, group.device_comm) == 0) found.push_back(group.device_comm);
  return found;
}

std::vector<comm::DeviceCommunicator*> device_communicators(const ExecutorOptions& options) {
  std::vector<comm::DeviceCommunicator*> all;
  for (const comm::Groups& groups : options.groups)
    for (comm::DeviceCommunicator* comm : device_communicators(groups))
      if (std::ranges::count(all, comm) == 0) all.push_back(comm);
  return all;
}

Status DeviceKernels::bind(const ir::Plan& plan, const Addresses& addresses, const ExecutorOptions& options,
                           const DeviceQueues& queues, const std::vector<InstructionRun>& runs,
                           Workspaces& workspaces) {
  device_ = &options.accelerator->device();
  LANCET_TRY(reserve_calls(plan.program, options));
  const auto find = [&](std::string_view op) { return options.accelerator->find_kernel(op); };
  LANCET_ASSIGN(const auto scratch, runtime::workspace_bytes(plan, find, device_));
  for (std::size_t stream = 0; stream < ir::stream_count; ++stream) {
    LANCET_ASSIGN(workspaces[stream], Block::on_device(*device_, scratch[stream]));
  }
  ops::BindNotes notes;
  std::set<std::string> remarks;
  const std::vector<ir::Instruction>& instructions = plan.program.instructions;
  const auto arguments_on = [&](const ir::Instruction& instruction, ir::Stream of_plan) {
    const auto stream = static_cast<std::size_t>(of_plan);
    ops::KernelArgs args = addresses.arguments(instruction);
    args.workspace = workspaces[stream].start();
    args.device = device_;
    args.stream = queues[stream].get();
    if (!ir::is_repeat(instruction)) args.group = *find_group(options, instruction);  // reserve_calls() has found all
    args.notes = &notes;
    args.remarks = &remarks;
    return args;
  };
  const auto arguments = [&](const ir::Instruction& instruction) {
    return arguments_on(instruction, instruction.stream);
  };
  kernels_.resize(instructions.size());
  for (const InstructionRun& run : runs) {
    std::vector<ops::KernelArgs> calls;
    for (const std::int32_t number : run) {
      calls.push_back(arguments(instructions[static_cast<std::size_t>(number)]));
      kernels_[static_cast<std::size_t>(number)] = [] { return Status(); };
    }
    const auto last = static_cast<std::size_t>(run.back());
    kernels_[last] = find(instructions[last].op)->bind_all(calls);
  }
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    std::vector<ops::Kernel> body;
    for (const ir::Instruction& part : instructions[i].body)
      body.push_back(find(part.op)->bind(arguments_on(part, instructions[i].stream)));
    if (!body.empty())
      kernels_[i] = repeat_on_device(arguments(instructions[i]), std::move(body));
    else if (!kernels_[i])
      kernels_[i] = find(instructions[i].op)->bind(arguments(instructions[i]));
    names_.push_back(fmt::format("{} {}", instructions[i].op, instructions[i].label));
  }
  log_once(remarks);
  return {};
}

}  // namespace lancet::runtime
