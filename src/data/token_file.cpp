#include "lancet/data/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "lancet/base/check.h"
#include "lancet/base/hash.h"

namespace lancet::data {

namespace fs = std::filesystem;

constexpr std::size_t kHeaderBytes = 64;

struct TokenLayout {
  std::uint64_t tokens = 0, tokenizer_hash = 0;
  std::uint64_t data_offset = kHeaderBytes;
  int vocab_size = 0;  // 0: unknown
  int bytes_per_token = 2;
};

namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

constexpr std::string_view kMagic = "LANCETTK";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHashAt = 56;
constexpr std::size_t kLlmcHeaderBytes = 1024;

template <class T>
T load(std::span<const std::byte> bytes, std::size_t at) {
  T value;
  std::memcpy(&value, bytes.data() + at, sizeof(T));
  return value;
}

template <class T>
void store(std::span<std::byte> bytes, std::size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof(T));
}

Status check_size(const TokenLayout& layout, std::size_t file_bytes) {
  const std::uint64_t data_bytes = file_bytes - layout.data_offset;
  const auto width = static_cast<std::uint64_t>(layout.bytes_per_token);
  if (data_bytes % width == 0 && data_bytes / width == layout.tokens) return {};
  return data_error(
      fmt::format("expected {} tokens of {} bytes after the header, found {} bytes", layout.tokens, width, data_bytes));
}

Result<TokenLayout> read_own(std::span<const std::byte> file) {
  if (file.size() < kHeaderBytes)
    return data_error(fmt::format("expected a header of {} bytes, found {} bytes in all", kHeaderBytes, file.size()));
  if (const auto version = load<std::uint32_t>(file, 8); version != kVersion)
    return data_error(fmt::format("expected a token file of version {}, found version {}", kVersion, version));
  const std::uint64_t hash = hash64(file.first(kHashAt)), stored = load<std::uint64_t>(file, kHashAt);
  if (hash != stored)
    return data_error(fmt::format("expected a header with hash {}, found {}: it is damaged", hex(stored), hex(hash)));
  const auto width = load<std::uint32_t>(file, 12);
  const auto vocabulary = load<std::uint64_t>(file, 24);
  if (width != 2 && width != 4) return data_error(fmt::format("expected 2 or 4 bytes per token, found {}", width));
  const std::uint64_t most = width == 2 ? 65536 : std::numeric_limits<std::int32_t>::max();
  if (vocabulary == 0 || vocabulary > most)
    return data_error(
        fmt::format("expected a vocabulary of 1..{} for {} bytes per token, found {}", most, width, vocabulary));
  TokenLayout layout;
  layout.bytes_per_token = static_cast<int>(width);
  layout.tokens = load<std::uint64_t>(file, 16);
  layout.vocab_size = static_cast<int>(vocabulary);
  layout.tokenizer_hash = load<std::uint64_t>(file, 32);
  LANCET_TRY(check_size(layout, file.size()));
  return layout;
}

struct LlmcFormat {
  std::int32_t magic, version;
  int bytes_per_token;
};
constexpr LlmcFormat kLlmcFormats[] = {{20240520, 1, 2}, {20240801, 7, 4}};

Result<TokenLayout> read_llmc(std::span<const std::byte> file, const LlmcFormat& format) {
  if (file.size() < kLlmcHeaderBytes)
    return data_error(
        fmt::format("expected llm.c's header of {} bytes, found {} bytes in all", kLlmcHeaderBytes, file.size()));
  if (const auto version = load<std::int32_t>(file, 4); version != format.version)
    return data_error(
        fmt::format("expected llm.c's version {} after magic {}, found {}", format.version, format.magic, version));
  TokenLayout layout;
  layout.data_offset = kLlmcHeaderBytes;
  layout.bytes_per_token = format.bytes_per_token;
  layout.tokens = load<std::uint32_t>(file, 8);  // llm.c counts in int32
  LANCET_TRY(check_size(layout, file.size()));
  return layout;
}

