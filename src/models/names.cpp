#include "config.h"

#include <fmt/format.h>

#include <set>

#include "lancet/base/check.h"
#include "lancet/model/gpt2_moe.h"
#include "lancet/run/checkpoint_tensors.h"

namespace lancet::models {
namespace {

enum class Form : std::uint8_t { plain, conv1d, vocabulary };

enum class Bias : std::uint8_t { none, always, of_some };  // of_some: where the model has one

// A layer: its weight and, if it has one, its bias.
struct Row {
  std::string_view layer;  // {}: the block
  Form weight;
  Bias bias = Bias::always;
  bool is_expert() const { return layer.find(".experts.") != layer.npos; }
};

constexpr Row first[] = {{"wte", Form::vocabulary, Bias::none}, {"wpe", Form::plain, Bias::none}};
constexpr Row every_block[] = {
    {"h.{}.ln_1", Form::plain},
    {"h.{}.attn.c_attn", Form::conv1d},
    {"h.{}.attn.c_proj", Form::conv1d},
    {"h.{}.ln_2", Form::plain},
};
constexpr Row dense_block[] = {{"h.{}.mlp.c_fc", Form::conv1d}, {"h.{}.mlp.c_proj", Form::conv1d}};
constexpr Row router[] = {{"h.{}.moe.gate", Form::plain, Bias::of_some}};  // where experts are chosen by scores
constexpr Row moe_block[] = {
    {"h.{}.moe.experts.c_fc", Form::conv1d},
    {"h.{}.moe.experts.c_proj", Form::conv1d},
};
constexpr Row shared_experts[] = {
    {"h.{}.moe.shared_experts.c_fc", Form::conv1d},
    {"h.{}.moe.shared_experts.c_proj", Form::conv1d},
};
constexpr Row last[] = {{"ln_f", Form::plain}};

class Listing {
 public:
  using Function = std::function<Status(const Entry&)>;
  Listing(const config::Model& model, const Function& f)
      : model_(model), f_(f), program_(model::build_forward(model, {.mode = model::Mode::generate})) {}

  Status operator()() {
    LANCET_TRY(add(first, 0));
    for (std::int64_t block = 0; block < model_.n_layer; ++block) {
      LANCET_TRY(add(every_block, block));
      if (model_.is_moe(block) && model_.has_scores()) LANCET_TRY(add(router, block));
      LANCET_TRY(model_.is_moe(block) ? add(moe_block, block) : add(dense_block, block));
      if (model_.is_moe(block) && model_.n_shared_experts > 0) LANCET_TRY(add(shared_experts, block));
    }
    LANCET_TRY(add(last, 0));
    for (const ir::Tensor& tensor : program_.tensors)
      LANCET_CHECK(tensor.kind != ir::TensorKind::parameter || listed_.count(tensor.name), "{} has no name in a file",
                   tensor.name);
    return {};
  }

 private:
  Status add(std::span<const Row> rows, std::int64_t block) {
    bool experts = false;
    for (const Row& row : rows) {
      experts |= row.is_expert();
      if (!row.is_expert()) LANCET_TRY(add(row, block, -1));
    }
    for (std::int64_t e = 0; experts && e < model_.num_local_experts.value(); ++e)
      for (const Row& row : rows)
        if (row.is_expert()) LANCET_TRY(add(row, block, e));
    return {};
  }

  Status add(const Row& row, std::int64_t block, std::int64_t expert) {
    const std::string layer = fmt::format(fmt::runtime(row.layer), block);
    LANCET_TRY(add(layer + ".weight", row.weight, expert));
    const std::string bias = layer + ".bias";
    if (row.bias == Bias::none || (row.bias == Bias::of_some && !program_.find(bias).valid())) return {};
    return add(bias, Form::plain, expert);
  }

  Status add(const std::string& parameter, Form form, std::int64_t expert) {
    const ir::TensorId id = program_.find(parameter);
    LANCET_CHECK(id.valid(), "the model has no parameter {}", parameter);
    Entry entry{
        expert < 0 ? parameter : run::expert_name(parameter, expert), {}, parameter, expert, form == Form::conv1d};
    const Shape& whole = program_.type(id).shape;
    for (int axis = expert < 0 ? 0 : 1; axis < whole.rank(); ++axis) entry.shape.push_back(whole[axis]);
    if (entry.transposed) entry.shape = {entry.shape[1], entry.shape[0]};
    if (form == Form::vocabulary) entry.shape.set(0, model_.vocab_size);
    listed_.insert(parameter);
    return f_(entry);
  }

  const config::Model& model_;
  const Function& f_;
  const ir::Program program_;
  std::set<std::string> listed_;
};

}  // namespace

Status for_each_entry(const config::Model& model, const std::function<Status(const Entry&)>& f) {
  return Listing(model, f)();
}

std::vector<Entry> entries(const config::Model& model) {
  std::vector<Entry> all;
  const Status status = for_each_entry(model, [&](const Entry& entry) -> Status {
    all.push_back(entry);
    return {};
  });
  LANCET_CHECK(status.ok(), "{}", status.error().message);
  return all;
}

bool is_buffer(std::string_view name) {
  return name.starts_with("h.") && (name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"));
}

}  // namespace lancet::models
