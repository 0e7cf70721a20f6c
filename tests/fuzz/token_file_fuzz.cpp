// Any bytes as a token file give tokens that can all be read, or an error of one line. If the first byte requests it,
// the header's hash is corrected, so that the code after that check is reached too.
#include <array>

#include "fuzz/fuzz.h"
#include "lancet/base/hash.h"
#include "lancet/data/token_file.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  std::vector<std::uint8_t> bytes(data + 1, data + size);
  if ((data[0] & 1) && bytes.size() >= 64) {
    const std::uint64_t hash = hash64(std::as_bytes(std::span(bytes).first(56)));
    std::memcpy(bytes.data() + 56, &hash, sizeof hash);
  }
  const test::MemoryFile file(bytes.data(), bytes.size());
  const test::AllocationLimit limit(size, 1);
  const auto tokens = data::TokenFile::open(file.path());
  if (!test::is_read(tokens, ExitCode::data)) return 0;
  if (tokens->size() * std::uint64_t(tokens->bytes_per_token()) > bytes.size()) abort();
  std::array<data::TokenId, 257> ids;
  for (std::uint64_t at = 0; at < tokens->size(); at += ids.size()) {
    const auto part = std::span(ids).first(std::min<std::uint64_t>(ids.size(), tokens->size() - at));
    if (!tokens->read(at, part).ok()) continue;
    for (const auto id : part)
      if (id < 0 || id >= tokens->vocab_size()) abort();
  }
  return 0;
}
