// A program is printed in the order of its instructions; a view is declared just before the first instruction that
// names it. The parser reads one line at a time: LineReader takes tokens off the line and words the errors,
// ProgramParser adds what the line declares to the Program, so that a tensor is known before it is used. Values that
// cross the border between steps are used before they are made, and are declared with their types at the top.
#include "text.h"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>

#include "lancet/base/shown.h"
#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"

namespace lancet::ir {
namespace {

constexpr std::string_view word_ends = " \t\r,:()[]{}=#|&\"";

// Returns a number if the whole word reads as one, else a string.
AttributeValue parse_value(std::string_view word) {
  std::int64_t i = 0;
  const char* end = word.data() + word.size();
  if (auto [p, ec] = std::from_chars(word.data(), end, i); ec == std::errc() && p == end) return i;
  double d = 0;
  if (auto [p, ec] = std::from_chars(word.data(), end, d); ec == std::errc() && p == end) return d;
  return std::string(word);
}

// Strings are bare words, or quoted if a bare word would be cut or read back as a number (such as a hash of digits).
std::string print_value(const AttributeValue& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return fmt::format("{}", *i);
  if (const auto* d = std::get_if<double>(&value)) return print_real(*d);
  const std::string& text = std::get<std::string>(value);
  LANCET_CHECK(text.find_first_of("\"\n") == std::string::npos, "an attribute's text has no quotes or line breaks: {}",
               text);
  const bool bare = !text.empty() && text.find_first_of(word_ends) == std::string::npos && parse_value(text) == value;
  return bare ? text : fmt::format("\"{}\"", text);
}

// "bf16[64{data},256] partial{tensor}", or "bf16[64,256]" without a sharding.
std::string print_type(const Tensor& tensor) {
  if (!tensor.sharding) return to_string(tensor.type);
  std::string text = ir::to_string(tensor.type.shape, *tensor.sharding);
  text.insert(std::min(text.find(' '), text.size()), "]");
  return fmt::format("{}[{}", name(tensor.type.dtype), text);
}

// "%7 : bf16[8,256] in %6 + 4096"
std::string print_made(const Program& program, TensorId id) {
  const Tensor& tensor = program[id];
  std::string text = fmt::format("{} : {}", program.display(id), print_type(tensor));
  if (!tensor.storage.valid()) return text;
  text += " in " + program.display(tensor.storage);
  if (!tensor.slice) return text;
  if (tensor.slice->parts == 0) return text + fmt::format(" + {}", tensor.slice->offset);
  return text + fmt::format(" part {} of {}", tensor.slice->part, tensor.slice->parts);
}

// declared: tensors whose type a line before says.
std::string print_line(const Program& program, const Instruction& instruction, const std::vector<TensorId>& declared) {
  std::string text;
  for (TensorId id : instruction.results) {
    if (!text.empty()) text += ", ";
    text += std::ranges::count(declared, id) > 0 ? program.display(id) : print_made(program, id);
  }
  if (!text.empty()) text += " = ";
  text += instruction.op + "(";
  for (std::size_t i = 0; i < instruction.operands.size(); ++i) {
    const TensorId id = instruction.operands[i];
    if (i) text += ", ";
    if (instruction.writes_operand(id)) text += "&";
    text += program.display(id);
  }
  text += ")";
  if (!instruction.attributes.items().empty()) text += " " + print(instruction.attributes);
  text += fmt::format("  # {} {}", name(instruction.stream), name(instruction.role));
  if (const std::string place = place_of(instruction); !place.empty()) text += " " + place;
  if (instruction.repeated > 0) text += fmt::format(" repeated {}", instruction.repeated);
  return text;
}

}  // namespace

std::string print_real(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".en") == std::string::npos) text += ".0";
  return text;
}

std::string print(const Attributes& attributes) {
  if (attributes.items().empty()) return "";
  std::string text = "{";
  for (const auto& [name, value] : attributes.items()) {
    if (text.size() > 1) text += ", ";
    text += name + "=" + print_value(value);
  }
  return text + "}";
}

