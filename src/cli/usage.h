// Reports a wrong command line in one line: the command, the expected and the found words.
#pragma once
#include <CLI/CLI.hpp>
#include <span>
#include <string>

namespace lancet::cli {

// Returns for example "lancet eval: expected --from RUN, found none; see lancet eval --help". app: after parse() threw
// `error`.
std::string usage_line(const CLI::App& app, const CLI::ParseError& error);
// Returns an error that the parser does not report, or an empty text: --name= without a value (the parser takes the
// next word as the value), or an empty word, as of an unset shell variable, for any option but --prompt. words: the
// command line; app: after parse(), whether or not it threw.
std::string empty_value(const CLI::App& app, std::span<const char* const> words);

}  // namespace lancet::cli
