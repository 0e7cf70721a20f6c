#include "lancet/checkpoint/safetensors.h"

#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

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

// Parses the header with nlohmann's event interface (sax_parse), without a tree: only the known keys are stored, so a
// hostile header can neither use more memory than its text has nor nest deeply. Handler checks the grammar event by
// event, tensor_of the dtype, shape and offsets of one tensor, check_cover that the tensors cover the data without
// overlap or gap.
namespace {

using nlohmann::json;

struct Dtype {
  std::string_view name;
  int bytes;
};
constexpr Dtype dtypes[] = {{"F32", 4}, {"BF16", 2}, {"F16", 2},  {"F64", 8},     {"I64", 8},
                            {"I32", 4}, {"I16", 2},  {"I8", 1},   {"U64", 8},     {"U32", 4},
                            {"U16", 2}, {"U8", 1},   {"BOOL", 1}, {"F8_E4M3", 1}, {"F8_E5M2", 1}};

struct RawTensor {
  std::string name, dtype;
  std::vector<std::uint64_t> shape, offsets;
  bool has_dtype = false, has_shape = false, has_offsets = false;
};

// Receives the parser's events. A return value of false stops the parser; error_ then holds the reason.
class Handler {
 public:
  bool null() { return unexpected("null"); }
  bool boolean(bool) { return unexpected("a boolean"); }
  bool number_integer(json::number_integer_t) { return unexpected("a negative number"); }
  bool number_float(json::number_float_t, const std::string&) { return unexpected("a fraction"); }
  bool binary(json::binary_t&) { return unexpected("binary data"); }
  bool number_unsigned(json::number_unsigned_t value) {
    if (!list_) return unexpected("a number");
    if (list_->size() >= most_) return fail(fmt::format("expected at most {} numbers", most_), "more");
    list_->push_back(value);
    return true;
  }
  bool string(std::string& value) {
    if (where_ == Where::metadata) {
      metadata[key_] = value;
      return true;
    }
    if (where_ == Where::tensor && key_ == "dtype" && !list_) {
      tensors.back().dtype = value;
      tensors.back().has_dtype = true;
      return true;
    }
    return unexpected("a string");
  }
  bool start_object(std::size_t) {
    if (where_ == Where::outside) return where_ = Where::top, true;
    if (where_ != Where::top || list_) return unexpected("an object");
    where_ = key_ == "__metadata__" ? Where::metadata : Where::tensor;
    if (where_ == Where::tensor) tensors.emplace_back().name = key_;
    return true;
  }
  bool end_object() {
    if (where_ == Where::tensor) {
      const RawTensor& tensor = tensors.back();
      if (!tensor.has_dtype || !tensor.has_shape || !tensor.has_offsets)
        return fail("expected dtype, shape and data_offsets", "fewer");
    }
    where_ = where_ == Where::top ? Where::outside : Where::top;
    inner_.clear();
    return true;
  }
  bool key(std::string& value) {
    key_ = value;
    if (where_ == Where::top) {
      tensor_ = value;
      if (value.empty()) return fail("expected a name", "an empty one");
      return seen_.insert(value).second || fail("expected each name once", "it twice");
    }
    if (!inner_.insert(value).second) return fail("expected each key once", shown(value) + " twice");
    if (where_ == Where::tensor && value != "dtype" && value != "shape" && value != "data_offsets")
      return fail("expected dtype, shape and data_offsets", shown(value));
    return true;
  }
  bool start_array(std::size_t) {
    if (where_ != Where::tensor || list_ || (key_ != "shape" && key_ != "data_offsets")) return unexpected("a list");
    RawTensor& tensor = tensors.back();
    const bool shape = key_ == "shape";
    (shape ? tensor.has_shape : tensor.has_offsets) = true;
    list_ = shape ? &tensor.shape : &tensor.offsets;
    most_ = shape ? std::size_t(Shape::max_rank) : 2;
    return true;
  }
  bool end_array() {
    list_ = nullptr;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const json::exception&) {
    return fail("expected JSON", fmt::format("none at byte {}", position));
  }

  std::vector<RawTensor> tensors;
  Metadata metadata;
  const std::string& error() const { return error_; }

 private:
  enum class Where { outside, top, tensor, metadata };
  bool fail(std::string_view expected, std::string_view found) {
    if (error_.empty())
      error_ = fmt::format("{}{}, found {}", tensor_.empty() ? "" : shown(tensor_) + ": ", expected, found);
    return false;
  }
  bool unexpected(std::string_view found) {
    if (where_ == Where::outside) return fail("expected an object of tensors", found);
    if (where_ == Where::top) return fail("expected a tensor's object", found);
    if (where_ == Where::metadata) return fail("expected a text for " + shown(key_), found);
    return fail("expected " + std::string(key_ == "dtype" ? "a text" : "a list of whole numbers") + " for " + key_,
                found);
  }

  Where where_ = Where::outside;
  std::string key_, tensor_, error_;
  std::vector<std::uint64_t>* list_ = nullptr;
  std::size_t most_ = 0;
  std::set<std::string> seen_, inner_;
};

// Checks one tensor by itself: its dtype, its offsets, and that its size fits its shape.
Result<TensorInfo> tensor_of(const RawTensor& raw, std::uint64_t data_bytes, std::string_view origin) {
  auto wrong = [&](const std::string& text) {
    return data_error(fmt::format("{}: {}: {}", origin, shown(raw.name), text));
  };
  const int element = element_bytes(raw.dtype);
  if (element == 0) return wrong("expected a dtype of the format, found " + shown(raw.dtype));
  if (raw.offsets.size() != 2 || raw.offsets[0] > raw.offsets[1] || raw.offsets[1] > data_bytes)
    return wrong(fmt::format("expected data_offsets [begin, end] in the file's {} bytes of data, found [{}]",
                             data_bytes, fmt::join(raw.offsets, ", ")));
  TensorInfo tensor{raw.name, raw.dtype, {}, raw.offsets[0]};
  std::uint64_t bytes = std::uint64_t(element);
  bool overflow = false, empty = false;
  for (const std::uint64_t extent : raw.shape) {
    overflow |= extent > std::uint64_t{1} << 62;
    empty |= extent == 0;
    overflow |= __builtin_mul_overflow(bytes, std::max<std::uint64_t>(extent, 1), &bytes);
    if (!overflow) tensor.shape.push_back(std::int64_t(extent));
  }
  if (!overflow && empty) bytes = 0;
  if (overflow || bytes > std::uint64_t{1} << 62 || bytes != raw.offsets[1] - raw.offsets[0])
    return wrong(fmt::format("expected as many bytes as {}[{}] has, found {}", raw.dtype, fmt::join(raw.shape, ","),
                             raw.offsets[1] - raw.offsets[0]));
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
  Handler handler;
  if (!json::sax_parse(text.begin(), text.end(), &handler))
    return data_error(fmt::format("{}: header: {}", origin, handler.error()));
  SafetensorsHeader header;
  header.metadata = std::move(handler.metadata);
  for (const RawTensor& raw : handler.tensors) {
    LANCET_ASSIGN(TensorInfo tensor, tensor_of(raw, data_bytes, origin));
    header.tensors.push_back(std::move(tensor));
  }
  // An empty tensor is sorted before the other tensor with the same offset.
  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.bytes() > 0) < std::pair(b.begin, b.bytes() > 0);
  });
  LANCET_TRY(check_cover(header.tensors, data_bytes, origin));
  return header;
}

}  // namespace lancet::checkpoint
