// Maps the tensors of a Hugging Face file to the parameters of the model.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/base/shape.h"
#include "lancet/config/config.h"

namespace lancet::models {

struct Entry {
  std::string name;          // without "transformer."
  Shape shape;               // in the file
  std::string parameter;     // name in the model
  std::int64_t expert = -1;  // of the parameter's first axis; -1: the file's tensor is the whole parameter
  bool transposed = false;   // a Conv1D: [in, out] in the file, [out, in] here
};

// Calls f(entry) for all tensors in the order in which the model uses them, until the first error. Every parameter of
// the model occurs. Of a padded vocabulary, the file holds the rows of real tokens alone.
Status for_each_entry(const config::Model& model, const std::function<Status(const Entry&)>& f);
std::vector<Entry> entries(const config::Model& model);

// True for the causal masks of attention, which older files contain and which carry no weights.
bool is_buffer(std::string_view name);

inline constexpr std::string_view prefix = "transformer.";
inline constexpr std::string_view tied_head = "lm_head.weight";  // optional; the same values as wte.weight
inline constexpr std::string_view single_file = "model.safetensors";
inline constexpr std::string_view index_file = "model.safetensors.index.json";

}  // namespace lancet::models