std::string print_header(const Program& program) {
  std::string text = "program " + program.name;
  if (!program.attributes.items().empty()) text += " " + print(program.attributes);
  text += "\n";
  for (const Tensor& tensor : program.tensors)
    if (tensor.number < 0) text += print(tensor) + "\n";
  for (TensorId id : carried_values(program))
    text += fmt::format("carried {} : {}\n", program.display(id), print_type(program[id]));
  return text;
}

std::string print(const Tensor& named) {
  const std::string text = fmt::format("{} @{} : {}", name(named.kind), named.name, print_type(named));
  return named.flat_shard.empty() ? text : text + fmt::format(" shard{{{}}}", ir::to_string(named.flat_shard));
}

std::string print_outputs(const Program& program) {
  std::string text;
  for (const Output& output : program.outputs)
    text += fmt::format("output {} = {}\n", output.name, program.display(output.tensor));
  return text;
}

std::string ViewPrinter::line(TensorId view) const { return "view " + print_made(program_, view); }

std::string print(const Program& program, const Instruction& instruction) {
  return print_line(program, instruction, {});
}

std::string print_body(const Program& program, const Instruction& instruction) {
  std::string text;
  for (const Instruction& part : instruction.body)
    text += "body " + print_line(program, part, instruction.results) + "\n";
  return text;
}

std::string print(const Program& program) {
  std::string text = print_header(program);
  ViewPrinter views(program);
  for (const Instruction& instruction : program.instructions) {
    for (TensorId view : views.before(instruction)) text += views.line(view) + "\n";
    text += print(program, instruction) + "\n" + print_body(program, instruction);
  }
  for (TensorId view : views.before_outputs()) text += views.line(view) + "\n";
  return text + print_outputs(program);
}

void LineReader::skip() {
  const auto first = rest_.find_first_not_of(" \t\r");
  rest_.remove_prefix(first == std::string_view::npos ? rest_.size() : first);
}

bool LineReader::accept(std::string_view token) {
  if (!rest_.starts_with(token)) return false;
  rest_.remove_prefix(token.size());
  skip();
  return true;
}

Status LineReader::expect(std::string_view token) {
  if (accept(token)) return {};
  return error(fmt::format("'{}'", token));
}

std::string_view LineReader::word() {
  const auto end = std::min(rest_.find_first_of(word_ends), rest_.size());
  const std::string_view result = rest_.substr(0, end);
  rest_.remove_prefix(end);
  skip();
  return result;
}

template <class Number>
Result<Number> LineReader::number(std::string_view expected) {
  const LineReader before = *this;
  const std::string_view text = word();
  Number value = 0;
  auto [p, ec] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (ec != std::errc() || p != text.data() + text.size() || text.empty()) return before.error(expected);
  return value;
}

Result<std::int64_t> LineReader::integer() { return number<std::int64_t>("an integer"); }
Result<double> LineReader::real() { return number<double>("a number"); }

Result<std::int64_t> LineReader::offset() {
  const LineReader before = *this;
  LANCET_ASSIGN(const std::int64_t offset, integer());
  if (offset < 0 || offset > (std::int64_t{1} << 50)) return before.error("an offset of at least 0");
  return offset;
}

Result<Attributes> LineReader::attributes() {
  Attributes result;
  if (!accept("{") || accept("}")) return result;
  for (bool another = true; another;) {
    const LineReader before = *this;
    const std::string_view name = word();
    if (name.empty()) return error("an attribute's name");
    if (result.has(name)) return before.error("a new attribute");
    LANCET_TRY(expect("="));
    LANCET_ASSIGN(AttributeValue value, attribute_value());
    result.set(name, std::move(value));
    LANCET_ASSIGN(another, more("}"));
  }
  return result;
}

Result<AttributeValue> LineReader::attribute_value() {
  if (rest_.starts_with('"')) {
    const auto end = rest_.find('"', 1);
    if (end == std::string_view::npos) return error("an attribute's value");
    std::string text(rest_.substr(1, end - 1));
    rest_.remove_prefix(end + 1);
    skip();
    return AttributeValue(std::move(text));
  }
  const std::string_view value = word();
  if (value.empty()) return error("an attribute's value");
  return parse_value(value);
}

