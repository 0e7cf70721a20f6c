// The table of fields, what families and conditions say of them, and the keys of rope_scaling.
#include "fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

namespace lancet::config {
namespace {

// Of the types that the config knows.
constexpr auto words_of(lancet::DType) { return words("fp32", "bf16"); }
static_assert(int(DType::f32) == 0 && int(DType::bf16) == 1, "its words follow DType");

template <class T>
Slot slot_of(T& member) {
  if constexpr (std::is_enum_v<T>) {
    static constexpr auto words = words_of(T{});
    return Choice{words, &member, [](const void* p) { return int(*static_cast<const T*>(p)); },
                  [](void* p, int i) { *static_cast<T*>(p) = T(i); }};
  } else {
    return &member;
  }
}

Slot slot_of(const Family*& member) {
  const auto at = [](const void* p) {
    return int(std::ranges::find(families_known(), *static_cast<const Family* const*>(p)) - families_known().begin());
  };
  return Choice{family_names(), &member, at,
                [](void* p, int i) { *static_cast<const Family**>(p) = families_known()[std::size_t(i)]; }};
}

constexpr Range any() { return {}; }
constexpr Range from(double min) { return {.min = min}; }
constexpr Range between(double min, double max) { return {.min = min, .max = max}; }
constexpr Range above_zero(double max) { return {.min = 0, .max = max, .open_min = true}; }
constexpr Range above_one(double max) { return {.min = 1, .max = max, .open_min = true}; }
constexpr Range below_one() { return {.min = 0, .max = 1, .open_max = true}; }

// Upper limits: far above any real model, and low enough that sums and products of a few fields stay exact (check.cpp
// bounds the sizes of tensors).
constexpr double most_layers = 10000;
constexpr double most_experts_per_layer = 65536;
constexpr double most_router_groups = 64;
constexpr double most_ranks = 65536;
constexpr double most_width = 1 << 20;      // also limits rows, heads and accumulated micro batches
constexpr double most_positions = 1 << 24;  // per sequence
constexpr double most_ids = 2147483647;     // ids are int32
constexpr double most_steps = 1e12;
constexpr double most_seconds = 1e9;  // fits an int64 in nanoseconds
constexpr double most_factor = 1e6;
constexpr double most_real = 1e30;  // rates and norms: kernels store them as float

constexpr Condition moe = {[](const Config& c, int) { return c.model.has_moe(); }, "in a dense model"};
constexpr Condition dropless = {[](const Config& c, int) { return c.model.has_moe() && !c.model.capacity_factor; },
                                "without MoE layers that drop nothing (model.capacity_factor null)"};
constexpr Condition files = {[](const Config& c, int) { return !c.data.synthetic; }, "beside data.synthetic"};
constexpr Condition evaluated = {[](const Config& c, int) { return !c.data.synthetic && !c.data.eval.empty(); },
                                 "without an evaluation (data.eval)"};
constexpr Condition evaluated_at = {
    [](const Config& c, int ranks) { return c.train.eval_interval == 0 || evaluated.holds(c, ranks); },
    evaluated.otherwise};
constexpr Condition stages = {[](const Config& c, int) { return c.mesh.stage > 1; }, "without stages (mesh.stage)"};
constexpr Condition tensor = {[](const Config& c, int) { return c.mesh.tensor > 1; },
                              "without tensor parallelism (mesh.tensor)"};
constexpr Condition masters = {[](const Config& c, int) { return c.train.dtype != DType::f32; },
                               "in fp32, whose weights are the masters themselves"};
constexpr Condition gpu = {[](const Config& c, int) { return c.device != Device::cpu; }, "on device \"cpu\""};
constexpr Condition falls = {[](const Config& c, int) {
                               return c.train.lr_schedule != LrSchedule::constant &&
                                      (c.train.lr_schedule == LrSchedule::wsd
                                           ? c.train.lr_decay_steps
                                           : c.train.steps - c.train.lr_warmup_steps) > 1;
                             },
                             "without two steps of decay or more (train.lr_schedule, lr_decay_steps, lr_warmup_steps)"};
constexpr Condition several = {[](const Config&, int ranks) { return ranks > 1; }, "on one rank"};
constexpr Condition decays = {[](const Config& c, int) { return c.train.lr_schedule == LrSchedule::wsd; },
                              "unless train.lr_schedule is \"wsd\""};
constexpr Condition adamw = {[](const Config& c, int) { return c.train.optimizer == Optimizer::adamw; },
                             "unless train.optimizer is \"adamw\""};
constexpr Condition sgd = {[](const Config& c, int) { return c.train.optimizer == Optimizer::sgd; },
                           "unless train.optimizer is \"sgd\""};
constexpr Condition skips = {[](const Config& c, int) { return c.train.on_non_finite == OnNonFinite::skip; },
                             "unless train.on_non_finite is \"skip\""};
constexpr Condition stops = {[](const Config& c, int) { return c.train.stop_after < c.train.steps; },
                             "from the last step on (train.steps)"};
constexpr Condition by_minutes = {[](const Config& c, int) { return c.train.save_interval == 0; },
                                  "beside train.save_interval"};
constexpr Condition samples = {[](const Config& c, int) { return c.train.sample_tokens > 0; },
                               "without train.sample_tokens"};
constexpr Condition overlaps = {[](const Config& c, int) { return c.overlap.policy != "sequential"; },
                                "under overlap.policy \"sequential\""};
constexpr Condition searches = {
    [](const Config& c, int) { return c.overlap.policy == "lancet" || c.overlap.policy == "auto"; },
    "unless overlap.policy is \"lancet\" or \"auto\""};
constexpr Condition sharded = {[](const Config& c, int ranks) { return ranks > c.mesh.stage * c.mesh.tensor; },
                               "without ranks that share the batch"};
constexpr Condition replans = {[](const Config& c, int ranks) { return ranks > 1 && overlaps.holds(c, ranks); },
                               "on one rank or under overlap.policy \"sequential\""};
constexpr Condition mirrored = {[](const Config& c, int) { return c.comm.transport == Transport::mirrored; },
                                "unless comm.transport is \"mirrored\""};
constexpr Condition emulated = {[](const Config& c, int) { return c.device == Device::emulated; },
                                "unless device is \"emulated\""};

#define ROW(member, range, doc)                                       \
  Field {                                                             \
#member, [](Config & c) { return slot_of(c.member); }, range, doc \
  }

// A member under the name that some families have for it.
#define NAMED(path, member, range, doc)                           \
  Field {                                                         \
    path, [](Config& c) { return slot_of(c.member); }, range, doc \
  }

// clang-format off
constexpr Field table[] = {
    ROW(model.model_type, any(), "family of the blocks and of the names of the fields below"),
    ROW(model.from, any(),
        "folder of Hugging Face's format, whose model a run starts with; it has the fields below, but for those of "
        "training (docs/models.md)"),
    ROW(model.n_layer, between(1, most_layers), "transformer blocks"),
    ROW(model.n_head, between(1, most_width), "attention heads; divides n_embd"),
    ROW(model.n_embd, between(1, most_width), "width of the residual stream"),
    ROW(model.n_positions, between(1, most_positions), "longest sequence (learned positions)"),
    NAMED("model.num_hidden_layers", model.n_layer, between(1, most_layers), "transformer blocks"),
    NAMED("model.num_attention_heads", model.n_head, between(1, most_width), "query heads"),
    NAMED("model.num_key_value_heads", model.num_key_value_heads, between(1, most_width),
        "key heads, each of which serves as many query heads; null: num_attention_heads"),
    NAMED("model.head_dim", model.head_dim, between(1, most_width),
        "width of a head; null: hidden_size / num_attention_heads"),
    NAMED("model.hidden_size", model.n_embd, between(1, most_width), "width of the residual stream"),
    NAMED("model.intermediate_size", model.n_inner, between(1, most_positions),
        "width inside an FFN, or an expert without moe_intermediate_size; null: 4 * hidden_size"),
    NAMED("model.max_position_embeddings", model.n_positions, between(1, most_positions), "longest sequence"),
    NAMED("model.rms_norm_eps", model.layer_norm_epsilon, above_zero(1), "added to the mean square"),
    NAMED("model.rope_theta", model.rope_theta, above_one(most_real), "base of the rotary angles"),
    ROW(model.rope_scaling, any(),
        "positions beyond those of the training: {\"rope_type\": \"linear\", \"factor\": 4} divides the angles by the "
        "factor; yarn takes original_max_position_embeddings (null: max_position_embeddings), attention_factor, mscale, "
        "mscale_all_dim, beta_fast and beta_slow as well; llama3 needs original_max_position_embeddings, low_freq_factor "
        "and high_freq_factor; null: none"),
    NAMED("model.tie_word_embeddings", model.tie_word_embeddings, any(), "the head is the token embedding"),
    ROW(model.clip_qkv, above_zero(most_real),
        "queries, keys and values are limited to [-this, this], after their norms; null: no limit"),
    ROW(model.qkv_bias, any(), "queries, keys and values have biases"),
    ROW(model.attention_bias, any(), "both products of attention have biases"),
    NAMED("model.num_experts", model.num_local_experts, between(1, most_experts_per_layer),
        "experts per layer over all ranks"),
    NAMED("model.n_routed_experts", model.num_local_experts, between(1, most_experts_per_layer), "as num_experts"),
    NAMED("model.n_group", model.router_groups, between(1, most_router_groups), "as router_groups"),
    NAMED("model.topk_group", model.router_topk_groups, between(1, most_router_groups), "as router_topk_groups"),
    NAMED("model.decoder_sparse_step", model.moe_layer_freq, between(1, most_layers),
        "block i, from 1 on, is an MoE layer if it is a multiple"),
    ROW(model.mlp_only_layers, between(0, most_layers), "blocks, from 0 on, that are dense all the same"),
    ROW(model.shared_expert_intermediate_size, between(1, most_positions),
        "width inside the shared expert, which every token passes besides those that the router chooses, and whose "
        "result is multiplied by the sigmoid of a number for each token; null: intermediate_size").when(moe),
    ROW(model.vocab_size, between(2, most_ids), "vocabulary of the tokenizer"),
    ROW(model.n_inner, between(1, most_positions), "width inside an FFN or an expert; null: 4 * n_embd"),
    ROW(model.layer_norm_epsilon, above_zero(1), "added to the variance"),
    ROW(model.initializer_range, between(0, most_factor), "standard deviation of the initial weights"),
    ROW(model.moe_layer_freq, between(0, most_layers),
        "block i is an MoE layer if i % moe_layer_freq == 0; 0: dense model"),
    ROW(model.first_k_dense_replace, between(0, most_layers),
        "the first blocks that are dense whatever moe_layer_freq says").when(moe),
    ROW(model.experts_per_rank, between(1, most_experts_per_layer),
        "experts per layer and place on the mesh's axis expert; excludes num_local_experts; 2 if neither is given")
        .when(moe),
    ROW(model.num_local_experts, between(1, most_experts_per_layer),
        "experts per layer over all ranks; excludes experts_per_rank").when(moe),
    ROW(model.moe_intermediate_size, between(1, most_positions), "width inside an expert; null: n_inner").when(moe),
    ROW(model.n_shared_experts, between(0, most_experts_per_layer),
        "experts of a layer that every token passes besides those that the router chooses; their results are added "
        "without a weight").when(moe),
    ROW(model.num_experts_per_tok, between(1, most_experts_per_layer),
        "experts per token; routers switch, hash, random and expert_choice need 1, gshard 2").when(moe),
    ROW(model.norm_topk_prob, any(), "the weights of a token's experts are divided by their sum").when(moe),
    ROW(model.router, any(),
        "how tokens choose experts, and which a full expert keeps. switch, top_k: by score; the first tokens; "
        "batch_prioritized: by score; first choices before second ones, each by falling weight of the token's "
        "first choice; gshard: by score, with normalised weights; first choices before second ones, each in token "
        "order; hash: by the token's id, without scores; random: at random, evenly in each sequence; both keep the "
        "first tokens; sigmoid: by sigmoid scores (DeepSeek-V3); the first tokens; expert_choice: each expert takes "
        "the tokens with its largest scores, which is not causal: a token's experts depend on later tokens of its "
        "group, in evaluation, too").when(moe),
    ROW(model.router_second_expert, any(),
        "gshard: a token is sent to its second expert in training. random: with probability min(1, 2 * its weight), as "
        "in the paper; always: as by default in Lingvo's code; evaluation and generation always send it").when(moe),
    ROW(model.router_skipped_slots, any(),
        "gshard: second choices that were not sent. kept: they count towards the expert's capacity, as in the paper; "
        "free: they do not, as in Lingvo's code").when(moe),
    ROW(model.router_jitter_noise, below_one(),
        "in training, the router's input is multiplied by uniform numbers in [1 - this, 1 + this); 0: off").when(moe),
    ROW(model.capacity_factor, above_zero(most_factor),
        "slots per expert, as a multiple of an even share of the tokens' choices; expert_choice: the mean number of "
        "experts per token; null: no choice is dropped").when(moe),
    ROW(model.dropless_imbalance, between(1, most_factor),
        "without a capacity_factor: slots per expert and rank that memory is planned for, as a multiple of an even "
        "share; choices beyond them take further rounds").when(dropless),
    ROW(model.router_group_size, between(1, most_width),
        "sequences whose tokens share an expert's slots; divides micro_batch_size, since a group never spans ranks or "
        "micro batches; null: micro_batch_size").when(moe),
    ROW(model.router_aux_loss_coef, between(0, most_factor), "weight of the load-balancing loss; 0: off").when(moe),
    ROW(model.router_aux_loss_form, any(),
        "gshard: its load-balancing loss counts first choices. switch: E * sum of f P over the E experts, as in "
        "Lingvo's code; gshard: the mean of f P over the experts, as in the paper: 1/E^2 of the former; records hold "
        "the former").when(moe),
    ROW(model.router_aux_loss_scope, any(),
        "tokens whose choices the load-balancing loss counts: rank, group: those of each rank, or of each group of "
        "router_group_size sequences, in a micro batch; global: those of all ranks in the step's micro batches so far")
        .when(moe),
    ROW(model.router_z_loss_coef, between(0, most_factor),
        "weight of the router's z-loss, the mean square of log(sum of e^logit); 0: off").when(moe),
    ROW(model.router_groups, between(1, most_router_groups),
        "router sigmoid: groups of neighbouring experts, whose scores are the sums of their two best experts")
        .when(moe),
    ROW(model.router_topk_groups, between(1, most_router_groups),
        "router sigmoid: a token chooses experts of as many groups, the best ones; null: all").when(moe),
    ROW(model.routed_scaling_factor, above_zero(most_factor), "router sigmoid: factor of the weights").when(moe),
    ROW(model.router_bias_update_rate, between(0, 1),
        "router sigmoid: after each step the bias by which experts are chosen grows by this for experts with less "
        "than the mean load of the step, and falls for those with more").when(moe),
    ROW(model.vocab_pad_multiple, between(1, most_width), "the vocabulary is padded internally to a multiple of this"),
    ROW(data.train, any(), "token file for training (lancet data tokenize writes it)").when(files),
    ROW(data.eval, any(), "token file for evaluation; empty: no evaluation").when(files),
    ROW(data.tokenizer, any(), "folder with tokenizer.json, or vocab.json and merges.txt; needed to generate text"),
    ROW(data.eval_sequences, between(1, most_steps), "sequences per evaluation, over all ranks").when(evaluated),
    ROW(data.synthetic, any(), "draw tokens from the seed instead of reading data.train and data.eval"),
    ROW(train.steps, between(1, most_steps), "optimizer steps"),
    ROW(train.seq_len, between(0, most_positions), "tokens per sequence; 0: n_positions"),
    ROW(train.micro_batch_size, between(1, most_width),
        "sequences per micro batch and rank that the batch is split over (mesh.data x mesh.expert)"),
    ROW(train.gradient_accumulation_steps, between(1, most_width), "micro batches per step"),
    ROW(train.memory_limit_mb, between(0, 1e9),
        "MB for a rank's parameters, optimizer state and arena: activations that do not fit are recomputed in the "
        "backward pass; 0: no limit"),
    ROW(train.pipeline_schedule, any(),
        "with mesh.stage > 1: the order of micro batches on a stage; zero_bubble: weight gradients wait for gaps; "
        "searched: from predicted times, over all stages together; interleaved: the same, with two runs of blocks on "
        "each stage").when(stages),
    ROW(train.dtype, any(),
        "type of matrix products and activations; optimizer state is fp32; for parameters see master_weights"),
    ROW(train.zero, between(0, 1),
        "1: the ranks that sum a weight's gradient divide its optimizer state among them (ZeRO-1); 0: each keeps all")
        .when(sharded),
    ROW(train.reduce_dtype, any(),
        "type in which gradients travel between ranks; bf16 halves the messages; sums are fp32").when(several),
    ROW(train.sequence_parallel, any(),
        "with mesh.tensor > 1: activations between the pairs of products are split along the sequence over mesh.tensor, "
        "which divides train.seq_len").when(tensor),
    ROW(train.tf32, any(), "GPU: fp32 products round their operands to 10 mantissa bits and run on tensor cores")
        .when(gpu),
    ROW(train.fuse_gelu, any(), "GPU: matrix products also compute the GELU, or its gradient, that follows them")
        .when(gpu),
    ROW(train.deterministic, any(),
        "GPU: runs repeat bit for bit; false: a faster backward pass of attention sums in any order; on the CPU "
        "all runs repeat").when(gpu),
    ROW(train.master_weights, any(),
        "bf16: keep fp32 copies of the weights; false: bf16 weights only, rounded stochastically").when(masters),
    ROW(train.optimizer, any(), ""),
    ROW(train.lr, between(0, most_real), "learning rate after warm-up"),
    ROW(train.min_lr, between(0, most_real),
        "learning rate of the last step: of N steps of decay the first has lr, and the rate falls N - 1 times; with one "
        "step of decay it stays lr").when(falls),
    ROW(train.lr_schedule, any(), "wsd: warm-up, stable, decay over the last lr_decay_steps"),
    ROW(train.lr_warmup_steps, between(0, most_steps),
        "steps of linear increase: the first has lr / lr_warmup_steps, the last lr"),
    ROW(train.lr_decay_steps, between(0, most_steps),
        "wsd: steps of decay at the end, of which the first has lr and the last min_lr").when(decays),
    ROW(train.weight_decay, between(0, most_factor), "decay of weight matrices and embeddings; adamw: decoupled; sgd: added to the gradient"),
    ROW(train.adam_beta1, below_one(), "").when(adamw),
    ROW(train.adam_beta2, below_one(), "").when(adamw),
    ROW(train.adam_eps, above_zero(1), "").when(adamw),
    ROW(train.sgd_momentum, below_one(), "").when(sgd),
    ROW(train.clip_grad, between(0, most_real), "maximum global gradient norm; 0: no clipping"),
    ROW(train.seed, from(0), "seed of the initial weights and of the data order"),
    ROW(train.eval_interval, between(0, most_steps), "steps between evaluations; 0: only at the end")
        .when(evaluated_at),
    ROW(train.on_non_finite, any(),
        "if a loss or gradient norm is not finite: stop with exit code 4, or skip the step's update; a skipped step "
        "counts in lr_schedule, and not in adamw's bias correction"),
    ROW(train.max_skips, between(1, most_steps), "consecutive skipped steps after which the run ends with exit code 4")
        .when(skips),
    ROW(train.save_interval, between(0, most_steps),
        "steps between checkpoints, plus one at the end; 0: save_minutes applies"),
    ROW(train.save_minutes, between(0, most_seconds),
        "if save_interval is 0: minutes between checkpoints, plus one at the end; 0: save only when the run "
        "is stopped").when(by_minutes),
    ROW(train.keep_last, between(0, most_steps), "number of newest checkpoints to keep; 0: all"),
    ROW(train.save_buffer_mb, between(8, 1 << 24),
        "MiB of memory per rank for saving in the background; when it is full, the step waits for the disk"),
    ROW(train.stop_after, between(0, most_steps), "save after this step and exit with code 75; 0: never").when(stops),
    ROW(train.max_minutes, between(0, most_seconds), "save after this many minutes and exit with code 75; 0: never"),
    ROW(train.sample_prompt, any(), "prompt of the text generated after training").when(samples),
    ROW(train.sample_tokens, between(0, most_positions), "tokens to generate after training; 0: none"),
    ROW(mesh.data, between(1, most_ranks),
        "ranks among which the batch is split and the experts are the same; null: the ranks that the other axes leave"),
    ROW(mesh.expert, between(1, most_ranks),
        "ranks among which the batch and the experts of a layer are split; null: the largest divisor of the experts "
        "that divides the ranks, or what data leaves"),
    ROW(mesh.tensor, between(1, most_ranks),
        "ranks among which attention, FFNs, experts and the vocabulary are split; a divisor of the heads, of n_inner "
        "and of moe_intermediate_size"),
    ROW(mesh.stage, between(1, most_ranks),
        "pipeline stages, each of consecutive blocks of the model; at most n_layer, and one more that stage_blocks gives "
        "the head alone"),
    ROW(mesh.stage_blocks, between(0, most_layers),
        "blocks of each stage, in their order, as in [3, 1]; interleaved: of each of its two runs a stage, in the order of "
        "the model; the last may have none, and then has the head alone; []: such that the stages' work is balanced")
        .when(stages),
    ROW(overlap.policy, any(),
        "how communication is overlapped with computation; lancet plan --help lists the policies"),
    ROW(overlap.bucket_bytes, between(1, 1e12), "approximate bytes of gradients per all-reduce").when(several),
    ROW(overlap.max_parts, between(1, 64), "maximum parts of an instruction (rho in Lancet): 1, 2, 4, ...")
        .when(overlaps),
    ROW(overlap.parts, between(0, 64), "forced number of parts, even if slower; 0: the fastest, up to max_parts")
        .when(overlaps),
    ROW(overlap.groups_per_moe, between(1, 1000), "groups of instructions between two MoE layers (gamma)")
        .when(overlaps),
    ROW(overlap.memory_factor, between(0, 1000),
        "the largest arena of a plan, relative to sequential's, for comparisons; 0: what train.memory_limit_mb or the "
        "device leaves").when(overlaps),
    ROW(overlap.split_backward, any(),
        "lancet: also split the backward pass into parts where that is faster; false: as in the paper").when(searches),
    ROW(overlap.across_steps, any(),
        "lancet: where that is faster, the last sums of gradients and updates of a step run beside the forward pass of "
        "the next one; values stay the same; false: never")
        .when(searches),
    ROW(overlap.reach, between(-1, 1e6),
        "forced number of groups before and after each MoE layer in its partition range; -1: the fastest")
        .when(overlaps),
    ROW(overlap.replan, between(0, most_steps),
        "steps after which the load of the experts is compared with the one planned for, and a new plan is made if the "
        "predicted step has changed by more than predictions err; 0: the plan stays").when(replans),
    ROW(overlap.profile, any(), "file of measured op and communication times; empty: this machine's in ~/.cache/lancet"),
    ROW(comm.timeout_s, between(0.001, most_seconds), "seconds that a rank waits for others before it ends the job"),
    ROW(comm.transport, any(),
        "auto: self for one rank without a launcher, else nccl between GPUs and mpi between CPUs; mirrored: "
        "one process trains as one rank of many, whose messages take a declared time"),
    ROW(comm.network, any(),
        "mirrored: declared hardware (configs/hardware/NAME.json, or a path) whose links set the messages' times")
        .when(mirrored),
    ROW(comm.mirrored_ranks, between(0, 65536), "mirrored: number of ranks, in full nodes; the process is rank 0")
        .when(mirrored),
    ROW(comm.device_all_to_all, any(),
        "all-to-all between GPUs. windows: kernels write to the peers' memory (NVLink within a node, NCCL "
        "2.28); counted: NCCL, with counts on the host; auto: windows if the ranks that exchange tokens can "
        "access each other's memory").when(gpu),
    ROW(comm.max_ctas, between(0, 64),
        "maximum thread blocks of a GPU per NCCL collective; 0: NCCL's choice; a message between stages takes at most "
        "4")
        .when(gpu),
    ROW(emulated.hardware, any(),
        "device emulated: declared hardware (configs/hardware/NAME.json, or a path), or that of each host: A;B;...")
        .when(emulated),
    ROW(emulated.scale, between(1, most_factor), "device emulated: the bytes of messages are divided by it")
        .when(emulated),
    ROW(emulated.dilation, between(1, most_factor), "device emulated: times are multiplied by it").when(emulated),
    ROW(emulated.routing, any(),
        "device emulated: even; zipf:S: expert i is chosen in proportion to 1/i^S, in another order in each layer; "
        "zipf:S:N: N steps later in another order; FILE or trace:FILE: as often as in the records (metrics.jsonl) of a "
        "run").when(emulated),
    ROW(log.interval, between(1, most_steps), "steps between log lines; metrics.jsonl has every step"),
    ROW(log.run_dir, any(), "folder for the run's files; empty: runs/<name of this file>"),
    ROW(log.peak_tflops, above_zero(1e9), "peak of one device, for MFU; null: known or measured"),
    ROW(log.trace, between(0, most_steps), "step whose timeline is written to trace.json, for Perfetto; 0: none"),
    ROW(log.tensorboard, any(), "also write the metrics to a TensorBoard event file in the run folder"),
    ROW(device, any(),
        "cuda: one GPU per rank; needs a build with CUDA; emulated: ops take the time that emulated.hardware "
        "declares, and messages are real"),
    ROW(threads, between(0, 1024), "CPU threads per rank; 0: cores / ranks on this machine"),
};
// clang-format on
#undef ROW
#undef NAMED

#define KEY(member, range, ...)                                                    \
  RopeKey {                                                                        \
#member, [](RopeScaling & s) { return slot_of(s.member); }, range, __VA_ARGS__ \
  }

// In the order in which they are printed.
constexpr RopeKey keys_of_rope[] = {
    KEY(rope_type, any(), "linear yarn llama3", "linear yarn llama3"),
    KEY(factor, between(1, most_factor), "linear yarn llama3", "linear yarn llama3"),
    KEY(original_max_position_embeddings, between(1, most_positions), "yarn llama3", "llama3"),
    KEY(attention_factor, above_zero(most_factor), "yarn"),
    KEY(mscale, above_zero(most_factor), "yarn"),
    KEY(mscale_all_dim, above_zero(most_factor), "yarn"),
    KEY(beta_fast, above_zero(most_factor), "yarn"),
    KEY(beta_slow, above_zero(most_factor), "yarn"),
    KEY(low_freq_factor, above_zero(most_factor), "llama3", "llama3"),
    KEY(high_freq_factor, above_zero(most_factor), "llama3", "llama3"),
};
#undef KEY

// True if both are the same member of one Config.
bool slots_equal(const Slot& a, const Slot& b) {
  const auto address = Overloaded{[](const Choice& choice) { return static_cast<const void*>(choice.target); },
                                  [](const auto* member) { return static_cast<const void*>(member); }};
  return std::visit(address, a) == std::visit(address, b);
}

}  // namespace

std::span<const Field> fields() { return table; }
std::span<const RopeKey> rope_keys() { return keys_of_rope; }

const Field* find_field(std::string_view path) {
  for (const Field& field : table)
    if (field.path == path) return &field;
  return nullptr;
}

const Field* find_field(std::string_view path, const Family& family) {
  const Field* field = find_field(path);
  return field && field->is_of(family) ? field : nullptr;
}

bool Field::is_of(const Family& family) const {
  return section_of(path) != "model" || path == "model.model_type" || family.has(key_of(path));
}

void replace_path(std::string& text, std::string_view path, std::string_view name) {
  for (std::size_t at = 0; (at = text.find(path, at)) != text.npos; ++at) {
    const std::size_t end = at + path.size();
    const bool whole = end == text.size() || !(std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_');
    if (whole) text.replace(at, path.size(), name);
  }
}

std::string in_names_of(const Family& family, std::string text) {
  Config config;
  for (const Field& field : table) {
    if (field.is_of(family)) continue;
    const Slot slot = field.slot(config);
    const auto same = [&](const Field& other) { return other.is_of(family) && slots_equal(other.slot(config), slot); };
    const auto other = std::ranges::find_if(table, same);
    if (other != std::end(table)) replace_path(text, field.path, other->path);
  }
  return text;
}

Error in_names_of(const Family& family, Error error) {
  error.message = in_names_of(family, std::move(error.message));
  return error;
}

Model defaults_of(const Family& family) {
  Model model;
  model.model_type = &family;
  family.set_defaults(model);
  return model;
}

Config defaults_of(const Field& field) {
  Config config;
  const auto first = std::ranges::find_if(families_known(), [&](const Family* family) { return field.is_of(*family); });
  config.model = defaults_of(**first);
  return config;
}

std::string_view section_of(std::string_view path) {
  const auto dot = path.find('.');
  return dot == path.npos ? std::string_view{} : path.substr(0, dot);
}

std::string_view key_of(std::string_view path) {
  const auto dot = path.find('.');
  return dot == path.npos ? path : path.substr(dot + 1);
}

bool is_section(std::string_view path) {
  for (const Field& field : table)
    if (!path.empty() && section_of(field.path) == path) return true;
  return false;
}

bool has_effect(std::string_view path, const Config& config, int ranks) {
  const Condition* condition = find_field(path)->condition;
  return !condition || condition->holds(config, ranks);
}

std::vector<std::string> without_effect(const Config& config, int ranks) {
  Config defaults, given = config;  // slots point into a Config that may be written
  std::vector<std::pair<std::string_view, std::vector<std::string_view>>> found;
  defaults.model = defaults_of(config.model.family());
  for (const Field& field : table) {
    if (!field.is_of(config.model.family()) || has_effect(field.path, config, ranks) ||
        value_text(field.slot(given)) == value_text(field.slot(defaults)))
      continue;
    const std::string_view why = field.condition->otherwise;
    auto at = std::ranges::find(found, why, [](const auto& entry) { return entry.first; });
    if (at == found.end()) at = found.insert(at, {why, {}});
    at->second.push_back(field.path);
  }
  std::vector<std::string> lines;
  for (const auto& [why, paths] : found)
    lines.push_back(
        fmt::format("{} {} nothing {}", fmt::join(paths, ", "), paths.size() > 1 ? "change" : "changes", why));
  return lines;
}

}  // namespace lancet::config
