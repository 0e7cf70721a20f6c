// Training steps of GPT-2 with 32k and 64k tokens a rank, on a device that records launches in place of running them:
// what a GPU would refuse about a launch, and counts that kernels hold in 32 bits. Addresses are made up, nothing is
// allocated in full, and no kernel body runs, but for the last block of a loss over more than 2^31 logits.
#include <cxxabi.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <catch2/catch.hpp>
#include <cmath>
#include <deque>
#include <memory>
#include <set>

#include "declared_costs.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/plan.h"
#include "lancet/ir/program.h"
#include "lancet/planner/from_config.h"
#include "lancet/runtime/executor.h"
#include "ops/device/emulated_kernels.h"
#include "ops/device/launch.h"
#include "ops/device/library_doubles.h"
#include "routers.h"

using namespace lancet;
using namespace lancet::test;
using backend::DeviceTraits;
using ops::device::emulated::Launch;

namespace {

constexpr std::int64_t two_31 = std::int64_t{1} << 31;

// An A100 (NVIDIA's tables of compute capability 8.0; 108 multiprocessors in the SXM form).
constexpr DeviceTraits ampere_traits{.capability = 80, .multiprocessors = 108, .shared_bytes_of_block = 163 * 1024};

// What the device would refuse about a launch (CUDA C++ Programming Guide, technical specifications by compute
// capability). Grids have one dimension. Parameters may take 32,764 bytes from CUDA 12.1 on, but kernels keep to the
// 4 KB of all versions.
std::vector<std::string> faults_of(const Launch& launch, const DeviceTraits& device) {
  std::vector<std::string> faults;
  const auto check = [&](bool holds, std::string fault) {
    if (!holds) faults.push_back(std::move(fault));
  };
  check(launch.blocks >= 1 && launch.blocks < two_31, fmt::format("{} blocks", launch.blocks));
  check(launch.threads % 32 == 0 && launch.threads >= 32 && launch.threads <= 1024,
        fmt::format("{} threads", launch.threads));
  check(
      launch.cluster >= 1 && launch.cluster <= (device.capability >= 90 ? 8 : 1) && launch.blocks % launch.cluster == 0,
      fmt::format("{} blocks in clusters of {}", launch.blocks, launch.cluster));
  const std::size_t shared = launch.shared + ops::device::collective_scratch_bytes;
  check(std::int64_t(shared) <= device.shared_bytes_of_block, fmt::format("{} bytes of shared memory", shared));
  check(launch.parameter_bytes <= 4096, fmt::format("{} bytes of parameters", launch.parameter_bytes));
  return faults;
}

// The counts of an instruction that kernels hold in 32 bits and that are too large for these. Such counts are single
// extents (columns of a row, width and depth of a product, experts, slots), rows (tokens, slots of all experts), places
// among integers (choices of tokens, rows of the source ranks), and tiles of the experts' products; blocks are in
// faults_of(). Offsets of elements have 64 bits.
std::vector<std::string> faults_of(const ir::Program& program, const ir::Instruction& instruction) {
  std::vector<std::string> faults;
  const auto check = [&](const char* what, std::int64_t count) {
    if (count >= two_31) faults.push_back(fmt::format("{} {}", count, what));
  };
  for (const auto& ids : {instruction.operands, instruction.results})
    for (const ir::TensorId id : ids) {
      const ir::TensorType& type = program.type(id);
      for (const std::int64_t extent : type.shape.span()) check("elements along an axis", extent);
      if (type.shape.rank() > 1) check("rows", type.shape.rows());
      if (type.dtype == DType::i32) check("integers", type.shape.elements());
    }
  if (!instruction.op.starts_with("expert_linear")) return faults;
  const Shape& result = program.type(instruction.results[0]).shape;
  constexpr std::int64_t tile = 64;  // rows and columns, at least
  check("tiles", result[0] * ops::device::divide_up(result[1], tile) * ops::device::divide_up(result[2], tile));
  return faults;
}

// What the instructions of a step put on streams.
class Recorder final : public ops::device::emulated::Launches {
 public:
  void begin(const std::string& instruction) { instruction_ = instruction; }
  void note_work() { at_work.insert(op()); }
  void note_library() {
    note_work();
    by_library.insert(op());
  }
  void add(Launch launch) override {
    note_work();
    launch.body = nullptr;
    if (!captures) launches.emplace_back(instruction_, std::move(launch));
  }