Result<bool> LineReader::more(std::string_view close) {
  if (accept(",")) return true;
  if (accept(close)) return false;
  return error(fmt::format("',' or '{}'", close));
}

Error LineReader::error(std::string_view expected) const {
  const std::string found = rest_.empty() ? "end of line" : cut(rest_.substr(0, 40), 40);
  return config_error(fmt::format("line {}: expected {}, found '{}'", number_, expected, found));
}

std::string_view LineReader::dimension() {
  std::size_t end = 0;
  for (bool inside = false; end < rest_.size() && (inside || (rest_[end] != ',' && rest_[end] != ']')); ++end)
    inside = rest_[end] == '{' || (inside && rest_[end] != '}');
  const std::string_view result = rest_.substr(0, end);
  rest_.remove_prefix(end);
  return result;
}

// "64", or with axes "64{data,expert}".
Result<ir::Dimension> ProgramParser::dimension(LineReader& line) {
  const LineReader before = line;
  const std::string_view text = line.dimension();
  if (text.find('{') == std::string_view::npos) {
    line = before;
    LANCET_ASSIGN(const std::int64_t extent, line.integer());
    return ir::Dimension{extent};
  }
  auto dimension = ir::parse_dimension(text);
  if (!dimension) return before.error("an extent and different axes of the mesh such as 64{data,expert}");
  return std::move(*dimension);
}

Result<TensorType> ProgramParser::type(LineReader& line, std::optional<Sharding>& sharding) {
  const LineReader before = line;
  const auto dtype = parse_dtype(line.word());
  if (!dtype) return before.error("a type such as f32[2,3]");
  LANCET_TRY(line.expect("["));
  Shape shape;
  Sharding found;
  for (bool another = !line.accept("]"); another;) {
    LANCET_ASSIGN(ir::Dimension next, dimension(line));
    const std::int64_t extent = next.extent;
    if (extent < 0 || extent > (std::int64_t{1} << 40)) return before.error("extents of at least 0 and below 2^40");
    if (shape.rank() == Shape::max_rank) return before.error(fmt::format("at most {} axes", Shape::max_rank));
    shape.push_back(extent);
    found.dimensions.push_back(std::move(next.split));
    LANCET_ASSIGN(another, line.more("]"));
  }
  std::int64_t elements = 1;
  for (std::int64_t extent : shape.span())
    if (__builtin_mul_overflow(elements, extent, &elements) || elements > (std::int64_t{1} << 50))
      return before.error("fewer than 2^50 elements");
  const bool whole = found.is_whole() && line.accept("whole");
  LANCET_ASSIGN(found.partial, whole ? Result<Axes>(Axes{}) : axes(line, "partial"));
  if (Status fits = ir::check(shape, found); !fits.ok()) return before.error("a sharding that names an axis once");
  if (whole || !found.is_whole()) sharding = std::move(found);
  return TensorType{*dtype, shape};
}

Result<Axes> ProgramParser::axes(LineReader& line, std::string_view word) {
  const LineReader before = line;
  if (!line.accept(std::string(word) + "{")) return Axes{};
  const auto axes = ir::parse_axes(line.rest().substr(0, line.rest().find('}')));
  if (!axes || axes->empty())
    return before.error(fmt::format("axes of the mesh, outermost first, such as {}{{data,expert}}", word));
  line.accept(ir::to_string(*axes));
  LANCET_TRY(line.expect("}"));
  return *axes;
}

Result<TensorId> ProgramParser::tensor(LineReader& line) {
  const LineReader before = line;
  if (line.accept("@")) {
    const auto it = named_.find(std::string(line.word()));
    if (it == named_.end()) return before.error("a declared tensor");
    return it->second;
  }
  LANCET_TRY(line.expect("%"));
  LANCET_ASSIGN(const std::int64_t number, line.integer());
  const auto it = numbered_.find(static_cast<int>(number));
  if (it == numbered_.end() || it->first != number) return before.error("a value made above");
  return it->second;
}

