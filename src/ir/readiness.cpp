#include "lancet/ir/readiness.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

namespace lancet::ir {
namespace {

constexpr std::int64_t most_rows = std::int64_t{1} << 40;  // as a shape's extents

bool is_signals(const Program& program, TensorId id) { return program.type(id).dtype == DType::signals; }

}  // namespace

TensorId signals_of(const Program& program, const Instruction& instruction) {
  const auto& results = instruction.results;
  const auto found = std::ranges::find_if(results, [&](TensorId id) { return is_signals(program, id); });
  return found == results.end() ? TensorId{} : *found;
}

bool uses_signals(const Program& program, const Instruction& instruction) {
  return signals_of(program, instruction).valid() ||
         std::ranges::any_of(instruction.operands, [&](TensorId id) { return is_signals(program, id); });
}

Result<std::int64_t> rows_per_signal(const Attributes& attributes) {
  constexpr std::string_view unit = "rows/";
  for (const auto& [name, value] : attributes.items()) {
    const auto* text = std::get_if<std::string>(&value);
    if (name != readiness || !text || !text->starts_with(unit)) continue;
    std::int64_t rows = 0;
    const char* end = text->data() + text->size();
    const auto [stop, error] = std::from_chars(text->data() + unit.size(), end, rows);
    if (error == std::errc() && stop == end && rows >= 1 && rows < most_rows) return rows;
  }
  return internal_error("expected readiness=rows/N with N of at least 1");
}

std::int64_t signal_count(const Shape& shape, std::int64_t rows_per_signal) {
  const std::int64_t rows = shape[-2];
  return rows == 0 ? 0 : shape.rows() / rows * ((rows + rows_per_signal - 1) / rows_per_signal);
}

Status verify_readiness(const Program& program, const Instruction& instruction) {
  const TensorId signals = signals_of(program, instruction);
  if (!signals.valid()) {
    if (!instruction.attributes.has(readiness)) return {};
    return internal_error("expected signals among the results of an instruction with readiness");
  }
  if (std::ranges::count_if(instruction.results, [&](TensorId id) { return is_signals(program, id); }) > 1)
    return internal_error("expected one result of signals");
  const TensorType& announced = program.type(instruction.results.front());
  if (announced.shape.rank() < 2)
    return internal_error("expected a first result of rows, [..., R, D], which the signals announce");
  LANCET_ASSIGN(const std::int64_t rows, rows_per_signal(instruction.attributes));
  const std::int64_t expected = signal_count(announced.shape, rows), found = program.type(signals).shape[0];
  if (found == expected) return {};
  return internal_error(fmt::format("expected signals[{}], one for {} rows of {}, found signals[{}]", expected, rows,
                                    to_string(announced), found));
}

}  // namespace lancet::ir
