#include "bound_plan.h"

#include <fmt/format.h>

#include "lancet/backend/cpu/parallel.h"
#include "lancet/backend/device.h"
#include "lancet/ir/program.h"

namespace lancet::runtime {
namespace {

// A kernel of a body, and its name in errors.
struct Part {
  std::string name;
  ops::Kernel kernel;
};

std::vector<Part> parts_of(const ir::Instruction& repeat, std::vector<ops::Kernel> body) {
  std::vector<Part> parts;
  for (std::size_t i = 0; i < body.size(); ++i)
    parts.push_back({fmt::format("{} at {}", repeat.body[i].op, repeat.body[i].label), std::move(body[i])});
  return parts;
}

Status run_round(const std::vector<Part>& parts, std::int64_t round) {
  for (const Part& part : parts)
    if (const Status status = part.kernel(); !status.ok())
      return Error{status.error().code, fmt::format("{}, round {}: {}", part.name, round, status.error().message),
                   status.error().agreed};
  return {};
}

// The count of a repeat, read from the device, and the numbers of rounds, written to it, by way of page-locked memory.
class DeviceRounds {
 public:
  // Rounds whose numbers have words of their own. Fewer rounds find the same numbers in their words in each repeat.
  static constexpr std::int32_t at_once = 256;

  explicit DeviceRounds(backend::Device& device) : device_(device) {
    auto memory = device.allocate_host(64 + (1 + std::size_t(at_once)) * sizeof(std::int32_t));
    LANCET_CHECK(memory.ok(), "{}", memory.error().message);
    memory_ = *memory;
  }
  DeviceRounds(const DeviceRounds&) = delete;
  DeviceRounds& operator=(const DeviceRounds&) = delete;
  ~DeviceRounds() { device_.free_host(memory_); }

  Status read(backend::Stream& stream, const std::int32_t* count) {
    __atomic_store_n(ready(), 0, __ATOMIC_RELAXED);
    LANCET_TRY(stream.copy(values(), count, sizeof(std::int32_t)));
    return wait(stream);
  }
  std::int32_t count() const { return *values(); }  // as last read
  // number: 1 in the first round of a repeat.
  Status set_round(backend::Stream& stream, std::int32_t number, std::int32_t* round) {
    const std::int32_t word = (number - 1) % at_once;
    if (word == 0 && count() > at_once) {  // copies of the words' last numbers may be under way
      __atomic_store_n(ready(), 0, __ATOMIC_RELAXED);
      LANCET_TRY(wait(stream));
    }
    std::int32_t& from = values()[1 + word];
    from = number;
    return stream.copy(round, &from, sizeof(std::int32_t));
  }

 private:
  Status wait(backend::Stream& stream) {
    LANCET_TRY(stream.signal(ready()));
    return backend::wait_for_flag(ready(), stream);
  }
  backend::Flag* ready() const { return reinterpret_cast<backend::Flag*>(memory_); }
  std::int32_t* values() const { return reinterpret_cast<std::int32_t*>(memory_ + 64); }

  backend::Device& device_;
  std::byte* memory_ = nullptr;
};

}  // namespace

ops::Kernel repeat_on_host(const ir::Instruction& repeat, const Addresses& addresses, std::vector<ops::Kernel> body,
                           int threads) {
  const auto* count = addresses.view(repeat.operands[ir::repeat_count]).as<std::int32_t>();
  auto* round = addresses.view(repeat.results[ir::repeat_round]).as<std::int32_t>();
  return [=, parts = parts_of(repeat, std::move(body))]() -> Status {
    if (*count <= 1) return {};
    const int before = backend::cpu::threads();
    backend::cpu::set_threads(threads);
    Status status;
    for (std::int32_t r = 1; r < *count && status.ok(); ++r) {
      *round = r;
      status = run_round(parts, r);
    }
    backend::cpu::set_threads(before);
    return status;
  };
}

ops::Kernel repeat_on_device(const ops::KernelArgs& args, std::vector<ops::Kernel> body) {
  std::shared_ptr<void>& note = (*args.notes)[args.instruction->operands[ir::repeat_count].value];
  const bool is_first = note == nullptr;
  if (is_first) note = std::make_shared<DeviceRounds>(*args.device);
  return [is_first, rounds = std::static_pointer_cast<DeviceRounds>(note), stream = args.stream,
          count = args.operands[ir::repeat_count].as<std::int32_t>(),
          round = args.results[ir::repeat_round].as<std::int32_t>(),
          parts = parts_of(*args.instruction, std::move(body))]() -> Status {
    if (is_first) LANCET_TRY(rounds->read(*stream, count));
    for (std::int32_t r = 1; r < rounds->count(); ++r) {
      LANCET_TRY(rounds->set_round(*stream, r, round));
      LANCET_TRY(run_round(parts, r));
    }
    return {};
  };
}

}  // namespace lancet::runtime
