// Two ranks that are threads of one process train a small MoE model on one GPU, over the host's memory: streams, flags
// and kernels with all-to-alls of unlike counts, without MPI or a second GPU. Losses and norms are those of two ranks
// on the CPU within rounding. So do two pipeline stages. The same bodies run on streams of the host
// (host_accelerator.h), where they must also notice a wrong kernel.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "declared_costs.h"
#include "host_accelerator.h"
#include "module.h"
#include "train/support.h"

namespace lancet {
namespace {

// Relative. A combine() of one rank that is wrong by a hundredth moves a loss by 1.6e-4 and a norm by 9e-4 within four
// steps; one that is wrong by 1e-5, more than f32 rounds, moves them by 1e-7 and 3e-7.
constexpr double loss_tolerance = 1e-4, norm_tolerance = 5e-4;

using Accelerators = std::array<runtime::Accelerator*, 2>;                // of the ranks; null: they train on the CPU
using Progress = std::function<void(int rank, const std::string& what)>;  // what a rank does now

// Three blocks, the first and the last of them MoE. A token has two of four experts, and an expert's capacity is its
// even share, so that some choices are dropped and the ranks send unlike numbers of rows.
config::Config two_ranks_config(const std::string& policy) {
  config::Config config = test::small_config();
  config.comm.transport = config::Transport::mpi;  // through the host's memory; ranks may share a GPU
  config.model.n_layer = 3;
  config.model.n_embd = 64;
  config.model.router = config::Router::top_k;
  config.model.num_experts_per_tok = 2;
  config.model.capacity_factor = 1;
  config.overlap.policy = policy;
  if (policy == "lancet") config.overlap.parts = 2;
  return config;
}

// The same model as two pipeline stages, between which four micro batches pass.
config::Config two_stages_config() {
  config::Config config = two_ranks_config("sequential");
  config.mesh.stage = 2;
  config.train.micro_batch_size = 4;
  config.train.gradient_accumulation_steps = 4;
  config.train.pipeline_schedule = config::PipelineSchedule::zero_bubble;
  return config;
}

struct TwoRanksRun {
  std::vector<run::StepRecord> steps;  // rank 0's
  std::int64_t parts = 1;              // the most that an instruction is split in
  int all_to_alls = 0, sends = 0;      // in rank 0's plan
};

Result<TwoRanksRun> train_two_ranks(config::Config config, const Accelerators& accelerators, const Progress& progress) {
  constexpr int steps = 4;
  if (accelerators[0]) config.device = config::Device::cuda;
  const std::string run_name = fmt::format("{}, mesh.stage={} on the {}", config.overlap.policy, config.mesh.stage,
                                           accelerators[0] ? "device" : "CPU");
  TwoRanksRun run;
  const test::DeclaredCosts costs;
  LANCET_TRY(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    const int rank = world.rank();
    progress(rank, run_name + ", start");
    train::TrainerOptions options{.local_ranks = 2, .costs = &costs};
    options.accelerator = accelerators[std::size_t(rank)];
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, options));
    for (int step = 0; step < steps; ++step) {
      progress(rank, fmt::format("{}, step {}", run_name, step + 1));
      LANCET_ASSIGN(const run::StepRecord record, trainer->step(step));
      if (rank == 0) run.steps.push_back(record);
      progress(rank, fmt::format("{}, after step {}", run_name, step + 1));
      // The first step ends with recorded graphs, and the last with freed memory. Both calls may wait for the whole
      // GPU, so also for streams of the other rank that wait for a flag.
      LANCET_TRY(world.barrier());
    }
    if (rank != 0) return {};
    for (const ir::Instruction& instruction : trainer->executor().plan().program.instructions) {
      run.parts = std::max(run.parts, instruction.attributes.integer("parts", 1));
      run.all_to_alls += instruction.op == "all_to_all";
      run.sends += instruction.op == "send_next";
    }
    return {};
  }));
  return run;
}

double apart(double found, double expected) { return std::abs(found - expected) / std::abs(expected); }

bool equal(const TwoRanksRun& found, const TwoRanksRun& expected) {
  return std::ranges::equal(found.steps, expected.steps, [](const run::StepRecord& a, const run::StepRecord& b) {
    return apart(a.loss, b.loss) <= loss_tolerance && apart(a.grad_norm, b.grad_norm) <= norm_tolerance;
  });
}

// timeout_s: how long a rank waits for the other one; the error then names stream and instruction.
TwoRanksRun check_run(config::Config config, const Accelerators& accelerators, double timeout_s,
                      const Progress& progress) {
  config.comm.timeout_s = timeout_s;
  const TwoRanksRun expected = test::made(train_two_ranks(config, {}, progress));
  TwoRanksRun found = test::made(train_two_ranks(config, accelerators, progress));
  for (std::size_t i = 0; i < std::min(found.steps.size(), expected.steps.size()); ++i) {
    const run::StepRecord &a = found.steps[i], &b = expected.steps[i];
    std::cout << fmt::format("{}, mesh.stage={}, step {}: loss {:.6f}, {:.1e} from the CPU's; ", config.overlap.policy,
                             config.mesh.stage, i + 1, a.loss, apart(a.loss, b.loss))
              << fmt::format("norm {:.6f}, {:.1e}; {:.1f}% dropped; {:.2f} ms\n", a.grad_norm,
                             apart(a.grad_norm, b.grad_norm), a.drop_pct.value_or(0), a.step_ms);
    CHECK(a.drop_pct.value_or(0) > 0);
  }
  CHECK(equal(found, expected));
  return found;
}

