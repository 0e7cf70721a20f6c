// The arena and the store hold normally distributed numbers. Of the tensors outside the arena, inputs are filled here,
// gates' decisions and the rest by the first sweep. Device memory is filled through page-locked staging memory.
#include <fmt/format.h>
#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "lancet/base/random.h"
#include "lancet/comm/collect.h"
#include "lancet/ir/program.h"
#include "lancet/ops/catalogue.h"
#include "replay.h"

namespace lancet::profiler {
namespace {

using ir::TensorId;
using ir::TensorKind;

// The standard deviation of weights and states: small enough that no product of a step overflows, large enough that
// denormal numbers are rare.
constexpr float weight_scale = 0.02f;

// All tensors repeat one block of normal numbers, since drawing gigabytes of different ones would take too long.
constexpr std::size_t normals_block = 1 << 16;
void fill_normal(const ops::TensorView& view, float scale, bool positive) {
  static const std::vector<float> block = [] {
    std::vector<float> values(normals_block);
    Philox(1, stream_of("profile")).normals(0, values);
    return values;
  }();
  const std::int64_t n = view.elements();
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = block[std::size_t(i) % block.size()] * scale;
    const float y = positive ? std::abs(x) + 0.01f * scale : x;
    if (view.dtype() == DType::bf16)
      view.as<bf16>()[i] = from_f32<bf16>(y);
    else
      view.as<float>()[i] = y;
  }
}

// An expert for each of `tokens` tokens, as evenly distributed as possible, in random order.
std::vector<std::int32_t> even_choice(std::int64_t tokens, std::int64_t experts) {
  std::vector<std::int32_t> choice(static_cast<std::size_t>(tokens));
  for (std::int64_t t = 0; t < tokens; ++t) choice[std::size_t(t)] = std::int32_t(t % experts);
  const Philox random(1, stream_of("route"));
  for (std::size_t t = choice.size(); t > 1; --t) std::swap(choice[t - 1], choice[random.below(t, t)]);
  return choice;
}

class HostMemory final : public ReplayMemory {
 public:
  Result<std::byte*> allocate(std::size_t bytes) override {
    return blocks_.emplace_back(runtime::Block::on_host(bytes)).start();
  }
  Result<std::byte*> filled(const ir::TensorType& type, const Fill& fill) override {
    const auto bytes = static_cast<std::size_t>(ir::bytes(type));
    LANCET_ASSIGN(std::byte * memory, allocate(bytes));
    if (bytes > 0) std::memset(memory, 0, bytes);
    fill({memory, type});
    return memory;
  }
  Status fill_normals(const ops::TensorView& view, float scale, bool positive) override {
    fill_normal(view, scale, positive);
    return {};
  }
  void place(runtime::TensorStore&) override {}

 private:
  std::vector<runtime::Block> blocks_;
};

class DeviceMemory final : public ReplayMemory {
 public:
  explicit DeviceMemory(backend::Device& device) : device_(device) {}
  Result<std::byte*> allocate(std::size_t bytes) override {
    LANCET_ASSIGN(runtime::Block block, runtime::Block::on_device(device_, bytes));
    return blocks_.emplace_back(std::move(block)).start();
  }
  Result<std::byte*> filled(const ir::TensorType& type, const Fill& fill) override {
    const auto bytes = static_cast<std::size_t>(ir::bytes(type));
    LANCET_ASSIGN(const runtime::Block staging, runtime::Block::page_locked(device_, bytes));
    fill({staging.start(), type});
    LANCET_ASSIGN(std::byte * memory, allocate(bytes));
    LANCET_TRY(copy(memory, staging, bytes));
    return memory;
  }
  // Repeats a piece of numbers, so that the host never holds a whole arena.
  Status fill_normals(const ops::TensorView& view, float scale, bool positive) override {
    const auto element = static_cast<std::size_t>(size_of(view.dtype()));
    const auto bytes = static_cast<std::size_t>(ir::bytes(view.type));
    const std::size_t piece = std::min(bytes, 64 * normals_block * element);
    LANCET_ASSIGN(const runtime::Block staging, runtime::Block::page_locked(device_, piece));
    fill_normal({staging.start(), {view.dtype(), {static_cast<std::int64_t>(piece / element)}}}, scale, positive);
    return copy(view.as<std::byte>(), staging, bytes);
  }
  void place(runtime::TensorStore& store) override { store.place_on(device_); }

 private:
  // Copies `staging` as many times as fill `bytes` bytes.
  Status copy(std::byte* to, const runtime::Block& staging, std::size_t bytes) {
    LANCET_TRY(device_.bind_thread());
    if (!stream_) {
      LANCET_ASSIGN(stream_, device_.make_stream(false));
    }
    for (std::size_t done = 0; done < bytes; done += staging.bytes())
      LANCET_TRY(stream_->copy(to + done, staging.start(), std::min(staging.bytes(), bytes - done)));
    return stream_->synchronize();
  }
  backend::Device& device_;
  std::unique_ptr<backend::Stream> stream_;
  std::vector<runtime::Block> blocks_;
};

}  // namespace