// The bytes as text, with \xHH for those that are not printable ASCII.
std::string printable(std::span<const std::byte> bytes) {
  std::string text;
  for (const std::byte byte : bytes) {
    const char c = static_cast<char>(byte);
    text += c >= 0x20 && c < 0x7F ? std::string(1, c) : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  return text;
}

std::array<std::byte, kHeaderBytes> make_header(const TokenLayout& layout) {
  std::array<std::byte, kHeaderBytes> header{};
  std::memcpy(header.data(), kMagic.data(), kMagic.size());
  store(std::span(header), 8, kVersion);
  store(std::span(header), 12, static_cast<std::uint32_t>(layout.bytes_per_token));
  store(std::span(header), 16, layout.tokens);
  store(std::span(header), 24, static_cast<std::uint64_t>(layout.vocab_size));
  store(std::span(header), 32, layout.tokenizer_hash);
  store(std::span(header), kHashAt, hash64(std::span<const std::byte>(header).first(kHashAt)));
  return header;
}

// file: the whole file, not empty. Data errors do not name the path.
Result<TokenLayout> read_header(std::span<const std::byte> file) {
  const auto start = file.first(std::min(file.size(), kMagic.size()));
  if (start.size() == kMagic.size() && std::memcmp(start.data(), kMagic.data(), kMagic.size()) == 0)
    return read_own(file);
  for (const LlmcFormat& format : kLlmcFormats)
    if (start.size() == kMagic.size() && load<std::int32_t>(file, 0) == format.magic) return read_llmc(file, format);
  return data_error(fmt::format("expected a token file that begins with {} (or one of llm.c's), found \"{}\"", kMagic,
                                printable(start)));
}

}  // namespace

// A regular file, mapped read-only.
class MappedFile {
 public:
  static Result<std::shared_ptr<MappedFile>> open(const fs::path& path, std::string_view what) {
    auto mapped = std::make_shared<MappedFile>();
    // O_NONBLOCK: opening a pipe must not wait for a writer; the check of the file's type then refuses it.
    mapped->file_ = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (!mapped->file_.is_open())
      return data_error(fmt::format("{}: expected {}, found: {}", path.string(), what, std::strerror(errno)));
    struct stat status {};
    if (::fstat(mapped->file_.get(), &status) != 0 || !S_ISREG(status.st_mode))
      return data_error(fmt::format("{}: expected {}, found no regular file", path.string(), what));
    const auto bytes = static_cast<std::size_t>(status.st_size);
    if (bytes == 0) return data_error(fmt::format("{}: expected {}, found an empty one", path.string(), what));
    void* address = ::mmap(nullptr, bytes, PROT_READ, MAP_SHARED, mapped->file_.get(), 0);
    if (address == MAP_FAILED)
      return data_error(fmt::format("{}: cannot map {} bytes: {}", path.string(), bytes, std::strerror(errno)));
    mapped->bytes_ = {static_cast<const std::byte*>(address), bytes};
    return mapped;
  }
  MappedFile() = default;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;
  ~MappedFile() {
    if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }

  std::span<const std::byte> bytes() const { return bytes_; }
  // Reading bytes that are no longer in the file would end the process with SIGBUS.
  bool shrunk() const {
    struct stat status {};
    return ::fstat(file_.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) < bytes_.size();
  }

 private:
  Descriptor file_;
  std::span<const std::byte> bytes_;
};

struct TokenFile::Mapping {
  fs::path path;
  std::shared_ptr<const MappedFile> file;
  TokenLayout layout;
};

namespace {

// Converts ids to TokenId. Returns the index of the first one that is not below `limit`, or out.size() if all are.
template <class Stored>
std::size_t widen(const std::byte* bytes, std::uint32_t limit, std::span<TokenId> out) {
  const Stored* from = reinterpret_cast<const Stored*>(bytes);
  using Wide = std::conditional_t<sizeof(Stored) == 8, std::uint64_t, std::uint32_t>;
  Wide greatest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    greatest = std::max(greatest, Wide(from[i]));
    out[i] = static_cast<TokenId>(from[i]);
  }
  if (greatest < limit) return out.size();
  return std::size_t(std::find_if(from, from + out.size(), [&](Stored id) { return id >= limit; }) - from);
}

// The index that Megatron-LM writes beside its tokens, NAME.idx beside NAME.bin: magic, version, type of the ids, the
// numbers of sequences and of documents' ends, the sequences' lengths and places, the ends. The tokens are those of all
// sequences, one after the other.
constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr std::size_t kMegatronHeaderBytes = 34;

bool is_megatron(std::span<const std::byte> index) {
  return index.size() >= kMegatronMagic.size() &&
         std::memcmp(index.data(), kMegatronMagic.data(), kMegatronMagic.size()) == 0;
}

