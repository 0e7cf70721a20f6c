// A token is drawn by inversion: weights exp((logit - top) / temperature) are summed up in order, and a uniform number
// times the last sum selects the first sum above it. Without top_k and top_p the order is that of the ids. Otherwise
// the candidates are sorted by logit, but only the front of them: 64 first, then eight times as many, until top_k
// candidates or the probability top_p is reached. Uniform number i is element i of a Philox stream of the seed.
#include "lancet/models/generate.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <cmath>

#include "lancet/base/check.h"
#include "lancet/base/random.h"
#include "lancet/base/shown.h"
#include "lancet/comm/collect.h"
#include "lancet/planner/from_config.h"

namespace lancet::models {

// read() runs passes of at most 128 rows. The rows of a pass are the next power of two above its tokens, so that at
// most eight plans are made; each is planned and bound when it is first used. Rows after the last token are padding.
// The input "cursor" tells a pass the position of its first row and the row whose logits are wanted. Padding rows
// store no keys and values. Each pipeline stage runs the plan of its own blocks, keeps the keys and values of these,
// and gets the logits from the last one.
namespace {

// Most rows of one pass. Products of this many rows are bound by arithmetic and no longer by reading weights.
constexpr std::int64_t most_rows = 128;

// The index that `uniform` in [0, 1) selects in ascending sums.
std::size_t index_at(const std::vector<double>& cumulative, double uniform) {
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * cumulative.back());
  return std::min<std::size_t>(std::size_t(at - cumulative.begin()), cumulative.size() - 1);
}

}  // namespace

Status check_generates(const config::Model& model) {
  if (!model.has_moe() || !model.experts_choose()) return {};
  return config_error(
      "model.router: expected a router by which tokens choose, found \"expert_choice\", by which a token's experts "
      "depend on later tokens: lancet eval computes its loss, and a model trained with model.router=top_k generates");
}

Decoder::Decoder(const config::Config& config, comm::Communicator& world, runtime::TensorStore& store,
                 run::Streams& streams, int threads, std::vector<int> first_blocks)
    : config_(config),
      world_(world),
      store_(store),
      streams_(streams),
      threads_(threads),
      first_blocks_(std::move(first_blocks)),
      window_(std::min(config.model.n_positions, config.train.seq_len)),
      logits_(static_cast<std::size_t>(config.model.vocab_size)) {}

Result<std::unique_ptr<Decoder>> Decoder::create(const config::Config& config, comm::Communicator& world,
                                                 runtime::TensorStore& store, run::Streams& streams, int threads,
                                                 std::vector<int> first_blocks) {
  LANCET_TRY(comm::agree(world, check_generates(config.model)));
  std::unique_ptr<Decoder> decoder(new Decoder(config, world, store, streams, threads, std::move(first_blocks)));
  LANCET_TRY(decoder->pass_of(1));
  return decoder;
}

Result<Decoder::Pass*> Decoder::pass_of(std::int64_t rows) {
  for (const auto& pass : passes_)
    if (pass->rows == rows) return pass.get();
  const ir::Mesh mesh = config::mesh_of(config_, world_.size());
  model::BuildOptions options = planner::build_options(config_, model::Mode::decode, world_.size());
  options.sequence = rows;
  LANCET_ASSIGN(const std::vector<ir::Plan> stages,
                planner::share_plans(world_, planner::plan_forward(config_, options, world_.size(), first_blocks_),
                                     std::size_t(mesh[ir::Axis::stage])));
  std::vector<const ir::Program*> programs;
  for (const ir::Plan& stage : stages) programs.push_back(&stage.program);
  LANCET_TRY(streams_.open_groups(mesh, programs));
  const auto own = std::size_t(mesh.coordinate(world_.rank(), ir::Axis::stage));
  const ir::Plan& plan = stages[own];
  store_.add(plan.program);
  auto pass = std::make_unique<Pass>();
  pass->rows = rows;
  runtime::ExecutorOptions executes = streams_.executor_options(threads_);
  if (stages.size() > 1) executes.order = [stages, own] { return ir::order_of_stage(stages, own); };
  LANCET_ASSIGN(pass->executor, runtime::Executor::create(plan, store_, executes));
  auto numbers = [&](const char* name) {
    if (!plan.program.find(name).valid()) return std::span<std::int32_t>();
    const ops::TensorView view = pass->executor->input(name);
    return std::span(view.as<std::int32_t>(), static_cast<std::size_t>(view.elements()));
  };
  pass->tokens = numbers("tokens");
  pass->position = numbers("cursor");
  pass->logits = pass->executor->output("logits");
  return passes_.emplace_back(std::move(pass)).get();
}