  std::vector<std::pair<std::string, Launch>> launches;  // with the instruction
  std::set<std::string> at_work, by_library;             // ops
  bool captures = false;                                 // what was recorded before

 private:
  std::string op() const { return instruction_.substr(0, instruction_.find(' ')); }
  std::string instruction_;  // op and label
};

// Made-up addresses of a device, which the CPU cannot access.
constexpr std::uintptr_t first_address = std::uintptr_t{1} << 62;
bool is_made_up(const void* address) { return reinterpret_cast<std::uintptr_t>(address) >= first_address; }

class RecordingStream final : public HostStream {
 public:
  explicit RecordingStream(Recorder& recorder) : recorder_(recorder) {}
  Status copy(void* to, const void* from, std::size_t bytes) override {
    // The number of rounds of a layer that drops nothing: two, so that the second is recorded as well.
    if (bytes == sizeof(std::int32_t) && is_made_up(from) && !is_made_up(to)) *static_cast<std::int32_t*>(to) = 2;
    return work();
  }
  Status zero(void*, std::size_t) override { return work(); }
  Status begin_capture() override {
    recorder_.captures = true;
    return {};
  }
  Result<std::unique_ptr<backend::Graph>> end_capture() override {
    recorder_.captures = false;
    return std::make_unique<backend::Graph>();
  }
  void* native() override { return static_cast<ops::device::emulated::Launches*>(&recorder_); }

 private:
  Status work() {
    recorder_.note_work();
    return {};
  }
  Recorder& recorder_;
};

class RecordingDevice final : public HostDevice {
 public:
  RecordingDevice(const DeviceTraits& traits, Recorder& recorder) : traits_(traits), recorder_(recorder) {}
  const DeviceTraits& traits() const override { return traits_; }
  Result<std::byte*> allocate(std::size_t bytes) override {
    auto* const memory = reinterpret_cast<std::byte*>(next_);
    next_ += (bytes + 255) / 256 * 256;
    return memory;
  }
  void free(std::byte*) override {}
  Result<std::byte*> allocate_host(std::size_t bytes) override {
    host_.push_back(std::make_unique<Line[]>(bytes / sizeof(Line) + 1));
    return host_.back()[0].bytes;
  }
  void free_host(std::byte*) override {}
  Result<std::unique_ptr<backend::Stream>> make_stream(bool) override {
    return std::unique_ptr<backend::Stream>(std::make_unique<RecordingStream>(recorder_));
  }
  void begin_range(const std::string& name) override { recorder_.begin(name); }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  const DeviceTraits& traits_;
  Recorder& recorder_;
  std::uintptr_t next_ = first_address;
  std::vector<std::unique_ptr<Line[]>> host_;
};

class RecordingAccelerator final : public runtime::Accelerator {
 public:
  RecordingAccelerator(const DeviceTraits& traits, Recorder& recorder) : device_(traits, recorder) {}
  backend::Device& device() override { return device_; }
  const ops::DeviceKernel* find_kernel(std::string_view op) const override { return find_emulated_kernel(op); }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream&) override {
    return internal_error("the test makes the communicators");
  }
  std::string build() const override { return "recording"; }

 private:
  RecordingDevice device_;
};

// Messages go nowhere. window: memory in which the peers' kernels would access this rank's tensors; empty: none.
class SilentCommunicator final : public comm::DeviceCommunicator {
 public:
  SilentCommunicator(int rank, int size, std::span<std::byte> window, Recorder& recorder)
      : rank_(rank), size_(size), recorder_(recorder), windows_(std::size_t(size), window.data()) {
    window_ = window;
  }
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string transport() const override { return "silent"; }
  Status send_receive(backend::Stream&, std::span<const comm::Segment>, std::span<const comm::Segment>) override {
    recorder_.note_work();
    return {};
  }
  Status all_reduce_sum(backend::Stream&, std::span<float>) override {
    recorder_.note_work();
    return {};
  }
  Status in_windows(backend::Stream& stream, const WindowLaunch& launch) override {
    constexpr int blocks = 32;
    return launch(stream, {{window_.data(), windows_.data(), rank_, size_, &stop_}, {}, blocks, 1});
  }
  Status check() override { return {}; }
  void abort(const std::string&) override {}

