// Checks fields against each other and against the number of ranks. The range of a single field is in its row of the
// table (fields.cpp).
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string>
#include <vector>

#include "fields.h"

namespace lancet::config {

// Checks that the fields of the router fit together, the experts and what the run does. Config errors.
Status check_router(const Config& config, const ir::Mesh& mesh);

namespace {

constexpr std::int64_t most_experts = 65536;       // of a layer, over all ranks
constexpr std::int64_t most_elements = 1LL << 40;  // of a tensor; also tokens of a step: byte sizes stay far below 2^63
constexpr std::int64_t most_tokens = (1LL << 31) - 1;  // of a rank's micro batch: slots and counts are int32
constexpr std::int64_t most_routed =
    (1LL << 24) - 1;  // the same with MoE layers: choices of experts, which gates count in floats

// A model whose MoE layers are all replaced would train without the experts that its config describes.
Status check_moe_layers(const Model& m) {
  if (m.moe_layer_freq == 0 || m.has_moe()) return {};
  if (m.family().has("mlp_only_layers"))
    return refused(
        "expected model.moe_layer_freq = {} and model.mlp_only_layers = [{}] that leave one of the {} blocks "
        "(model.n_layer) experts, found none",
        m.moe_layer_freq, fmt::join(m.mlp_only_layers, ", "), m.n_layer);
  if (!m.family().has("moe_layer_freq"))
    return refused("model.first_k_dense_replace: expected less than model.n_layer = {}, found {}", m.n_layer,
                   m.first_k_dense_replace);
  return refused(
      "model.first_k_dense_replace: expected one that leaves a block of experts (a multiple of model.moe_layer_freq "
      "= {} below n_layer = {}), found {}; model.moe_layer_freq=0 makes a dense model",
      m.moe_layer_freq, m.n_layer, m.first_k_dense_replace);
}

// Exactly one of the two fields gives a layer's experts.
Status check_experts_given(const Model& m) {
  if (!m.has_moe()) return {};
  if (m.experts_per_rank.has_value() == m.num_local_experts.has_value())
    return refused("expected exactly one of model.experts_per_rank and model.num_local_experts, found {}",
                   m.experts_per_rank ? "both" : "neither");
  return {};
}

Status check_experts(const Model& m, const ir::Mesh& mesh) {
  if (!m.has_moe()) return {};
  const int coordinates = mesh[ir::Axis::expert];
  const std::int64_t experts = m.experts(coordinates);
  if (experts > most_experts)
    return refused("model.experts_per_rank: expected at most {} experts in a layer, found {} on {} ranks", most_experts,
                   experts, coordinates);
  if (m.num_experts_per_tok > experts)
    return refused("model.num_experts_per_tok: expected at most the layer's {} experts, found {}", experts,
                   m.num_experts_per_tok);
  return {};
}

Status check_groups(const Config& config) {
  if (config.train.micro_batch_size % config.group_sequences() == 0) return {};
  return refused(
      "model.router_group_size: expected a divisor of the {} sequences of train.micro_batch_size (a group "
      "cannot span micro batches or ranks), found {}",
      config.train.micro_batch_size, config.group_sequences());
}

// The elements of a tensor, in a double, which cannot overflow and is exact far beyond the bound.
struct Size {
  const char* what;
  double elements;
};

std::vector<Size> dense_sizes(const Config& config, const ir::Mesh& mesh) {
  const Model& m = config.model;
  const Train& t = config.train;
  const double width = double(m.n_embd), inner = double(m.inner()), vocabulary = double(m.padded_vocab());
  const double heads = double((m.n_head + 2 * m.key_heads()) * m.head_size());  // of queries, keys and values
  const double sequence = double(t.seq_len), tokens = double(t.micro_batch_size) * sequence;
  return {{"a step's tokens (train.micro_batch_size * seq_len * gradient_accumulation_steps * mesh.data * mesh.expert)",
           tokens * double(t.gradient_accumulation_steps) * mesh.size(ir::batch_axes)},
          {"the logits (train.micro_batch_size * seq_len * model.vocab_size)", std::max(tokens, sequence) * vocabulary},
          {"the token embedding (model.vocab_size * n_embd)", vocabulary * width},
          {"the position embedding (model.n_positions * n_embd)",
           m.family().positions == Positions::learned ? double(m.n_positions) * width : 0},
          {"queries, keys and values (train.micro_batch_size * seq_len * features of all heads)", tokens * heads},
          {"the attention's weight (model.n_embd * features of all heads)", heads * width},
          {"an FFN's activations (train.micro_batch_size * seq_len * model.n_inner)", tokens * std::max(inner, width)},
          {"an FFN's weight (model.n_embd * n_inner)", width * inner}};
}

std::vector<Size> moe_sizes(const Config& config, const ir::Mesh& mesh) {
  const Model& m = config.model;
  const Train& t = config.train;
  const int coordinates = mesh[ir::Axis::expert];
  const double width = double(m.n_embd), expert_inner = double(m.expert_inner()),
               shared_inner = double(m.shared_inner());
  const double sequence = double(t.seq_len), tokens = double(t.micro_batch_size) * sequence,
               group = double(config.group_sequences()) * sequence;
  const double experts = double(m.experts(coordinates)), of_rank = experts / coordinates,
               share = m.buffer_factor() * double(m.num_experts_per_tok) * group / experts;
  const double of_group = std::min(std::max(std::ceil(share), 1.0), group);
  // Text generation uses a capacity of all tokens at every expert.
  const double slots = std::max(tokens / group * of_group, t.sample_tokens > 0 ? sequence : 0.0);
  return {{"the router's logits (train.micro_batch_size * seq_len * experts)", tokens * experts},
          {m.moe_intermediate_size
               ? "the experts' activations (experts * capacity * the larger of model.n_embd and "
                 "moe_intermediate_size)"
               : "the experts' activations (experts * capacity * the larger of model.n_embd and n_inner)",
           experts * slots * std::max(expert_inner, width)},
          {m.moe_intermediate_size ? "a rank's expert weights (experts * model.n_embd * moe_intermediate_size)"
                                   : "a rank's expert weights (experts * model.n_embd * n_inner)",
           of_rank * width * expert_inner},
          {"the shared experts' activations (train.micro_batch_size * seq_len * their width)", tokens * shared_inner},
          {"the shared experts' weights (model.n_embd * their width)", width * shared_inner}};
}

// What gates count of a rank's micro batch.
Status check_choices(const Config& config, const ir::Mesh& mesh) {
  const Model& m = config.model;
  if (!m.has_moe()) return {};
  const double tokens = double(config.train.micro_batch_size) * double(config.train.seq_len);
  if (const double pairs = tokens * double(m.experts(mesh[ir::Axis::expert]));
      m.experts_choose() && pairs > double(most_routed))
    return refused(
        "train.micro_batch_size * train.seq_len * experts: expected at most {} with model.router \"expert_choice\", "
        "found {:.0f}",
        most_routed, pairs);
  if (const double choices = tokens * double(m.num_experts_per_tok); choices > double(most_routed))
    return refused(
        "train.micro_batch_size * train.seq_len * model.num_experts_per_tok: expected at most {} with MoE layers, "
        "found {:.0f}",
        most_routed, choices);
  return {};
}

// Checks the tokens of a micro batch and the elements of the largest tensors.
Status check_sizes(const Config& config, const ir::Mesh& mesh) {
  if (const double tokens = double(config.train.micro_batch_size) * double(config.train.seq_len);
      tokens > double(most_tokens))
    return refused("train.micro_batch_size * train.seq_len: expected at most {} tokens, found {:.0f}", most_tokens,
                   tokens);
  std::vector<Size> sizes = dense_sizes(config, mesh);
  if (config.model.has_moe()) std::ranges::copy(moe_sizes(config, mesh), std::back_inserter(sizes));
  for (const Size& size : sizes)
    if (size.elements > double(most_elements))
      return refused("{}: expected at most {} elements, found {:.4g}", size.what, most_elements, size.elements);
  return check_choices(config, mesh);
}

Status check_emulated(const Config& config) {
  if (config.model.has_moe() && config.model.router_bias_update_rate != 0)
    return refused(
        "model.router_bias_update_rate: expected 0 for device \"emulated\", whose scores are drawn, found {}",
        config.model.router_bias_update_rate);
  if (config.emulated.hardware.empty())
    return refused("emulated.hardware: expected a hardware file for device \"emulated\", found none");
  if (config.comm.transport == Transport::mirrored)
    return refused(
        "comm.transport: expected \"auto\", \"mpi\" or \"self\" for device \"emulated\", found \"mirrored\"");
  return {};
}

// What pipeline stages are not built for.
Status check_stages(const Config& config) {
  if (config.mesh.stage == 1) return {};
  if (config.comm.transport == Transport::mirrored)
    return refused("mesh.stage: expected 1 for comm.transport \"mirrored\", found {}", config.mesh.stage);
  return {};
}

}  // namespace

std::int64_t Model::moe_layers() const {
  std::int64_t layers = 0;
  for (std::int64_t block = 0; block < n_layer; ++block) layers += is_moe(block);
  return layers;
}

std::int64_t Model::experts(int expert_coordinates) const {
  if (!has_moe()) return 0;
  return num_local_experts ? *num_local_experts : experts_per_rank.value_or(0) * expert_coordinates;
}

namespace {

Status check_rope(const RopeScaling& scaling) {
  if (scaling.beta_fast < scaling.beta_slow)
    return refused("model.rope_scaling.beta_fast: expected at least beta_slow = {}, found {}", scaling.beta_slow,
                   scaling.beta_fast);
  if (scaling.high_freq_factor <= scaling.low_freq_factor)
    return refused("model.rope_scaling.high_freq_factor: expected above low_freq_factor = {}, found {}",
                   scaling.low_freq_factor, scaling.high_freq_factor);
  return {};
}

Status check_all(const Config& config, int ranks) {
  const Model& m = config.model;
  if (ranks < 1) return refused("expected at least one rank, found {}", ranks);
  if (!m.head_dim && m.n_embd % m.n_head != 0)
    return refused("model.n_embd: expected a multiple of model.n_head = {}, found {}", m.n_head, m.n_embd);
  if (m.n_head % m.key_heads() != 0)
    return refused("model.num_key_value_heads: expected a divisor of model.n_head = {}, found {}", m.n_head,
                   m.key_heads());
  constexpr std::int64_t most_rotated = 512;  // ops/nn/rotate
  if (m.family().positions == Positions::rotary && (m.head_size() % 2 != 0 || m.head_size() > most_rotated))
    return refused("model.head_dim: expected an even number of at most {}, found {}", most_rotated, m.head_size());
  if (m.rope_scaling) LANCET_TRY(check_rope(*m.rope_scaling));
  if (config.train.seq_len < 1 || config.train.seq_len > m.n_positions)
    return refused("train.seq_len: expected 1 to model.n_positions = {}, found {}", m.n_positions,
                   config.train.seq_len);
  LANCET_TRY(check_moe_layers(m));
  LANCET_TRY(check_experts_given(m));
  LANCET_ASSIGN(const ir::Mesh mesh, make_mesh(config, ranks));
  LANCET_TRY(check_experts(m, mesh));
  LANCET_TRY(check_router(config, mesh));
  LANCET_TRY(check_stages(config));
  if (m.has_moe()) LANCET_TRY(check_groups(config));
  LANCET_TRY(check_sizes(config, mesh));
  if (const Train& t = config.train; t.min_lr > t.lr)
    return refused("train.min_lr: expected at most train.lr = {}, found {}", t.lr, t.min_lr);
  if (config.overlap.memory_factor > 0 && config.overlap.memory_factor < 1)
    return refused("overlap.memory_factor: expected 0 or at least 1, found {}", config.overlap.memory_factor);
  if (config.overlap.parts > config.overlap.max_parts)
    return refused("overlap.parts: expected at most overlap.max_parts = {}, found {}", config.overlap.max_parts,
                   config.overlap.parts);
  const bool by_batch = config.overlap.policy != "tutel" && config.overlap.policy != "expert_pipeline";
  const bool one = config.train.micro_batch_size == 1;
  const std::int64_t length = one ? config.train.seq_len : config.train.micro_batch_size;
  if (config.overlap.parts > 1 && by_batch && length % config.overlap.parts != 0)
    return refused("overlap.parts: expected a divisor of train.{} = {}, found {}", one ? "seq_len" : "micro_batch_size",
                   length, config.overlap.parts);
  if (config.log.trace > config.train.steps)
    return refused("log.trace: expected a step of train.steps = {}, found {}", config.train.steps, config.log.trace);
  if (const Transport transport = config.comm.transport; config.device != Device::cuda && transport == Transport::nccl)
    return refused(
        "comm.transport: expected \"auto\", \"mpi\", \"self\" or \"mirrored\" for device \"{}\", found \"{}\"",
        name(config.device), name(transport));
  if (config.device != Device::cuda && config.comm.device_all_to_all == DeviceAllToAll::windows)
    return refused("comm.device_all_to_all: expected \"auto\" or \"counted\" for device \"{}\", found \"{}\"",
                   name(config.device), name(config.comm.device_all_to_all));
  if (config.comm.transport == Transport::mirrored && (config.comm.network.empty() || config.comm.mirrored_ranks < 1))
    return refused(
        "comm.transport: expected comm.network and comm.mirrored_ranks for \"mirrored\", found \"{}\" and {}",
        config.comm.network, config.comm.mirrored_ranks);
  if (config.device == Device::emulated) LANCET_TRY(check_emulated(config));
  if (config.comm.transport == Transport::self && ranks > 1)
    return refused("comm.transport: expected \"auto\" or \"mpi\" for {} ranks, found \"self\"", ranks);
  return {};
}

}  // namespace

Status check(const Config& config, int ranks) {
  Status found = check_all(config, ranks);
  if (!found.ok()) return in_names_of(config.model.family(), std::move(found).error());
  return found;
}

Status check_data(const Config& config) {
  const Data& d = config.data;
  if (d.train.empty() && !d.synthetic)
    return refused(
        "data.train: expected a token file (lancet data tokenize writes one) or data.synthetic = true, found \"\"");
  if (config.train.sample_tokens > 0 && d.tokenizer.empty())
    return refused("data.tokenizer: expected a tokenizer folder since train.sample_tokens = {}, found \"\"",
                   config.train.sample_tokens);
  return {};
}

// Checks the fields of a router against each other and against the number of experts.
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
  LANCET_TRY(needs_scores("router_jitter_noise", m.router_jitter_noise));
  return needs_scores("router_z_loss_coef", m.router_z_loss_coef);
}

// What only sigmoid scores have.
Status check_sigmoid_only(const Model& m) {
  if (m.router == Router::sigmoid) return {};
  if (m.router_groups != 1 || m.topk_groups() != 1)
    return refused(
        "model.router_groups: expected 1, and model.router_topk_groups null or 1, with model.router \"{}\", found {} "
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
