// Encodes text files to token files, in bounded memory and on several threads. The ids do not depend on the chunk size
// or the number of threads: they equal those of encoding each file as one text, which begins with
// Tokenizer::bos() where the tokenizer adds it. Tokenizer::eos(), if there is one, ends
// each file: it is appended unless nothing but white space follows the last one in the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/data/tokenizer.h"

namespace lancet::data {

struct TokenizeProgress {
  std::uint64_t bytes = 0, total_bytes = 0;  // of text
};

struct TokenizeOptions {
  // The fraction at the end of the text, in [0, 1), that goes to eval_out; 0: none. That part begins at the start of a
  // line. Each part is encoded as a separate text.
  double eval_fraction = 0;
  std::filesystem::path eval_out;
  SpecialTokens special = SpecialTokens::ids;
  int threads = 1;
  std::size_t chunk_bytes = std::size_t{4} << 20;         // a chunk without a safe cut grows
  std::function<void(const TokenizeProgress&)> progress;  // from the calling thread, once per round of chunks
};

struct TokenizeResult {
  std::uint64_t bytes = 0, train_tokens = 0, eval_tokens = 0;
};

// Config errors: no text, a fraction outside [0, 1), no separate file for the held-out part. Data errors: a text that
// is missing, empty or not UTF-8 (path and byte), an output that cannot be written, a held-out part that is the whole
// text. On an error neither output is touched.
Result<TokenizeResult> tokenize_files(const std::vector<std::filesystem::path>& texts, const Tokenizer& tokenizer,
                                      const std::filesystem::path& out, const TokenizeOptions& options = {});

// Trains a byte-level BPE: repeatedly merges the most frequent pair of neighbouring tokens within GPT-2's pre-tokens.
// Deterministic: among equally frequent pairs it takes the smallest (left id, then right id). "<|endoftext|>" in a text
// ends a document and is not counted, unless it is read as text.
struct TrainTokenizerOptions {
  int vocab_size = 8192;       // 256 bytes, merges, and <|endoftext|> as the last id; at least 257
  std::int64_t min_count = 2;  // a pair that occurs less often is not merged
  SpecialTokens special = SpecialTokens::ids;
  std::function<void(int merges, int wanted)> progress;  // every 256 merges
};

// Memory grows with the distinct pre-tokens, not with the text. If the text has too few pairs that occur min_count
// times, the vocabulary is smaller than requested. Errors: vocab_size < 257 (config); a text that is missing, empty or
// not UTF-8 (data).
Result<Tokenizer> train_tokenizer(std::string_view text, const TrainTokenizerOptions& options);
Result<Tokenizer> train_tokenizer(const std::vector<std::filesystem::path>& texts,
                                  const TrainTokenizerOptions& options);

}  // namespace lancet::data