Result<TokenLayout> read_megatron(std::span<const std::byte> index, std::size_t token_bytes) {
  if (index.size() < kMegatronHeaderBytes)
    return data_error(fmt::format("expected a header of {} bytes, found {}", kMegatronHeaderBytes, index.size()));
  if (const auto version = load<std::uint64_t>(index, 9); version != 1)
    return data_error(fmt::format("expected version 1, found {}", version));
  const int type = int(load<std::uint8_t>(index, 17)), width = type == 8 ? 2 : type == 4 ? 4 : type == 5 ? 8 : 0;
  if (width == 0)
    return data_error(fmt::format("expected ids of uint16 (8), int32 (4) or int64 (5), found type {}", type));
  const auto sequences = load<std::uint64_t>(index, 18), ends = load<std::uint64_t>(index, 26);
  const std::uint64_t room = index.size() - kMegatronHeaderBytes;  // a sequence may have a mode, of a byte, at the end
  if (sequences > room / 12 || ends > (room - 12 * sequences) / 8 ||
      (room != 12 * sequences + 8 * ends && room != 13 * sequences + 8 * ends))
    return data_error(
        fmt::format("expected {} sequences and {} ends of documents, found {} bytes for them", sequences, ends, room));
  TokenLayout layout{.data_offset = 0, .bytes_per_token = width};
  const std::size_t lengths = kMegatronHeaderBytes, places = lengths + 4 * sequences;
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const auto length = load<std::int32_t>(index, lengths + 4 * i);
    const auto place = load<std::int64_t>(index, places + 8 * i);
    if (length < 0 || place != std::int64_t(layout.tokens) * width)
      return data_error(fmt::format("expected sequence {} at byte {}, found {} tokens at byte {}", i,
                                    layout.tokens * std::uint64_t(width), length, place));
    layout.tokens += std::uint64_t(length);
  }
  if (token_bytes != layout.tokens * std::uint64_t(width))
    return data_error(fmt::format("expected {} tokens of {} bytes in the .bin file, found {} bytes", layout.tokens,
                                  width, token_bytes));
  return layout;
}

// Of a file with an index of Megatron-LM beside it, or of one that begins with a header.
Result<TokenLayout> layout_of(const fs::path& path, std::span<const std::byte> file) {
  const fs::path index_path = fs::path(path).replace_extension(".idx");
  std::error_code error;
  if (index_path != path && fs::is_regular_file(index_path, error) && fs::file_size(index_path, error) > 0) {
    LANCET_ASSIGN(const auto index, MappedFile::open(index_path, "an index of tokens"));
    if (is_megatron(index->bytes())) {
      auto layout = read_megatron(index->bytes(), file.size());
      if (!layout.ok()) return data_error(fmt::format("{}: {}", index_path.string(), layout.error().message));
      return layout;
    }
  }
  auto layout = read_header(file);
  if (!layout.ok()) return data_error(fmt::format("{}: {}", path.string(), layout.error().message));
  return layout;
}

}  // namespace

Result<TokenFile> TokenFile::open(const fs::path& path, int vocab_size) {
  auto mapping = std::make_shared<Mapping>();
  mapping->path = path;
  LANCET_ASSIGN(mapping->file, MappedFile::open(path, "a token file"));
  LANCET_ASSIGN(mapping->layout, layout_of(path, mapping->file->bytes()));
  TokenLayout& layout = mapping->layout;
  if (layout.vocab_size > vocab_size)
    return data_error(fmt::format("{}: expected a vocabulary of at most model.vocab_size = {} ids, found one of {}",
                                  path.string(), vocab_size, layout.vocab_size));
  if (layout.vocab_size == 0) layout.vocab_size = vocab_size;
  TokenFile opened;
  opened.mapping_ = std::move(mapping);
  return opened;
}

std::uint64_t TokenFile::size() const { return mapping_->layout.tokens; }
int TokenFile::vocab_size() const { return mapping_->layout.vocab_size; }
int TokenFile::bytes_per_token() const { return mapping_->layout.bytes_per_token; }
std::uint64_t TokenFile::tokenizer_hash() const { return mapping_->layout.tokenizer_hash; }
const fs::path& TokenFile::path() const { return mapping_->path; }