std::unique_ptr<ReplayMemory> make_host_replay_memory() { return std::make_unique<HostMemory>(); }
std::unique_ptr<ReplayMemory> make_device_replay_memory(backend::Device& device) {
  return std::make_unique<DeviceMemory>(device);
}

Result<std::unique_ptr<ReplayPlan>> ReplayPlan::make(const ir::Plan& plan, ReplayMemory& memory) {
  std::unique_ptr<ReplayPlan> replay(new ReplayPlan(plan, memory));
  LANCET_TRY(replay->fill());
  return replay;
}

Status ReplayPlan::fill() {
  LANCET_ASSIGN(arena_, normals({DType::f32, {(plan_.arena_bytes + 3) / 4}}, 1));
  memory_.place(store_);
  store_.add(plan_.program);
  for (const auto& [_, tensor] : store_.all())  // second moments are under a square root: not negative
    LANCET_TRY(
        memory_.fill_normals({tensor.memory.start, tensor.type}, weight_scale, tensor.kind == TensorKind::state));
  std::set<TensorId> made;
  for (const ir::Instruction& instruction : plan_.program.instructions)
    for (const TensorId id : instruction.results) made.insert(plan_.program.root(id));
  for (std::size_t i = 0; i < plan_.program.tensors.size(); ++i) {
    const ir::Tensor& tensor = plan_.program.tensors[i];
    const TensorId id{static_cast<std::int32_t>(i)};
    const bool value = made.contains(id) && !tensor.storage.valid() && tensor.type.dtype == DType::i32;
    if (!value && tensor.kind != TensorKind::input) continue;
    LANCET_ASSIGN(outside_arena_[i], allocate_outside_arena(id));
  }
  return {};
}

Result<std::byte*> ReplayPlan::normals(const ir::TensorType& type, float scale) {
  LANCET_ASSIGN(std::byte * memory, memory_.allocate(static_cast<std::size_t>(ir::bytes(type))));
  LANCET_TRY(memory_.fill_normals({memory, type}, scale, false));
  return memory;
}

Result<std::byte*> ReplayPlan::allocate_outside_arena(TensorId id) {
  const ir::Tensor& tensor = plan_.program[id];
  const bool input = tensor.kind == TensorKind::input;
  return memory_.filled(tensor.type, [&](const ops::TensorView& view) {
    const bool is_round = input && tensor.name == ir::round_input;  // 0, whose rows are those of even routing
    if (input && tensor.type.dtype == DType::i32 && !is_round) fill_tokens(view, id);
    if (input && tensor.type.dtype != DType::i32)
      fill_normal(view, 1e-3f, true);  // the schedule: rates and corrections
  });
}

// The number below which all ids must be: the least number of rows of a table that they index, or of classes.
std::int64_t ReplayPlan::bound_of_ids(TensorId id) const {
  std::int64_t bound = std::int64_t{1} << 31;
  for (const ir::Instruction& instruction : plan_.program.instructions) {
    const auto at = std::find_if(instruction.operands.begin(), instruction.operands.end(), [&](TensorId operand) {
      return plan_.program.root(operand) == id;
    });  // or a slice of it
    if (at == instruction.operands.end()) continue;
    if (ops::kind(instruction) == ops::Kind::part_helper)  // a copy of a part
      bound = std::min(bound, bound_of_ids(plan_.program.root(instruction.results[0])));
    else if (instruction.attributes.has("vocabulary"))
      bound = std::min(bound, instruction.attributes.integer("vocabulary"));
    else if (at + 1 != instruction.operands.end())
      bound = std::min(bound, plan_.program.type(*(at + 1)).shape[0]);
  }
  return bound;
}

void ReplayPlan::fill_tokens(const ops::TensorView& view, TensorId id) const {
  const auto bound = std::uint64_t(bound_of_ids(id));
  const Philox random(1, stream_of("tokens"));
  for (std::int64_t i = 0; i < view.elements(); ++i)
    view.as<std::int32_t>()[i] = std::int32_t(random.below(std::uint64_t(i), bound));
}

ops::TensorView ReplayPlan::view(TensorId id) {
  const ir::Region region = plan_.program.region(id);
  std::byte* data = nullptr;
  if (const auto it = outside_arena_.find(region.root.index()); it != outside_arena_.end()) {
    data = it->second;
  } else if (const ir::Tensor& tensor = plan_.program[region.root]; tensor.number < 0) {
    data = store_.find(tensor.name)->memory.start;
  } else {
    const std::int64_t offset = plan_.offsets[region.root.index()];
    LANCET_CHECK(offset >= 0, "{} has no offset in the arena", plan_.program.display(region.root));
    data = arena_ + offset;
  }
  return {data + region.begin, plan_.program.type(id)};
}

