#include <chrono>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <limits>
#include <optional>
#include <thread>

#include "commands.h"
#include "lancet/base/clock.h"
#include "lancet/base/files.h"
#include "lancet/base/log.h"
#include "lancet/data/tokenize.h"
#include "lancet/run/run_folder.h"

namespace lancet::cli {
namespace {

struct EncodeArguments {
  std::string tokenizer;
  std::optional<std::string> text;
  data::SpecialTokens special = data::SpecialTokens::ids;
};

Status encode(const EncodeArguments& arguments) {
  LANCET_ASSIGN(const data::Tokenizer tokenizer, data::Tokenizer::load(arguments.tokenizer));
  std::string text = arguments.text.value_or("");
  for (bool done = arguments.text.has_value(); !done;) {
    LANCET_ASSIGN(done, read_standard_input(text, std::chrono::seconds(1)));
  }
  auto ids = tokenizer.encode(text, arguments.special);
  if (!ids.ok() && arguments.text) return config_error("--text: " + ids.error().message);
  if (!ids.ok()) return data_error("standard input: " + ids.error().message);
  if (tokenizer.adds_eos()) ids->push_back(tokenizer.eos());
  std::string line;
  for (data::TokenId id : *ids) line += (line.empty() ? "" : " ") + std::to_string(id);
  return print(line + "\n");
}

void add_encode(CLI::App& data, Selection& selection) {
  CLI::App* command = data.add_subcommand(
      "encode", "Print the token ids of a text: echo -n 'Hello world' | lancet data encode --tokenizer DIR");
  auto arguments = std::make_shared<EncodeArguments>();
  command->add_option("--tokenizer", arguments->tokenizer, "Folder with tokenizer.json, or vocab.json and merges.txt")
      ->required()
      ->type_name("DIR");
  command->add_option("--text", arguments->text, "The text; default: standard input");
  add_special_as_text(*command, arguments->special);
  command->callback([arguments, &selection] { selection.local = [arguments] { return encode(*arguments); }; });
}

struct TokenizeArguments {
  std::vector<std::string> texts;
  std::string tokenizer, out, eval_out;
  double eval_fraction = 0;
  int threads = static_cast<int>(std::thread::hardware_concurrency());
  data::SpecialTokens special = data::SpecialTokens::ids;
};

// Refuses a token file in the tokenizer's folder.
Status check_apart(const std::string& out, const std::string& tokenizer, const char* option) {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::absolute(out, ignored).parent_path();
  if (out.empty() || !std::filesystem::equivalent(folder, tokenizer, ignored)) return {};
  return config_error(
      fmt::format("{}: expected a file outside of the tokenizer's folder {}, found '{}'", option, tokenizer, out));
}

Status tokenize(const TokenizeArguments& arguments) {
  LANCET_TRY(run::check_run_name("--out", arguments.out));
  LANCET_TRY(run::check_run_name("--eval-out", arguments.eval_out));
  LANCET_TRY(check_apart(arguments.out, arguments.tokenizer, "--out"));
  LANCET_TRY(check_apart(arguments.eval_out, arguments.tokenizer, "--eval-out"));
  LANCET_ASSIGN(const data::Tokenizer tokenizer, data::Tokenizer::load(arguments.tokenizer));
  data::TokenizeOptions options;
  options.eval_fraction = arguments.eval_fraction;
  options.eval_out = arguments.eval_out;
  options.threads = arguments.threads;
  options.special = arguments.special;
  ProgressBar bar("tokenize");
  options.progress = [&](const data::TokenizeProgress& p) {
    bar.show(p.total_bytes ? double(p.bytes) / double(p.total_bytes) : 1,
             fmt::format("{:.1f} MB", double(p.bytes) * 1e-6));
  };
  const auto start = std::chrono::steady_clock::now();
  LANCET_ASSIGN(
      const data::TokenizeResult result,
      data::tokenize_files({arguments.texts.begin(), arguments.texts.end()}, tokenizer, arguments.out, options));
  const double megabytes = double(result.bytes) * 1e-6;
  log::info("{}: {} tokens of {:.1f} MB of text, {:.1f} MB/s", arguments.out, result.train_tokens, megabytes,
            megabytes / seconds_since(start));
  if (result.eval_tokens) log::info("{}: {} tokens held out", arguments.eval_out, result.eval_tokens);
  return {};
}

void add_tokenize(CLI::App& data, Selection& selection) {
  CLI::App* command = data.add_subcommand(
      "tokenize", "Write a token file from texts: lancet data tokenize --tokenizer DIR --out train.bin book.txt");
  auto arguments = std::make_shared<TokenizeArguments>();
  command->add_option("texts", arguments->texts, "UTF-8 text files")->required()->type_name("FILE");
  command->add_option("--tokenizer", arguments->tokenizer, "Folder with tokenizer.json, or vocab.json and merges.txt")
      ->required()
      ->type_name("DIR");
  command->add_option("--out", arguments->out, "The token file")->required()->type_name("FILE");
  CLI::Option* eval_out =
      command->add_option("--eval-out", arguments->eval_out, "Token file of the held-out end of the texts")
          ->type_name("FILE");
  command->add_option("--eval-fraction", arguments->eval_fraction, "Share of the texts that is held out, 0 to 1")
      ->capture_default_str()
      ->needs(eval_out)
      ->check(between(0, 1));
  add_number(*command, "--threads", arguments->threads, "Number of threads", whole_between(1, 1024));
  add_special_as_text(*command, arguments->special);
  command->callback([arguments, &selection] { selection.local = [arguments] { return tokenize(*arguments); }; });
}

struct TrainTokenizerArguments {
  std::vector<std::string> texts;
  std::string out;
  int vocab_size = 8192;
  data::SpecialTokens special = data::SpecialTokens::ids;
};

// Refuses a folder with files that describe another tokenizer: they would be taken for those of the new one.
Status check_undescribed(const std::filesystem::path& out) {
  std::error_code ignored;
  for (const char* name : data::kDescriptions)
    if (std::filesystem::exists(out / name, ignored))
      return config_error(fmt::format(
          "--out: expected a folder without files of another tokenizer, found {}; remove it or name another folder",
          (out / name).string()));
  return {};
}

Status train_tokenizer(const TrainTokenizerArguments& arguments) {
  LANCET_TRY(run::check_run_name("--out", arguments.out));
  LANCET_TRY(check_undescribed(arguments.out));
  LANCET_TRY(check_writable(std::filesystem::path(arguments.out) / "vocab.json"));  // before training starts
  ProgressBar bar("train-tokenizer");
  data::TrainTokenizerOptions options;
  options.vocab_size = arguments.vocab_size;
  options.special = arguments.special;
  options.progress = [&](int merges, int wanted) {
    bar.show(wanted ? double(merges) / wanted : 1, fmt::format("{} of {} merges", merges, wanted));
  };
  LANCET_ASSIGN(const data::Tokenizer tokenizer,
                data::train_tokenizer(
                    std::vector<std::filesystem::path>(arguments.texts.begin(), arguments.texts.end()), options));
  LANCET_TRY(tokenizer.save(arguments.out));
  log::info("{}: a vocabulary of {} ids", arguments.out, tokenizer.vocab_size());
  if (tokenizer.vocab_size() < arguments.vocab_size)
    log::warn("the text has no more pairs to merge; set model.vocab_size to {}", tokenizer.vocab_size());
  return {};
}

void add_train_tokenizer(CLI::App& data, Selection& selection) {
  CLI::App* command = data.add_subcommand(
      "train-tokenizer",
      "Train a byte-level BPE tokenizer: lancet data train-tokenizer --vocab-size 8192 --out DIR book.txt");
  auto arguments = std::make_shared<TrainTokenizerArguments>();
  command->add_option("texts", arguments->texts, "UTF-8 text files")->required()->type_name("FILE");
  add_number(*command, "--vocab-size", arguments->vocab_size, "Number of ids, including <|endoftext|>",
             whole_between(257, std::numeric_limits<std::int32_t>::max()));
  command->add_option("--out", arguments->out, "Folder for vocab.json and merges.txt")->required()->type_name("DIR");
  add_special_as_text(*command, arguments->special);
  command->callback([arguments, &selection] { selection.local = [arguments] { return train_tokenizer(*arguments); }; });
}

}  // namespace

void add_data(CLI::App& app, Selection& selection) {
  CLI::App* data = app.add_subcommand(
      "data", "Tokenizers and token files: lancet data tokenize --tokenizer DIR --out train.bin book.txt");
  data->require_subcommand(1);
  add_encode(*data, selection);
  add_tokenize(*data, selection);
  add_train_tokenizer(*data, selection);
}

}  // namespace lancet::cli
