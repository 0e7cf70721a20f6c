// lancet generate. Rank 0 reads and encodes the prompt, broadcasts its ids and prints the text; every rank runs the
// model and draws the same tokens. All ranks agree on an error of any step before generation, so that none waits for
// another.
#include "lancet/models/generate.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <charconv>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "commands.h"
#include "lancet/base/clock.h"
#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "lancet/base/utf8.h"
#include "lancet/comm/collect.h"
#include "lancet/data/tokenizer.h"
#include "lancet/run/stream_communicators.h"

namespace lancet::cli {

namespace {

// Turns the bytes of tokens into text that a terminal can show at any time. A character that spans tokens is held back
// until it is whole; bytes that are no character become U+FFFD.
class TextStream {
 public:
  std::string push(std::string_view bytes) {
    held_ += bytes;
    const std::size_t complete = complete_utf8(held_);
    const std::string text = replace_invalid_utf8(std::string_view(held_).substr(0, complete));
    held_.erase(0, complete);
    return text;
  }
  std::string finish() { return replace_invalid_utf8(std::exchange(held_, {})); }

 private:
  std::string held_;
};

using Ids = std::vector<std::int32_t>;

struct GenerateArguments {
  std::shared_ptr<FromArguments> model;
  std::string prompt, tokenizer;
  bool has_prompt = false;
  bool ids = false;       // prompt and result are token ids
  bool only_new = false;  // the prompt is not printed
  bool past_end = false;  // generation continues after end-of-text
  data::SpecialTokens special = data::SpecialTokens::ids;
  models::SamplingOptions sampling;
  std::int64_t max_tokens = 128;
};

// Bytes of a prompt: far more than any window holds. Endless input must not fill the memory.
constexpr std::size_t most_input = 16 << 20;

class Generation {
 public:
  Generation(const GenerateArguments& arguments, comm::Communicator& world, int local_ranks)
      : arguments_(arguments), world_(world), local_ranks_(local_ranks) {}

  Status operator()() {
    const Status sound = check(arguments_.sampling);
    if (!sound.ok()) return agreed(sound.error());
    models::LoadOptions load = arguments_.model->options(local_ranks_);
    load.generates = true;
    LANCET_ASSIGN(model_, models::LoadedModel::load(arguments_.model->from, world_, load));
    LANCET_TRY(comm::agree(world_, models::check_generates(model_->config().model)));
    LANCET_TRY(comm::agree(world_, open_tokenizer()));
    LANCET_TRY(comm::agree_on(world_, "the same tokenizer and ids that end texts",
                              fmt::format("{} {}", tokenizer_ ? tokenizer_->hash() : 0, fmt::join(ends_, " ")),
                              ExitCode::data));
    LANCET_TRY(read_prompt());
    if (prompt_.empty()) LANCET_TRY(comm::agree(world_, start_empty()));
    LANCET_ASSIGN(decoder_, models::Decoder::create(model_->config(), world_, model_->store(), model_->streams(),
                                                    model_->threads()));
    LANCET_TRY(comm::agree(world_, check_prompt()));
    if (is_rank0()) LANCET_TRY(show_prompt());
    return generate();
  }

 private:
  bool is_rank0() const { return world_.rank() == 0; }
  static Error agreed(Error error) {
    error.agreed = true;
    return error;
  }

  Status open_tokenizer() {
    ends_ = model_->bounds().ends;
    if (arguments_.ids) {
      if (const auto& folder = model_->tokenizer())
        if (const auto own = data::Tokenizer::load(*folder); own.ok())
          ends_.insert(ends_.end(), own->ends().begin(), own->ends().end());
      return {};
    }
    std::filesystem::path folder = arguments_.tokenizer;
    if (folder.empty() && !model_->tokenizer()) {
      const std::string &named = model_->config().data.tokenizer, &from = arguments_.model->from;
      return config_error(fmt::format("expected a tokenizer: --tokenizer DIR, or --ids for token ids; found none in {}",
                                      named.empty() ? from : fmt::format("{}, which {} names", shown(named), from)));
    }
    if (folder.empty()) folder = *model_->tokenizer();
    LANCET_ASSIGN(tokenizer_, data::Tokenizer::load(folder));
    const std::int64_t vocabulary = model_->config().model.vocab_size;
    ends_.insert(ends_.end(), tokenizer_->ends().begin(), tokenizer_->ends().end());
    if (tokenizer_->vocab_size() > vocabulary)
      return data_error(fmt::format("{}: expected a vocabulary of at most the model's {} ids, found one of {}",
                                    folder.string(), vocabulary, tokenizer_->vocab_size()));
    return data::check_same(model_->tokenizer_id(), {tokenizer_->hash(), folder.string()});
  }

