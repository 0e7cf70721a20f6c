// The table of families.
#include "lancet/config/family.h"

#include <vector>

namespace lancet::config {

namespace families {
extern const Family dots1, llama, mixtral, olmoe, qwen2_moe, qwen3, qwen3_moe;
}

std::span<const Family* const> families_known() {
  using namespace families;
  static constexpr const Family* all[] = {&gpt2, &dots1, &llama, &mixtral, &olmoe, &qwen2_moe, &qwen3, &qwen3_moe};
  return all;
}

std::span<const std::string_view> family_names() {
  static const std::vector<std::string_view> names = [] {
    std::vector<std::string_view> found;
    for (const Family* family : families_known()) found.push_back(family->name);
    return found;
  }();
  return names;
}

const Family* find_family(std::string_view name) {
  for (const Family* family : families_known())
    if (family->name == name) return family;
  return nullptr;
}

}  // namespace lancet::config
