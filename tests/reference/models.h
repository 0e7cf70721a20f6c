// Small models in Hugging Face's format, which generate_hugging_face.py and generate_families.py write.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

namespace lancet::test {

inline std::filesystem::path reference_model(const std::string& name) {
  return std::filesystem::path(LANCET_SOURCE_DIR) / "tests/reference/hugging_face" / name;
}

// The folders' names, in order.
inline std::vector<std::string> reference_models() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(reference_model("")))
    names.push_back(entry.path().filename());
  std::ranges::sort(names);
  return names;
}

}  // namespace lancet::test
