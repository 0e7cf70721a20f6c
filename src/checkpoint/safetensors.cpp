#include "lancet/checkpoint/safetensors.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

#include "lancet/base/hash.h"
#include "lancet/base/shown.h"

namespace lancet::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t most_header = 1 << 30;  // of a file of any size
constexpr std::uint64_t alignment = 64;

std::string json_text(std::string_view text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\')
      result += {'\\', c};
    else if (static_cast<unsigned char>(c) < 0x20)
      result += fmt::format("\\u{:04x}", int(c));
    else
      result += c;
  }
  return result + "\"";
}

}  // namespace

// ---- reading

SafetensorsFile::~SafetensorsFile() {
  if (fd_ >= 0) ::close(fd_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      size_(other.size_),
      data_start_(other.data_start_),
      header_(std::move(other.header_)),
      by_name_(std::move(other.by_name_)) {}

SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(size_, other.size_);
  std::swap(data_start_, other.data_start_);
  std::swap(header_, other.header_);
  std::swap(by_name_, other.by_name_);
  return *this;
}

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path) {
  // Not blocking: a pipe that nobody writes to would.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0)
    return data_error(fmt::format("{}: expected a safetensors file, found: {}", path.string(), std::strerror(errno)));
  SafetensorsFile file(path, fd);
  LANCET_TRY(file.read_header());
  return file;
}

Status SafetensorsFile::read_header() {
  struct stat status {};
  if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode))
    return data_error(fmt::format("{}: expected a safetensors file, found no regular file", path_.string()));
  size_ = static_cast<std::uint64_t>(status.st_size);
  if (size_ < length_bytes)
    return data_error(fmt::format("{}: expected a safetensors file, found {} bytes", path_.string(), size_));
  std::uint64_t length = 0;
  LANCET_TRY(read_file(0, std::as_writable_bytes(std::span(&length, 1))));
  const std::uint64_t most = std::min(size_ - length_bytes, most_header);
  if (length > most)
    return data_error(
        fmt::format("{}: expected a header of at most {} bytes, found a length of {}", path_.string(), most, length));
  std::string text(length, '\0');
  LANCET_TRY(read_file(length_bytes, std::as_writable_bytes(std::span(text.data(), text.size()))));
  data_start_ = length_bytes + length;
  LANCET_ASSIGN(header_, parse_safetensors_header(text, size_ - data_start_, path_.string()));
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) by_name_.emplace(header_.tensors[i].name, i);
  return {};
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &header_.tensors[at->second];
}

Status SafetensorsFile::read(const TensorInfo& tensor, std::uint64_t at, std::span<std::byte> bytes) const {
  LANCET_CHECK(at <= tensor.bytes() && bytes.size() <= tensor.bytes() - at, "{} has {} bytes, not {} from {} on",
               tensor.name, tensor.bytes(), bytes.size(), at);
  return read_file(data_start_ + tensor.begin + at, bytes);
}

Status SafetensorsFile::read_file(std::uint64_t at, std::span<std::byte> bytes) const {
  while (!bytes.empty()) {
    const ssize_t got = ::pread(fd_, bytes.data(), bytes.size(), static_cast<off_t>(at));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return data_error(fmt::format("{}: cannot read: {}", path_.string(), std::strerror(errno)));
    if (got == 0)
      return data_error(fmt::format("{}: expected {} bytes, found the end at {}", path_.string(), size_, at));
    at += static_cast<std::uint64_t>(got);
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

// ---- writing

struct SafetensorsWriter::State {
  std::unique_ptr<OutputFile> file;
  Hasher hasher;
  std::vector<std::byte> pending;  // small pieces, to be written together
  std::uint64_t bytes = 0;         // of the file, pending ones too
  std::uint64_t total = 0;         // that the file will have

  Status flush() {
    LANCET_TRY(write_all(*file, pending));
    pending.clear();
    return {};
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
std::uint64_t SafetensorsWriter::bytes() const { return state_->bytes; }
std::uint64_t SafetensorsWriter::hash() const { return state_->hasher.digest(); }

Result<SafetensorsWriter> SafetensorsWriter::create(FileSystem& files, const std::filesystem::path& path,
                                                    std::vector<TensorInfo> tensors, const Metadata& metadata) {
  std::string header = "{";
  if (!metadata.empty()) {
    header += "\"__metadata__\":{";
    for (const auto& [key, value] : metadata) header += fmt::format("{}:{},", json_text(key), json_text(value));
    header.back() = '}';
    header += ',';
  }
  std::uint64_t at = 0;
  std::map<std::string_view, int> names;
  for (const TensorInfo& tensor : tensors) {
    LANCET_CHECK(element_bytes(tensor.dtype) > 0, "{}: the format has no dtype {}", tensor.name, tensor.dtype);
    LANCET_CHECK(++names[tensor.name] == 1, "{} stands twice in {}", tensor.name, path.string());
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", json_text(tensor.name),
                          tensor.dtype, lancet::to_string(tensor.shape), at, at + tensor.bytes());
    at += tensor.bytes();
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.resize((length_bytes + header.size() + alignment - 1) / alignment * alignment - length_bytes, ' ');
  auto state = std::make_unique<State>();
  LANCET_ASSIGN(state->file, files.create(path));
  state->total = length_bytes + header.size() + at;
  SafetensorsWriter writer(std::move(state));
  const std::uint64_t length = header.size();
  LANCET_TRY(writer.append(std::as_bytes(std::span(&length, 1))));
  LANCET_TRY(writer.append(std::as_bytes(std::span(header.data(), header.size()))));
  return writer;
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  constexpr std::size_t piece = 1 << 18;
  State& s = *state_;
  LANCET_CHECK(bytes.size() <= s.total - s.bytes, "{} bytes more than the tensors have",
               s.bytes + bytes.size() - s.total);
  s.hasher.update(bytes);
  s.bytes += bytes.size();
  if (s.pending.size() + bytes.size() > piece) LANCET_TRY(s.flush());
  if (bytes.size() > piece) return write_all(*s.file, bytes);
  s.pending.insert(s.pending.end(), bytes.begin(), bytes.end());
  return {};
}

Status SafetensorsWriter::finish() {
  LANCET_CHECK(state_->bytes == state_->total, "{} of {} bytes were written", state_->bytes, state_->total);
  LANCET_TRY(state_->flush());
  LANCET_TRY(state_->file->sync());
  return state_->file->close();
}

}  // namespace lancet::checkpoint
