// Trains a byte-level BPE: the most frequent pair of neighbouring tokens within GPT-2's pre-tokens is merged, over
// and over. Deterministic: of equally frequent pairs the smaller (left id, then right id) is taken.
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
  Special special = Special::as_token;  // as_token: "<|endoftext|>" in the text ends a document and is not learned from
  std::function<void(int merges, int wanted)> progress;  // now and then
};

// Memory: the distinct pre-tokens (not the text). The vocabulary is smaller than asked where the text has no more
// pairs worth a merge: see vocab_size(). Errors: vocab_size < 257 (config); not UTF-8, missing, empty (data).
Result<Tokenizer> train_tokenizer(std::string_view text, const TrainTokenizerOptions& options);
Result<Tokenizer> train_tokenizer(const std::vector<std::filesystem::path>& texts,
                                  const TrainTokenizerOptions& options);

}  // namespace lancet::data
