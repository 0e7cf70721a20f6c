// Command lines that are wrong, in a line that says where, what was expected and what was found.
#pragma once
#include <CLI/CLI.hpp>
#include <span>
#include <string>

namespace lancet::cli {

// app: after parse() threw `error`. "lancet eval: expected --from RUN, found none; see lancet eval --help".
std::string usage_line(const CLI::App& app, const CLI::ParseError& error);
// What the parser lets through, or empty: --name= without a value, for which it takes the next word; an empty word
// (of a shell's variable that is not set), but for --prompt. words: of the command line; app: after parse(), whether or
// not it threw.
std::string empty_value(const CLI::App& app, std::span<const char* const> words);

}  // namespace lancet::cli
