// Runs every kernel of the plugin on every sample of its op on a GPU, and checks the values against the references in
// double within the CPU's tolerances, the memory that it may touch, and equal bits in two runs unless the sample's
// attributes give them up.
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>

#include "doubles/host_queue.h"
#include "good.h"
#include "module.h"
#include "ops/references/harness.h"

namespace lancet::test {
namespace {

constexpr std::uint64_t seed = 11;

// Copies on a device, each in its own memory. They start like those of an arena, at multiples of 256 bytes.
class OnDevice final : public Elsewhere {
 public:
  OnDevice(backend::Device& device, backend::Stream& stream) : device_(device), stream_(stream) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() override {
    static_cast<void>(stream_.synchronize());
    for (const Copy& copy : copies_) {
      device_.free(copy.there);
      device_.free_host(copy.here);
    }
  }

  std::byte* take(GuardedTensor& tensor) override {
    const std::span<std::byte> all = tensor.with_guards();
    const auto guard = std::size_t(tensor.data() - all.data());
    Copy& copy = copies_.emplace_back(Copy{all, start - guard, nullptr, nullptr});
    copy.there = made(device_.allocate(copy.before + all.size()));
    copy.here = made(device_.allocate_host(all.size()));
    std::memcpy(copy.here, all.data(), all.size());
    test::good(stream_.copy(copy.there + copy.before, copy.here, all.size()));
    return copy.there + start;
  }

  Status bring_back() override {
    for (const Copy& copy : copies_) LANCET_TRY(stream_.copy(copy.here, copy.there + copy.before, copy.tensor.size()));
    LANCET_TRY(stream_.synchronize());
    for (const Copy& copy : copies_) std::memcpy(copy.tensor.data(), copy.here, copy.tensor.size());
    return {};
  }

 private:
  static constexpr std::size_t start = 256;
  struct Copy {
    std::span<std::byte> tensor;
    std::size_t before;
    std::byte *there, *here;
  };
  backend::Device& device_;
  backend::Stream& stream_;
  std::vector<Copy> copies_;
};

// Prints at its end, also after a failed check, how near to its tolerance each op came.
class Gpu {
 public:
  explicit Gpu(runtime::Accelerator& accelerator) : accelerator_(accelerator) {
    test::good(accelerator_.device().bind_thread());
    stream_ = made(accelerator_.device().make_stream(false));
  }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu() {
    std::multimap<double, std::string, std::greater<>> lines;
    for (const auto& [op, largest] : largest_)
      lines.emplace(largest.ratio,
                    fmt::format("op {}: {:.2g} of its tolerance ({})", op, largest.ratio, largest.sample));
    for (const auto& [ratio, line] : lines) std::cout << line << "\n";
    std::cout << std::flush;
  }

  const ops::DeviceKernel* kernel(const ops::OpDef& op) const { return accelerator_.find_kernel(op.name); }

  Outcome run(const ops::OpDef& op, const std::vector<GuardedTensor>& operands, const ir::Attributes& attributes) {
    OnDevice memory(accelerator_.device(), *stream_);
    return test::run(op, operands, attributes,
                     {.bind = kernel(op)->bind,
                      .workspace = kernel(op)->workspace,
                      .device = &accelerator_.device(),
                      .stream = stream_.get(),
                      .memory = &memory,
                      .remarks = &remarks_});
  }

  // What the kernels of all calls say of themselves: a library that did not serve, and why.
  const std::set<std::string>& remarks() const { return remarks_; }

