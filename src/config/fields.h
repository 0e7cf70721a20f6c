// The table of fields, one row per field. All code that handles the config field by field (parse, print, range check,
// describe) iterates over this table; it is the only list of the fields.
#pragma once
#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "lancet/config/config.h"

namespace lancet::config {

// Access to a member of any enumeration type through its words.
struct Choice {
  std::span<const std::string_view> words;  // in the order of the enumerators, from 0 on
  void* target;
  int (*get)(const void*);
  void (*set)(void*, int);
};

using Slot = std::variant<std::int64_t*, double*, bool*, std::string*, std::optional<std::int64_t>*,
                          std::optional<double>*, std::vector<std::int64_t>*, std::optional<RopeScaling>*, Choice>;

template <class... F>
struct Overloaded : F... {
  using F::operator()...;
};
template <class... F>
Overloaded(F...) -> Overloaded<F...>;

struct Range {
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  bool open_min = false;  // min itself is excluded
  bool open_max = false;  // max itself is excluded
  bool contains(double x) const { return (open_min ? x > min : x >= min) && (open_max ? x < max : x <= max); }
};
std::string to_string(const Range& range);  // ">= 1", "in [0, 1)"; empty without limits

// Where a field has an effect.
struct Condition {
  bool (*holds)(const Config& config, int ranks);
  std::string_view otherwise;  // where it has none, as in "a.b changes nothing OTHERWISE"
};

struct Field {
  std::string_view path;  // "model.n_layer"; top-level fields have no dot
  Slot (*slot)(Config&);  // a pointer to the value in a Config
  Range range;            // of numbers, and of those in a list
  std::string_view doc;
  const Condition* condition = nullptr;  // null: it always has an effect
  constexpr Field when(const Condition& has_effect) const { return {path, slot, range, doc, &has_effect}; }
  bool is_of(const Family& family) const;
};

// A key of the object model.rope_scaling.
struct RopeKey {
  std::string_view name;
  Slot (*slot)(RopeScaling&);
  Range range;
  std::string_view types;        // rope_types that have it
  std::string_view needed = {};  // those that have no default for it
  bool needed_by(RopeType type) const { return needed.find(config::name(type)) != needed.npos; }
  bool of(RopeType type) const { return types.find(config::name(type)) != types.npos; }
};
std::span<const RopeKey> rope_keys();

std::span<const Field> fields();
// The field of any family, or of this one; null if there is none.
const Field* find_field(std::string_view path);
const Field* find_field(std::string_view path, const Family& family);
// Writes `name` where the text has this field's path.
void replace_path(std::string& text, std::string_view path, std::string_view name);
// The text with the names that fields of other families have in it replaced by those of this one.
std::string in_names_of(const Family& family, std::string text);
// Those of the first family that has the field.
Config defaults_of(const Field& field);
bool is_section(std::string_view path);              // "model", "data", ...
std::string_view section_of(std::string_view path);  // "model.n_layer" -> "model"; "" at the top
std::string_view key_of(std::string_view path);      // "model.n_layer" -> "n_layer"
std::string value_text(const Slot& slot);            // the value as JSON

// The error of fields that do not fit together.
template <class... Args>
Error refused(fmt::format_string<Args...> text, Args&&... args) {
  return config_error("config: " + fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace lancet::config