  Status read_prompt() {
    std::string text = arguments_.prompt;
    if (!arguments_.has_prompt) {
      LANCET_ASSIGN(text, read_input());
    }
    Status mine;
    if (is_rank0()) {
      auto ids = encode(std::move(text));
      if (ids.ok())
        prompt_ = std::move(*ids);
      else
        mine = ids.error();
    }
    LANCET_TRY(comm::agree(world_, mine));
    if (world_.size() == 1) return {};
    const std::string bytes(reinterpret_cast<const char*>(prompt_.data()), prompt_.size() * sizeof(std::int32_t));
    LANCET_ASSIGN(const std::string all, comm::broadcast_text(world_, bytes, 0));
    prompt_.resize(all.size() / sizeof(std::int32_t));
    std::copy(all.begin(), all.end(), reinterpret_cast<char*>(prompt_.data()));
    return {};
  }

  // Collective. Rank 0 reads in short turns, so that the other ranks do not time out while a user types.
  Result<std::string> read_input() {
    if (is_rank0() && isatty(STDIN_FILENO)) log::info("type the prompt and end it with Ctrl-D:");
    std::string text;
    for (bool done = false; !done;) {
      Result<bool> mine = false;
      if (is_rank0()) mine = read_standard_input(text, run::turn_of(model_->config()));
      LANCET_TRY(comm::broadcast_status(world_, mine.ok() ? Status() : Status(mine.error()), 0));
      LANCET_ASSIGN(done, comm::any(world_, *mine || text.size() > most_input));
    }
    return text;
  }

  // Of a prompt that cannot be used: one on the command line, or what was read.
  Error refused(const std::string& why) const {
    return arguments_.has_prompt ? config_error("--prompt: " + why) : data_error("standard input: " + why);
  }

  Result<Ids> encode(std::string text) const {
    if (!arguments_.has_prompt) {
      if (text.size() > most_input)
        return refused(fmt::format("expected a prompt of at most {} MiB, found more", most_input >> 20));
      if (text.ends_with('\n')) text.pop_back();  // the final newline of echo and editors
    }
    if (arguments_.ids) return parse_ids(text);
    auto ids = tokenizer_->encode(text, arguments_.special);
    if (!ids.ok()) return refused(ids.error().message);
    return Ids(ids->begin(), ids->end());
  }

  Result<Ids> parse_ids(std::string_view text) const {
    const std::int64_t vocabulary = model_->config().model.vocab_size;
    Ids ids;
    for (std::size_t at = 0; (at = text.find_first_not_of(" \t\n", at)) != std::string_view::npos;) {
      const std::string_view word = text.substr(at, text.find_first_of(" \t\n", at) - at);
      std::int32_t id = -1;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      if (error != std::errc() || end != word.data() + word.size() || id < 0 || id >= vocabulary)
        return refused(fmt::format("expected token ids, whole numbers below {} with spaces between, found {}",
                                   vocabulary, shown(word)));
      ids.push_back(id);
      at += word.size();
    }
    return ids;
  }

  // Starts an empty prompt with the token that begins a text.
  Status start_empty() {
    if (tokenizer_ && tokenizer_->bos() >= 0) {
      prompt_ = {tokenizer_->bos()};
      return {};
    }
    const std::string expected =
        tokenizer_ ? "at least one character, since the tokenizer has no token that begins a text" : "at least one id";
    return refused(fmt::format("expected {}, found none", expected));
  }

  Status check_prompt() const {
    if (std::ssize(prompt_) > decoder_->window())
      return refused(fmt::format("expected at most the model's window of {} tokens, found {}", decoder_->window(),
                                 prompt_.size()));
    return {};
  }

  Status show(std::int32_t token) {
    const bool is_first = std::exchange(first_, false);
    if (!arguments_.ids) return print(stream_.push(tokenizer_->bytes(token, is_first)));
    return print(fmt::format("{}{}", is_first ? "" : " ", token));
  }
  Status show_prompt() {
    for (std::int32_t id : prompt_) {
      if (!arguments_.ids && (id == tokenizer_->bos() || std::ranges::count(ends_, id))) continue;
      if (!arguments_.only_new)
        LANCET_TRY(show(id));
      else if (!arguments_.ids)
        first_ = false;  // what comes continues the prompt
    }
    return {};
  }

  Status generate() {
    models::GenerateOptions options{.sampling = arguments_.sampling, .max_tokens = arguments_.max_tokens};
    if (!arguments_.past_end) options.ends = ends_;
    const auto start = std::chrono::steady_clock::now();
    auto first = start;
    std::int64_t drawn = 0;
    const auto ending = models::generate(*decoder_, prompt_, options, [&](std::int32_t token) -> Status {
      if (drawn++ == 0) first = std::chrono::steady_clock::now();
      return is_rank0() ? show(token) : Status();
    });
    if (is_rank0()) LANCET_TRY(print(stream_.finish() + "\n"));
    if (!ending.ok()) {
      // All ranks see the same logits, so a numerical error is on all of them.
      return ending.error().code == ExitCode::numerical ? agreed(ending.error()) : ending.error();
    }
    report(*ending, drawn, seconds_since(start), seconds_since(first));
    return {};
  }