  // what: the sample's name.
  void check(const ops::OpDef& op, const ops::Sample& sample, const std::string& what) {
    const auto operands = make_operands(sample, SampleRoute(sample, seed), seed);
    const Outcome outcome = run(op, operands, sample.attributes);
    // cuBLASLt rounds the products of some shapes to bf16 before it adds the bias (rows of 300 elements, on sm_90).
    const int roundings = op.name.starts_with("linear") ? 2 : 1;
    double ratio = 0;
    const auto faults =
        faults_of(op, outcome, operands, run_reference(op, operands, sample.attributes), &ratio, roundings);
    const bool bf = std::ranges::any_of(operands, [](const auto& x) { return x.type().dtype == DType::bf16; });
    Largest& largest = largest_[op.name];
    if (largest.sample.empty() || ratio > largest.ratio) largest = {ratio, what + (bf ? ", bf16" : ", f32")};
    INFO(fmt::format("{}", fmt::join(faults, "\n")));
    CHECK(faults.empty());
    if (sample.attributes.integer("deterministic", 1) == 0) return;
    const Outcome again = run(op, operands, sample.attributes);
    for (std::size_t r = 0; r < outcome.results.size(); ++r) CHECK(again.results[r].same_bytes(outcome.results[r]));
    for (std::size_t i = 0; i < operands.size(); ++i) CHECK(again.operands[i].same_bytes(outcome.operands[i]));
  }

