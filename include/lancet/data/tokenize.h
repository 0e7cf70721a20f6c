// Text files into token files, in bounded memory and on several threads. The ids are those of encoding each
// file in one go, whatever the chunk size and the number of threads.
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
  std::uint64_t tokens = 0;                  // so far, both parts
};

struct TokenizeOptions {
  // The last part of the text, in [0, 1), goes to eval_out; it begins at a document's start where the text marks
  // documents (special = as_token), else at a line's. Each part is encoded as a text of its own. 0: no such file.
  double eval_fraction = 0;
  std::filesystem::path eval_out;
  Special special = Special::as_text;  // as_token: "<|endoftext|>" in the text is the token
  bool eos_after_file = true;          // <|endoftext|> after each file (where the vocabulary has it and the file
                                       // does not end with it already)
  int threads = 1;
  std::size_t chunk_bytes = std::size_t{4} << 20;         // a chunk grows where no safe cut is found in it
  std::function<void(const TokenizeProgress&)> progress;  // from the calling thread, once per round of chunks
};

struct TokenizeResult {
  std::uint64_t bytes = 0, train_tokens = 0, eval_tokens = 0;
};

// Config errors: no text, a fraction outside [0, 1), no file of its own for the held-out part. Data errors: a text that
// is missing, empty or not UTF-8 (path and byte), an output that cannot be written, a held-out part that would take the
// whole text. On an error neither output is touched.
Result<TokenizeResult> tokenize_files(const std::vector<std::filesystem::path>& texts, const Tokenizer& tokenizer,
                                      const std::filesystem::path& out, const TokenizeOptions& options = {});

}  // namespace lancet::data
