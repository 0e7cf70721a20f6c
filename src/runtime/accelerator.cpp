#include "lancet/runtime/accelerator.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <memory>
#include <thread>

#include "lancet/base/files.h"
#include "lancet/cost/costs.h"
#include "lancet/ir/program.h"
#include "lancet/runtime/block.h"

namespace lancet::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using backend::Flag;

// A stream that waits for a flag occupies its hardware queue. Work of another stream that the driver puts into the same
// queue, a copy for example, is then behind the wait; if it is the work that sets the flag, both streams hang. The
// crossing puts the waiting side first, which is the order in which this shows, and each two streams cross in both
// orders.

// In page-locked memory: a word that is copied to the device and back, and the flags.
struct Words {
  std::uint32_t sent, fetched, returned;
  Flag asked, answered, ended[2];
};

struct CrossingMemory {
  Block here, there;
  Words& words() const { return *here.memory().as<Words>(); }
};

// `asks` copies a word to the device; `answers` waits for it, fetches it and copies it to the device again; `asks`
// waits for that and fetches it.
Status put_crossing(backend::Stream& asks, backend::Stream& answers, const CrossingMemory& memory, std::uint32_t word) {
  Words& words = memory.words();
  std::byte *const first = memory.there.start(), *const second = first + 256;
  words = {};
  words.sent = word;
  LANCET_TRY(answers.wait(&words.asked));
  LANCET_TRY(answers.copy(&words.fetched, first, sizeof words.fetched));
  LANCET_TRY(answers.copy(second, &words.fetched, sizeof words.fetched));
  LANCET_TRY(answers.signal(&words.answered));
  LANCET_TRY(answers.signal(&words.ended[0]));
  LANCET_TRY(asks.copy(first, &words.sent, sizeof words.sent));
  LANCET_TRY(asks.signal(&words.asked));
  LANCET_TRY(asks.wait(&words.answered));
  LANCET_TRY(asks.copy(&words.returned, second, sizeof words.returned));
  return asks.signal(&words.ended[1]);
}

bool ends_within(std::chrono::milliseconds most, Words& words) {
  const auto deadline = Clock::now() + most;
  while (std::ranges::any_of(words.ended, [](Flag& flag) { return std::atomic_ref(flag).load() == 0; })) {
    if (Clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return true;
}

// Ends the waits from the host, so that streams that block each other end all the same. True if they do.
bool release(std::chrono::milliseconds most, Words& words) {
  for (Flag* flag : {&words.asked, &words.answered}) std::atomic_ref(*flag).store(1);
  return ends_within(most, words);
}

// A flag that a stream sees before the copy that it stands for lets the other stream read what was there before.
Status arrived(const Words& words, const backend::Device& device) {
  if (words.fetched == words.sent && words.returned == words.sent) return {};
  return config_error(
      fmt::format("device: expected copies between the streams of {} to have ended where a flag says so: {:#x} sent, "
                  "found {:#x} on the way and {:#x} at the end",
                  device.name(), words.sent, words.fetched, words.returned));
}

}  // namespace

Status cross_streams(backend::Device& device, int streams, std::chrono::milliseconds most) {
  std::uint32_t word = 0x5eed0000;  // then another one in each crossing, so that an earlier one's is seen
  auto memory = std::make_unique<CrossingMemory>();
  LANCET_ASSIGN(memory->here, Block::page_locked(device, sizeof(Words)));
  LANCET_ASSIGN(memory->there, Block::on_device(device, 512));
  for (int first = 0; first < streams; ++first)
    for (int second = 0; second < streams; ++second) {
      if (first == second) continue;
      LANCET_ASSIGN(backend::Stream* const asks, device.shared_stream(std::size_t(first)));
      LANCET_ASSIGN(backend::Stream* const answers, device.shared_stream(std::size_t(second)));
      const Status put = put_crossing(*asks, *answers, *memory, ++word);
      if (put.ok() && ends_within(most, memory->words())) {
        LANCET_TRY(arrived(memory->words(), device));
        continue;
      }
      // Memory that a stream still uses is not freed: the driver would wait for that stream.
      if (!release(most, memory->words())) static_cast<void>(memory.release());
      LANCET_TRY(put);
      return config_error(
          fmt::format("device: expected streams of {} that wait for each other to end within {} s, found that they "
                      "block each other; MPS or a debugger may leave them too few hardware queues",
                      device.name(), double(most.count()) * 1e-3));
    }
  return {};
}

Result<const AcceleratorModule*> load_module(const std::string& file) {
  std::error_code ignored;
  if (!std::filesystem::exists(file, ignored))
    return config_error(
        fmt::format("device: expected the module {} of a build with CUDA (LANCET_CUDA=ON), found no such file", file));
  // Never unloaded: its kernels, threads and handles end with the process.
  void* library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!library) {
    const char* why = ::dlerror();
    return config_error(fmt::format("device: cannot load the module {}: {}", file, why ? why : "unknown reason"));
  }
  const auto* module = static_cast<const AcceleratorModule*>(::dlsym(library, "lancet_module"));
  if (!module) return config_error(fmt::format("device: expected a module of this program at {}, found none", file));
  if (module->kernel_build != cost::kernel_build())
    return config_error(fmt::format("device: expected the module of build {} at {}, found that of {}: build both again",
                                    cost::kernel_build(), file, module->kernel_build));
  return module;
}

Result<std::unique_ptr<Accelerator>> open_device(const AcceleratorModule& module, int index, std::int64_t stages) {
  LANCET_ASSIGN(auto accelerator, module.open(index));
  LANCET_TRY(cross_streams(accelerator->device(), ir::streams_with(stages)));
  return accelerator;
}

std::string cuda_module_path() {
  const auto program = program_path();
  return ((program.empty() ? std::filesystem::path(".") : program.parent_path()) / "liblancet_cuda.so").string();
}

}  // namespace lancet::runtime