std::uint64_t TokenFile::fingerprint() const {
  constexpr std::size_t places = 64, length = 4096;
  const std::span<const std::byte> bytes = mapping_->file->bytes();
  std::vector<std::uint64_t> hashes{bytes.size()};
  for (std::size_t i = 0; i < places && !mapping_->file->shrunk(); ++i) {
    const std::size_t first = bytes.size() > length ? (bytes.size() - length) * i / (places - 1) : 0;
    hashes.push_back(hash64(bytes.subspan(first, std::min(bytes.size(), length))));
  }
  return hash64(std::as_bytes(std::span(hashes)));
}

Status TokenFile::read(std::uint64_t first, std::span<TokenId> out) const {
  const TokenLayout& layout = mapping_->layout;
  LANCET_CHECK(first <= layout.tokens && out.size() <= layout.tokens - first, "tokens {}..{} of {}", first,
               first + out.size(), layout.tokens);
  const std::span<const std::byte> bytes = mapping_->file->bytes();
  if (mapping_->file->shrunk())
    return data_error(fmt::format("{}: expected {} bytes, found fewer: the file was cut while it was in use",
                                  path().string(), bytes.size()));
  const std::byte* from =
      bytes.data() + layout.data_offset + first * static_cast<std::uint64_t>(layout.bytes_per_token);
  const auto limit = static_cast<std::uint32_t>(layout.vocab_size);
  const std::size_t good = layout.bytes_per_token == 2   ? widen<std::uint16_t>(from, limit, out)
                           : layout.bytes_per_token == 4 ? widen<std::uint32_t>(from, limit, out)
                                                         : widen<std::uint64_t>(from, limit, out);
  if (good == out.size()) return {};
  const std::size_t at = good * std::size_t(layout.bytes_per_token);
  const std::int64_t found = layout.bytes_per_token == 2   ? load<std::uint16_t>({from, at + 2}, at)
                             : layout.bytes_per_token == 4 ? load<std::int32_t>({from, at + 4}, at)
                                                           : load<std::int64_t>({from, at + 8}, at);
  return data_error(
      fmt::format("{}: expected ids below {}, found {} at token {}", path().string(), limit, found, first + good));
}

namespace {

constexpr std::size_t kBufferBytes = std::size_t{1} << 20;
int width_of(int vocab_size) { return vocab_size <= 65536 ? 2 : 4; }

}  // namespace

// Reserves the header's bytes: it is written last, when the number of tokens is known.
TokenWriter::TokenWriter(AtomicFile file, int vocab_size, std::uint64_t tokenizer_hash)
    : file_(std::move(file)), vocab_size_(vocab_size), tokenizer_hash_(tokenizer_hash), buffer_(kHeaderBytes) {
  buffer_.reserve(kBufferBytes + kHeaderBytes);
}

Result<TokenWriter> TokenWriter::create(const fs::path& path, int vocab_size, std::uint64_t tokenizer_hash) {
  LANCET_CHECK(vocab_size > 0, "a vocabulary of {}", vocab_size);
  LANCET_ASSIGN(AtomicFile file, AtomicFile::create(path));
  return TokenWriter(std::move(file), vocab_size, tokenizer_hash);
}

template <class Stored>
Status TokenWriter::append_as(std::span<const TokenId> tokens) {
  for (const TokenId id : tokens) {
    LANCET_CHECK(id >= 0 && id < vocab_size_, "token {} of a vocabulary of {}", id, vocab_size_);
    const auto stored = static_cast<Stored>(id);
    const auto* bytes = reinterpret_cast<const std::byte*>(&stored);
    buffer_.insert(buffer_.end(), bytes, bytes + sizeof(Stored));
    if (buffer_.size() >= kBufferBytes) LANCET_TRY(flush());
  }
  tokens_ += tokens.size();
  return {};
}

Status TokenWriter::append(std::span<const TokenId> tokens) {
  return width_of(vocab_size_) == 2 ? append_as<std::uint16_t>(tokens) : append_as<std::uint32_t>(tokens);
}

Status TokenWriter::flush() {
  LANCET_TRY(file_.append(buffer_.data(), buffer_.size()));
  buffer_.clear();
  return {};
}

Status TokenWriter::sync() {
  LANCET_TRY(flush());
  const auto header = make_header({.tokens = tokens_,
                                   .tokenizer_hash = tokenizer_hash_,
                                   .vocab_size = vocab_size_,
                                   .bytes_per_token = width_of(vocab_size_)});
  LANCET_TRY(file_.overwrite(0, header.data(), header.size()));
  return file_.sync();
}

Status TokenWriter::finish() {
  LANCET_TRY(sync());
  return file_.commit();
}

}  // namespace lancet::data
