// Encodes text files to token files, in bounded memory and on several threads. The ids do not depend on the chunk size
// or the number of threads: they equal those of encoding each file as one text.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/data/tokenizer.h"

namespace lancet::data {

struct TokenizeProgress {
  std::uint64_t bytes = 0, total_bytes = 0;  // of text
  std::uint64_t tokens = 0;                  // written, both parts
};

struct TokenizeOptions {
  // The fraction at the end of the text, in [0, 1), that goes to eval_out; 0: none. That part begins at the start of a
  // document if the text marks documents (special = as_token), else of a line. Each part is encoded as a separate text.
  double eval_fraction = 0;
  std::filesystem::path eval_out;
  Special special = Special::as_text;  // as_token: "<|endoftext|>" in the text is the token
  bool eos_after_file = true;          // append <|endoftext|> to each file, if the vocabulary has it and the file does
                                       // not end with it already
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

}  // namespace lancet::data
