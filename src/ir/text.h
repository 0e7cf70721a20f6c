// LineReader, ProgramParser and ViewPrinter: shared by the printers and parsers of Program and Plan.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/ir/program.h"

namespace lancet::ir {

std::string print_real(double value);  // shortest text that reads back to the same double; never reads as an integer
std::string print(const Attributes& attributes);   // "{a=1, b=0.5, c=text}" or ""
std::string print_header(const Program& program);  // program line, named tensors and carried values
std::string print_outputs(const Program& program);
std::string print_body(const Program& program, const Instruction& instruction);  // its "body" lines; most have none

class LineReader {
 public:
  LineReader(std::string_view line, int number) : rest_(line), number_(number) { skip(); }
  bool done() const { return rest_.empty(); }
  bool accept(std::string_view token);  // consumes it if it is next
  Status expect(std::string_view token);
  std::string_view word();                    // up to a blank or one of ,:()[]{}=#|&" ; may be empty
  std::string_view dimension();               // up to a comma or ] outside of braces
  Result<bool> more(std::string_view close);  // after an item of a list: true at a comma, false at `close`
  Result<std::int64_t> integer();
  Result<std::int64_t> offset();  // of bytes: from 0 to 2^50
  Result<double> real();
  Result<Attributes> attributes();               // "{...}" or nothing
  Error error(std::string_view expected) const;  // "line 7: expected X, found Y"
  std::string_view rest() const { return rest_; }

 private:
  void skip();
  template <class Number>
  Result<Number> number(std::string_view expected);
  Result<AttributeValue> attribute_value();
  std::string_view rest_;
  int number_;
};

// Builds a Program from the lines that both texts share.
class ProgramParser {
 public:
  // Handles "program", "input", "parameter", "state", "carried" and "output" lines; false if it is none of them.
  Result<bool> declaration(LineReader& line);
  // A "view" line up to the memory that it views; an invalid id if the line is of another kind.
  Result<TensorId> view(LineReader& line);
  // An instruction up to its label; the rest of the line stays in the reader.
  Status instruction(LineReader& line);
  // A "body" line: one more instruction of the last instruction's body; false if the line is of another kind.
  Result<bool> body(LineReader& line);
  Program take() { return std::move(program_); }
  const Program& program() const { return program_; }

 private:
  // "bf16[64{data},512]" and what follows of its sharding, which is set if the text has one.
  Result<TensorType> type(LineReader& line, std::optional<Sharding>& sharding);
  Result<ir::Dimension> dimension(LineReader& line);
  Result<Axes> axes(LineReader& line, std::string_view word);  // "partial{data}" of that word; none: no axes
  Result<TensorId> tensor(LineReader& line);
  Result<TensorId> numbered(LineReader& line, bool is_view);                        // "%7 : bf16[8,256] in %6 + 4096"
  Status memory(LineReader& line, TensorId& storage, std::optional<Slice>& slice);  // "in %6 + 4096" or nothing
  // declared: the results that another line has declared.
  Status instruction(LineReader& line, std::vector<Instruction>& into, const std::vector<TensorId>& declared);
  Status results(LineReader& line, Instruction& instruction, const std::vector<TensorId>& declared);
  Status operands(LineReader& line, Instruction& instruction);

  Program program_;
  std::unordered_map<std::string, TensorId> named_;
  std::unordered_map<int, TensorId> numbered_;
  std::unordered_set<std::int32_t> carried_;  // tensors declared as carried whose maker has not come yet
};

// Writes the views that instructions and outputs name, each before the first line that needs it.
class ViewPrinter {
 public:
  explicit ViewPrinter(const Program& program) : program_(program), printed_(program.tensors.size()) {}
  // The views that `instruction` needs and that were not returned before, each after the one that it is a slice of.
  std::vector<TensorId> before(const Instruction& instruction);
  std::vector<TensorId> before_outputs();  // those that only outputs need
  std::string line(TensorId view) const;   // without the newline

 private:
  void need(TensorId id, std::vector<TensorId>& list);
  const Program& program_;
  std::vector<bool> printed_;
};

// Calls f(reader) for each line that is not blank and does not start with "//"; stops at the first error.
template <class F>
Status for_each_line(std::string_view text, F f) {
  for (int number = 1; !text.empty(); ++number) {
    const auto end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    const auto first = line.find_first_not_of(" \t\r");
    if (first == std::string_view::npos || line.substr(first).starts_with("//")) continue;
    LineReader reader(line, number);
    LANCET_TRY(f(reader));
  }
  return {};
}

}  // namespace lancet::ir
