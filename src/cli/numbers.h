// Validators of option values. Their errors name the expected and the found value. They refuse what the parser would
// accept: -1 for a seed, nan for a share.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace lancet::cli {

// --seed: a whole number from 0 to 2^64 - 1 in decimal digits, and nothing else.
CLI::Option* add_seed_option(CLI::App& command, std::uint64_t& seed, const std::string& help);

// Accepts numbers of this range, both ends included, and no nan.
CLI::Validator between(double least, double most);
// Accepts whole numbers of this range, both ends included.
CLI::Validator whole_between(std::int64_t least, std::int64_t most);

}  // namespace lancet::cli