 private:
  int rank_, size_;
  Recorder& recorder_;
  std::vector<std::byte*> windows_;
  std::uint32_t stop_ = 0;
};

// What tests find in recorded steps.
struct Found {
  std::set<std::string> bound, by_library;  // ops
  std::set<std::string> large;              // ops with a tensor of 2^31 elements or more
  std::set<std::string> kernels;            // that were launched
  std::size_t launches = 0;
};
// The large ones are those of the logits. Of these only cross_entropy_train has a kernel of our own; the last test runs
// its last block.
const std::set<std::string> large_ops{"cross_entropy_train", "linear", "linear_dw", "linear_dx"};

// With copies that take no time, so that rings of products and pipelines by the batch pay.
struct RingCosts final : DeclaredCosts {
  std::optional<double> compute_ms(std::string_view key) const override {
    for (const std::string_view copy : {"take_window(", "join_windows(", "sum(", "copy(", "concat(", "merge_slots("})
      if (key.starts_with(copy)) return 0.001;
    return DeclaredCosts::compute_ms(key);
  }
};

ir::Plan planned(const config::Config& config, int ranks) {
  if (const Status status = config::check(config, ranks); !status.ok()) FAIL(status.error().message);
  RingCosts costs;
  costs.network_mb_per_s = config.overlap.policy == "lancet_paper" ? 10 : 100;  // slow: its pipelines are by the batch
  const bool searches = config.overlap.policy != "sequential";
  const auto plan = planner::plan_step({config, ranks}, {.costs = searches ? &costs : nullptr});
  if (!plan.ok()) FAIL(plan.error().message);
  return *plan;
}

// The groups of the mesh's last rank, by stream. window: memory that the ranks reach of each other; empty: none.
std::array<comm::Groups, ir::stream_count> groups_of(const ir::Program& program, const ir::Mesh& mesh,
                                                     std::span<std::byte> window, Recorder& recorder,
                                                     std::deque<SilentCommunicator>& communicators) {
  std::array<comm::Groups, ir::stream_count> groups;
  auto keys = ir::used_keys(program);
  for (std::size_t stream = 0; stream < std::size_t(ir::streams_with(1)); ++stream) {
    keys[stream].insert("");
    for (const std::string& key : keys[stream]) {
      const std::vector<int> members = ir::ranks_of(key, mesh, mesh.ranks() - 1);
      comm::Group group{int(members.size()) - 1, int(members.size())};
      if (group.size > 1 && stream > 0)
        group.device_comm = &communicators.emplace_back(group.place, group.size, window, recorder);
      groups[stream][key] = group;
    }
  }
  return groups;
}