void check_two_ranks(const Accelerators& accelerators, double timeout_s, const Progress& progress) {
  int all_to_alls = 0;
  for (const std::string policy : {"sequential", "lancet"}) {
    const TwoRanksRun found = check_run(two_ranks_config(policy), accelerators, timeout_s, progress);
    CHECK(found.parts == (policy == "lancet" ? 2 : 1));
    CHECK(found.all_to_alls > all_to_alls);  // one a layer, then one a part
    all_to_alls = found.all_to_alls;
  }
}

void check_two_stages(const Accelerators& accelerators, double timeout_s, const Progress& progress) {
  CHECK(check_run(two_stages_config(), accelerators, timeout_s, progress).sends >= 4);
}

// Ends the process as failed if it lives for longer: threads that hang in a driver cannot be ended.
class Deadline {
 public:
  explicit Deadline(std::chrono::seconds most) : thread_([this, most] { wait(most); }) {}
  Deadline(const Deadline&) = delete;
  Deadline& operator=(const Deadline&) = delete;
  ~Deadline() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void set_progress(int rank, const std::string& what) {
    const std::lock_guard lock(mutex_);
    progress_[std::size_t(rank)] = what;
  }

 private:
  void wait(std::chrono::seconds most) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, most, [this] { return ended_; })) return;
    std::cout << fmt::format("FAILED:\n  expected an end within {} s, found rank 0 at: {}; rank 1 at: {}", most.count(),
                             progress_[0], progress_[1])
              << std::endl;
    std::_Exit(1);
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;
  std::array<std::string, 2> progress_{"the opening of the GPU", "the opening of the GPU"};
  std::thread thread_;  // the last member, since it uses the others
};

// A device of the host whose combine() is wrong by a hundredth.
class WrongAccelerator final : public runtime::Accelerator {
 public:
  WrongAccelerator() : wrong_(*right_.find_kernel("combine")) { right_combine = std::exchange(wrong_.bind, bind); }
  backend::Device& device() override { return right_.device(); }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override {
    return op == wrong_.op ? &wrong_ : right_.find_kernel(op);
  }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) override {
    return right_.make_communicator(stream);
  }
  std::string build() const override { return right_.build(); }

 private:
  static ops::Kernel bind(const ops::KernelArgs& args) {
    return [right = right_combine(args), stream = args.stream, sum = args.results[0]]() -> Status {
      LANCET_TRY(right());
      return stream->scale(sum.as<float>(), std::size_t(sum.elements()), 1.01f);
    };
  }
  static inline decltype(ops::DeviceKernel::bind) right_combine = nullptr;
  test::HostAccelerator right_;
  ops::DeviceKernel wrong_;
};

// check(accelerators, timeout_s, progress) with two ranks on one GPU.
template <class Check>
void on_one_gpu(std::chrono::seconds most, const Check& check) {
  if (test::driver_started) {
    std::cout << "SKIPPED: other cases of this process have used the GPU: run this one alone" << std::endl;
    return;
  }
  // By default a kernel's code is loaded at its first launch. That may wait for the whole GPU, so also for streams of
  // the other rank that wait for a flag; ranks that are processes do not wait for each other's loads.
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  Deadline deadline(most);
  const auto first = test::open_gpu();
  if (!first) return;
  const auto second = test::open_gpu();
  check(Accelerators{first.get(), second.get()}, 10,
        [&](int rank, const std::string& what) { deadline.set_progress(rank, what); });
}

}  // namespace

TEST_CASE("two ranks train on one GPU as threads") { on_one_gpu(std::chrono::seconds(40), check_two_ranks); }

TEST_CASE("two ranks train on one GPU as pipeline stages") { on_one_gpu(std::chrono::seconds(15), check_two_stages); }

TEST_CASE("two ranks train on streams of the host as threads, and a wrong kernel is noticed") {
  const Progress unwatched = [](int, const std::string&) {};
  test::HostAccelerator first({.pause_us = 20, .seed = 1}), second({.pause_us = 20, .seed = 2});
  check_two_ranks({&first, &second}, 60, unwatched);
  check_two_stages({&first, &second}, 60, unwatched);
  WrongAccelerator wrong;
  for (const config::Config& config : {two_ranks_config("sequential"), two_stages_config()})
    CHECK_FALSE(equal(test::made(train_two_ranks(config, {&first, &wrong}, unwatched)),
                      test::made(train_two_ranks(config, {}, unwatched))));
}

}  // namespace lancet
