#include "names.h"

#include <fmt/format.h>

#include <set>

#include "lancet/base/check.h"
#include "lancet/model/gpt2_moe.h"

namespace lancet::hugging_face {
namespace {

enum class Form : std::uint8_t { plain, conv1d, vocabulary, expert, expert_conv1d };

struct Row {
  std::string_view name;  // {0}: the block, {1}: the expert
  std::string_view parameter;
  Form form;
};

constexpr Row first[] = {
    {"wte.weight", "wte.weight", Form::vocabulary},
    {"wpe.weight", "wpe.weight", Form::plain},
};
constexpr Row every_block[] = {
    {"h.{0}.ln_1.weight", "h.{0}.ln_1.weight", Form::plain},
    {"h.{0}.ln_1.bias", "h.{0}.ln_1.bias", Form::plain},
    {"h.{0}.attn.c_attn.weight", "h.{0}.attn.c_attn.weight", Form::conv1d},
    {"h.{0}.attn.c_attn.bias", "h.{0}.attn.c_attn.bias", Form::plain},
    {"h.{0}.attn.c_proj.weight", "h.{0}.attn.c_proj.weight", Form::conv1d},
    {"h.{0}.attn.c_proj.bias", "h.{0}.attn.c_proj.bias", Form::plain},
    {"h.{0}.ln_2.weight", "h.{0}.ln_2.weight", Form::plain},
    {"h.{0}.ln_2.bias", "h.{0}.ln_2.bias", Form::plain},
};
constexpr Row dense_block[] = {
    {"h.{0}.mlp.c_fc.weight", "h.{0}.mlp.c_fc.weight", Form::conv1d},
    {"h.{0}.mlp.c_fc.bias", "h.{0}.mlp.c_fc.bias", Form::plain},
    {"h.{0}.mlp.c_proj.weight", "h.{0}.mlp.c_proj.weight", Form::conv1d},
    {"h.{0}.mlp.c_proj.bias", "h.{0}.mlp.c_proj.bias", Form::plain},
};
constexpr Row moe_block[] = {
    {"h.{0}.moe.gate.weight", "h.{0}.moe.gate.weight", Form::plain},
    {"h.{0}.moe.experts.{1}.c_fc.weight", "h.{0}.moe.experts.c_fc.weight", Form::expert_conv1d},
    {"h.{0}.moe.experts.{1}.c_fc.bias", "h.{0}.moe.experts.c_fc.bias", Form::expert},
    {"h.{0}.moe.experts.{1}.c_proj.weight", "h.{0}.moe.experts.c_proj.weight", Form::expert_conv1d},
    {"h.{0}.moe.experts.{1}.c_proj.bias", "h.{0}.moe.experts.c_proj.bias", Form::expert},
};
constexpr Row last[] = {
    {"ln_f.weight", "ln_f.weight", Form::plain},
    {"ln_f.bias", "ln_f.bias", Form::plain},
};

class Listing {
 public:
  using Function = std::function<Status(const Entry&)>;
  Listing(const config::Model& model, const Function& f)
      : model_(model), f_(f), program_(model::build_forward(model, {.mode = model::Mode::generate})) {}

  Status operator()() {
    LANCET_TRY(add(first, 0));
    for (std::int64_t block = 0; block < model_.n_layer; ++block) {
      LANCET_TRY(add(every_block, block));
      LANCET_TRY(model_.is_moe(block) ? add(moe_block, block) : add(dense_block, block));
    }
    LANCET_TRY(add(last, 0));
    for (const ir::Tensor& tensor : program_.tensors)
      LANCET_CHECK(tensor.kind != ir::TensorKind::parameter || listed_.count(tensor.name), "{} has no name in a file",
                   tensor.name);
    return {};
  }

 private:
  static bool is_expert(const Row& row) { return row.form == Form::expert || row.form == Form::expert_conv1d; }

  Status add(std::span<const Row> rows, std::int64_t block) {
    bool experts = false;
    for (const Row& row : rows) {
      experts |= is_expert(row);
      if (!is_expert(row)) LANCET_TRY(add(row, block, -1));
    }
    for (std::int64_t e = 0; experts && e < model_.experts(1); ++e)
      for (const Row& row : rows)
        if (is_expert(row)) LANCET_TRY(add(row, block, e));
    return {};
  }

  Status add(const Row& row, std::int64_t block, std::int64_t expert) {
    Entry entry{fmt::format(fmt::runtime(row.name), block, expert),
                {},
                fmt::format(fmt::runtime(row.parameter), block),
                expert,
                row.form == Form::conv1d || row.form == Form::expert_conv1d};
    const ir::TensorId id = program_.find(entry.parameter);
    LANCET_CHECK(id.valid(), "the model has no parameter {}", entry.parameter);
    const Shape& whole = program_.type(id).shape;
    for (int axis = expert < 0 ? 0 : 1; axis < whole.rank(); ++axis) entry.shape.push_back(whole[axis]);
    if (entry.transposed) entry.shape = {entry.shape[1], entry.shape[0]};
    if (row.form == Form::vocabulary) entry.shape.set(0, model_.vocab_size);
    listed_.insert(entry.parameter);
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

}  // namespace lancet::hugging_face
