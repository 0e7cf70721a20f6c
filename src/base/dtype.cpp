#include "lancet/base/dtype.h"

#include <array>

namespace lancet {
namespace {

struct Row {
  DType dtype;
  std::string_view name;
  int size;
};
constexpr std::array<Row, 4> rows{
    {{DType::f32, "f32", 4}, {DType::bf16, "bf16", 2}, {DType::i32, "i32", 4}, {DType::i64, "i64", 8}}};

}  // namespace

std::string_view name(DType dtype) { return rows[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> parse_dtype(std::string_view text) {
  for (const Row& row : rows)
    if (row.name == text) return row.dtype;
  return std::nullopt;
}

int size_of(DType dtype) { return rows[static_cast<std::size_t>(dtype)].size; }

}  // namespace lancet
