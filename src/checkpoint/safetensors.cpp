#include "lancet/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

namespace lancet::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t most_header = 1 << 30;  // however large the file is
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

Result<SafetensorsFile> SafetensorsFile::open(const std::filesystem::path& path, ExitCode refused) {
  LANCET_ASSIGN(InputFile opened, InputFile::open(path, "a safetensors file", refused));
  SafetensorsFile file(std::move(opened));
  LANCET_TRY(file.read_header());
  return file;
}

Status SafetensorsFile::read_header() {
  if (size() < length_bytes)
    return data_error(fmt::format("{}: expected a safetensors file, found {} bytes", path().string(), size()));
  std::uint64_t length = 0;
  LANCET_TRY(file_.read(0, std::as_writable_bytes(std::span(&length, 1))));
  const std::uint64_t most = std::min(size() - length_bytes, most_header);
  if (length > most)
    return data_error(
        fmt::format("{}: expected a header of at most {} bytes, found a length of {}", path().string(), most, length));
  std::string text(length_bytes + length, '\0');
  LANCET_TRY(file_.read(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  hash_ = hash64(text);
  data_start_ = text.size();
  LANCET_ASSIGN(header_, parse_safetensors_header(std::string_view(text).substr(length_bytes), size() - data_start_,
                                                  path().string()));
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
  return file_.read(data_start_ + tensor.begin + at, bytes);
}

// ---- writing

Status SafetensorsWriter::flush() {
  LANCET_TRY(write_all(*file_, pending_));
  pending_.clear();
  return {};
}

Status SafetensorsWriter::write(std::span<const std::byte> piece) {
  constexpr std::size_t small = 1 << 18;
  bytes_ += piece.size();
  if (pending_.size() + piece.size() > small) LANCET_TRY(flush());
  if (piece.size() > small) return write_all(*file_, piece);
  pending_.insert(pending_.end(), piece.begin(), piece.end());
  return {};
}

// Adds the file's next bytes to the hashes of the tensors that they belong to.
void SafetensorsWriter::hash(std::span<const std::byte> piece) {
  for (std::uint64_t at = bytes_;;) {
    while (hashes_.size() < ends_.size() && ends_[hashes_.size()] == at) {
      hashes_.push_back(hasher_.digest());
      hasher_ = Hasher();
    }
    if (piece.empty()) return;
    const std::size_t count = std::min<std::uint64_t>(piece.size(), ends_[hashes_.size()] - at);
    hasher_.update(piece.first(count));
    at += count;
    piece = piece.subspan(count);
  }
}

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
    LANCET_CHECK(++names[tensor.name] == 1, "{} appears twice in {}", tensor.name, path.string());
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", json_text(tensor.name),
                          tensor.dtype, lancet::to_string(tensor.shape), at, at + tensor.bytes());
    at += tensor.bytes();
  }
  if (header.back() == ',') header.pop_back();
  header += '}';
  header.resize((length_bytes + header.size() + alignment - 1) / alignment * alignment - length_bytes, ' ');
  LANCET_ASSIGN(auto file, files.create(path));
  SafetensorsWriter writer(std::move(file));
  const std::uint64_t length = header.size();
  header.insert(0, reinterpret_cast<const char*>(&length), length_bytes);
  writer.total_ = header.size() + at;
  writer.header_hash_ = hash64(header);
  for (std::uint64_t end = header.size(); const TensorInfo& tensor : tensors)
    writer.ends_.push_back(end += tensor.bytes());
  LANCET_TRY(writer.write(std::as_bytes(std::span(header.data(), header.size()))));
  return writer;
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  LANCET_CHECK(bytes.size() <= total_ - bytes_, "{} bytes more than the tensors have", bytes_ + bytes.size() - total_);
  hash(bytes);
  return write(bytes);
}

Status SafetensorsWriter::finish() {
  LANCET_CHECK(bytes_ == total_, "{} of {} bytes were written", bytes_, total_);
  hash({});  // empty tensors at the end
  LANCET_TRY(flush());
  LANCET_TRY(file_->sync());
  return file_->close();
}

}  // namespace lancet::checkpoint