// Runs the plan on a device that records, as the last of the mesh's ranks, and checks what it launches. windows: the
// ranks reach each other's memory. An executor's first run calls instruction after instruction on this thread.
void check_step(const ir::Plan& plan, const ir::Mesh& mesh, const DeviceTraits& traits, bool windows, Found& found) {
  Recorder recorder;
  RecordingAccelerator accelerator(traits, recorder);
  runtime::TensorStore store;
  store.set_rank(mesh, mesh.ranks() - 1);
  store.place_on(accelerator.device());
  store.add(plan.program);
  const runtime::Memory arena{*accelerator.device().allocate(std::size_t(plan.arena_bytes)),
                              std::size_t(plan.arena_bytes)};
  std::deque<SilentCommunicator> communicators;
  const auto window = windows ? arena.span<std::byte>() : std::span<std::byte>();
  runtime::ExecutorOptions options{.groups = groups_of(plan.program, mesh, window, recorder, communicators),
                                   .arena = arena};
  options.accelerator = &accelerator;
  on_library_call() = [&] { recorder.note_library(); };
  auto executor = runtime::Executor::create(plan, store, options);
  const Status status = executor.ok() ? (*executor)->run() : Status(executor.error());
  on_library_call() = nullptr;
  if (!status.ok()) FAIL(status.error().message);

  std::set<std::string> faults;
  for (const auto& [instruction, launch] : recorder.launches) {
    const std::unique_ptr<char, void (*)(void*)> kernel(abi::__cxa_demangle(launch.kernel, nullptr, nullptr, nullptr),
                                                        std::free);
    found.kernels.insert(kernel.get());
    for (const std::string& fault : faults_of(launch, traits))
      faults.insert(fmt::format("{}: {}: {}", instruction, kernel.get(), fault));
  }
  const auto check_counts = [&](const ir::Instruction& instruction, ir::Stream) -> Status {
    found.bound.insert(instruction.op);
    for (const std::string& fault : faults_of(plan.program, instruction))
      faults.insert(fmt::format("{} {}: {}", instruction.op, instruction.label, fault));
    for (const auto& ids : {instruction.operands, instruction.results})
      for (const ir::TensorId id : ids)
        if (plan.program.type(id).shape.elements() >= two_31) found.large.insert(instruction.op);
    return {};
  };
  REQUIRE(ir::for_each_kernel(plan.program, check_counts).ok());
  for (const ir::Instruction& instruction : plan.program.instructions)
    if (!recorder.at_work.contains(instruction.op)) faults.insert(instruction.op + " put nothing on its stream");
  INFO(fmt::format("{}", fmt::join(faults, "\n")));
  CHECK(faults.empty());
  found.by_library.insert(recorder.by_library.begin(), recorder.by_library.end());
  found.launches += recorder.launches.size();
}

// GPT-2 small or large with 8 experts in every other layer, on GPUs; a rank has `sequences` of 1024 tokens.
config::Config gpt2(bool large, std::int64_t sequences, DType dtype) {
  config::Config c;
  if (large) c.model.n_layer = 24, c.model.n_head = 16, c.model.n_embd = 1024;
  c.model.num_local_experts = 8;
  c.data.synthetic = true;
  c.train.seq_len = 1024;
  c.train.micro_batch_size = sequences;
  c.train.dtype = dtype;
  c.train.clip_grad = 1;
  c.device = config::Device::cuda;
  return c;
}

}  // namespace

TEST_CASE("launches of GPT-2's steps at 32k and 64k tokens a rank are within the limits of a GPU") {
  Found found;
  for (const bool large : {false, true})
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const std::int64_t sequences : {32, 64})
        for (const std::int64_t choices : {1, 2}) {
          config::Config config = gpt2(large, sequences, dtype);
          if (choices > 1) config.model.router = config::Router::top_k;
          config.model.num_experts_per_tok = choices;
          INFO((large ? "L, " : "S, ") << name(dtype) << ", " << sequences << " sequences, top " << choices);
          const ir::Plan plan = planned(config, 1);
          for (const DeviceTraits& traits : {hopper_traits, ampere_traits})
            check_step(plan, config::mesh_of(config, 1), traits, false, found);
        }
  WARN(fmt::format("{} launches of {} kernels; by libraries, not launched here: {}", found.launches,
                   found.kernels.size(), fmt::join(found.by_library, ", ")));
  CHECK(found.launches > 10'000);
  CHECK(found.large == large_ops);
}

namespace {

// A step of 4 ranks that has ops which others lack.
struct OfRanks {
  std::string policy;
  std::int64_t parts;  // forced; 0: as the policy likes
  void (*change)(config::Config&);
};
const OfRanks steps_of_ranks[] = {
    {"sequential", 0, [](config::Config& c) { c.train.fuse_gelu = false; }},
    {"lancet", 2, [](config::Config&) {}},
    {"lancet", 4, [](config::Config&) {}},
    {"partition", 4, [](config::Config& c) { c.model.router = config::Router::batch_prioritized; }},
    {"tutel", 4, [](config::Config&) {}},
    {"fastermoe", 2, [](config::Config&) {}},
    {"comet", 2, [](config::Config&) {}},
    {"flowmoe", 4, [](config::Config&) {}},
    {"lancet_paper", 4, [](config::Config&) {}},
    {"collective_matmul", 0, [](config::Config& c) { c.mesh.tensor = 2, c.train.sequence_parallel = true; }},
    {"collective_matmul", 0, [](config::Config& c) { c.mesh.tensor = 4; }},
    {"collective_matmul", 4, [](config::Config& c) { c.overlap.memory_factor = 2; }},
    {"sequential", 0,
     [](config::Config& c) {
       c.train.optimizer = config::Optimizer::sgd, c.train.gradient_accumulation_steps = 2;
       c.model.router_aux_loss_scope = config::AuxLossScope::global;
       c.train.zero = 1, c.train.reduce_dtype = DType::bf16;
     }},
    {"sequential", 0, [](config::Config& c) { c.model.capacity_factor.reset(); }},
};

}  // namespace