Result<bool> ProgramParser::declaration(LineReader& line) {
  const LineReader before = line;
  if (line.accept("program ")) {
    program_.name = line.word();
    LANCET_ASSIGN(program_.attributes, line.attributes());
    return true;
  }
  if (line.accept("output ")) {
    std::string name(line.word());
    if (name.empty()) return line.error("an output's name");
    LANCET_TRY(line.expect("="));
    LANCET_ASSIGN(const TensorId id, tensor(line));
    program_.add_output(std::move(name), id);
    return true;
  }
  if (line.accept("carried ")) {
    LANCET_ASSIGN(const TensorId id, numbered(line, false));
    carried_.insert(id.value);
    return true;
  }
  if (before.rest().find('@') == std::string_view::npos) return false;
  const auto kind = parse_tensor_kind(line.word());
  if (!kind || *kind == TensorKind::value || *kind == TensorKind::view || !line.accept("@")) {
    line = before;
    return false;
  }
  std::string name(line.word());
  if (name.empty() || named_.contains(name)) return before.error("a new name");
  LANCET_TRY(line.expect(":"));
  std::optional<Sharding> sharding;
  LANCET_ASSIGN(TensorType declared, type(line, sharding));
  const bool may_be_shard = *kind == TensorKind::state && declared.shape.rank() == 1 && !sharding;
  const TensorId id = program_.add_named(*kind, name, declared, std::move(sharding));
  const LineReader after = line;
  LANCET_ASSIGN(program_[id].flat_shard, axes(line, "shard"));
  if (!program_[id].flat_shard.empty() && !may_be_shard)
    return after.error("a state with one axis, without a sharding, before the word shard");
  named_[name] = id;
  return true;
}

Status ProgramParser::memory(LineReader& line, TensorId& storage, std::optional<Slice>& slice) {
  if (!line.accept("in ")) return {};
  LANCET_ASSIGN(storage, tensor(line));
  const LineReader before = line;
  if (line.accept("+ ")) {
    LANCET_ASSIGN(const std::int64_t offset, line.integer());
    if (offset < 0 || offset > (std::int64_t{1} << 50)) return before.error("an offset of at least 0");
    slice = Slice{offset, 0, 0};
  } else if (line.accept("part ")) {
    LANCET_ASSIGN(const std::int64_t part, line.integer());
    LANCET_TRY(line.expect("of "));
    LANCET_ASSIGN(const std::int64_t parts, line.integer());
    if (part < 0 || part >= parts || parts > max_parts) return before.error("a part below the number of parts");
    slice = Slice{0, static_cast<std::int32_t>(part), static_cast<std::int32_t>(parts)};
  }
  return {};
}

Result<TensorId> ProgramParser::numbered(LineReader& line, bool is_view) {
  const LineReader before = line;
  LANCET_TRY(line.expect("%"));
  LANCET_ASSIGN(const std::int64_t number, line.integer());
  const auto known = numbered_.find(static_cast<int>(number));
  const bool is_carried = known != numbered_.end() && !is_view && carried_.contains(known->second.value);
  if (number < 0 || number > (1 << 30) || (known != numbered_.end() && !is_carried)) return before.error("a new value");
  LANCET_TRY(line.expect(":"));
  std::optional<Sharding> sharding;
  LANCET_ASSIGN(TensorType made, type(line, sharding));
  TensorId storage;
  std::optional<Slice> slice;
  LANCET_TRY(memory(line, storage, slice));
  if (is_carried) {
    const TensorId id = known->second;
    TensorId owner = storage;
    while (owner.valid() && owner != id) owner = program_[owner].storage;
    if (owner.valid() || program_.type(id) != made) return before.error("the carried value of this type");
    program_[id].storage = storage;
    program_[id].slice = slice;
    carried_.erase(id.value);
    return id;
  }
  const int next = program_.next_number_;
  program_.next_number_ = static_cast<int>(number);
  const TensorId id = is_view ? program_.add_view(made, storage, slice) : program_.add_value(made, storage, slice);
  program_[id].sharding = std::move(sharding);
  program_.next_number_ = std::max(next, program_.next_number_);  // a pass's new values follow the largest
  numbered_[static_cast<int>(number)] = id;
  return id;
}

Result<TensorId> ProgramParser::view(LineReader& line) {
  if (!line.accept("view ")) return TensorId{};
  return numbered(line, true);
}

