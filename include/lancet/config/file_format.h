// How a family's models look in Hugging Face's files, as data: the names of tensors, and of config.json's fields.
// src/models interprets the tensors, hugging_face.cpp the fields.
#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

namespace lancet::config {

// The rows of a parameter that a tensor holds. A parameter's gate and up are rows side by side (gate_0, up_0, ...).
enum class FilePart : std::uint8_t {
  whole,
  transposed,  // [in, out]; parameters are [out, in]
  query,
  key,
  value,  // of c_attn
  gate,
  up,      // of c_fc
  gate_up  // all gates, then all ups
};

// One tensor of a parameter. N in the names is any block, E any expert; without E, the tensor of a parameter of experts
// has all of them along its first axis.
struct FileTensor {
  std::string_view parameter, tensor;
  FilePart part = FilePart::whole;
  // A parameter may be stored in several ways. A file has one of them, and exports the first.
  int layout = 0;
};

// A field of config.json that is a field of ours under the same name.
struct FileField {
  std::string_view name;
  bool needed = false;               // the family has no default for it
  std::string_view other_name = {};  // which files have, too
};

// A field that would make another model of the same tensors, with the only value that is supported; a missing field has
// it.
struct FixedField {
  std::string_view name, value;      // as JSON
  std::string_view synonyms = "[]";  // other values of the same meaning
  bool any = false;                  // any other value is fine, too: it changes nothing here
};

// Tables are in parts, which families share.
struct FileFormat {
  std::string_view architecture;  // of config.json
  std::string_view prefix;        // of tensors' names, which may be missing in a file
  // Rows of parameters that a model has not are passed over.
  std::array<std::span<const FileTensor>, 3> tensors;
  std::span<const std::string_view> buffers = {};  // ends of the names of tensors that carry no weights
  // Of config.json, in the order in which exports write them; those that the family has.
  std::span<const FileField> fields;
  std::array<std::span<const FixedField>, 2> fixed;
  std::span<const std::string_view> unused = {};  // fields that change nothing here, besides those of all families
  // The blocks from config.json's max_window_layers on have windows, unless its layer_types says which; this is the
  // default. Null: the family has no such rule.
  std::optional<std::int64_t> first_window = {};
  // GPT-2's mixtures of experts have a model_type of their own, which transformers does not know.
  std::string_view moe_type = {}, moe_architecture = {};
  std::span<const FileField> moe_fields = {};  // more fields of models with experts
};

}  // namespace lancet::config
