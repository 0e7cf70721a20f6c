// Turns the parser's exceptions into one line: "COMMAND: expected X, found Y; see COMMAND --help".
//
// CLI11 throws one class per kind of error, with a text in its own words. This file finds the command and the option
// that the error is about and builds the line from them, with the nearest known name for a misspelt one. Unknown
// options are reported first: the parser takes the word after one for something else, and so may report another error.
// empty_value() finds empty values, which the parser accepts.
#include "usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "lancet/base/edit_distance.h"
#include "lancet/base/shown.h"

namespace lancet::cli {
namespace {

// Returns the selected commands: the program, its command, that command's subcommand.
std::vector<const CLI::App*> chain_of(const CLI::App& app) {
  std::vector<const CLI::App*> chain{&app};
  while (!chain.back()->get_subcommands().empty()) chain.push_back(chain.back()->get_subcommands().front());
  return chain;
}

std::string path_of(const std::vector<const CLI::App*>& chain, std::size_t length) {
  std::string path;
  for (std::size_t i = 0; i < length; ++i) path += (i > 0 ? " " : "") + chain[i]->get_name();
  return path;
}

bool is_flag(const std::string& word) { return word.size() > 1 && word[0] == '-'; }

// Returns for example "; the nearest known one is --resume", or nothing if more than half of the word would have to
// change.
std::string nearest(const std::string& word, const std::vector<std::string>& known) {
  std::string best;
  std::size_t least = ~std::size_t{0};
  for (const std::string& candidate : known)
    if (const std::size_t distance = edit_distance(word, candidate); distance < least)
      best = candidate, least = distance;
  const std::size_t letters = word.size() - std::min(word.size(), word.find_first_not_of('-'));
  return best.empty() || 2 * least > letters ? "" : "; the nearest known one is " + best;
}

std::vector<std::string> flags_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::Option* option : command.get_options())
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<std::string> commands_of(const CLI::App& command) {
  std::vector<std::string> names;
  for (const CLI::App* inner : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(inner->get_name());
  return names;
}

// Returns the option whose name a message of the parser begins with, or null.
const CLI::Option* option_in(const CLI::App& command, std::string_view message) {
  const CLI::Option* found = nullptr;
  std::size_t longest = 0;
  for (const CLI::Option* option : command.get_options())
    if (const std::string name = option->get_name(); message.starts_with(name) && name.size() > longest)
      found = option, longest = name.size();
  return found;
}

// Returns the option's type without the text of its checks: "STEP", "INT".
std::string type_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type.substr(0, type.find(':'));
}

// Returns the option as the help shows it: "CONFIG" (positional), "--from RUN".
std::string called(const CLI::Option& option) {
  return option.get_positional() ? type_of(option) : option.get_name() + " " + type_of(option);
}

std::string kind_of(const CLI::Option& option) {
  const std::string type = type_of(option);
  if (option.get_items_expected_max() == 0) return "no value";
  return type == "INT" || type == "UINT" ? "a whole number that is not too large" : type == "FLOAT" ? "a number" : type;
}

std::string unknown_flag(const CLI::App& command, const std::string& word) {
  const std::string flag = word.substr(0, word.find('='));
  return fmt::format("expected one of its options, found {}{}", shown(flag), nearest(flag, flags_of(command)));
}

std::string unknown_word(const CLI::App& command, const std::string& word) {
  for (const CLI::Option* option : command.get_options())
    if (option->get_positional() && option->get_items_expected_max() == 1)
      return fmt::format("expected one {}, found another, {}", type_of(*option), shown(word));
  return fmt::format("expected options alone, found {}", shown(word));
}

std::string missing_command(const CLI::App& command) {
  const std::vector<std::string> known = commands_of(command), left = command.remaining();
  const std::string expected = fmt::format("expected a command ({})", fmt::join(known, ", "));
  if (left.empty()) return expected + ", found none";
  return fmt::format("{}, found {}{}", expected, shown(left.front()), nearest(left.front(), known));
}

// Describes an error of one option.
std::string wrong_option(const CLI::Option& option, const CLI::ParseError& error, const std::string& message) {
  const std::string name = option.get_positional() ? type_of(option) : option.get_name();
  if (dynamic_cast<const CLI::RequiredError*>(&error)) return fmt::format("expected {}, found none", called(option));
  if (dynamic_cast<const CLI::ConversionError*>(&error))
    return fmt::format("{}: expected {}, found {}", name, kind_of(option),
                       shown(fmt::format("{}", fmt::join(option.results(), " "))));
  if (dynamic_cast<const CLI::RequiresError*>(&error))
    return fmt::format("{}: expected {} beside it, found none", name, message.substr(message.rfind(' ') + 1));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error)) {
    if (const std::size_t times = option.results().size(); times > 1)
      return fmt::format("{}: expected once, found {} times", name, times);
    return fmt::format("{}: expected {}, found none", name, type_of(option));
  }
  const std::string rest = message.substr(std::min(message.size(), option.get_name().size()));
  return name + (rest.starts_with(':') ? rest : ":" + rest);
}

