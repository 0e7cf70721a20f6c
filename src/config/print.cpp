// Texts of a config: its JSON, and the help.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "fields.h"
#include "lancet/base/json.h"

namespace lancet::config {
namespace {

std::string rope_text(RopeScaling scaling) {
  std::string text;
  for (const RopeKey& key : rope_keys()) {
    if (!key.of(scaling.rope_type)) continue;
    // transformers reads a member that is null in place of its default.
    if (const std::string value = value_text(key.slot(scaling)); value != "null")
      text += fmt::format("{}\"{}\": {}", text.empty() ? "" : ", ", key.name, value);
  }
  return "{" + text + "}";
}

// The shortest text that parses back to the same double: 5, not 5.0.
std::string number_text(double x) { return fmt::format("{}", x); }

// The families whose models have a field; empty if all have it.
std::string families_text(const Field& field) {
  std::vector<std::string_view> of;
  for (const Family* family : families_known())
    if (field.is_of(*family)) of.push_back(family->name);
  return of.size() == families_known().size() ? std::string() : fmt::format("{}", fmt::join(of, ", "));
}

// The words of a choice or the range of a number; empty for other fields.
std::string values_text(const Field& field, const Slot& slot) {
  const Choice* choice = std::get_if<Choice>(&slot);
  return choice ? fmt::format("{}", fmt::join(choice->words, "|")) : to_string(field.range);
}

}  // namespace

std::string to_string(const Range& range) {
  const bool low = std::isfinite(range.min), high = std::isfinite(range.max);
  if (low && high)
    return fmt::format("in {}{}, {}{}", range.open_min ? '(' : '[', range.min, range.max, range.open_max ? ')' : ']');
  if (low) return fmt::format("{} {}", range.open_min ? ">" : ">=", range.min);
  if (high) return fmt::format("{} {}", range.open_max ? "<" : "<=", range.max);
  return {};
}

std::string value_text(const Slot& slot) {
  return std::visit(
      Overloaded{
          [](const std::int64_t* x) { return std::to_string(*x); },
          [](const double* x) { return number_text(*x); },
          [](const bool* x) { return std::string(*x ? "true" : "false"); },
          [](const std::string* x) { return json_text(nlohmann::json(*x), {.strict = true}); },
          [](const std::optional<std::int64_t>* x) { return *x ? std::to_string(**x) : std::string("null"); },
          [](const std::optional<double>* x) { return *x ? number_text(**x) : std::string("null"); },
          [](const std::vector<std::int64_t>* x) { return fmt::format("[{}]", fmt::join(*x, ", ")); },
          [](const std::optional<RopeScaling>* x) { return *x ? rope_text(**x) : std::string("null"); },
          [](const Choice& x) { return fmt::format("\"{}\"", x.words[std::size_t(x.get(x.target))]); },
      },
      slot);
}

std::string describe() {
  std::string text;
  std::string_view section = "?";
  for (const Field& field : fields()) {
    if (section_of(field.path) != section) {
      section = section_of(field.path);
      text += section.empty() ? "(top level)\n" : fmt::format("{}\n", section);
    }
    Config defaults = defaults_of(field);
    const Slot slot = field.slot(defaults);
    std::string note = values_text(field, slot);
    if (!note.empty() && !field.doc.empty()) note += "; ";
    note += field.doc;
    if (const std::string families = families_text(field); !families.empty()) note = families + ": " + note;
    text += fmt::format("  {:<28} {:<12} {}\n", key_of(field.path), value_text(slot), note);
  }
  return text;
}

std::string to_json(const Config& config) {
  Config copy = config;  // slots point into a Config that may be written
  std::string text = "{";
  std::string_view open = "";
  bool first = true;
  for (const Field& field : fields()) {
    if (field.path == "model.from") continue;  // other fields have what it stands for
    if (!field.is_of(config.model.family())) continue;
    const std::string_view section = section_of(field.path);
    if (section != open) {
      if (!open.empty()) text += "\n  }";
      if (!section.empty()) text += fmt::format("{}\n  \"{}\": {{", first ? "" : ",", section);
      first = !section.empty();
      open = section;
    }
    text += fmt::format("{}\n{}\"{}\": {}", first ? "" : ",", section.empty() ? "  " : "    ", key_of(field.path),
                        value_text(field.slot(copy)));
    first = false;
  }
  text += open.empty() ? "\n}\n" : "\n  }\n}\n";
  return text;
}

}  // namespace lancet::config
