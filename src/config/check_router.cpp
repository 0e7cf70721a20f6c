// Checks the fields of a router against each other and against the number of experts.
#include "check_router.h"

#include <string>

namespace lancet::config {
namespace {

Status check_experts_per_token(const Model& m) {
  const std::int64_t found = m.num_experts_per_tok;
  if (m.router == Router::gshard && found != 2)
    return refused(
        "model.num_experts_per_tok: expected 2 with model.router \"gshard\", found {}; model.router=top_k takes any "
        "number",
        found);
  if (found != 1 && (m.router == Router::switch_top1 || !m.has_scores()))
    return refused(
        "model.num_experts_per_tok: expected 1 with model.router \"{}\", found {}; model.router=top_k takes several",
        name(m.router), found);
  return {};
}

// Fields that change what one router decides have their defaults with another.
Status check_router_fields(const Model& m) {
  const auto needs_gshard = [&](std::string_view field, std::string_view expected, std::string_view found) -> Status {
    if (found == expected || m.router == Router::gshard) return {};
    return refused("model.{}: expected \"{}\" with model.router \"{}\", found \"{}\"; model.router=gshard takes it",
                   field, expected, name(m.router), found);
  };
  const Model defaults;
  LANCET_TRY(needs_gshard("router_second_expert", name(defaults.router_second_expert), name(m.router_second_expert)));
  LANCET_TRY(needs_gshard("router_skipped_slots", name(defaults.router_skipped_slots), name(m.router_skipped_slots)));
  LANCET_TRY(needs_gshard("router_aux_loss_form", name(defaults.router_aux_loss_form), name(m.router_aux_loss_form)));
  const auto needs_scores = [&](std::string_view field, double found) -> Status {
    if (found == 0 || m.has_scores()) return {};
    return refused(
        "model.{}: expected 0 with model.router \"{}\", which has no scores, found {}; model.router=switch takes it",
        field, name(m.router), found);
  };
  if (m.norm_topk_prob && !m.has_scores())
    return refused("model.norm_topk_prob: expected false with model.router \"{}\", whose weights are 1, found true",
                   name(m.router));
  if (m.norm_topk_prob && m.num_experts_per_tok == 1 && !m.experts_choose())
    return refused(
        "model.norm_topk_prob: expected false with model.num_experts_per_tok = 1, where every weight would be 1 and "
        "the "
        "router would not learn, found true");
  LANCET_TRY(needs_scores("router_jitter_noise", m.router_jitter_noise));
  return needs_scores("router_z_loss_coef", m.router_z_loss_coef);
}

// What only sigmoid scores have.
Status check_sigmoid_only(const Model& m) {
  if (m.router == Router::sigmoid) return {};
  if (m.router_groups != 1 || m.router_topk_groups)
    return refused(
        "model.router_groups: expected 1, and model.router_topk_groups null, with model.router \"{}\", found {} "
        "and {}; model.router=sigmoid limits a token to groups of experts",
        name(m.router), m.router_groups, m.router_topk_groups ? std::to_string(*m.router_topk_groups) : "null");
  if (m.routed_scaling_factor != 1)
    return refused(
        "model.routed_scaling_factor: expected 1 with model.router \"{}\", found {}; model.router=sigmoid scales its "
        "weights",
        name(m.router), m.routed_scaling_factor);
  if (m.router_bias_update_rate != 0)
    return refused(
        "model.router_bias_update_rate: expected 0 with model.router \"{}\", found {}; model.router=sigmoid has "
        "a bias, and model.router_aux_loss_coef balances any router",
        name(m.router), m.router_bias_update_rate);
  return {};
}

Status check_expert_groups(const Model& m, std::int64_t experts) {
  if (experts % m.router_groups != 0)
    return refused("model.router_groups: expected a divisor of the layer's {} experts, found {}", experts,
                   m.router_groups);
  if (m.topk_groups() > m.router_groups)
    return refused("model.router_topk_groups: expected at most model.router_groups = {}, found {}", m.router_groups,
                   m.topk_groups());
  if (const std::int64_t open = m.topk_groups() * (experts / m.router_groups); m.num_experts_per_tok > open)
    return refused(
        "model.router_topk_groups: expected groups with at least model.num_experts_per_tok = {} experts, found {} "
        "of {} groups, which have {}",
        m.num_experts_per_tok, m.topk_groups(), m.router_groups, open);
  return {};
}

Status check_expert_choice(const Config& config, std::int64_t experts) {
  const Model& m = config.model;
  if (!m.experts_choose()) return {};
  if (m.num_experts_per_tok != 1)
    return refused(
        "model.num_experts_per_tok: expected 1 with model.router \"expert_choice\", found {}; model.capacity_factor is "
        "the mean number of experts per token",
        m.num_experts_per_tok);
  if (!m.capacity_factor)
    return refused(
        "model.capacity_factor: expected a number with model.router \"expert_choice\", the mean number of experts per "
        "token, found null");
  if (*m.capacity_factor > double(experts))
    return refused(
        "model.capacity_factor: expected at most the {} experts with model.router \"expert_choice\", the mean number "
        "of "
        "experts per token, found {}",
        experts, *m.capacity_factor);
  if (m.norm_topk_prob)
    return refused(
        "model.norm_topk_prob: expected false with model.router \"expert_choice\", whose weights are the scores, found "
        "true");
  if (config.train.sample_tokens > 0)
    return refused(
        "train.sample_tokens: expected 0 with model.router \"expert_choice\", by which a token's experts depend on "
        "later tokens, found {}; model.router=top_k generates",
        config.train.sample_tokens);
  return {};
}

}  // namespace

Status check_router(const Config& config, const ir::Mesh& mesh) {
  const Model& m = config.model;
  if (!m.has_moe()) return {};
  LANCET_TRY(check_experts_per_token(m));
  LANCET_TRY(check_router_fields(m));
  LANCET_TRY(check_sigmoid_only(m));
  const std::int64_t experts = m.experts(mesh[ir::Axis::expert]);
  LANCET_TRY(check_expert_choice(config, experts));
  return m.router == Router::sigmoid ? check_expert_groups(m, experts) : Status{};
}

}  // namespace lancet::config
