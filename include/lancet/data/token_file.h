// Token files: a corpus as token ids, memory-mapped by every rank. Integers are little-endian:
//
//   byte  0  8  magic "LANCETTK"
//         8  4  version, 1
//        12  4  bytes per token: 2 (ids < 65536) or 4
//        16  8  tokens in the file
//        24  8  vocabulary size: every id is below it
//        32  8  Tokenizer::hash() of the tokenizer that encoded it; 0: unknown
//        40  8  reserved, 0
//        48  8  reserved, 0
//        56  8  XXH3-64 of bytes 0..55
//        64     the tokens, up to the end of the file
//
// The reader also accepts llm.c's files: a header of 256 int32 (magic, version, tokens), then u16 ids (magic 20240520,
// version 1) or u32 ids (magic 20240801, version 7); and Megatron-LM's NAME.bin with its index NAME.idx beside it, of
// uint16, int32 or int64 ids. These do not say how large their vocabulary is.
#pragma once
#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "lancet/base/files.h"
#include "lancet/base/result.h"
#include "lancet/data/token.h"

namespace lancet::data {

// A file mapped read-only. Threads share one; a copy shares the mapping. Do not shrink the file while it is open.
class TokenFile {
 public:
  // vocab_size: read() refuses ids from it on. Data errors: no such file, an empty file or one of another format, an
  // unknown version or width, a damaged header, a size that disagrees with the header, a larger vocabulary in it.
  static Result<TokenFile> open(const std::filesystem::path& path,
                                int vocab_size = std::numeric_limits<std::int32_t>::max());

  std::uint64_t size() const;   // tokens
  int vocab_size() const;       // every id that read() returns is below it
  int bytes_per_token() const;  // 2 or 4; of Megatron-LM's also 8
  // A hash of the file's size, its header and what it holds at 64 places.
  std::uint64_t fingerprint() const;
  std::uint64_t tokenizer_hash() const;  // 0: unknown (files of others)
  const std::filesystem::path& path() const;

  // out[i] = token first + i; first + out.size() <= size(). Data error: an id at or above vocab_size(), with
  // its position.
  Status read(std::uint64_t first, std::span<TokenId> out) const;

 private:
  struct Mapping;
  std::shared_ptr<const Mapping> mapping_;
};

// Writes an AtomicFile, which finish() renames to `path`: `path` is a complete file or is not touched. A writer that is
// destroyed before finish() leaves no file behind. Errors (a full disk, no permission) are data errors with the path.
class TokenWriter {
 public:
  // Ids have 2 bytes if vocab_size <= 65536, else 4.
  static Result<TokenWriter> create(const std::filesystem::path& path, int vocab_size, std::uint64_t tokenizer_hash);

  Status append(std::span<const TokenId> tokens);  // ids in [0, vocab_size)
  Status sync();                                   // all to the disk; only the rename is left for finish()
  Status finish();                                 // sync, then the rename; the last call, once
  std::uint64_t size() const { return tokens_; }   // tokens appended

 private:
  TokenWriter(AtomicFile file, int vocab_size, std::uint64_t tokenizer_hash);
  template <class Stored>
  Status append_as(std::span<const TokenId> tokens);
  Status flush();
  AtomicFile file_;
  int vocab_size_;
  std::uint64_t tokenizer_hash_, tokens_ = 0;
  std::vector<std::byte> buffer_;
};

}  // namespace lancet::data
