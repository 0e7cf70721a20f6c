// find_resume_point(): rank 0 looks at the disk and broadcasts its answer, so that all ranks try the same folders.
// adapt() turns the user's config into the one that runs. It refuses a checkpoint for three kinds of reason (damage and
// another tokenizer are found when it is read, train/run_parts.cpp):
// 1. the mesh does not divide its experts, or the ranks the rows of its step (take_experts, take_batch), or the
//    optimizer's state is missing or another optimizer's;
// 2. a field gives tensors other names or shapes (check_shapes): the error names the field, not the first such tensor;
// 3. n_head or the router differ (compare): the shapes are the same, but the weights would mean another model.
// All other differences are allowed and become notes for the log.
#include "lancet/run/resume_point.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "lancet/base/json.h"
#include "lancet/base/shown.h"
#include "lancet/comm/collect.h"
#include "lancet/config/hugging_face.h"

namespace lancet::run {
namespace {

namespace fs = std::filesystem;
using checkpoint::Manifest;

// A value from a file, cut short for a message. It is JSON, so it is one line.
std::string brief(const std::string& json) { return json.size() > 80 ? json.substr(0, 80) + "..." : json; }

fs::path checkpoints_in(const fs::path& run) { return run / "checkpoints"; }

// The checkpoints of a folder, for messages: "step-000100, step-000050".
std::string listed(const fs::path& checkpoints) {
  const auto steps = checkpoint::steps_in(checkpoints);
  if (steps.empty()) return "none";
  std::string text;
  for (std::size_t i = 0; i < steps.size() && i < 5; ++i)
    text += (i > 0 ? ", " : "") + checkpoint::folder_name(steps[i]);
  return steps.size() > 5 ? fmt::format("{}, ... ({} in all)", text, steps.size()) : text;
}

Result<std::vector<fs::path>> all_in(const fs::path& checkpoints) {
  LANCET_ASSIGN(const auto steps, checkpoint::list_steps(checkpoints));
  std::vector<fs::path> folders;
  for (const std::int64_t step : steps) folders.push_back(checkpoints / checkpoint::folder_name(step));
  return folders;
}

// The folder that --resume names: a step of this run, or a path.
Result<fs::path> named(const std::string& name, const fs::path& run) {
  const fs::path here = checkpoints_in(run) / name;
  std::error_code error;
  if (checkpoint::step_of(name)) {
    if (fs::is_directory(here, error)) return here;
    return data_error(fmt::format("--resume {}: expected a checkpoint in {}, found {}", name,
                                  checkpoints_in(run).string(), listed(checkpoints_in(run))));
  }
  if (fs::is_regular_file(fs::path(name) / "manifest.json", error)) return fs::path(name);
  return data_error(fmt::format("--resume {}: expected step-NUMBER or the folder of a checkpoint, found {}; in {}: {}",
                                name, fs::exists(name, error) ? "no manifest.json there" : "no such folder",
                                checkpoints_in(run).string(), listed(checkpoints_in(run))));
}

// The checkpoints that --init-from names: one, or those of a run, newest first; or a folder of Hugging Face's format.
Result<std::vector<fs::path>> weights_in(const std::string& name) {
  std::error_code error;
  if (fs::is_regular_file(fs::path(name) / "manifest.json", error)) return std::vector<fs::path>{name};
  if (config::is_hugging_face(name)) return std::vector<fs::path>{name};
  LANCET_ASSIGN(std::vector<fs::path> folders, all_in(checkpoints_in(name)));
  if (!folders.empty()) return folders;
  return no_model_in(name);
}

Result<ResumePoint> look(const config::Config& config, const ResumeRequest& request) {
  if (!request.resume.empty() && !request.init_from.empty())
    return config_error("--resume and --init-from: expected one of the two, found both");
  if (!request.resume.empty()) {
    LANCET_ASSIGN(const fs::path folder, named(request.resume, config.log.run_dir));
    return ResumePoint{ResumePoint::Kind::resume, true, {folder}};
  }
  LANCET_ASSIGN(std::vector<fs::path> own, all_in(checkpoints_in(config.log.run_dir)));
  if (!own.empty()) return ResumePoint{ResumePoint::Kind::resume, false, std::move(own)};
  if (request.init_from.empty()) return ResumePoint{};
  LANCET_ASSIGN(std::vector<fs::path> folders, weights_in(request.init_from));
  return ResumePoint{ResumePoint::Kind::weights, true, std::move(folders)};
}

// As texts to broadcast: the kind, "asked" or nothing, and the folders.
std::vector<std::string> print_start(const ResumePoint& start) {
  std::vector<std::string> texts{std::to_string(int(start.kind)), start.asked ? "asked" : ""};
  for (const fs::path& folder : start.folders) texts.push_back(folder.string());
  return texts;
}

ResumePoint parse_start(const std::vector<std::string>& texts) {
  return {ResumePoint::Kind(texts[0][0] - '0'), !texts[1].empty(),
          std::vector<fs::path>(texts.begin() + 2, texts.end())};
}

// ---- the config of a run that starts from a checkpoint

std::int64_t experts_of(const config::Config& config, const ir::Mesh& mesh) {
  return config.model.experts(mesh[ir::Axis::expert]);
}

// Keeps the checkpoint's number of experts when experts_per_rank would give another one on these ranks.
Status take_experts(config::Config& config, const Manifest& manifest, int ranks, const std::string& where,
                    std::vector<std::string>& notes) {
  config::Model& model = config.model;
  LANCET_ASSIGN(const ir::Mesh asked, config::make_mesh(config, ranks));
  if (manifest.experts == 0 || !model.has_moe() || experts_of(config, asked) == manifest.experts) return {};
  if (model.num_local_experts)
    return config_error(fmt::format("model.num_local_experts: expected {}, as in {}, found {}", manifest.experts, where,
                                    *model.num_local_experts));
  const std::int64_t each = model.experts_per_rank.value_or(0);
  model.num_local_experts = manifest.experts;
  model.experts_per_rank.reset();
  auto mesh = config::make_mesh(config, ranks);
  if (!mesh.ok()) return config_error(fmt::format("{}, as in {}", mesh.error().message, where));
  notes.push_back(
      fmt::format("{} experts a layer, as saved (ranks: {}): {} on each of {}, where model.experts_per_rank says {}",
                  manifest.experts, manifest.ranks, manifest.experts / (*mesh)[ir::Axis::expert], ranks, each));
  return {};
}

// Keeps the rows of a step that the checkpoint's run had, by smaller or larger micro batches on each rank of the batch,
// unless the user changed the fields that decide them.
Status take_batch(config::Config& config, const Manifest& manifest, int ranks, const std::string& where,
                  std::vector<std::string>& notes) {
  config::Train& train = config.train;
  const std::int64_t requested = rows_of(config, ranks);
  if (requested == manifest.rows) return {};
  if (train.micro_batch_size != manifest.micro_batch_size ||
      train.gradient_accumulation_steps != manifest.gradient_accumulation_steps) {
    notes.push_back(fmt::format("{} sequences a step from here on, {} until here", requested, manifest.rows));
    return {};
  }
  const int batch_ranks = config::batch_ranks(config, ranks);
  if (manifest.rows % batch_ranks != 0)
    return config_error(fmt::format(
        "expected ranks along data and expert whose number divides the {} sequences of a step of {}, found {}; other "
        "values of train.micro_batch_size or gradient_accumulation_steps than {} and {} change the step",
        manifest.rows, where, batch_ranks, manifest.micro_batch_size, manifest.gradient_accumulation_steps));
  const std::int64_t rows = manifest.rows / batch_ranks;
  std::int64_t micro = std::min(train.micro_batch_size, rows);
  while (rows % micro != 0) --micro;
  train.micro_batch_size = micro;
  train.gradient_accumulation_steps = rows / micro;
  notes.push_back(fmt::format("{} sequences a step, as saved (ranks: {}): {} in {} micro batch(es) on each of {}",
                              manifest.rows, manifest.ranks, micro, rows / micro, batch_ranks));
  return {};
}

// Keeps the groups of tokens in which the checkpoint's run counted capacity, if they fit into this run's micro batches.
void take_groups(config::Config& config, const Manifest& manifest, const std::string& where,
                 std::vector<std::string>& notes) {
  const auto saved = config::parse_saved(manifest.config, where);
  if (!config.model.has_moe() || !saved.ok()) return;
  const std::int64_t was = saved->group_sequences(), now = config.group_sequences();
  if (was == now) return;
  if (!config.model.router_group_size && now % was == 0) {
    config.model.router_group_size = was;
    notes.push_back(fmt::format("model.router_group_size {}, as saved: {} groups in a micro batch", was, now / was));
  } else {
    notes.push_back(
        fmt::format("experts have slots for groups of {} sequences from here on, of {} until here", now, was));
  }
}

using Values = std::map<std::string, std::string>;

// The fields that decide a run's numbers, as JSON: those of model, data and train without the ones erased below, and
// those of overlap, whose plan may round sums otherwise.
Values values_in(const std::string& config) {
  Values values;
  const auto root = json_of(config);
  for (const char* section : {"model", "data", "train", "overlap"}) {
    const auto at = root.find(section);
    if (at == root.end() || !at->is_object()) continue;
    for (const auto& [key, value] : at->items())
      values[fmt::format("{}.{}", section, key)] = json_text(value, {.strict = true});
  }
  for (const char* key :
       {"model.experts_per_rank", "model.num_local_experts", "model.router_group_size", "train.micro_batch_size",
        "train.gradient_accumulation_steps", "train.stop_after", "train.max_minutes", "train.max_skips",
        "train.save_interval", "train.save_minutes", "train.keep_last", "train.save_buffer_mb", "train.eval_interval",
        "train.sample_prompt", "train.sample_tokens", "data.tokenizer", "data.eval", "data.eval_sequences"})
    values.erase(key);
  return values;
}

void add(std::string& list, const std::string& entry) { list += (list.empty() ? "" : ", ") + entry; }

// Compares the fields that change a run's numbers without changing shapes, but for those without effect: refuses
// another n_head or router and notes all other differences. It works on JSON, since the checkpoint's config may be
// another version's: a field that it lacks had its default value, and fields that are unknown here are noted.
Status compare(const config::Config& config, const Manifest& manifest, ResumePoint::Kind kind, int ranks,
               const std::string& where, std::vector<std::string>& notes) {
  config::Config plain;
  plain.model = config::defaults_of(config.model.family());
  const Values defaults = values_in(config::to_json(plain)), now = values_in(config::to_json(config));
  Values before = defaults;
  std::string changed, unknown;
  for (const auto& [key, value] : values_in(manifest.config)) {
    before[key] = value;
    if (!now.contains(key)) add(unknown, shown(key));
  }
  for (const auto& [key, value] : now) {
    const bool model = key.starts_with("model.");
    if (value == before[key] || !config::has_effect(key, config, ranks)) continue;
    if (kind == ResumePoint::Kind::weights && !model) continue;
    if (key == "train.steps" && config.train.lr_schedule == config::LrSchedule::constant) continue;
    if (key == "model.n_head" || key == "model.num_attention_heads" || key == "model.num_key_value_heads" ||
        key == "model.head_dim" || key == "model.router")
      return config_error(fmt::format("{}: expected {}, as in {}, found {}", key, brief(before[key]), where, value));
    add(changed, fmt::format("{} {} (was {})", key, value, brief(before[key])));
  }
  if (!changed.empty()) notes.push_back("changed: " + changed);
  if (!unknown.empty()) notes.push_back("its config is another version's; not known here: " + unknown);
  return {};
}

bool same_blocks(const config::Model& a, const config::Model& b) {
  for (std::int64_t block = 0; block < std::min(a.n_layer, b.n_layer); ++block)
    if (a.is_moe(block) != b.is_moe(block)) return false;
  return true;
}

// Compares the fields that give tensors their names and shapes, so that an error names fields and not a tensor. If this
// version cannot parse the checkpoint's config, the check of the tensors (load_tensors) decides alone.
Status check_shapes(const config::Model& model, const Manifest& manifest, const std::string& where) {
  const auto saved = config::parse_saved(manifest.config, where);
  if (!saved.ok()) return {};
  const config::Model& was = saved->model;
  std::string wrong;
  const auto compare = [&](const char* name, std::int64_t before, std::int64_t now, bool same) {
    if (!same) wrong += fmt::format("{}model.{}: expected {}, found {}", wrong.empty() ? "" : "; ", name, before, now);
  };
  compare("n_layer", was.n_layer, model.n_layer, was.n_layer == model.n_layer);
  compare("n_embd", was.n_embd, model.n_embd, was.n_embd == model.n_embd);
  compare("n_inner", was.inner(), model.inner(), was.inner() == model.inner());
  compare("n_positions", was.n_positions, model.n_positions, was.n_positions == model.n_positions);
  compare("vocab_size", was.vocab_size, model.vocab_size, was.vocab_size == model.vocab_size);
  compare("vocab_pad_multiple", was.vocab_pad_multiple, model.vocab_pad_multiple,
          was.vocab_size != model.vocab_size || was.padded_vocab() == model.padded_vocab());
  const bool same_freq = was.moe_layer_freq == model.moe_layer_freq;
  compare("moe_layer_freq", was.moe_layer_freq, model.moe_layer_freq, same_freq || same_blocks(was, model));
  compare("first_k_dense_replace", was.first_k_dense_replace, model.first_k_dense_replace,
          !same_freq || was.mlp_only_layers != model.mlp_only_layers || same_blocks(was, model));
  if (same_freq && was.mlp_only_layers != model.mlp_only_layers && !same_blocks(was, model))
    wrong += fmt::format("{}model.mlp_only_layers: expected [{}], found [{}]", wrong.empty() ? "" : "; ",
                         fmt::join(was.mlp_only_layers, ", "), fmt::join(model.mlp_only_layers, ", "));
  if (was.has_moe() && model.has_moe()) {
    const bool given = was.moe_intermediate_size || model.moe_intermediate_size;  // else it is n_inner
    compare("moe_intermediate_size", was.expert_inner(), model.expert_inner(),
            !given || was.expert_inner() == model.expert_inner());
    compare("n_shared_experts", was.n_shared_experts, model.n_shared_experts,
            was.n_shared_experts == model.n_shared_experts);
    compare("shared_expert_intermediate_size", was.shared_inner(), model.shared_inner(),
            !model.family().gates_shared_expert || was.shared_inner() == model.shared_inner());
  }
  if (wrong.empty()) return {};
  if (model.has_moe() && !was.has_moe())
    wrong += "; lancet export and then lancet import --upcycle make a mixture of experts of a dense model";
  return config_error(fmt::format("{}: expected the model that is saved there: {}", where, wrong));
}

}  // namespace

Error no_model_in(const fs::path& folder) {
  std::error_code ignored;
  const auto has = [&](std::string_view name) { return fs::exists(folder / name, ignored); };
  return data_error(
      fmt::format("{}: expected checkpoints/ (a run), manifest.json (a checkpoint), or config.json with {} or {} "
                  "(Hugging Face's format), found {}",
                  folder.string(), config::weights_file, config::index_file,
                  !fs::is_directory(folder, ignored)                     ? "no folder"
                  : has("config.json")                                   ? "config.json alone"
                  : has(config::weights_file) || has(config::index_file) ? "no config.json"
                                                                         : "none of them"));
}

Result<ResumePoint> find_resume_point(const config::Config& config, const ResumeRequest& request,
                                      comm::Communicator& world) {
  Result<ResumePoint> mine = world.rank() == 0 ? look(config, request) : ResumePoint{};
  LANCET_TRY(comm::broadcast_status(world, mine.ok() ? Status() : Status(mine.error()), 0));
  LANCET_ASSIGN(const auto texts, comm::broadcast_texts(world, print_start(*mine), 0));
  return parse_start(texts);
}

bool has_mesh(const Manifest& manifest, const ir::Mesh& mesh) {
  if (manifest.ranks != mesh.ranks()) return false;
  const auto saved = config::parse_saved(manifest.config, "manifest.json");
  const auto saved_mesh = saved.ok() ? config::make_mesh(*saved, manifest.ranks) : Result<ir::Mesh>(saved.error());
  return saved_mesh.ok() && *saved_mesh == mesh;
}

std::int64_t rows_of(const config::Config& config, int ranks) {
  return config.train.micro_batch_size * config.train.gradient_accumulation_steps * config::batch_ranks(config, ranks);
}

Position position_of(const Manifest& manifest, const config::Config& config, int ranks) {
  const auto has_experts = [&](const checkpoint::LoadHistory::Counts& counts) {
    return counts.empty() ||
           (std::ssize(counts[0]) == config.model.moe_layers() && std::ssize(counts[0][0]) == manifest.experts);
  };
  const bool knows_load = config.overlap.replan > 0 && has_mesh(manifest, config::mesh_of(config, ranks)) &&
                          has_experts(manifest.load.planned) && has_experts(manifest.load.compared) &&
                          has_experts(manifest.load.recorded);
  return {manifest.step,           manifest.tokens,
          manifest.skipped_steps,  manifest.next_sample - manifest.step * rows_of(config, ranks),
          manifest.skips_in_a_row, knows_load ? manifest.load : checkpoint::LoadHistory(),
          manifest.device_bytes};
}

namespace {

// adapt(), with errors in GPT-2's names of fields.
Result<config::Config> adapted(config::Config config, const checkpoint::Checkpoint& from, ResumePoint::Kind kind,
                               int ranks, std::vector<std::string>& notes) {
  const Manifest& manifest = from.manifest();
  const std::string where = from.path().string();
  if (const auto saved = config::parse_saved(manifest.config, where);
      saved.ok() && &saved->model.family() != &config.model.family())
    return config_error(fmt::format("model.model_type: expected \"{}\", as in {}, found \"{}\"",
                                    saved->model.family().name, where, config.model.family().name));
  LANCET_TRY(take_experts(config, manifest, ranks, where, notes));
  if (kind == ResumePoint::Kind::resume) {
    const std::string optimizer(config::name(config.train.optimizer));
    if (manifest.optimizer == "none")
      return config_error(
          fmt::format("{}: expected an optimizer's state, found weights alone; --init-from loads those", where));
    if (manifest.optimizer != optimizer)
      return config_error(
          fmt::format("train.optimizer: expected {}, as in {}, found {}; --init-from loads the weights alone",
                      manifest.optimizer, where, optimizer));
    LANCET_TRY(take_batch(config, manifest, ranks, where, notes));
    take_groups(config, manifest, where, notes);
  }
  LANCET_TRY(check_shapes(config.model, manifest, where));
  LANCET_TRY(compare(config, manifest, kind, ranks, where, notes));
  return config;
}

}  // namespace

Result<config::Config> adapt(config::Config config, const checkpoint::Checkpoint& from, ResumePoint::Kind kind,
                             int ranks, std::vector<std::string>& notes) {
  const config::Family& family = config.model.family();
  auto result = adapted(std::move(config), from, kind, ranks, notes);
  if (!result.ok()) return config::in_names_of(family, std::move(result).error());
  return result;
}

Manifest manifest_of(const config::Config& config, const config::Config& asked, const Position& position, int ranks,
                     double lr, const std::string& plan_hash) {
  Manifest m;
  m.step = position.step;
  m.tokens = position.tokens;
  m.skipped_steps = position.skipped_steps;
  m.skips_in_a_row = position.skips_in_a_row;
  m.load = position.load;
  m.device_bytes = position.device_bytes;
  m.rows = rows_of(config, ranks);
  m.next_sample = position.step * m.rows + position.sample_offset;
  m.seed = config.train.seed;
  m.ranks = ranks;
  m.experts = experts_of(config, config::mesh_of(config, ranks));
  m.micro_batch_size = asked.train.micro_batch_size;
  m.gradient_accumulation_steps = asked.train.gradient_accumulation_steps;
  m.optimizer = config::name(config.train.optimizer);
  m.lr_schedule = config::name(config.train.lr_schedule);
  m.lr = lr;
  m.config = config::to_json(config);
  m.plan = plan_hash;
  return m;
}

}  // namespace lancet::run
