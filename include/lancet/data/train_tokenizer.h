// Trains a byte-level BPE: repeatedly merges the most frequent pair of neighbouring tokens within GPT-2's pre-tokens.
// Deterministic: among equally frequent pairs it takes the smallest (left id, then right id).
#pragma once
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/data/tokenizer.h"

namespace lancet::data {

struct TrainTokenizerOptions {
  int vocab_size = 8192;                // 256 bytes, merges, and <|endoftext|> as the last id; at least 257
  std::int64_t min_count = 2;           // a pair that occurs less often is not merged
  Special special = Special::as_token;  // as_token: "<|endoftext|>" ends a document and is not counted as text
  std::function<void(int merges, int wanted)> progress;  // every 256 merges
};

// Memory grows with the distinct pre-tokens, not with the text. If the text has too few pairs that occur min_count
// times, the vocabulary is smaller than requested. Errors: vocab_size < 257 (config); a text that is missing, empty or
// not UTF-8 (data).
Result<Tokenizer> train_tokenizer(std::string_view text, const TrainTokenizerOptions& options);
Result<Tokenizer> train_tokenizer(const std::vector<std::filesystem::path>& texts,
                                  const TrainTokenizerOptions& options);

}  // namespace lancet::data
