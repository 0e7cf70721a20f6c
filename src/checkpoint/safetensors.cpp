#include "lancet/checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "lancet/base/hash.h"
#include "lancet/base/shown.h"

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
  SafetensorsFile file(path, std::move(opened));
  LANCET_TRY(file.read_header());
  return file;
}

Status SafetensorsFile::read_header() {
  if (size() < length_bytes)
    return data_error(fmt::format("{}: expected a safetensors file, found {} bytes", path_.string(), size()));
  std::uint64_t length = 0;
  LANCET_TRY(file_.read(0, std::as_writable_bytes(std::span(&length, 1))));
  const std::uint64_t most = std::min(size() - length_bytes, most_header);
  if (length > most)
    return data_error(
        fmt::format("{}: expected a header of at most {} bytes, found a length of {}", path_.string(), most, length));
  std::string text(length_bytes + length, '\0');
  LANCET_TRY(file_.read(0, std::as_writable_bytes(std::span(text.data(), text.size()))));
  hash_ = hash64(text);
  data_start_ = text.size();
  LANCET_ASSIGN(header_, parse_safetensors_header(std::string_view(text).substr(length_bytes), size() - data_start_,
                                                  path_.string()));
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

struct SafetensorsWriter::State {
  std::unique_ptr<OutputFile> file;
  std::vector<std::uint64_t> ends;  // offset in the file of each tensor's end
  std::uint64_t header_hash = 0;
  std::vector<std::uint64_t> hashes;  // of the complete tensors
  Hasher hasher;                      // of the next one
  std::vector<std::byte> pending;     // small pieces, collected for one write
  std::uint64_t bytes = 0;            // of the file, including pending ones
  std::uint64_t total = 0;            // of the complete file

  Status flush() {
    LANCET_TRY(write_all(*file, pending));
    pending.clear();
    return {};
  }
  Status write(std::span<const std::byte> piece) {
    constexpr std::size_t small = 1 << 18;
    bytes += piece.size();
    if (pending.size() + piece.size() > small) LANCET_TRY(flush());
    if (piece.size() > small) return write_all(*file, piece);
    pending.insert(pending.end(), piece.begin(), piece.end());
    return {};
  }
  // Adds bytes from offset `at` of the file on to the hashes of the tensors that they belong to.
  void hash(std::uint64_t at, std::span<const std::byte> piece) {
    for (;;) {
      while (hashes.size() < ends.size() && ends[hashes.size()] == at) {
        hashes.push_back(hasher.digest());
        hasher = Hasher();
      }
      if (piece.empty()) return;
      const std::size_t count = std::min<std::uint64_t>(piece.size(), ends[hashes.size()] - at);
      hasher.update(piece.first(count));
      at += count;
      piece = piece.subspan(count);
    }
  }
};

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsWriter::~SafetensorsWriter() = default;
SafetensorsWriter::SafetensorsWriter(SafetensorsWriter&&) noexcept = default;
SafetensorsWriter& SafetensorsWriter::operator=(SafetensorsWriter&&) noexcept = default;
std::uint64_t SafetensorsWriter::bytes() const { return state_->bytes; }
std::uint64_t SafetensorsWriter::header_hash() const { return state_->header_hash; }
const std::vector<std::uint64_t>& SafetensorsWriter::tensor_hashes() const { return state_->hashes; }

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
  auto state = std::make_unique<State>();
  LANCET_ASSIGN(state->file, files.create(path));
  const std::uint64_t length = header.size();
  header.insert(0, reinterpret_cast<const char*>(&length), length_bytes);
  state->total = header.size() + at;
  state->header_hash = hash64(header);
  for (std::uint64_t end = header.size(); const TensorInfo& tensor : tensors)
    state->ends.push_back(end += tensor.bytes());
  LANCET_TRY(state->write(std::as_bytes(std::span(header.data(), header.size()))));
  return SafetensorsWriter(std::move(state));
}

Status SafetensorsWriter::append(std::span<const std::byte> bytes) {
  State& s = *state_;
  LANCET_CHECK(bytes.size() <= s.total - s.bytes, "{} bytes more than the tensors have",
               s.bytes + bytes.size() - s.total);
  s.hash(s.bytes, bytes);
  return s.write(bytes);
}

Status SafetensorsWriter::finish() {
  LANCET_CHECK(state_->bytes == state_->total, "{} of {} bytes were written", state_->bytes, state_->total);
  state_->hash(state_->bytes, {});  // empty tensors at the end
  LANCET_TRY(state_->flush());
  LANCET_TRY(state_->file->sync());
  return state_->file->close();
}

}  // namespace lancet::checkpoint
