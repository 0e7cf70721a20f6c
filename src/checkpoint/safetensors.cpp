#include "lancet/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <bit>
#include <cstring>

#include "lancet/base/json.h"
#include "lancet/base/shown.h"

namespace lancet::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

constexpr std::uint64_t length_bytes = 8;
constexpr std::uint64_t most_header = 100'000'000;  // as the format's reference implementation
constexpr std::uint64_t alignment = 64;

std::string quoted(const std::string& text) { return json_text(nlohmann::json(text)); }

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
    for (const auto& [key, value] : metadata) header += fmt::format("{}:{},", quoted(key), quoted(value));
    header.back() = '}';
    header += ',';
  }
  std::uint64_t at = 0;
  std::map<std::string_view, int> names;
  for (const TensorInfo& tensor : tensors) {
    LANCET_CHECK(element_bytes(tensor.dtype) > 0, "{}: the format has no dtype {}", tensor.name, tensor.dtype);
    LANCET_CHECK(++names[tensor.name] == 1, "{} appears twice in {}", tensor.name, path.string());
    header += fmt::format("{}:{{\"dtype\":\"{}\",\"shape\":[{}],\"data_offsets\":[{},{}]}},", quoted(tensor.name),
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

namespace {

using nlohmann::json;

struct Dtype {
  std::string_view name;
  int bytes;
};
constexpr Dtype dtypes[] = {{"F32", 4}, {"BF16", 2}, {"F16", 2},  {"F64", 8},     {"I64", 8},
                            {"I32", 4}, {"I16", 2},  {"I8", 1},   {"U64", 8},     {"U32", 4},
                            {"U16", 2}, {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

// Checks one tensor by itself: its fields, its offsets, and that its size fits its shape.
Result<TensorInfo> tensor_of(const std::string& name, const json& value, std::uint64_t data_bytes,
                             std::string_view origin) {
  const auto wrong = [&](const std::string& text) {
    return data_error(fmt::format("{}: {}: {}", origin, shown(name), text));
  };
  if (name.empty()) return wrong("expected a name");
  if (!value.is_object() || value.size() != 3 || !value.contains("dtype") || !value.contains("shape") ||
      !value.contains("data_offsets"))
    return wrong("expected an object of dtype, shape and data_offsets, found " + shown(value));
  const std::string dtype = value["dtype"].is_string() ? value["dtype"].get<std::string>() : "";
  if (element_bytes(dtype) == 0) return wrong("expected a dtype of the format, found " + shown(value["dtype"]));
  for (const char* key : {"shape", "data_offsets"})
    if (!value[key].is_array() || !std::ranges::all_of(value[key], &json::is_number_unsigned))
      return wrong(fmt::format("expected a list of whole numbers for {}, found {}", key, shown(value[key])));
  const auto shape = value["shape"].get<std::vector<std::uint64_t>>();
  const auto offsets = value["data_offsets"].get<std::vector<std::uint64_t>>();
  if (shape.size() > std::size_t(Shape::max_rank))
    return wrong(fmt::format("expected at most {} axes, found {}", Shape::max_rank, shape.size()));
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes)
    return wrong(fmt::format("expected data_offsets [begin, end] in the file's {} bytes of data, found [{}]",
                             data_bytes, fmt::join(offsets, ", ")));
  TensorInfo tensor{name, dtype, {}, offsets[0]};
  std::uint64_t bytes = std::uint64_t(element_bytes(dtype));
  bool overflow = false, empty = false;
  for (const std::uint64_t extent : shape) {
    overflow |= extent > std::uint64_t{1} << 62;
    empty |= extent == 0;
    overflow |= __builtin_mul_overflow(bytes, std::max<std::uint64_t>(extent, 1), &bytes);
    if (!overflow) tensor.shape.push_back(std::int64_t(extent));
  }
  if (!overflow && empty) bytes = 0;
  if (overflow || bytes > std::uint64_t{1} << 62 || bytes != offsets[1] - offsets[0])
    return wrong(fmt::format("expected as many bytes as {}[{}] has, found {}", dtype, fmt::join(shape, ","),
                             offsets[1] - offsets[0]));
  return tensor;
}

Status check_cover(std::span<const TensorInfo> tensors, std::uint64_t data_bytes, std::string_view origin) {
  std::uint64_t end = 0;
  for (const TensorInfo& tensor : tensors) {
    if (tensor.begin != end)
      return data_error(
          fmt::format("{}: {}: expected its bytes to begin at {}, the end of the previous tensor, found {}", origin,
                      shown(tensor.name), end, tensor.begin));
    end += tensor.bytes();
  }
  if (end != data_bytes)
    return data_error(fmt::format("{}: expected {} bytes of data, found {}", origin, end, data_bytes));
  return {};
}

}  // namespace

int element_bytes(std::string_view dtype) {
  for (const Dtype& known : dtypes)
    if (known.name == dtype) return known.bytes;
  return 0;
}

std::string to_string(const TensorInfo& tensor) {
  return fmt::format("{}[{}]", tensor.dtype, lancet::to_string(tensor.shape));
}

Result<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                                   std::string_view origin) {
  LANCET_ASSIGN(const json root, parse_json(text, fmt::format("{}: header", origin), ExitCode::data));
  if (!root.is_object())
    return data_error(fmt::format("{}: header: expected an object of tensors, found {}", origin, shown(root)));
  SafetensorsHeader header;
  for (const auto& [name, value] : root.items()) {
    if (name == "__metadata__") {
      if (value.is_null()) continue;
      if (!value.is_object() || !std::ranges::all_of(value, &json::is_string))
        return data_error(fmt::format("{}: __metadata__: expected an object of texts, found {}", origin, shown(value)));
      header.metadata = value.get<Metadata>();
      continue;
    }
    LANCET_ASSIGN(TensorInfo tensor, tensor_of(name, value, data_bytes, origin));
    header.tensors.push_back(std::move(tensor));
  }
  // An empty tensor is sorted before the other tensor with the same offset.
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.bytes() > 0) < std::pair(b.begin, b.bytes() > 0);
  });
  LANCET_TRY(check_cover(header.tensors, data_bytes, origin));
  return header;
}

namespace {

constexpr std::uint32_t exponent = 0x7f800000;  // all ones: infinity or NaN

std::uint32_t exponent_of(std::span<const std::byte> floats, std::size_t i) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, floats.data() + i * sizeof bits, sizeof bits);
  return bits & exponent;
}

bool all_finite(std::span<const std::byte> floats) {
  constexpr std::size_t group = 32;  // the inner loop has a fixed length and no branch, so the compiler vectorises it
  const std::size_t count = floats.size() / sizeof(float);
  std::uint32_t found = 0;
  std::size_t i = 0;
  for (; i + group <= count && !found; i += group)
    for (std::size_t k = 0; k < group; ++k) found |= exponent_of(floats, i + k) == exponent;
  for (; i < count; ++i) found |= exponent_of(floats, i) == exponent;
  return !found;
}

}  // namespace

Status check_finite(const TensorInfo& tensor, std::uint64_t at, std::span<const std::byte> piece) {
  if (all_finite(piece)) return {};
  std::size_t first = 0;
  while (exponent_of(piece, first) != exponent) ++first;
  return data_error(fmt::format("{}: expected finite numbers, found a non-finite one at element {}", tensor.name,
                                at / sizeof(float) + first));
}

}  // namespace lancet::checkpoint
