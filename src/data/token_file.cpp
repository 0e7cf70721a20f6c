#include "lancet/data/token_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "lancet/base/check.h"
#include "lancet/base/descriptor.h"
#include "token_header.h"

namespace lancet::data {

namespace fs = std::filesystem;

struct TokenFile::Mapping {
  fs::path path;
  Descriptor file;
  void* address = nullptr;
  std::size_t bytes = 0;
  TokenLayout layout;

  ~Mapping() {
    if (address != nullptr) ::munmap(address, bytes);
  }
  // Reading bytes that are no longer in the file would end the process with SIGBUS.
  bool shrunk() const {
    struct stat status {};
    return ::fstat(file.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) < bytes;
  }
};

namespace {

// Converts ids to TokenId. Returns the index of the first one that is not below `limit`, or out.size() if all are.
template <class Stored>
std::size_t widen(const Stored* from, std::uint32_t limit, std::span<TokenId> out) {
  std::uint32_t greatest = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    greatest = std::max(greatest, std::uint32_t(from[i]));
    out[i] = static_cast<TokenId>(from[i]);
  }
  if (greatest < limit) return out.size();
  return std::size_t(std::find_if(from, from + out.size(), [&](Stored id) { return id >= limit; }) - from);
}

}  // namespace

Result<TokenFile> TokenFile::open(const fs::path& path) {
  auto mapping = std::make_shared<Mapping>();
  mapping->path = path;
  // O_NONBLOCK: opening a pipe must not wait for a writer; the check of the file's type then refuses it.
  mapping->file = Descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!mapping->file.is_open())
    return data_error(fmt::format("{}: expected a token file, found: {}", path.string(), std::strerror(errno)));
  struct stat status {};
  if (::fstat(mapping->file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return data_error(fmt::format("{}: expected a token file, found no regular file", path.string()));
  mapping->bytes = static_cast<std::size_t>(status.st_size);
  if (mapping->bytes == 0)
    return data_error(fmt::format("{}: expected a token file, found an empty one", path.string()));
  void* address = ::mmap(nullptr, mapping->bytes, PROT_READ, MAP_SHARED, mapping->file.get(), 0);
  if (address == MAP_FAILED)
    return data_error(fmt::format("{}: cannot map {} bytes: {}", path.string(), mapping->bytes, std::strerror(errno)));
  mapping->address = address;
  auto layout = read_header({static_cast<const std::byte*>(address), mapping->bytes});
  if (!layout) return data_error(fmt::format("{}: {}", path.string(), layout.error().message));
  mapping->layout = *layout;
  TokenFile opened;
  opened.mapping_ = std::move(mapping);
  return opened;
}

std::uint64_t TokenFile::size() const { return mapping_->layout.tokens; }
int TokenFile::vocab_size() const { return mapping_->layout.vocab_size; }
int TokenFile::bytes_per_token() const { return mapping_->layout.bytes_per_token; }
std::uint64_t TokenFile::tokenizer_hash() const { return mapping_->layout.tokenizer_hash; }
const fs::path& TokenFile::path() const { return mapping_->path; }

Status TokenFile::read(std::uint64_t first, std::span<TokenId> out) const {
  const TokenLayout& layout = mapping_->layout;
  LANCET_CHECK(first <= layout.tokens && out.size() <= layout.tokens - first, "tokens {}..{} of {}", first,
               first + out.size(), layout.tokens);
  if (mapping_->shrunk())
    return data_error(fmt::format("{}: expected {} bytes, found fewer: the file was cut while it was in use",
                                  path().string(), mapping_->bytes));
  const auto* from = static_cast<const std::byte*>(mapping_->address) + layout.data_offset +
                     first * static_cast<std::uint64_t>(layout.bytes_per_token);
  const auto limit = static_cast<std::uint32_t>(layout.vocab_size);
  const std::size_t good = layout.bytes_per_token == 2
                               ? widen(reinterpret_cast<const std::uint16_t*>(from), limit, out)
                               : widen(reinterpret_cast<const std::uint32_t*>(from), limit, out);
  if (good == out.size()) return {};
  return data_error(fmt::format("{}: expected ids below {}, found {} at token {}", path().string(), limit,
                                static_cast<std::uint32_t>(out[good]), first + good));
}

}  // namespace lancet::data
