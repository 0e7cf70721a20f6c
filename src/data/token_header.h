// Writes and reads the header of a token file (token_file.h has its layout), and reads that of llm.c's files.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "lancet/base/result.h"

namespace lancet::data {

inline constexpr std::size_t kHeaderBytes = 64;

struct TokenLayout {
  std::uint64_t tokens = 0, tokenizer_hash = 0;
  std::uint64_t data_offset = kHeaderBytes;
  int vocab_size = 0;
  int bytes_per_token = 2;
};

std::array<std::byte, kHeaderBytes> make_header(const TokenLayout& layout);

// file: the whole file, not empty. Data errors do not name the path.
Result<TokenLayout> read_header(std::span<const std::byte> file);

}  // namespace lancet::data