TEST_CASE("every op of a training step is within the limits of a GPU at 64k tokens a rank") {
  Found found;
  for (const DType dtype : {DType::bf16, DType::f32}) {
    config::Config two_layers = gpt2(false, 64, dtype);  // one of them with experts
    two_layers.model.n_layer = 2;
    for (const Route& route : routes) {
      config::Config config = two_layers;
      route.set(config.model);
      INFO("router " << config::name(route.router) << ", " << name(dtype));
      const ir::Plan plan = planned(config, 1);
      for (const DeviceTraits& traits : {hopper_traits, ampere_traits})
        check_step(plan, config::mesh_of(config, 1), traits, false, found);
    }
    for (const OfRanks& step : steps_of_ranks) {
      config::Config config = two_layers;
      config.overlap.policy = step.policy;
      config.overlap.parts = step.parts;
      step.change(config);
      INFO("4 ranks, " << step.policy << " in " << step.parts << " parts, " << name(dtype));
      const ir::Plan plan = planned(config, 4);
      for (const DeviceTraits& traits : {hopper_traits, ampere_traits})
        for (const bool windows : {false, true}) check_step(plan, config::mesh_of(config, 4), traits, windows, found);
    }
  }
  std::set<std::string> others;  // ops with kernels on a GPU
  for (const auto& folder : emulated_folders())
    for (const ops::DeviceKernel& kernel : folder)
      if (!found.bound.contains(std::string(kernel.op))) others.emplace(kernel.op);
  WARN(fmt::format("{} launches of {} kernels; not of a training step: {}", found.launches, found.kernels.size(),
                   fmt::join(others, ", ")));
  CHECK(found.kernels.contains("lancet::ops::device::PushRows"));  // all-to-alls through windows
  CHECK(others == std::set<std::string>{"add_rms_norm",   "attention_decode", "cross_entropy",      "embedding_at",
                                        "expert_product", "no_share",         "receive_next",       "receive_previous",
                                        "rms_norm",       "rms_norm_dw",      "rms_norm_dx",        "rotate",
                                        "rotate_at",      "rotate_dw",        "rotate_dx",          "send_next",
                                        "send_previous",  "sigmoid_gate",     "sigmoid_gate_dgate", "swiglu",
                                        "swiglu_dx",      "take_row"});
  CHECK(std::ranges::includes(large_ops, found.large));
}