Status ProgramParser::results(LineReader& line, Instruction& instruction, const std::vector<TensorId>& declared) {
  if (!line.rest().starts_with("%")) return {};
  do {
    LineReader ahead = line;
    const auto known = tensor(ahead);
    const bool is_declared = known.ok() && std::ranges::count(declared, *known) > 0;
    LANCET_ASSIGN(const TensorId id, is_declared ? tensor(line) : numbered(line, false));
    instruction.results.push_back(id);
  } while (line.accept(","));
  return line.expect("=");
}

Status ProgramParser::operands(LineReader& line, Instruction& instruction) {
  LANCET_TRY(line.expect("("));
  for (bool another = !line.accept(")"); another;) {
    const bool update = line.accept("&");
    LANCET_ASSIGN(const TensorId id, tensor(line));
    instruction.operands.push_back(id);
    if (update) instruction.writes.push_back(id);
    LANCET_ASSIGN(another, line.more(")"));
  }
  return {};
}

Status ProgramParser::instruction(LineReader& line) { return instruction(line, program_.instructions, {}); }

Status ProgramParser::instruction(LineReader& line, std::vector<Instruction>& into,
                                  const std::vector<TensorId>& declared) {
  Instruction instruction;
  LANCET_TRY(results(line, instruction, declared));
  instruction.op = line.word();
  if (instruction.op.empty()) return line.error("an op's name");
  LANCET_TRY(operands(line, instruction));
  LANCET_ASSIGN(instruction.attributes, line.attributes());
  LANCET_TRY(line.expect("#"));
  LineReader before = line;
  const auto stream = parse_stream(line.word());
  if (!stream) return before.error("a stream");
  before = line;
  const auto role = parse_role(line.word());
  if (!role) return before.error("forward, dx, dw, sync, update or recompute");
  instruction.stream = *stream;
  instruction.role = *role;
  const OfMicroBatch place = parse_micro_batch(line.word());
  instruction.label = place.name;
  instruction.micro_batch = place.micro_batch;
  if (line.accept("repeated ")) {
    before = line;
    LANCET_ASSIGN(const std::int64_t number, line.integer());
    if (number < 1 || number > (1 << 30)) return before.error("the number of a repeat, from 1 on");
    instruction.repeated = static_cast<std::int32_t>(number);
  }
  into.push_back(std::move(instruction));
  return {};
}

Result<bool> ProgramParser::body(LineReader& line) {
  if (!line.accept("body ")) return false;
  if (program_.instructions.empty()) return line.error("an instruction before its body");
  Instruction& repeat = program_.instructions.back();
  LANCET_TRY(instruction(line, repeat.body, repeat.results));
  return true;
}

Result<Program> parse(std::string_view text) {
  ProgramParser parser;
  LANCET_TRY(for_each_line(text, [&](LineReader& line) -> Status {
    LANCET_ASSIGN(const TensorId view, parser.view(line));
    if (!view.valid()) {
      LANCET_ASSIGN(const bool in_body, parser.body(line));
      LANCET_ASSIGN(const bool declared, in_body ? Result<bool>(true) : parser.declaration(line));
      if (!declared) LANCET_TRY(parser.instruction(line));
    }
    if (!line.done()) return line.error("the end of the line");
    return {};
  }));
  return parser.take();
}

// A view is declared just before the first line that names it, after the view that it is a slice of.
void ViewPrinter::need(TensorId id, std::vector<TensorId>& list) {
  if (!id.valid() || id.index() >= program_.tensors.size()) return;
  if (program_[id].storage.valid()) need(program_[id].storage, list);
  if (program_[id].kind != TensorKind::view || printed_[id.index()]) return;
  printed_[id.index()] = true;
  list.push_back(id);
}

std::vector<TensorId> ViewPrinter::before(const Instruction& instruction) {
  std::vector<TensorId> list;
  for (TensorId id : instruction.operands) need(id, list);
  for (TensorId id : instruction.results) need(id, list);
  return list;
}

std::vector<TensorId> ViewPrinter::before_outputs() {
  std::vector<TensorId> list;
  for (const Output& output : program_.outputs) need(output.tensor, list);
  return list;
}

}  // namespace lancet::ir
