#include <fmt/format.h>
#include <unistd.h>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "commands.h"
#include "lancet/base/clock.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"
#include "lancet/comm/collect.h"
#include "lancet/planner/planner.h"

namespace lancet::cli {

std::string profile_folder() {
  const char *cache = std::getenv("XDG_CACHE_HOME"), *home = std::getenv("HOME");
  if (cache && *cache) return std::filesystem::path(cache) / "lancet";
  if (home && *home) return std::filesystem::path(home) / ".cache/lancet";
  return "";
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%";
  if (!word.empty() && word.find_first_not_of(plain) == word.npos) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

std::shared_ptr<ConfigArguments> add_config_arguments(CLI::App& command) {
  auto arguments = std::make_shared<ConfigArguments>();
  command.add_option("config", arguments->file, "JSON file of the run's config")->required()->type_name("CONFIG");
  command.add_option("--set", arguments->overrides, "Set a field, for example --set train.lr=3e-4 (repeatable)")
      ->type_name("KEY=VALUE")
      ->expected(1)
      ->take_all();
  add_accept_option(command, arguments->accepted);
  command.footer("Fields of CONFIG, with their defaults:\n" + config::describe());
  return arguments;
}

Result<config::Config> load_config(const ConfigArguments& arguments) {
  std::vector<std::string> overrides = arguments.overrides;
  if (!arguments.from.empty()) overrides.push_back("model.from=" + json_text(nlohmann::json(arguments.from)));
  auto config = arguments.file.empty() ? config::parse("{}", "--from " + arguments.from, overrides, arguments.accepted)
                                       : config::load(arguments.file, overrides, arguments.accepted);
  if (config.ok()) LANCET_TRY(planner::check_policy(config->overlap.policy));
  return config;
}

Result<config::Config> load_config(const ConfigArguments& arguments, comm::Communicator& world) {
  auto config = load_config(arguments);
  if (config.ok()) world.set_timeout(std::chrono::milliseconds(std::int64_t(config->comm.timeout_s * 1000)));
  LANCET_TRY(comm::agree(world, config.ok() ? Status() : Status(config.error())));
  return config;
}

std::chrono::milliseconds configured_timeout(const ConfigArguments& arguments) {
  std::error_code ignored;
  const bool again = std::filesystem::is_regular_file(arguments.file, ignored);  // a pipe can be read only once
  const auto config = again ? load_config(arguments) : Result<config::Config>(config::Config());
  const double seconds = config.ok() ? config->comm.timeout_s : config::Config().comm.timeout_s;
  return std::chrono::milliseconds(std::int64_t(seconds * 1000));
}

CLI::Option* add_from_option(CLI::App& command, std::string& from) {
  return command
      .add_option(
          "--from", from,
          "A run folder (its newest complete checkpoint), a checkpoint's folder, or one of Hugging Face's format")
      ->required()
      ->type_name("RUN");
}

void add_accept_option(CLI::App& command, std::vector<std::string>& accepted) {
  command
      .add_option("--accept-field", accepted,
                  "A field of a Hugging Face folder's config.json that is passed over although it is not known, or has "
                  "a value that Lancet does not support")
      ->type_name("NAME");
}

std::shared_ptr<FromArguments> add_from_arguments(CLI::App& command) {
  auto arguments = std::make_shared<FromArguments>();
  add_from_option(command, arguments->from);
  add_accept_option(command, arguments->accepted);
  command.add_option("--dtype", arguments->dtype, "fp32 or bf16; default: as the model was trained")
      ->check(CLI::IsMember({"fp32", "bf16"}));
  command.add_option("--device", arguments->device, "cpu or cuda; default: as the model was trained")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  command.add_option("--threads", arguments->threads, "Threads per rank; 0: its share of the cores")
      ->check(whole_between(0, 1024));
  return arguments;
}

models::LoadOptions FromArguments::options(int local_ranks) const {
  models::LoadOptions options{.local_ranks = local_ranks, .threads = threads, .dtype = {}};
  options.accepted = accepted;
  if (!dtype.empty()) options.dtype = dtype == "bf16" ? DType::bf16 : DType::f32;
  if (!device.empty()) options.device = device == "cuda" ? config::Device::cuda : config::Device::cpu;
  return options;
}

namespace {

// Parses a text that must be one number as a whole.
template <class T>
bool parse(const std::string& text, T& number) {
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, number);
  return error == std::errc() && end == last;
}

template <class Number>
CLI::Validator in_range(Number least, Number most, const char* kind) {
  const auto wrong = [=](const std::string& text) -> std::string {
    Number number = 0;
    if (parse(text, number) && number >= least && number <= most) return {};
    return fmt::format("expected {} from {} to {}, found {}", kind, least, most, shown(text));
  };
  return CLI::Validator(wrong, fmt::format("{} to {}", least, most));
}

}  // namespace

CLI::Option* add_seed_option(CLI::App& command, std::uint64_t& seed, const std::string& help) {
  constexpr std::uint64_t most = std::numeric_limits<std::uint64_t>::max();
  return command.add_option("--seed", seed, help)
      ->capture_default_str()
      ->check(in_range<std::uint64_t>(0, most, "a whole number").description(""));
}

void add_special_as_text(CLI::App& command, data::SpecialTokens& special) {
  command.add_flag_callback(
      "--special-as-text", [&special] { special = data::SpecialTokens::text; },
      "Read special tokens such as <|endoftext|> in a text as letters");
}

CLI::Validator between(double least, double most) { return in_range(least, most, "a number"); }
CLI::Validator whole_between(std::int64_t least, std::int64_t most) { return in_range(least, most, "a whole number"); }

std::string progress_detail(const std::string& done, double fraction, double seconds) {
  if (fraction < 0.01 || fraction >= 1) return done;  // too early for an estimate, or finished
  return done + ", " + duration(seconds * (1 - fraction) / fraction) + " left";
}

ProgressBar::ProgressBar(const char* what, double patience)
    : what_(what), patience_(patience), terminal_(isatty(STDERR_FILENO) != 0) {}

ProgressBar::~ProgressBar() {
  if (terminal_ && shown_ >= 0 && shown_ < 100) std::fputc('\n', stderr);
}

void ProgressBar::show(double fraction, const std::string& done) {
  const int percent = static_cast<int>(fraction * 100), step = terminal_ ? 1 : 10;
  if (percent / step == shown_) return;
  const double seconds = seconds_since(start_);
  if (shown_ < 0 && seconds < patience_) return;
  shown_ = percent / step;
  const std::string bar(static_cast<std::size_t>(percent / 4), '#');
  // The blanks overwrite the end of a longer previous line.
  std::fprintf(stderr, terminal_ ? "\r%s [%-25s] %3d%% %s    " : "%s [%-25s] %3d%% %s\n", what_, bar.c_str(), percent,
               progress_detail(done, fraction, seconds).c_str());
  if (terminal_ && percent == 100) std::fputc('\n', stderr);
  std::fflush(stderr);
}

}  // namespace lancet::cli
