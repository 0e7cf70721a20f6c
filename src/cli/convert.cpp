#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <limits>

#include "commands.h"
#include "lancet/base/log.h"
#include "lancet/config/hugging_face.h"
#include "lancet/models/hugging_face.h"
#include "lancet/run/checkpoint_tensors.h"
#include "lancet/run/run_folder.h"

namespace lancet::cli {
namespace {

struct ExportArguments {
  std::string from, to, out, dtype;
  double shard_gb = 5;
  std::vector<std::string> accepted;
};

models::HuggingFaceExport options_of(const ExportArguments& arguments) {
  models::HuggingFaceExport options;
  if (!arguments.dtype.empty()) options.dtype = arguments.dtype == "bf16" ? DType::bf16 : DType::f32;
  options.shard_bytes = arguments.shard_gb > 0
                            ? std::max<std::int64_t>(1, static_cast<std::int64_t>(arguments.shard_gb * 1e9))
                            : std::numeric_limits<std::int64_t>::max();
  return options;
}

// What a folder of this format becomes: other types or shards, or one tensor for each expert.
Status export_folder(const ExportArguments& arguments) {
  LANCET_ASSIGN(auto folder, models::HuggingFaceFolder::open(arguments.from, arguments.accepted));
  LANCET_TRY(folder.check_head());
  models::HuggingFaceExport options = options_of(arguments);
  options.source = arguments.from;
  options.types = folder.types();
  return models::export_hugging_face(folder.config().model, std::bind_front(&models::HuggingFaceFolder::read, &folder),
                                     arguments.out, options);
}

// Whether the folder that a model is from, whose small files its export has anyway, has this tokenizer.
bool has_tokenizer(const std::optional<std::filesystem::path>& source, const data::Tokenizer& tokenizer) {
  if (!source) return false;
  const auto own = data::Tokenizer::load(*source);
  return own.ok() && own->hash() == tokenizer.hash() && own->bos() == tokenizer.bos() &&
         std::ranges::is_permutation(own->ends(), tokenizer.ends());
}

Status export_checkpoint(const run::ModelFolder& folder, const run::ReadParameter& read,
                         const ExportArguments& arguments) {
  models::HuggingFaceExport options = options_of(arguments);
  options.source = folder.source;
  if (folder.source) {
    LANCET_ASSIGN(options.types, models::kept_types(*folder.source));
  }
  options.bounds = folder.bounds;
  if (folder.tokenizer && folder.tokenizer != folder.source) {
    LANCET_ASSIGN(const data::Tokenizer tokenizer, data::Tokenizer::load(*folder.tokenizer));
    LANCET_TRY(data::check_same({folder.checkpoint.manifest().tokenizer_hash, folder.name()},
                                {tokenizer.hash(), folder.tokenizer->string()}));
    if (!has_tokenizer(folder.source, tokenizer)) options.tokenizer = {*folder.tokenizer, tokenizer};
    options.bounds.add(tokenizer.bos(), tokenizer.ends());
  }
  return models::export_hugging_face(models::exported_model(folder.config), read, arguments.out, options);
}

// Config error, which rank 0 reports: several ranks would make the same folder.
Status check_alone(const comm::Communicator& world) {
  if (world.size() == 1) return {};
  return Error{
      ExitCode::config,
      fmt::format("expected one process, found {} ranks: import and export start without a launcher", world.size()),
      true};
}

Status export_model(const ExportArguments& arguments, comm::Communicator& world) {
  LANCET_TRY(check_alone(world));
  LANCET_TRY(run::check_new_folder(arguments.out, 0));  // before the model is read
  if (config::is_hugging_face(arguments.from)) return export_folder(arguments);
  // An export reads each value once, and checks it then. After an error in reading, load_newest() tries another
  // checkpoint; any other error would come again with that, so it is kept apart.
  Status exported;
  const auto export_one = [&](const run::ModelFolder& found) {
    run::ParameterReader reader(found.checkpoint);
    Status readable = reader.check(models::reserve_whole_store(found.config.model));
    const auto read = [&](const std::string& parameter, const FlatRange& elements, std::span<float> to, std::int64_t) {
      return readable = reader.read(parameter, elements, to);
    };
    if (readable.ok()) exported = export_checkpoint(found, read, arguments);
    return readable;
  };
  LANCET_ASSIGN(const run::ModelFolder folder, run::load_newest(arguments.from, world, export_one));
  LANCET_TRY(exported);
  if (const std::string& named = folder.config.data.tokenizer; !folder.tokenizer && !named.empty())
    log::warn("{}: the run's tokenizer was not found from the current folder and is not exported", named);
  log::info("{}: {}, step {}, as Hugging Face's {}", arguments.out, folder.name(), folder.checkpoint.manifest().step,
            folder.config.model.has_moe() && !folder.config.model.family().file.moe_type.empty()
                ? "format (model_type gpt2_moe, which transformers does not know)"
                : folder.config.model.family().file.architecture);
  return {};
}

std::string megabytes(std::int64_t bytes) { return fmt::format("{:.1f} MB", double(bytes) * 1e-6); }

struct ImportArguments {
  std::string from, out;
  models::Upcycle upcycle;
  std::vector<std::string> accepted;
};

Status import_model(const ImportArguments& arguments, const comm::Communicator& world) {
  LANCET_TRY(check_alone(world));
  std::optional<models::Upcycle> upcycle;
  if (arguments.upcycle.experts > 0) upcycle = arguments.upcycle;
  LANCET_TRY(run::check_run_name("--out", arguments.out));
  LANCET_TRY(run::check_new_folder(arguments.out, 0));
  LANCET_ASSIGN(auto model, models::ImportedModel::open(arguments.from, upcycle, arguments.accepted));
  const run::RankShare weights = run::shares_of(models::reserve_whole_store(model.config().model)).front();
  log::info("{}: {} of weights to be written", arguments.out, megabytes(std::int64_t(weights.bytes)));
  ProgressBar bar("import", 2);
  const auto show = [&](std::int64_t done, std::int64_t bytes) {
    bar.show(double(done) / double(bytes), megabytes(done));
  };
  std::function<Status(const std::filesystem::path&)> keep;  // an upcycled model is another one
  if (!upcycle) keep = std::bind_front(&models::HuggingFaceFolder::keep_files, &model.folder());
  LANCET_TRY(run::save_model(arguments.out, model.config(), weights,
                             std::bind_front(&models::ImportedModel::read, &model), model.tokenizer(), show,
                             model.bounds(), keep));
  log::info("{}: config.json and checkpoints/step-000000 of {}{}", arguments.out, arguments.from,
            model.tokenizer() ? ", the tokenizer" : "");
  return {};
}

}  // namespace

void add_export(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "export",
      "Export a trained model for other programs: lancet export --to hf --from runs/quickstart --out exported");
  auto arguments = std::make_shared<ExportArguments>();
  command->add_option("--to", arguments->to, "hf: Hugging Face's config.json and model.safetensors")
      ->required()
      ->check(CLI::IsMember({"hf"}));
  add_from_option(*command, arguments->from);
  command->add_option("--out", arguments->out, "The folder to create")->required()->type_name("DIR");
  add_accept_option(*command, arguments->accepted);
  command
      ->add_option("--dtype", arguments->dtype,
                   "Type of the weights: fp32 or bf16; default: those of the folder that the model was imported from, "
                   "else fp32")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  add_number(*command, "--max-shard-gb", arguments->shard_gb,
             "A larger model is split into files of at most this size, or of one tensor; 0: one file", between(0, 1e6));
  command->callback([arguments, &selection] {
    selection.ranked = [arguments](comm::Communicator& world, int) { return export_model(*arguments, world); };
  });
}

