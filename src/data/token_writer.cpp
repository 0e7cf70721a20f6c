#include <fmt/format.h>

#include <utility>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/base/files.h"
#include "lancet/data/token_file.h"
#include "token_header.h"

namespace lancet::data {

struct TokenWriter::State {
  AtomicFile file;
  TokenLayout layout;
  std::vector<std::byte> buffer;

  static constexpr std::size_t kBufferBytes = std::size_t{1} << 20;

  template <class Stored>
  Status append(std::span<const TokenId> tokens) {
    for (const TokenId id : tokens) {
      LANCET_CHECK(id >= 0 && id < layout.vocab_size, "token {} of a vocabulary of {}", id, layout.vocab_size);
      const auto stored = static_cast<Stored>(id);
      const auto* bytes = reinterpret_cast<const std::byte*>(&stored);
      buffer.insert(buffer.end(), bytes, bytes + sizeof(Stored));
      if (buffer.size() >= kBufferBytes) LANCET_TRY(flush());
    }
    layout.tokens += tokens.size();
    return {};
  }

  Status flush() {
    LANCET_TRY(file.append(buffer.data(), buffer.size()));
    buffer.clear();
    return {};
  }
};

TokenWriter::TokenWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
TokenWriter::~TokenWriter() = default;
TokenWriter::TokenWriter(TokenWriter&&) noexcept = default;
TokenWriter& TokenWriter::operator=(TokenWriter&&) noexcept = default;

Result<TokenWriter> TokenWriter::create(const std::filesystem::path& path, int vocab_size,
                                        std::uint64_t tokenizer_hash) {
  LANCET_CHECK(vocab_size > 0, "a vocabulary of {}", vocab_size);
  LANCET_ASSIGN(AtomicFile file, AtomicFile::create(path));
  auto state = std::make_unique<State>(State{std::move(file), {}, {}});
  state->layout.vocab_size = vocab_size;
  state->layout.tokenizer_hash = tokenizer_hash;
  state->layout.bytes_per_token = vocab_size <= 65536 ? 2 : 4;
  // Reserves the header's bytes: it is written last, when the number of tokens is known.
  state->buffer.reserve(State::kBufferBytes + kHeaderBytes);
  state->buffer.resize(kHeaderBytes);
  return TokenWriter(std::move(state));
}

Status TokenWriter::append(std::span<const TokenId> tokens) {
  return state_->layout.bytes_per_token == 2 ? state_->append<std::uint16_t>(tokens)
                                             : state_->append<std::uint32_t>(tokens);
}

Status TokenWriter::sync() {
  LANCET_TRY(state_->flush());
  const auto header = make_header(state_->layout);
  LANCET_TRY(state_->file.overwrite(0, header.data(), header.size()));
  return state_->file.sync();
}

Status TokenWriter::finish() {
  LANCET_TRY(sync());
  return state_->file.commit();
}

std::uint64_t TokenWriter::size() const { return state_->layout.tokens; }

}  // namespace lancet::data
