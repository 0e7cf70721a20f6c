// read() runs passes of at most 128 rows. The rows of a pass are the next power of two above its tokens, so that at
// most eight plans are made; each is planned and bound when it is first used. Rows after the last token are padding.
// The input "cursor" tells a pass the position of its first row and the row whose logits are wanted. Padding rows
// store no keys and values. Each pipeline stage runs the plan of its own blocks, keeps the keys and values of these,
// and gets the logits from the last one.
#include "lancet/models/decoder.h"

#include <algorithm>
#include <bit>

#include "lancet/base/check.h"
#include "lancet/comm/collect.h"
#include "lancet/planner/from_config.h"

namespace lancet::models {
namespace {

// Most rows of one pass. Products of this many rows are bound by arithmetic and no longer by reading weights.
constexpr std::int64_t most_rows = 128;

}  // namespace

Status check_generates(const config::Model& model) {
  if (!model.has_moe() || !model.experts_choose()) return {};
  return config_error(
      "model.router: expected a router by which tokens choose, found \"expert_choice\", by which a token's experts "
      "depend on later tokens: lancet eval computes its loss, and a model trained with model.router=top_k generates");
}

Decoder::Decoder(const config::Config& config, comm::Communicator& world, runtime::TensorStore& store,
                 run::Streams& streams, int threads)
    : config_(config),
      world_(world),
      store_(store),
      streams_(streams),
      threads_(threads),
      window_(std::min(config.model.n_positions, config.train.seq_len)),
      logits_(static_cast<std::size_t>(config.model.vocab_size)) {}

Result<std::unique_ptr<Decoder>> Decoder::create(const config::Config& config, comm::Communicator& world,
                                                 runtime::TensorStore& store, run::Streams& streams, int threads) {
  LANCET_TRY(comm::agree(world, check_generates(config.model)));
  std::unique_ptr<Decoder> decoder(new Decoder(config, world, store, streams, threads));
  LANCET_TRY(decoder->pass_of(1));
  return decoder;
}

Result<Decoder::Pass*> Decoder::pass_of(std::int64_t rows) {
  for (const auto& pass : passes_)
    if (pass->rows == rows) return pass.get();
  const ir::Mesh mesh = config::mesh_of(config_, world_.size());
  LANCET_ASSIGN(const std::vector<ir::Plan> stages,
                planner::share_plans(world_, planner::plan_decode(config_, rows, world_.size()),
                                     std::size_t(mesh[ir::Axis::stage])));
  std::vector<const ir::Program*> programs;
  for (const ir::Plan& stage : stages) programs.push_back(&stage.program);
  LANCET_TRY(streams_.open_groups(mesh, programs));
  const ir::Plan& plan = stages[std::size_t(mesh.coordinate(world_.rank(), ir::Axis::stage))];
  store_.add(plan.program);
  auto pass = std::make_unique<Pass>();
  pass->rows = rows;
  LANCET_ASSIGN(pass->executor, runtime::Executor::create(plan, store_, streams_.executor_options(threads_)));
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

}  // namespace lancet::models
