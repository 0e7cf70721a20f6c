// Numbers on the command line that the parser alone would let through: -1 for a seed, nan for a share.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace lancet::cli {

// --seed: a whole number from 0 to 2^64 - 1 in decimal digits, and nothing else.
CLI::Option* add_seed_option(CLI::App& command, std::uint64_t& seed, const std::string& help);

// A number of this range, both ends included; never nan.
CLI::Validator between(double least, double most);

}  // namespace lancet::cli