void add_import(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "import", "Import a run folder from Hugging Face's format: lancet import --from gpt2 --out runs/gpt2");
  auto arguments = std::make_shared<ImportArguments>();
  command->add_option("--from", arguments->from, "Folder with config.json and model.safetensors or its shards")
      ->required()
      ->type_name("DIR");
  command->add_option("--out", arguments->out, "The run folder to create")->required()->type_name("RUN");
  add_accept_option(*command, arguments->accepted);
  CLI::Option* upcycle = command
                             ->add_option("--upcycle", arguments->upcycle.experts,
                                          "Replace each FFN by this number of experts, copies of it with some noise")
                             ->check(whole_between(2, 65536));
  command
      ->add_option("--moe-layer-freq", arguments->upcycle.layer_freq,
                   "Upcycling: block i gets experts if i % this == 0 (GPT-2, default 2), or (i + 1) % this (Qwen3, "
                   "default 1); all of Llama's do")
      ->needs(upcycle)
      ->check(whole_between(1, 10000));
  command
      ->add_option("--noise", arguments->upcycle.noise,
                   "Upcycling: standard deviation of the noise, relative to the weights' root mean square")
      ->capture_default_str()
      ->needs(upcycle)
      ->check(between(0, 10));
  add_seed_option(*command, arguments->upcycle.seed, "Upcycling: seed of the noise and the gates")->needs(upcycle);
  command->callback([arguments, &selection] {
    selection.ranked = [arguments](comm::Communicator& world, int) { return import_model(*arguments, world); };
  });
}

}  // namespace lancet::cli