TEST_CASE("what a GPU would refuse about a launch is named") {
  const Launch launch{1, 1024, 48 * 1024, 1, nullptr, 4096, "kernel"};
  const auto with = [&](auto change) {
    Launch changed = launch;
    change(changed);
    return faults_of(changed, hopper_traits);
  };
  using Faults = std::vector<std::string>;
  CHECK(faults_of(launch, hopper_traits).empty());
  CHECK(with([](Launch& l) { l.blocks = two_31 - 1; }).empty());
  CHECK(with([](Launch& l) { l.blocks = two_31; }) == Faults{"2147483648 blocks"});
  CHECK(with([](Launch& l) { l.blocks = 0; }) == Faults{"0 blocks"});
  CHECK(with([](Launch& l) { l.threads = 1056; }) == Faults{"1056 threads"});
  CHECK(with([](Launch& l) { l.blocks = 9, l.cluster = 2; }) == Faults{"9 blocks in clusters of 2"});
  CHECK(with([](Launch& l) { l.blocks = 16, l.cluster = 16; }) == Faults{"16 blocks in clusters of 16"});
  CHECK(with([](Launch& l) { l.shared = 227 * 1024; }) == Faults{"232960 bytes of shared memory"});
  CHECK(with([](Launch& l) { l.parameter_bytes = 4104; }) == Faults{"4104 bytes of parameters"});
  Launch of_hopper = launch;
  of_hopper.blocks = of_hopper.cluster = 2, of_hopper.shared = 200 * 1024;
  CHECK(faults_of(of_hopper, hopper_traits).empty());
  CHECK(faults_of(of_hopper, ampere_traits) == Faults{"2 blocks in clusters of 2", "205312 bytes of shared memory"});

  const auto program = ir::parse(R"(program large
input @a : i32[65536,32768]
%0 : i32[65536,32768] = copy(@a)  # compute forward a
)");
  if (!program.ok()) FAIL(program.error().message);
  CHECK(faults_of(*program, program->instructions[0]) == Faults{"2147483648 integers", "2147483648 integers"});
}

namespace {

// Runs the last block of each launch.
class LastBlocks final : public HostStream, public ops::device::emulated::Launches {
 public:
  void add(Launch launch) override {
    ops::device::emulated::Order order(1);
    ops::device::emulated::Team team(launch.blocks, launch.threads, launch.shared, launch.body, order);
    team.start(launch.blocks - 1);
    while (!team.ended()) team.turn();
  }
  void* native() override { return static_cast<ops::device::emulated::Launches*>(this); }
};

// The loss of 64k tokens over GPT-2's vocabulary, of which only the last token has a target.
template <class T>
void check_last_row(const char* op, const DeviceTraits& traits) {
  constexpr std::int64_t rows = 65536, columns = 50304, vocabulary = 50257, target = 50000;
  static_assert(rows * columns > two_31);
  // Unwritten pages take no memory.
  const runtime::Block memory = runtime::Block::reserved(rows * columns * sizeof(T));
  T* const last = memory.memory().as<T>() + (rows - 1) * columns;
  last[target] = from_f32<T>(3);
  std::vector<std::int32_t> targets(rows, -1);
  targets.back() = target;
  std::vector<float> losses(rows);
  float loss = 0;
  const ir::Attributes attributes{{"vocabulary", vocabulary}, {"total_tokens", 1}};
  Recorder recorder;
  RecordingDevice device(traits, recorder);
  LastBlocks stream;
  const ops::TensorView logits{last - (rows - 1) * columns, {dtype_of<T>, {1, rows, columns}}};
  ops::KernelArgs args{.op = op, .operands = {}, .results = {}, .attributes = attributes};
  args.operands = {logits, {targets.data(), {DType::i32, {1, rows}}}};
  args.results = {{&loss, {DType::f32, {1}}}, logits};
  args.workspace = reinterpret_cast<std::byte*>(losses.data());
  args.device = &device, args.stream = &stream;
  REQUIRE(find_emulated_kernel(op)->bind(args)().ok());
  const double sum = double(vocabulary - 1) + std::exp(3.0);
  CHECK(loss == Approx(std::log(sum) - 3).epsilon(1e-5));
  if (std::string_view(op) == "cross_entropy") return;
  CHECK(to_f32(last[target]) == Approx(std::exp(3.0) / sum - 1).epsilon(1e-2));
  for (const std::int64_t column : {std::int64_t{0}, vocabulary - 1})
    CHECK(to_f32(last[column]) == Approx(1 / sum).epsilon(1e-2));
  for (const std::int64_t column : {std::int64_t{-1}, vocabulary, columns - 1}) CHECK(to_f32(last[column]) == 0);
}

}  // namespace

TEST_CASE("a loss over more than 2^31 logits is right in its last row") {
  check_last_row<bf16>("cross_entropy_train", hopper_traits);
  check_last_row<float>("cross_entropy_train", hopper_traits);
  check_last_row<float>("cross_entropy_train", ampere_traits);  // whose blocks cannot keep a row
  check_last_row<float>("cross_entropy", hopper_traits);
}
