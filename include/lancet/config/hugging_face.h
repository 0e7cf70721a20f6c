// How a family's models look in Hugging Face's files, as data: the names of tensors, and of config.json's fields that
// are not fields of ours. src/models interprets the tensors, src/config the fields.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>

#include "lancet/config/config.h"

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

struct FileFormat {
  std::string_view architecture;  // of config.json
  std::string_view prefix;        // of tensors' names, which may be missing in a file
  // Rows of parameters that a model has not are passed over.
  std::span<const FileTensor> tensors, expert_tensors = {};
  std::span<const std::string_view> buffers = {};  // ends of the names of tensors that carry no weights
};

const FileFormat& file_format(ModelType type);

}  // namespace lancet::config