std::string what_is_wrong(const CLI::App& command, const CLI::ParseError& error) {
  constexpr std::string_view conversion = "Could not convert: ";
  std::string message = error.what();
  if (message.starts_with(conversion)) message.erase(0, conversion.size());
  const bool command_missing = command.get_require_subcommand_min() > 0 && command.get_subcommands().empty();
  if (command_missing && dynamic_cast<const CLI::RequiredError*>(&error)) return missing_command(command);
  if (const auto left = command.remaining(); dynamic_cast<const CLI::ExtrasError*>(&error) && !left.empty())
    return unknown_word(command, left.front());
  if (const CLI::Option* option = option_in(command, message)) return wrong_option(*option, error, message);
  return message;
}

// Returns the option of a word --name or --name=value; null for other words.
const CLI::Option* named_by(const std::vector<const CLI::App*>& chain, std::string_view word) {
  const std::string name(word.substr(0, word.find('=')));
  for (const CLI::App* command : chain)
    if (const CLI::Option* option = command->get_option_no_throw(name); option && word.starts_with("--")) return option;
  return nullptr;
}

}  // namespace

// True for --prompt, which may be empty, and for flags.
bool may_be_empty(const CLI::Option& option) {
  return option.get_name() == "--prompt" || option.get_expected_max() == 0;
}

std::string empty_value(const CLI::App& app, std::span<const char* const> words) {
  const auto chain = chain_of(app);
  const std::string path = path_of(chain, chain.size());
  for (const std::string_view word : words)
    if (const CLI::Option* option = named_by(chain, word); option && word.find('=') == word.size() - 1)
      return fmt::format("{}: {}: expected {} after '=', found none{}", path, option->get_name(), kind_of(*option),
                         may_be_empty(*option) ? fmt::format(" (for an empty value: {} '')", option->get_name()) : "");
  for (const CLI::Option* option : chain.back()->get_options())
    if (!may_be_empty(*option))
      for (const std::string& value : option->results())
        if (value.empty())  // for example a shell variable that is not set
          return option->get_required() ? fmt::format("{}: expected {}, found an empty word", path, called(*option))
                                        : fmt::format("{}: {}: expected {}, found an empty word", path,
                                                      option->get_name(), kind_of(*option));
  return {};
}

std::string usage_line(const CLI::App& app, const CLI::ParseError& error) {
  const auto chain = chain_of(app);
  // Unknown options come first: the parser takes the word after one for something else and reports that.
  for (std::size_t i = 0; i < chain.size(); ++i)
    for (const std::string& word : chain[i]->remaining()) {
      if (!is_flag(word)) continue;
      const std::string path = path_of(chain, i + 1);
      return fmt::format("{}: {}; see {} --help", path, unknown_flag(*chain[i], word), path);
    }
  const std::string path = path_of(chain, chain.size());
  return fmt::format("{}: {}; see {} --help", path, what_is_wrong(*chain.back(), error), path);
}

}  // namespace lancet::cli
