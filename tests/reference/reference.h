// Reads the reference runs of generate.py (content: README.md). A missing tensor or key throws InternalError with its
// name, so that a test cannot pass without a comparison.
#pragma once
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/base/json.h"
#include "lancet/base/shape.h"

namespace lancet::test {

class Reference {
 public:
  // name: a case of generate.py, e.g. "switch_adamw".
  static Reference load(const std::string& name) {
    return Reference(std::string(LANCET_SOURCE_DIR) + "/tests/reference/" + name + ".safetensors");
  }

  // Elements in row-major order. The spans live as long as this Reference.
  std::span<const float> f32(const std::string& name) const { return values(floats_, name, "F32"); }
  std::span<const std::int32_t> i32(const std::string& name) const { return values(integers_, name, "I32"); }
  // A tensor of one element: a step's loss, aux or grad_norm.
  float scalar(const std::string& name) const {
    const auto data = f32(name);
    LANCET_CHECK(data.size() == 1, "{}: {} is no scalar, it has {} elements", path_, name, data.size());
    return data[0];
  }
  const Shape& shape(const std::string& name) const {
    const auto at = shapes_.find(name);
    LANCET_CHECK(at != shapes_.end(), "{}: no tensor {}", path_, name);
    return at->second;
  }
  // The names that begin with prefix, without it, sorted. Never empty.
  std::vector<std::string> under(std::string_view prefix) const {
    std::vector<std::string> names;
    for (const auto& [name, shape] : shapes_)
      if (name.starts_with(prefix)) names.push_back(name.substr(prefix.size()));
    LANCET_CHECK(!names.empty(), "{}: no tensor under {}", path_, prefix);
    return names;
  }

  int steps() const { return has("steps") ? integer("steps") : 3; }

  // The case's settings, by their names in generate.py.
  bool has(const std::string& key) const { return settings_.count(key) > 0; }
  const std::string& text(const std::string& key) const {
    const auto at = settings_.find(key);
    LANCET_CHECK(at != settings_.end(), "{}: no setting {}", path_, key);
    return at->second;
  }
  double number(const std::string& key) const {
    const auto value = json_of(text(key));
    LANCET_CHECK(value.is_number(), "{}: {} is no number but {}", path_, key, text(key));
    return value.get<double>();
  }
  int integer(const std::string& key) const {
    const auto value = json_of(text(key));
    LANCET_CHECK(value.is_number_integer(), "{}: {} is no integer but {}", path_, key, text(key));
    return value.get<int>();
  }

 private:
  template <class T>
  using Tensors = std::map<std::string, std::vector<T>>;

  // The file: the header's length (8 bytes), the header (JSON), the data. All little-endian.
  explicit Reference(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_, std::ios::binary);
    LANCET_CHECK(file.is_open(), "{}: cannot be read", path_);
    const std::string bytes{std::istreambuf_iterator<char>(file), {}};
    std::uint64_t length = 0;
    LANCET_CHECK(bytes.size() >= sizeof length, "{}: {} bytes, no header", path_, bytes.size());
    std::memcpy(&length, bytes.data(), sizeof length);
    LANCET_CHECK(length <= bytes.size() - sizeof length, "{}: a header of {} in {} bytes", path_, length, bytes.size());
    const auto header = json_of(bytes.substr(sizeof length, length));
    LANCET_CHECK(header.is_object(), "{}: the header is no JSON object", path_);
    const auto data = std::string_view(bytes).substr(sizeof length + length);
    for (const auto& [name, entry] : header.items()) {
      if (name == "__metadata__")
        settings_ = entry.get<std::map<std::string, std::string>>();
      else
        add(name, entry, data);
    }
  }

  void add(const std::string& name, const nlohmann::json& entry, std::string_view data) {
    Shape shape;
    for (const auto& extent : entry.at("shape")) shape.push_back(extent.get<std::int64_t>());
    const auto begin = entry.at("data_offsets").at(0).get<std::size_t>();
    const auto end = entry.at("data_offsets").at(1).get<std::size_t>();
    const auto elements = static_cast<std::size_t>(shape.elements());
    LANCET_CHECK(begin <= end && end <= data.size() && end - begin == 4 * elements,
                 "{}: {} has bytes {} to {} of {} for {} elements", path_, name, begin, end, data.size(), elements);
    const auto copy_to = [&](auto& tensors) {
      auto& values = tensors[name];
      values.resize(elements);
      std::memcpy(values.data(), data.data() + begin, end - begin);
    };
    const auto dtype = entry.at("dtype").get<std::string>();
    LANCET_CHECK(dtype == "F32" || dtype == "I32", "{}: {} is {}, not F32 or I32", path_, name, dtype);
    if (dtype == "F32")
      copy_to(floats_);
    else
      copy_to(integers_);
    shapes_[name] = shape;
  }

  template <class T>
  std::span<const T> values(const Tensors<T>& tensors, const std::string& name, const char* dtype) const {
    const auto at = tensors.find(name);
    LANCET_CHECK(at != tensors.end(), "{}: no {} tensor {}", path_, dtype, name);
    return at->second;
  }

  std::string path_;
  std::map<std::string, std::string> settings_;
  std::map<std::string, Shape> shapes_;
  Tensors<float> floats_;
  Tensors<std::int32_t> integers_;
};

}  // namespace lancet::test
