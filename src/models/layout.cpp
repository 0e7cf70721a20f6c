#include "layout.h"

#include <array>

#include "lancet/base/check.h"

namespace lancet::models {
namespace {

using config::FilePart;
using config::FileTensor;

// "h.12.ln_1.weight" is "h.N.ln_1.weight" and "12".
std::pair<std::string, std::string> pattern_of(const std::string& parameter) {
  if (!parameter.starts_with("h.")) return {parameter, ""};
  const std::size_t end = parameter.find('.', 2);
  return {"h.N" + parameter.substr(end), parameter.substr(2, end - 2)};
}

// Replaces a component of a name, which it has once at most.
std::string filled(std::string name, std::string_view component, const std::string& number) {
  if (const auto at = name.find(component); at != name.npos) name.replace(at + 1, 1, number);
  return name;
}

struct Rows {
  std::int64_t tensor_row, count, row, step = 1;
};

// The rows of an expert, or of a parameter without experts, that a part of it has.
std::vector<Rows> rows_of(const config::Model& model, FilePart part, std::int64_t rows) {
  const std::int64_t queries = model.n_head * model.head_size(), keys = model.key_heads() * model.head_size();
  switch (part) {
    case FilePart::query:
      return {{0, queries, 0}};
    case FilePart::key:
      return {{0, keys, queries}};
    case FilePart::value:
      return {{0, keys, queries + keys}};
    case FilePart::gate:
      return {{0, rows / 2, 0, 2}};
    case FilePart::up:
      return {{0, rows / 2, 1, 2}};
    case FilePart::gate_up:
      return {{0, rows / 2, 0, 2}, {rows / 2, rows / 2, 1, 2}};
    case FilePart::whole:
    case FilePart::transposed:
      break;
  }
  return {{0, rows, 0}};
}

void add(Layout& layout, const config::Model& model, const model::Parameter& parameter, const FileTensor& entry,
         std::int64_t expert) {
  const bool stacked = parameter.is_experts && entry.tensor.find(".E.") == entry.tensor.npos;
  const std::vector<Rows> parts = rows_of(model, entry.part, layout.rows);
  const std::int64_t height = parts.back().tensor_row + parts.back().count;
  Piece piece;
  piece.tensor = filled(filled(std::string(entry.tensor), ".N.", pattern_of(parameter.name).second), ".E.",
                        std::to_string(expert));
  piece.transposed = entry.part == FilePart::transposed;
  if (stacked) piece.shape.push_back(parameter.shape[0]);
  const bool is_matrix = parameter.shape.rank() - int(parameter.is_experts) > 1;
  if (piece.transposed) piece.shape.push_back(layout.columns);
  piece.shape.push_back(height);
  if (is_matrix && !piece.transposed) piece.shape.push_back(layout.columns);
  for (const Rows& part : parts) {
    piece.tensor_row = part.tensor_row + (stacked ? expert * height : 0);
    piece.count = part.count;
    piece.row = expert * layout.rows + part.row;
    piece.step = part.step;
    layout.pieces.push_back(piece);
  }
}

}  // namespace

std::vector<Layout> layouts_of(const config::Model& model, const model::Parameter& parameter) {
  const config::FileFormat& format = model.family().file;
  const int first = int(parameter.is_experts);
  const bool is_matrix = parameter.shape.rank() - first > 1;
  Layout empty;
  empty.columns = is_matrix ? parameter.shape.back() : 1;
  empty.rows = parameter.shape[first] - parameter.unused / empty.columns;
  const std::string pattern = pattern_of(parameter.name).first;
  std::vector<Layout> layouts;
  for (std::int64_t expert = 0; expert < (parameter.is_experts ? parameter.shape[0] : 1); ++expert)
    for (const auto& table : format.tensors)
      for (const FileTensor& entry : table) {
        if (entry.parameter != pattern) continue;
        layouts.resize(std::max(layouts.size(), std::size_t(entry.layout) + 1), empty);
        add(layouts[std::size_t(entry.layout)], model, parameter, entry, expert);
      }
  LANCET_CHECK(!layouts.empty(), "{}: no tensor of a file is this parameter", parameter.name);
  return layouts;
}

}  // namespace lancet::models