 private:
  struct Largest {
    double ratio = 0;  // of an element's error and its tolerance
    std::string sample;
  };
  runtime::Accelerator& accelerator_;
  std::unique_ptr<backend::Stream> stream_;
  std::set<std::string> remarks_;
  std::map<std::string_view, Largest> largest_;  // by op
};

// Not run on samples, since executors run them.
const std::set<std::string_view> without_kernel{"repeat", "round"};

// Those whose kernels are cuBLASLt's.
bool is_product(const ops::OpDef& op) { return op.name.starts_with("linear"); }

// Returns the number of samples.
template <class Chosen>
int check_samples(runtime::Accelerator& accelerator, Chosen&& chosen) {
  Gpu gpu(accelerator);
  int checked = 0;
  for (const ops::OpDef* op : ops::all_ops()) {
    INFO(op->name);
    if (!gpu.kernel(*op) || !chosen(*op)) continue;
    const auto samples = samples_of(*op);
    for (std::size_t s = 0; s < samples.size(); ++s, ++checked) {
      INFO("sample " << s);
      try {
        gpu.check(*op, samples[s], fmt::format("sample {}", s));
      } catch (const std::exception& error) {  // the other samples still run
        FAIL_CHECK(error.what());
      }
    }
  }
  return checked;
}

}  // namespace

TEST_CASE("probe: a product of cuBLASLt and an attention of cuDNN") {
  const auto accelerator = open_gpu();
  if (!accelerator) return;
  Gpu gpu(*accelerator);
  const DType t = DType::bf16;
  gpu.check(ops::op("linear"), {{{{t, {1, 64, 768}}}, {{t, {768, 768}}}, {{DType::f32, {768}}}}, {}}, "width 768");
  gpu.check(ops::op("attention"), {{{{t, {1, 128, 2304}}}}, {{"heads", 12}}}, "width 768");
  if (accelerator->libraries().find("cuDNN not found") != std::string::npos) {
    std::cout << "SKIPPED: " << accelerator->libraries() << std::endl;
    return;
  }
  INFO(fmt::format("{}", fmt::join(gpu.remarks(), "\n")));
  CHECK(gpu.remarks().empty());
}

TEST_CASE("kernels on a GPU against references in double on every sample") {
  const auto accelerator = open_gpu();
  if (!accelerator) return;
  for (const ops::OpDef* op : ops::all_ops()) {
    INFO(op->name);
    CHECK((accelerator->find_kernel(op->name) == nullptr) == without_kernel.contains(op->name));
  }
  CHECK(check_samples(*accelerator, [](const ops::OpDef& op) { return !is_product(op); }) > 100);
}

// Apart from the others, since racecheck of compute-sanitizer fails in cuBLASLt's kernels.
TEST_CASE("products on a GPU against references in double on every sample") {
  const auto accelerator = open_gpu();
  if (accelerator) CHECK(check_samples(*accelerator, is_product) > 20);
}

// Real model widths: the libraries choose other kernels for them than for small ones.
TEST_CASE("products and attention of a real model's width on a GPU") {
  const auto accelerator = open_gpu();
  if (!accelerator) return;
  Gpu gpu(*accelerator);
  for (const DType t : {DType::f32, DType::bf16}) {
    INFO(name(t));
    const std::string what = "width 768";
    gpu.check(ops::op("linear"), {{{{t, {2, 192, 768}}}, {{t, {2304, 768}}}, {{DType::f32, {2304}}}}, {}}, what);
    gpu.check(ops::op("linear_gelu"), {{{{t, {2, 192, 768}}}, {{t, {3072, 768}}}, {{DType::f32, {3072}}}}, {}}, what);
    gpu.check(ops::op("attention"), {{{{t, {2, 256, 2304}}}}, {{"heads", 12}}}, what);
  }
}

// Shapes that take wgmma on sm_90 (src/ops/moe/expert_linear/warpgroup.cu): by the attributes, the whole has 72 tiles
// of 128x256, more than half of 132 multiprocessors. More rows are filled than the attributes say, so a block computes
// several tiles. Experts have full buffers, no rows, one row, whole tiles and parts of them.
TEST_CASE("experts' products by wgmma agree with references on a GPU") {
  const auto accelerator = open_gpu();
  if (!accelerator) return;
  Gpu gpu(*accelerator);
  const std::int64_t experts = 8, buffer_rows = 384, depth = 192, width = 576, height = 328;
  const std::int32_t filled[experts][2] = {{0, 384}, {5, 5}, {7, 8}, {3, 131}, {0, 129}, {64, 384}, {10, 75}, {0, 0}};
  const auto tensor = [&](DType type, Shape shape, std::uint64_t stream) {
    GuardedTensor result({type, shape});
    fill_normal(result, seed, stream);
    return result;
  };
  GuardedTensor rows({DType::i32, {experts, 2}});
  std::memcpy(rows.data(), filled, sizeof filled);
  const auto buffer = [&](std::int64_t columns, std::uint64_t stream) {  // NaN where no row is filled
    GuardedTensor result = tensor(DType::bf16, {experts, buffer_rows, columns}, stream);
    for (std::int64_t e = 0; e < experts; ++e)
      for (std::int64_t r = 0; r < buffer_rows; ++r)
        if (r < filled[e][0] || r >= filled[e][1])
          std::memset(result.data() + (e * buffer_rows + r) * columns * 2, 0xff, std::size_t(columns) * 2);
    return result;
  };
  const GuardedTensor x = buffer(depth, 1), dy = buffer(height, 2), y = buffer(width, 3),
                      w = tensor(DType::bf16, {experts, width, depth}, 4),
                      bias = tensor(DType::f32, {experts, width}, 5),
                      w_dx = tensor(DType::bf16, {experts, depth, width}, 6),
                      dw = tensor(DType::f32, {experts, height, width}, 7),
                      db = tensor(DType::f32, {experts, height}, 8);
  const std::pair<std::string_view, std::vector<GuardedTensor>> calls[] = {
      {"expert_linear", {x, w, bias, rows}}, {"expert_linear_gelu", {x, w, bias, rows}},
      {"expert_linear_dx", {x, w_dx, rows}}, {"expert_linear_dx_gelu", {x, w_dx, y, rows}},
      {"expert_linear_dw", {dy, y, rows}},   {"expert_linear_dw", {dy, y, rows, dw, db}}};
  for (const auto& [name_of_op, operands] : calls) {
    INFO(name_of_op << " of " << operands.size() << " operands");
    const ops::OpDef& op = ops::op(name_of_op);
    const ir::Attributes attributes{{"tokens", 256}, {"parts", 12}};
    const Outcome whole = gpu.run(op, operands, attributes);
    double ratio = 0;
    const auto faults = faults_of(op, whole, operands, run_reference(op, operands, attributes), &ratio);
    INFO(fmt::format("{}", fmt::join(faults, "\n")));
    CHECK(faults.empty());
    std::cout << fmt::format("{} of {} operands: {:.2g} of its tolerance\n", name_of_op, operands.size(), ratio);
    CHECK(gpu.run(op, operands, attributes).results[0].same_bytes(whole.results[0]));
    if (!op.column_tiles) continue;
    for (std::int64_t part = 0; part < 2; ++part) {  // half of the columns
      const Outcome found = gpu.run(
          op, operands, {{"tokens", experts * buffer_rows}, {"columns", width / 2}, {"part", part}, {"parts", 2}});
      CHECK(found.faults.empty());
      CHECK(found.results[0].same_bytes(slice(whole.results[0], 2, part * width / 2, (part + 1) * width / 2)));
    }
  }
}

// An algorithm of cuBLASLt may split a product among its blocks by the number of rows (split-K, stream-K), so that a
// part has other bits than the same rows of the whole. Which parts do is printed; what is checked is that they agree as
// two results do that are each within the tolerance.
TEST_CASE("products in parts agree with the whole on a GPU") {
  const auto accelerator = open_gpu();
  if (!accelerator) return;
  Gpu gpu(*accelerator);
  for (const DType t : {DType::f32, DType::bf16})
    for (const std::int64_t rows : {16, 96, 512}) {
      const ops::SampleOperand x{{t, {4, rows, 768}}}, y{{t, {4, rows, 3072}}}, w{{t, {3072, 768}}};
      const ops::SampleOperand bias{{DType::f32, {3072}}};
      for (const auto& [name_of_op, operands] :
           {std::pair{"linear", std::vector{x, w, bias}}, std::pair{"linear_gelu", std::vector{x, w, bias}},
            std::pair{"linear_dx", std::vector{y, w}}}) {
        const ops::OpDef& op = ops::op(name_of_op);
        const ops::Sample sample{operands, {}};
        const auto whole = make_operands(sample, SampleRoute(sample, seed), seed);
        const Outcome expected = gpu.run(op, whole, {});
        CHECK(expected.faults.empty());
        int count = 0, equal = 0;
        double largest = 0;
        for (const std::int64_t parts : {2, 4})
          for (std::int64_t part = 0; part < parts; ++part) {
            INFO(name_of_op << " of " << 4 * rows << " rows in " << name(t) << ", part " << part << " of " << parts);
            const std::int64_t begin = part * 4 / parts, end = begin + 4 / parts;
            auto own = whole;
            own[0] = slice(whole[0], 0, begin, end);
            const Outcome found = gpu.run(op, own, {{"part", part}, {"parts", parts}});
            CHECK(found.faults.empty());
            bool same = true;
            for (std::size_t r = 0; r < expected.results.size(); ++r) {
              const GuardedTensor of_whole = slice(expected.results[r], 0, begin, end);
              same = same && found.results[r].same_bytes(of_whole);
              double ratio = 0;
              compare(found.results[r], to_double(of_whole), GuardedTensor(of_whole.type()),
                      double(whole[0].shape().back()), {}, &ratio);
              CHECK(ratio <= 2);
              largest = std::max(largest, ratio);
            }
            ++count, equal += same;
          }
        std::cout << fmt::format("{} of {} rows in {}: {} of {} parts have the whole's bits; ", name_of_op, 4 * rows,
                                 name(t), equal, count)
                  << fmt::format("at most {:.2g} of the tolerance apart\n", largest);
      }
    }
}

// The same path through the harness with host memory, so that it is tested without a GPU.
TEST_CASE("tensors are copied to other memory and back with their guards") {
  const auto device = test::make_host_queue();
  const auto stream = made(device->make_stream(false));
  GuardedTensor tensor({DType::f32, {5}});
  std::fill_n(tensor.as<float>(), 5, 2.f);
  OnDevice memory(*device, *stream);
  auto* there = reinterpret_cast<float*>(memory.take(tensor));
  CHECK(reinterpret_cast<std::uintptr_t>(there) % 64 == 0);
  REQUIRE(stream->scale(there, 5, 3).ok());
  REQUIRE(memory.bring_back().ok());
  CHECK(std::count(tensor.as<float>(), tensor.as<float>() + 5, 6.f) == 5);
  CHECK(tensor.intact());
  REQUIRE(stream->scale(there, 6, 3).ok());  // one too many
  REQUIRE(memory.bring_back().ok());
  CHECK_FALSE(tensor.intact());
}

}  // namespace lancet::test
