// Config: the JSON file of a run, typed, with defaults, checked. Field names follow Hugging Face's GPT-2 and Mixtral
// configs and Megatron's training arguments. src/config/fields.cpp holds the one table of fields (doc, range) that
// parsing, printing, checking and `--help` share.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/dtype.h"
#include "lancet/base/result.h"
#include "lancet/config/model.h"
#include "lancet/ir/mesh.h"

namespace lancet::config {

enum class Optimizer { adamw, sgd };
enum class OnNonFinite { stop, skip };
enum class PipelineSchedule { one_forward_one_backward, zero_bubble, searched, interleaved };
enum class LrSchedule { constant, linear, cosine, wsd };
// automatic: self for one rank, else nccl between GPUs, or mpi, which copies GPUs' data through host memory.
enum class Transport { automatic, mpi, self, nccl, mirrored };
// emulated: no computation; ops take the time that a hardware file declares.
enum class Device { cpu, cuda, emulated };
// automatic: windows if all ranks can access each other's memory, else counted.
enum class DeviceAllToAll { automatic, windows, counted };

constexpr auto words_of(Optimizer) { return words("adamw", "sgd"); }
constexpr auto words_of(OnNonFinite) { return words("stop", "skip"); }
constexpr auto words_of(PipelineSchedule) { return words("1f1b", "zero_bubble", "searched", "interleaved"); }
constexpr auto words_of(LrSchedule) { return words("constant", "linear", "cosine", "wsd"); }
constexpr auto words_of(Transport) { return words("auto", "mpi", "self", "nccl", "mirrored"); }
constexpr auto words_of(Device) { return words("cpu", "cuda", "emulated"); }
constexpr auto words_of(DeviceAllToAll) { return words("auto", "windows", "counted"); }

struct Data {
  std::string train;                 // token file; empty only with `synthetic`
  std::string eval;                  // token file; empty: no evaluation
  std::string tokenizer;             // folder with tokenizer.json, or vocab.json and merges.txt; to generate text
  std::int64_t eval_sequences = 64;  // over all ranks
  bool synthetic = false;            // tokens drawn from the seed in place of files
  friend bool operator==(const Data&, const Data&) = default;
};

struct Train {
  std::int64_t steps = 100;
  std::int64_t seq_len = 0;           // parsing replaces 0 by n_positions
  std::int64_t micro_batch_size = 8;  // sequences per rank and micro batch
  std::int64_t gradient_accumulation_steps = 1;
  std::int64_t memory_limit_mb = 0;  // of a rank's parameters, states, inputs and arena; 0: no limit
  DType dtype = DType::f32;          // "fp32" or "bf16": products and activations; optimizer state is fp32
  bool master_weights = true;       // bf16: fp32 copies of the weights; false: weights are bf16, rounded stochastically
  std::int64_t zero = 0;            // 1: ZeRO-1
  DType reduce_dtype = DType::f32;  // "fp32" or "bf16": gradients on their way between ranks
  bool sequence_parallel = false;   // activations between products are split over mesh.tensor
  bool tf32 = false;                // on a GPU
  bool fuse_gelu = true;            // on a GPU
  bool deterministic = true;  // on a GPU: false: the backward pass of attention may sum in another order in each run
  Optimizer optimizer = Optimizer::adamw;
  double lr = 1e-3;
  double min_lr = 0;
  LrSchedule lr_schedule = LrSchedule::constant;
  std::int64_t lr_warmup_steps = 0;
  std::int64_t lr_decay_steps = 0;  // wsd: the number of final steps that decay to min_lr
  double weight_decay = 0;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double clip_grad = 0;  // global norm; 0: off
  std::int64_t seed = 1;
  std::int64_t eval_interval = 100;  // steps; 0: only at the end
  PipelineSchedule pipeline_schedule = PipelineSchedule::one_forward_one_backward;
  OnNonFinite on_non_finite = OnNonFinite::stop;
  std::int64_t max_skips = 10;     // in a row
  std::int64_t save_interval = 0;  // steps; 0: save_minutes
  double save_minutes = 30;        // 0: saves only when a run is stopped
  std::int64_t keep_last = 3;      // 0: all
  std::int64_t save_buffer_mb = 4096;
  std::int64_t stop_after = 0;  // 0: never
  double max_minutes = 0;       // 0: no limit
  std::string sample_prompt;
  std::int64_t sample_tokens = 0;  // tokens generated from sample_prompt at the end; 0: none
  // True if checkpoints are written during training and at the end.
  bool saves() const { return save_interval > 0 || save_minutes > 0; }
  friend bool operator==(const Train&, const Train&) = default;
};

// The sizes of the mesh's axes (ir/mesh.h). make_mesh() fills in what is null.
struct MeshSizes {
  std::optional<std::int64_t> data;
  std::optional<std::int64_t> expert;
  std::int64_t tensor = 1;
  std::int64_t stage = 1;
  std::vector<std::int64_t> stage_blocks = {};  // of each stage, or chunk of one; empty: balanced
  friend bool operator==(const MeshSizes&, const MeshSizes&) = default;
};

struct Overlap {
  std::string policy = "sequential";  // planner/policies.cpp has the table
  std::int64_t bucket_bytes = 25 * 1024 * 1024;
  std::int64_t max_parts = 16;      // rho: parts that an instruction may be split in
  std::int64_t parts = 0;           // forced number of parts; 0: the fastest, up to max_parts
  std::int64_t groups_per_moe = 5;  // gamma: groups of instructions between two MoE layers
  double memory_factor = 0;         // the largest arena of a plan, relative to sequential's; 0: the budget alone
  bool split_backward = true;       // lancet: also split the backward pass where that is faster
  std::int64_t replan = 0;          // steps between two looks at the load; 0: the plan stays
  bool across_steps = true;         // lancet: the end of a step may run in the next one, where that is exact
  std::int64_t reach = -1;          // groups before and after each MoE layer in its range; -1: the fastest
  std::string profile = {};         // file of measured costs (cost/profile.h); empty: the program's default path
  friend bool operator==(const Overlap&, const Overlap&) = default;
};

struct Comm {
  double timeout_s = 300;
  Transport transport = Transport::automatic;
  std::string network;              // mirrored: the declared hardware (cost/hardware.h) whose links set the times
  std::int64_t mirrored_ranks = 0;  // mirrored: the number of ranks
  DeviceAllToAll device_all_to_all = DeviceAllToAll::automatic;
  std::int64_t max_ctas = 0;  // thread blocks of a GPU that a collective may use; 0: NCCL's choice
  friend bool operator==(const Comm&, const Comm&) = default;
};

// device = emulated (runtime/emulated_device.h).
struct Emulated {
  std::string hardware;          // declared hardware (cost/hardware.h)
  double scale = 100;            // bytes of messages are divided by it
  double dilation = 12;          // times are multiplied by it
  std::string routing = "even";  // cost/loads.h
  friend bool operator==(const Emulated&, const Emulated&) = default;
};

struct Log {
  std::int64_t interval = 10;  // steps between step lines
  std::string run_dir;         // load() replaces an empty one by runs/<name of the file>
  std::optional<double> peak_tflops;
  std::int64_t trace = 0;    // the step whose timeline goes into trace.json; 0: none
  bool tensorboard = false;  // also write records to a TensorBoard event file
  friend bool operator==(const Log&, const Log&) = default;
};

struct Config {
  Model model;
  Data data;
  Train train;
  MeshSizes mesh;
  Overlap overlap;
  Comm comm;
  Emulated emulated;
  Log log;
  Device device = Device::cpu;
  std::int64_t threads = 0;  // per rank; 0: cores / local ranks
  // Neighbouring sequences of a rank's micro batch in which gates count capacity.
  std::int64_t group_sequences() const { return model.router_group_size.value_or(train.micro_batch_size); }
  // Time of this machine for a unit of the device's time.
  double dilation() const { return device == Device::emulated ? emulated.dilation : 1; }
  // False if the ranks that run do not hold a model that could be saved.
  bool holds_model() const { return device != Device::emulated && comm.transport != Transport::mirrored; }
  friend bool operator==(const Config&, const Config&) = default;
};

// Parses JSON text (with // and /* */ comments) to a Config whose fields are all in range. origin: the text's name in
// errors. overrides: "a.b=value", the value as JSON or else a string, applied in order before any check.
// Errors (ExitCode::config) name the file and the field or the line: bad syntax, an unknown key (with the nearest known
// one), a key that appears twice, a wrong type, a value out of range. A config with model.from has the model of that
// folder, or, if the run has checkpoints, of the files that it has kept of it; fields of `model` beside it are errors,
// but for those of training. accepted: as for read_hugging_face(), whose errors are returned; a run that has
// checkpoints needs it no more.
Result<Config> parse(std::string_view text, std::string_view origin, std::span<const std::string> overrides = {},
                     std::span<const std::string> accepted = {});
// The same for a checkpoint's config, which another version may have written: keys that this one does not know are
// ignored, but for those of `model`, which say what the weights are.
Result<Config> parse_saved(std::string_view text, std::string_view origin);
Result<Config> load(const std::filesystem::path& file, std::span<const std::string> overrides = {},
                    std::span<const std::string> accepted = {});

// The mesh of a run on `ranks` ranks. If data and expert are null, expert is the largest divisor of a layer's experts
// that divides the ranks besides tensor and stage, and data is the rest; if one of them is null, it is the rest. With
// experts_per_rank the experts follow the mesh: expert is as large as it can be. In a dense model expert is 1.
// Config errors, of one line each: the sizes' product is not the ranks, an axis does not divide what it splits, stage
// is not supported.
Result<ir::Mesh> make_mesh(const Config& config, int ranks);
// The same for a config that passed check() for these ranks.
ir::Mesh mesh_of(const Config& config, int ranks);
// The runs of blocks that a stage holds.
inline int chunks_of_stage(const Config& config) {
  return config.mesh.stage > 1 && config.train.pipeline_schedule == PipelineSchedule::interleaved ? 2 : 1;
}
// True for a schedule that predicted times decide.
inline bool searches(PipelineSchedule schedule) { return schedule >= PipelineSchedule::searched; }
// The ranks that the batch is split over: each has train.micro_batch_size sequences of its own.
inline int batch_ranks(const Config& config, int ranks) { return mesh_of(config, ranks).size(ir::batch_axes); }

// Checks fields against each other and against the number of ranks, and that no tensor has more than 2^40 elements, so
// that sizes and offsets cannot overflow. The trainer checks whether they fit the machine.
Status check(const Config& config, int ranks);
// The error of a config, with the names that this family has for its fields in place of those of others.
Error in_names_of(const Family& family, Error error);
// Checks that training has token files (or data.synthetic), and a tokenizer if it generates text. Opens no file.
Status check_data(const Config& config);

// False if no value of the field changes anything in a run of this config, as of model.router in a dense model.
bool has_effect(std::string_view path, const Config& config, int ranks);
// The fields without effect whose values are not the defaults, in a line for each reason: "a.b, a.c change nothing
// ...".
std::vector<std::string> without_effect(const Config& config, int ranks);

// All fields, resolved, without model.from; parse(to_json(c)) is c but for that.
std::string to_json(const Config& config);

// The text of `--help`: one line per field, with default, range and meaning.
std::string describe();

}  // namespace lancet::config