Result<std::span<const float>> Decoder::read(std::span<const std::int32_t> tokens) {
  LANCET_CHECK(!tokens.empty() && length_ + std::ssize(tokens) <= window_, "{} tokens after {} in a window of {}",
               tokens.size(), length_, window_);
  const ops::TensorView* logits = nullptr;
  while (!tokens.empty()) {
    const auto count = std::min<std::size_t>(tokens.size(), most_rows);
    LANCET_ASSIGN(Pass* const pass, pass_of(static_cast<std::int64_t>(std::bit_ceil(count))));
    if (!pass->tokens.empty()) {
      std::ranges::copy(tokens.first(count), pass->tokens.begin());
      std::ranges::fill(pass->tokens.subspan(count), 0);
    }
    pass->position[0] = static_cast<std::int32_t>(length_);
    pass->position[1] = static_cast<std::int32_t>(count) - 1;
    LANCET_TRY(pass->executor->run());
    length_ += static_cast<std::int64_t>(count);
    tokens = tokens.subspan(count);
    logits = &pass->logits;
  }
  if (logits->dtype() == DType::bf16)
    std::transform(logits->as<bf16>(), logits->as<bf16>() + logits_.size(), logits_.begin(),
                   [](bf16 x) { return to_f32(x); });
  else
    std::copy_n(logits->as<float>(), logits_.size(), logits_.begin());
  return std::span<const float>(logits_);
}

Status check(const SamplingOptions& options) {
  if (!std::isfinite(options.temperature) || options.temperature < 0)
    return config_error(fmt::format("temperature: expected a number from 0 on, found {}", options.temperature));
  if (options.top_k < 0) return config_error(fmt::format("top-k: expected 0 (all) or more, found {}", options.top_k));
  if (!(options.top_p > 0 && options.top_p <= 1))
    return config_error(fmt::format("top-p: expected a number above 0 and up to 1, found {}", options.top_p));
  return {};
}

// The probability of a candidate, relative to that of the largest logit `top`.
double TokenPicker::weight(float logit, float top) const {
  return std::exp((double(logit) - double(top)) / options_.temperature);
}

Result<std::int32_t> TokenPicker::pick(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (!std::isfinite(logits[i]))
      return numerical_error(fmt::format("expected finite logits, found {} for token {}", unsigned_nan(logits[i]), i));
    if (logits[i] > logits[best]) best = i;
  }
  if (options_.temperature == 0 || options_.top_k == 1) return static_cast<std::int32_t>(best);
  const float top = logits[best];
  const bool all = options_.top_p == 1 && (options_.top_k == 0 || options_.top_k >= std::ssize(logits));
  if (all) return draw(logits, top);
  candidates_.clear();
  for (std::size_t i = 0; i < logits.size(); ++i) candidates_.push_back({logits[i], static_cast<std::int32_t>(i)});
  return draw_front(top);
}

std::int32_t TokenPicker::draw(std::span<const float> logits, float top) {
  cumulative_.clear();
  double sum = 0;
  for (float logit : logits) cumulative_.push_back(sum += weight(logit, top));
  const double uniform = double(Philox(options_.seed, stream_of("sample")).uniform(drawn_++));
  return static_cast<std::int32_t>(index_at(cumulative_, uniform));
}

void TokenPicker::sort_front(std::size_t count) {
  std::partial_sort(candidates_.begin(), candidates_.begin() + std::ptrdiff_t(count), candidates_.end(),
                    [](Candidate a, Candidate b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; });
}

// Sorts only as far as needed: sorting the whole vocabulary takes a third of a small model's time for a token.
std::int32_t TokenPicker::draw_front(float top) {
  std::size_t most = candidates_.size();
  if (options_.top_k > 0) most = std::min(most, std::size_t(options_.top_k));
  double total = 0;
  if (most < candidates_.size()) {
    sort_front(most);
    for (std::size_t i = 0; i < most; ++i) total += weight(candidates_[i].logit, top);
  } else {
    for (const Candidate& candidate : candidates_) total += weight(candidate.logit, top);
  }
  cumulative_.clear();
  double sum = 0;
  for (std::size_t sorted = most < candidates_.size() ? most : 0;
       cumulative_.size() < most && (cumulative_.empty() || sum < options_.top_p * total);) {
    if (cumulative_.size() == sorted) sort_front(sorted = std::min(most, std::max<std::size_t>(64, 8 * sorted)));
    cumulative_.push_back(sum += weight(candidates_[cumulative_.size()].logit, top));
  }
  const double uniform = double(Philox(options_.seed, stream_of("sample")).uniform(drawn_++));
  return candidates_[index_at(cumulative_, uniform)].id;
}

Result<Ending> generate(Decoder& decoder, std::span<const std::int32_t> prompt, const GenerateOptions& options,
                        const std::function<Status(std::int32_t)>& each) {
  TokenPicker picker(options.sampling);
  std::vector<std::int32_t> ids(prompt.begin(), prompt.end());
  std::span<const std::int32_t> unread = ids;
  for (std::int64_t i = 0; i < options.max_tokens; ++i) {
    if (decoder.length() == decoder.window()) {
      if (!options.slide) return Ending::window;
      decoder.forget();
      unread = std::span<const std::int32_t>(ids).last(static_cast<std::size_t>((decoder.window() + 1) / 2));
    }
    LANCET_ASSIGN(const std::span<const float> logits, decoder.read(unread));
    LANCET_ASSIGN(const std::int32_t token, picker.pick(logits));
    if (std::ranges::count(options.ends, token)) return Ending::end_of_text;
    ids.push_back(token);
    unread = std::span<const std::int32_t>(ids).last(1);
    LANCET_TRY(each(token));
  }
  return Ending::max_tokens;
}

}  // namespace lancet::models