// Makes logits f32[.., E] that distribute the `choices` experts of each token evenly: an expert by even_choice, and
// those after it.
Result<ops::TensorView> ReplayPlan::even_logits(const ir::TensorType& type, std::int64_t choices) {
  const std::int64_t experts = type.shape.back(), tokens = type.shape.rows();
  LANCET_ASSIGN(std::byte * data, memory_.filled(type, [&](const ops::TensorView& view) {
    fill_normal(view, 0.1f, false);
    const auto choice = even_choice(tokens, experts);
    for (std::int64_t t = 0; t < tokens; ++t)
      for (std::int64_t k = 0; k < choices; ++k)
        view.as<float>()[t * experts + (choice[std::size_t(t)] + k) % experts] += 4 * float(choices - k);
  }));
  return ops::TensorView{data, type};
}

Result<ops::KernelArgs> ReplayPlan::arguments(const ir::Instruction& instruction) {
  ops::KernelArgs args{.op = instruction.op, .operands = {}, .results = {}, .attributes = instruction.attributes};
  for (TensorId id : instruction.operands) args.operands.push_back(view(id));
  for (TensorId id : instruction.results) args.results.push_back(view(id));
  const bool chooses = ops::kind(instruction) == ops::Kind::choice;
  if (chooses && args.operands[0].dtype() == DType::f32) {  // no hash of token ids, say
    LANCET_ASSIGN(args.operands[0], even_logits(args.operands[0].type, args.results[0].shape()[1]));
  }
  return args;
}

// The loop is a plan of square products that run back to back. make() doubles the side from 256 until one product takes
// at least 0.15 ms, since shorter ones would not keep the device busy, and then repeats the product often enough to
// last as long as the caller wants. The ranks use the mean of their times, so that all choose the same size and count.
namespace {

// A product that fills a large device takes at least this long; a smaller device needs only a smaller product.
constexpr double shortest_ms = 0.15;
constexpr std::int64_t smallest = 256, largest = 4096;
constexpr int most_runs = 2000;

std::string plan_text(DType dtype, std::int64_t size, int count) {
  const std::string type = ir::to_string(ir::TensorType{dtype, {size, size}});
  std::string text = fmt::format("plan {{policy=products}}\narena {0}\nstate @x : {1}\nparameter @w : {1}\n",
                                 size * size * size_of(dtype), type);
  for (int i = 0; i < count; ++i)
    text += fmt::format("[{0}] %{0} : {1} = linear(@x, @w)  # compute forward products | at 0\n", i, type);
  return text;
}

}  // namespace

Status ProductLoop::bind(DType dtype, std::int64_t size, int count) {
  LANCET_ASSIGN(const ir::Plan plan, ir::parse_plan(plan_text(dtype, size, count)));
  executor_.reset();
  store_ = runtime::TensorStore();
  store_.place_on(accelerator_.device());
  store_.add(plan.program);
  const auto memory = make_device_replay_memory(accelerator_.device());
  // Not zeros: chips that adjust their clock to their power are faster on zeros than on any other data.
  for (const auto& [_, tensor] : store_.all())
    LANCET_TRY(memory->fill_normals({tensor.memory.start, tensor.type}, 1, false));
  LANCET_ASSIGN(executor_, runtime::Executor::create(plan, store_, {.accelerator = &accelerator_}));
  LANCET_TRY(run());
  return {};
}

Result<double> ProductLoop::run() {
  executor_->time_next_run();
  LANCET_TRY(executor_->run());
  const auto spans = executor_->spans();
  return double(std::max<std::int64_t>(1, spans.back().end - spans.front().start)) * 1e-6;
}

Result<std::unique_ptr<ProductLoop>> ProductLoop::make(runtime::Accelerator& accelerator, comm::Communicator* world,
                                                       double milliseconds) {
  auto loop = std::make_unique<ProductLoop>(accelerator);
  double each = 0;
  std::int64_t size = smallest;
  for (;; size *= 2) {
    LANCET_TRY(loop->bind(DType::bf16, size, 4));
    LANCET_ASSIGN(each, loop->run());
    each /= 4;
    if (world) {
      LANCET_ASSIGN(each, comm::mean(*world, each));
    }
    if (each >= shortest_ms || size >= largest) break;
  }
  const auto count = static_cast<int>(std::clamp(milliseconds / each, 2.0, double(most_runs)));
  LANCET_TRY(loop->bind(DType::bf16, size, count));
  return loop;
}

}  // namespace lancet::profiler