  void report(models::Ending ending, std::int64_t drawn, double all, double rest) const {
    std::string why;
    if (ending == models::Ending::end_of_text) why = "; the text ended";
    if (ending == models::Ending::window) why = fmt::format("; the window of {} tokens is full", decoder_->window());
    const std::string rate = drawn > 1 ? fmt::format(", then {:.1f} tokens/s", double(drawn - 1) / rest) : "";
    log::info("{} tokens after a prompt of {}: the first in {:.0f} ms{}{}", drawn, prompt_.size(), (all - rest) * 1e3,
              rate, why);
  }

  const GenerateArguments& arguments_;
  comm::Communicator& world_;
  const int local_ranks_;
  std::unique_ptr<models::LoadedModel> model_;
  std::optional<data::Tokenizer> tokenizer_;
  std::unique_ptr<models::Decoder> decoder_;
  Ids prompt_, ends_;
  TextStream stream_;
  bool first_ = true;
};

}  // namespace

void add_generate(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "generate",
      "Generate text with a trained model: lancet generate --from runs/quickstart --prompt 'The name of a'");
  auto arguments = std::make_shared<GenerateArguments>();
  arguments->model = add_from_arguments(*command);
  CLI::Option* prompt = command->add_option(
      "--prompt", arguments->prompt,
      "Start of the text; default: standard input. An empty prompt starts from the token that begins a text");
  command
      ->add_option("--temperature", arguments->sampling.temperature,
                   "Divides the logits; 0: always the most probable token")
      ->capture_default_str();
  command->add_option("--top-k", arguments->sampling.top_k, "Draw from this number of most probable tokens; 0: all")
      ->capture_default_str();
  command
      ->add_option("--top-p", arguments->sampling.top_p,
                   "Draw from the fewest most probable tokens whose probabilities add up to this")
      ->capture_default_str();
  add_seed_option(*command, arguments->sampling.seed, "The same seed gives the same text");
  add_number(*command, "--max-tokens", arguments->max_tokens, "Tokens to generate",
             whole_between(0, std::int64_t(1) << 40));
  command
      ->add_option("--tokenizer", arguments->tokenizer,
                   "Folder with tokenizer.json, or vocab.json and merges.txt; default: the run's")
      ->type_name("DIR");
  command->add_flag("--ids", arguments->ids, "Prompt and result are token ids");
  command->add_flag("--only-new", arguments->only_new, "Do not print the prompt");
  add_special_as_text(*command, arguments->special);
  command->add_flag("--past-end", arguments->past_end, "Continue after the end-of-text token");
  command->callback([arguments, prompt, command, &selection] {
    arguments->has_prompt = prompt->count() > 0;
    selection.ranked = [arguments, command](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_TRY(comm::agree_on(world, "the same options", command->config_to_str()));
      return Generation(*arguments, world, local_ranks)();
    };
  });
}

namespace {

struct EvalArguments {
  std::shared_ptr<FromArguments> model;
  models::EvaluateOptions options;
  bool json = false;
};

Status evaluate(const EvalArguments& arguments, comm::Communicator& world, int local_ranks) {
  LANCET_ASSIGN(const auto model,
                models::LoadedModel::load(arguments.model->from, world, arguments.model->options(local_ranks)));
  models::EvaluateOptions options = arguments.options;
  if (options.data.empty()) options.data = model->config().data.eval;
  if (options.data.empty())
    return Error{ExitCode::config,
                 fmt::format("expected --data FILE, since {} names no data.eval", arguments.model->from), true};
  LANCET_ASSIGN(const models::EvaluateResult result, models::evaluate(*model, world, options));
  if (world.rank() != 0) return {};
  if (arguments.json)
    return print(json_text(nlohmann::ordered_json{{"loss", result.loss},
                                                  {"perplexity", result.perplexity()},
                                                  {"sequences", result.sequences},
                                                  {"tokens", result.tokens},
                                                  {"data", options.data},
                                                  {"checkpoint", model->name()},
                                                  {"step", model->step()}}) +
                 "\n");
  return print(fmt::format("loss {:.6f} | perplexity {:.4f} | {} sequences of {} tokens | step {}\n", result.loss,
                           result.perplexity(), result.sequences, model->config().train.seq_len, model->step()));
}

}  // namespace

void add_eval(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "eval", "Loss and perplexity on a token file: lancet eval --from runs/quickstart --data data/eval.bin");
  auto arguments = std::make_shared<EvalArguments>();
  arguments->model = add_from_arguments(*command);
  command->add_option("--data", arguments->options.data, "Token file; default: the run's data.eval")->type_name("FILE");
  command
      ->add_option("--max-sequences", arguments->options.max_sequences,
                   "Evaluate only this number of sequences, from the first; default: all")
      ->check(whole_between(1, std::int64_t(1) << 40));
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->callback([arguments, command, &selection] {
    selection.ranked = [arguments, command](comm::Communicator& world, int local_ranks) -> Status {
      LANCET_TRY(comm::agree_on(world, "the same options", command->config_to_str()));
      return evaluate(*arguments, world, local_ranks);
    };
  });
}

}  // namespace lancet::cli
