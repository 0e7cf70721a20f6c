// Which tensor of a Hugging Face file is which parameter of ours.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/base/shape.h"
#include "lancet/config/config.h"

namespace lancet::hugging_face {

struct Entry {
  std::string name;          // without "transformer."
  Shape shape;               // in the file
  std::string parameter;     // ours
  std::int64_t expert = -1;  // of the parameter's first axis; -1: the file's tensor is the whole parameter
  bool transposed = false;   // a Conv1D: [in, out] in the file, [out, in] here
};

// f(entry) in the order in which the model meets them, up to the first error; every parameter of ours occurs. Of a
// vocabulary that we pad, the file has the rows of real tokens.
Status for_each_entry(const config::Model& model, const std::function<Status(const Entry&)>& f);
std::vector<Entry> entries(const config::Model& model);

// Buffers that older files hold besides: causal masks of attention. They carry nothing.
bool is_buffer(std::string_view name);

inline constexpr std::string_view prefix = "transformer.";
inline constexpr std::string_view tied_head = "lm_head.weight";  // the same as wte.weight where it is there
inline constexpr std::string_view single_file = "model.safetensors";
inline constexpr std::string_view index_file = "model.safetensors.index.json";

}  // namespace lancet::hugging_face
