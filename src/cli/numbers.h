// What options take, checked so that an error says what was expected and found, and that nothing odd comes through: -1
// for a seed, nan for a share.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace lancet::cli {

// --seed: a whole number from 0 to 2^64 - 1 in decimal digits, and nothing else.
CLI::Option* add_seed_option(CLI::App& command, std::uint64_t& seed, const std::string& help);

// A number of this range, both ends included; never nan.
CLI::Validator between(double least, double most);
// The same of whole numbers.
CLI::Validator whole_between(std::int64_t least, std::int64_t most);
// One of these words.
CLI::Validator one_of(std::vector<std::string> words);

}  // namespace lancet::cli
