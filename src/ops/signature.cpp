// Signatures of ops. A text is parsed once, when the catalogue is made; an instruction is then matched against the
// parsed form: each extent is a product of constants and symbols (axes, and attributes, whose values are known), and a
// product with one unknown symbol gives its value. An operand with more waits until others have given theirs.
#include "signature.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <memory>

#include "describe.h"
#include "lancet/base/check.h"

namespace lancet::ops {
namespace {

struct Factor {
  std::int64_t constant = 1;
  int symbol = -1;                      // none: the constant, or the blocks
  std::vector<BlockWidth> blocks = {};  // side by side: the factor is the sum of their widths
};

struct Extent {
  std::vector<Factor> factors;  // outermost first; none: any extent
  bool ragged = false;
};

enum class Type : std::uint8_t { activation, fixed, any, attribute };

struct Tensor {
  std::string_view name, text;
  std::string_view of = {};  // of a result: the operand whose memory it takes
  Type type = Type::activation;
  DType dtype = DType::f32;
  std::vector<Extent> extents = {};
  bool more = false;              // [...,extents]: any axes before these
  bool optional = false;          // of an operand
  bool written = false;           // of an operand: updated in place
  bool accumulates = false;       // of a result
  std::string_view present = {};  // of a result: the attribute that must not be 0
  bool absent = false;            // or that must be
};

struct Parsed {
  std::vector<std::string_view> symbols;   // names of axes, and @names of attributes
  std::vector<std::string_view> optional;  // those of attributes that are 1 where there are none
  std::vector<Tensor> operands, results;
  int required = 0;
  int accumulators() const { return int(std::ranges::count(results, true, &Tensor::accumulates)); }
  int most() const { return int(operands.size()) + accumulators(); }
  bool takes(std::size_t count) const { return int(count) >= required && int(count) <= most(); }
};

std::vector<std::string_view> split(std::string_view text, std::string_view separators) {
  std::vector<std::string_view> pieces;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find_first_of(separators, begin), text.size());
    if (end > begin) pieces.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return pieces;
}

std::optional<std::int64_t> number(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

// Removes `prefix` from the text; false if it does not begin with it.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

int symbol_of(Parsed& form, std::string_view name) {
  if (name.ends_with('?')) {
    name.remove_suffix(1);
    form.optional.push_back(name);
  }
  const auto at = std::ranges::find(form.symbols, name);
  if (at == form.symbols.end()) form.symbols.push_back(name);
  return int(std::ranges::find(form.symbols, name) - form.symbols.begin());
}

// "(@group?+1+1)"
std::vector<BlockWidth> parse_blocks(Parsed& form, std::string_view text) {
  std::vector<BlockWidth> blocks;
  for (std::string_view width : split(text, "(+)")) {
    const auto constant = number(width);
    LANCET_CHECK(constant || (width.starts_with('@') && width.ends_with('?')),
                 "expected the width of a block, found {}", text);
    if (constant)
      blocks.push_back({*constant});
    else
      blocks.push_back({1, form.symbols[std::size_t(symbol_of(form, width))].substr(1)});
  }
  return blocks;
}

Extent parse_extent(Parsed& form, std::string_view text) {
  Extent extent{.factors = {}, .ragged = take(text, "~")};
  for (std::string_view factor : split(text, "*")) {
    if (const auto constant = number(factor))
      extent.factors.push_back({*constant, -1});
    else if (factor.starts_with('('))
      extent.factors.push_back({1, -1, parse_blocks(form, factor)});
    else
      extent.factors.push_back({1, symbol_of(form, factor)});
  }
  return extent;
}

Tensor parse_tensor(Parsed& form, std::string_view text) {
  const std::size_t open = text.find('[');
  LANCET_CHECK(open != text.npos && text.back() == ']', "expected name[extents], found {}", text);
  Tensor tensor{.name = text.substr(0, open), .text = text};
  tensor.written = take(tensor.name, "&");
  tensor.accumulates = take(tensor.name, "+");
  if (const std::size_t colon = tensor.name.find(':'); colon != tensor.name.npos) {
    const std::string_view type = tensor.name.substr(colon + 1);
    tensor.name = tensor.name.substr(0, colon);
    const auto dtype = parse_dtype(type);
    LANCET_CHECK(dtype || type == "any" || type == "@dtype", "expected a type, found {}", text);
    tensor.type = dtype ? Type::fixed : type == "any" ? Type::any : Type::attribute;
    tensor.dtype = dtype.value_or(DType::f32);
  }
  if (const std::size_t mark = tensor.name.find('?'); mark != tensor.name.npos) {
    tensor.optional = mark + 1 == tensor.name.size();
    tensor.present = tensor.name.substr(mark + 1);
    tensor.absent = take(tensor.present, "!");
    tensor.name = tensor.name.substr(0, mark);
  }
  if (const std::size_t in = tensor.name.find('@'); in != tensor.name.npos) {
    tensor.of = tensor.name.substr(in + 1);
    tensor.name = tensor.name.substr(0, in);
  }
  for (std::string_view extent : split(text.substr(open + 1, text.size() - open - 2), ",")) {
    if (extent == "...")
      tensor.more = true;
    else
      tensor.extents.push_back(parse_extent(form, extent));
  }
  return tensor;
}

int find(const std::vector<Tensor>& tensors, std::string_view name) {
  const auto at = std::ranges::find(tensors, name, &Tensor::name);
  return at == tensors.end() ? -1 : int(at - tensors.begin());
}

Parsed parse(std::string_view signature) {
  Parsed form;
  bool operands = true;
  for (std::string_view word : split(signature, " ")) {
    if (word == "->")
      operands = false;
    else
      (operands ? form.operands : form.results).push_back(parse_tensor(form, word));
  }
  LANCET_CHECK(!operands, "expected operands -> results, found {}", signature);
  std::vector<bool> known;
  for (std::string_view symbol : form.symbols) known.push_back(symbol.starts_with('@'));
  for (const Tensor& tensor : form.operands)
    for (const Extent& extent : tensor.extents)
      for (const Factor& factor : extent.factors)
        if (factor.symbol >= 0) known[std::size_t(factor.symbol)] = true;
  for (std::size_t i = 0; i < known.size(); ++i)
    LANCET_CHECK(known[i], "expected an operand with the axis {}, found {}", form.symbols[i], signature);
  for (const auto* tensors : {&form.operands, &form.results})
    for (const Tensor& tensor : *tensors)
      LANCET_CHECK(!tensor.name.empty() && std::ranges::count(*tensors, tensor.name, &Tensor::name) == 1,
                   "expected a name of its own of {}, found {}", tensor.text, signature);
  for (const Tensor& result : form.results)
    LANCET_CHECK(result.of.empty() || find(form.operands, result.of) >= 0, "expected an operand {}, found {}",
                 result.of, signature);
  form.required = int(std::ranges::count(form.operands, false, &Tensor::optional));
  return form;
}

// One match of a form against operand types, or against the extents of a sample.
class Match {
 public:
  Match(const Parsed& form, const Attributes& attributes) : form_(form), attributes_(attributes) {
    values_.assign(form.symbols.size(), unknown_value);
    for (std::size_t i = 0; i < values_.size(); ++i)
      if (std::string_view name = form.symbols[i]; take(name, "@") && (attributes.has(name) || is_optional(i)))
        values_[i] = attributes.integer(name, 1);
  }

  Inferred results(std::span<const TensorType> operands) {
    for (std::size_t i = 0; i < values_.size(); ++i)
      if (std::string_view name = form_.symbols[i];
          take(name, "@") &&
          (values_[i] = is_optional(i) ? attributes_.integer(name, 1) : attributes_.integer(name)) < 1)
        return expected(fmt::format("{} of at least 1", name));
    const std::size_t described = std::min(operands.size(), form_.operands.size());
    std::vector<bool> done(described);
    for (bool progress = true; progress;) {  // an operand that waits is tried again once another one was matched
      progress = false;
      for (std::size_t i = 0; i < described; ++i) {
        if (done[i] || unknowns(form_.operands[i]) > 1) continue;
        if (!fits(form_.operands[i], operands[i])) return misfit(form_.operands[i]);
        done[i] = progress = true;
      }
    }
    for (std::size_t i = 0; i < described; ++i)
      if (!done[i]) return misfit(form_.operands[i]);
    Types results;
    std::size_t accumulators = 0;
    for (const Tensor& tensor : form_.results) {
      if (!tensor.present.empty() && (attributes_.integer(tensor.present, 0) == 0) != tensor.absent) continue;
      LANCET_ASSIGN(TensorType type, type_of(tensor));
      accumulators += tensor.accumulates;
      results.push_back(type);
    }
    const std::size_t given = operands.size() - described;
    if (given != 0 && given != accumulators) return expected("an accumulator for each result or none");
    for (std::size_t i = 0; i < given; ++i)  // results that accumulate are all results of their op
      if (operands[described + i] != results[i]) return expected("accumulators like the results");
    return results;
  }

  int unknowns(const Tensor& tensor) const {  // the most of an extent
    int most = 0;
    for (const Extent& extent : tensor.extents) most = std::max(most, unknown(extent));
    return most;
  }

  // Of a symbol; for samples.
  void set(int symbol, std::int64_t value) { values_[std::size_t(symbol)] = value; }
  void set_more(Shape shape) { more_ = shape; }
  void set_type(DType dtype) { activation_ = any_ = dtype; }
  Result<TensorType> type_of(const Tensor& tensor) const {
    TensorType type{tensor.dtype, tensor.more ? more_.value_or(Shape{}) : Shape{}};
    for (const Extent& extent : tensor.extents) type.shape.push_back(extent.factors.empty() ? 2 : product(extent));
    if (tensor.type == Type::activation) type.dtype = activation_.value_or(DType::f32);
    if (tensor.type == Type::any) type.dtype = any_.value_or(DType::f32);
    if (tensor.type != Type::attribute) return type;
    const auto dtype = parse_dtype(attributes_.text("dtype"));
    if (!dtype || !is_activation(*dtype)) return expected("dtype f32 or bf16");
    return TensorType{*dtype, type.shape};
  }

 private:
  bool is_optional(std::size_t symbol) const { return std::ranges::count(form_.optional, form_.symbols[symbol]) > 0; }
  static Error misfit(const Tensor& tensor) {
    std::string text(tensor.text);
    std::erase_if(text, [](char c) { return c == '~' || c == '&'; });
    return expected(fmt::format("{}{}", text, tensor.type == Type::activation ? " of f32 or bf16" : ""));
  }
  std::int64_t product(const Extent& extent) const {  // of what is known
    std::int64_t value = 1;
    for (const Factor& factor : extent.factors) {
      std::int64_t known = factor.symbol < 0 ? factor.constant : values_[std::size_t(factor.symbol)];
      if (!factor.blocks.empty()) known = sum_of(factor.blocks);
      const bool overflow = __builtin_mul_overflow(value, known == unknown_value ? 1 : known, &value);
      LANCET_CHECK(!overflow, "an extent of more than 2^63");
    }
    return value;
  }
  std::int64_t sum_of(const std::vector<BlockWidth>& blocks) const {
    std::int64_t sum = 0;
    for (const BlockWidth& block : blocks) {
      const std::int64_t width = block.attribute.empty() ? block.constant : attributes_.integer(block.attribute, 1);
      LANCET_CHECK(!__builtin_add_overflow(sum, width, &sum), "blocks of more than 2^63");
    }
    return sum;
  }
  int unknown(const Extent& extent) const {  // the factors without a value
    return int(std::ranges::count_if(extent.factors, [&](const Factor& factor) {
      return factor.symbol >= 0 && values_[std::size_t(factor.symbol)] == unknown_value;
    }));
  }

  bool fits(const Tensor& tensor, const TensorType& type) {
    if (tensor.type == Type::fixed && type.dtype != tensor.dtype) return false;
    if (tensor.type == Type::activation &&
        (!is_activation(type.dtype) || type.dtype != activation_.value_or(type.dtype)))
      return false;
    if (tensor.type == Type::any && type.dtype != any_.value_or(type.dtype)) return false;
    if (tensor.type == Type::any && !is_activation(type.dtype) && type.dtype != DType::i32) return false;
    if (tensor.type == Type::activation) activation_ = type.dtype;
    if (tensor.type == Type::any) any_ = type.dtype;
    const int more = type.shape.rank() - int(tensor.extents.size());
    if (more < 0 || (more > 0 && !tensor.more)) return false;
    if (tensor.more) {
      Shape before;
      for (int axis = 0; axis < more; ++axis) before.push_back(type.shape[axis]);
      if (more_.value_or(before) != before) return false;
      more_ = before;
    }
    for (int axis = more; axis < type.shape.rank(); ++axis) {
      const Extent& extent = tensor.extents[std::size_t(axis - more)];
      if (extent.factors.empty() && type.shape[axis] < 2) return false;
      if (extent.factors.empty()) continue;
      const std::int64_t known = product(extent), found = type.shape[axis];
      if (unknown(extent) == 0 || known == 0 ? known != found : found % known != 0) return false;
      for (const Factor& factor : extent.factors)
        if (factor.symbol >= 0 && values_[std::size_t(factor.symbol)] == unknown_value)
          values_[std::size_t(factor.symbol)] = known == 0 ? 0 : found / known;
    }
    return true;
  }

  const Parsed& form_;
  const Attributes& attributes_;
  static constexpr std::int64_t unknown_value = -1;
  std::vector<std::int64_t> values_;  // by symbol
  std::optional<DType> activation_, any_;
  std::optional<Shape> more_;  // the extents of the axes `...`
};

bool is_ragged(const Tensor& tensor) { return std::ranges::count(tensor.extents, true, &Extent::ragged) > 0; }

// Of a text that is the index of an axis of [...]; -1 of others.
int index_of_axis(std::string_view text) {
  const auto axis = number(text);
  return axis && *axis >= 0 && *axis < Shape::max_rank ? int(*axis) : -1;
}

// One way to split a form: the text of a cut, parsed.
class Cut {
 public:
  Cut(const Parsed& form, std::string_view text) : form_(form) {
    const std::vector<std::string_view> pieces = split(text, " ");
    LANCET_CHECK(!pieces.empty(), "expected cuts with commas between them, found an empty one");
    axes_ = split(pieces[0], "+");
    LANCET_CHECK(!axes_.empty(), "expected an axis to cut, found {}", text);
    const auto has = [&](auto property) {
      return std::ranges::any_of(form.operands, property) || std::ranges::any_of(form.results, property);
    };
    const bool more = has([](const Tensor&tensor) { return tensor.more; }), ragged = has(is_ragged);
    for (std::string_view axis : axes_)
      LANCET_CHECK(axis == "-" || (axis == "~" && ragged) || (more && index_of_axis(axis) >= 0) ||
                       std::ranges::count(form.symbols, axis) > 0,
                   "expected an axis to cut, found {}", text);
    for (std::string_view piece : std::span(pieces).subspan(1)) {
      if (piece == "time")
        row_.in = SplitIn::time;
      else if (piece == "space")
        row_.in = SplitIn::space;
      else if (piece == "placed")
        row_.in = SplitIn::space, row_.placed = true;
      else if (take(piece, "/"))
        row_.divided.push_back(piece);
      else {
        static const std::map<std::string_view, Axis> words{{"once", once},
                                                            {"whole", none},
                                                            {"partial", partial},
                                                            {"irregular", irregular},
                                                            {"cumulative", cumulative}};
        const std::size_t equals = piece.find('=');
        LANCET_CHECK(equals != piece.npos && words.count(piece.substr(equals + 1)), "expected a cut, found {}", text);
        const std::string_view name = piece.substr(0, equals);
        LANCET_CHECK(find(form.operands, name) >= 0 || find(form.results, name) >= 0, "expected a tensor, found {}",
                     text);
        given_[name] = words.at(piece.substr(equals + 1));
      }
    }
  }

  PartitionRow row() {
    for (const Tensor& tensor : form_.operands) row_.operands.push_back(entry(tensor, none));
    for (const Tensor& tensor : form_.results) {
      row_.results.push_back(entry(tensor, tensor.accumulates ? accumulated : partial));
      if (tensor.accumulates) row_.operands.push_back(row_.results.back());
    }
    for (std::string_view axis : axes_)
      if (take(axis, "@")) row_.divided.push_back(axis);
    return row_;
  }

 private:
  bool cuts(const Factor& factor) const {
    return factor.symbol >= 0 && std::ranges::count(axes_, form_.symbols[std::size_t(factor.symbol)]) > 0;
  }

  // missing: of a tensor without the axis.
  Axis entry(const Tensor& tensor, Axis missing) {
    if (const auto given = given_.find(tensor.name); given != given_.end()) return given->second;
    if (const int axis = index_of_axis(axes_[0]); axis >= 0 && tensor.more) return Axis(axis);
    const int rank = int(tensor.extents.size());
    for (int i = 0; i < rank; ++i) {
      const Extent& extent = tensor.extents[std::size_t(i)];
      const Axis at = i == rank - 1 && (tensor.more || rank > 2) ? last : Axis(i);
      if (extent.ragged && std::ranges::count(axes_, "~") > 0) {
        if (row_.in == SplitIn::time) return irregular;
        if (tensor.type == Type::fixed) return partial;  // counts
        if (std::string_view name = form_.symbols[std::size_t(extent.factors[0].symbol)]; take(name, "@"))
          row_.divided.push_back(name);
        return at;
      }
      if (extent.factors.empty()) continue;
      if (cuts(extent.factors[0])) return at;
      if (extent.factors.size() > 1 && extent.factors[0].symbol < 0 && cuts(extent.factors[1])) {
        const Factor& blocks = extent.factors[0];
        std::vector<BlockWidth> widths = blocks.blocks;
        if (widths.empty()) widths.assign(std::size_t(blocks.constant), {});
        LANCET_CHECK(row_.packed.empty() || row_.packed == widths, "expected the blocks of other tensors, found {}",
                     tensor.text);
        LANCET_CHECK(row_.in == SplitIn::space, "expected a cut of blocks in space only, found {}", tensor.text);
        row_.packed = std::move(widths);
        return packed;
      }
    }
    return missing;
  }

  const Parsed& form_;
  std::vector<std::string_view> axes_;
  std::map<std::string_view, Axis> given_;
  PartitionRow row_;
};

// The buffers, counts and slots of a form with ragged axes; none of a form without.
std::optional<Ragged> ragged_of(const Parsed& form) {
  Ragged ragged;
  for (int i = 0; i < int(form.operands.size()); ++i) {
    if (!is_ragged(form.operands[std::size_t(i)])) continue;
    if (form.operands[std::size_t(i)].type == Type::fixed)
      ragged.counts = i;
    else
      ragged.operands.push_back(i);
  }
  for (int i = 0; i < int(form.results.size()); ++i)
    if (is_ragged(form.results[std::size_t(i)])) ragged.results.push_back(i);
  ragged.slots = find(form.operands, "slot");
  if (ragged.operands.empty() && ragged.results.empty()) return std::nullopt;
  return ragged;
}

Fill fill_of(const Tensor& tensor, DType dtype) {
  static const std::map<std::string_view, Fill> fills{{"expert", Fill::expert}, {"slot", Fill::slot},
                                                      {"rows", Fill::rows},     {"filled", Fill::rows},
                                                      {"weight", Fill::weight}, {"load", Fill::load}};
  const auto known = fills.find(tensor.name);
  return known != fills.end() ? known->second : dtype == DType::i32 ? Fill::tokens : Fill::normal;
}

std::int64_t extent_of(const Sample& sample, std::string_view text) {
  const auto extent = number(text);
  LANCET_CHECK(extent && *extent > 0, "expected an extent, found {} in {}", text, sample.extents);
  return *extent;
}

// The operands of a sample that gives extents: see Sample.
void expand(Sample& sample, const Parsed& form) {
  std::vector<std::string_view> positive, zero, optional;
  Match match(form, sample.attributes);
  bool has_more = false;
  for (std::string_view word : split(sample.extents, " ")) {
    const std::size_t equals = std::min(word.find('='), word.size());
    const std::string_view name = word.substr(0, equals), value = word.substr(std::min(equals + 1, word.size()));
    if (const auto dtype = parse_dtype(word))
      match.set_type(*dtype);
    else if (take(word, "+")) {
      LANCET_CHECK(find(form.operands, word) >= 0 || find(form.results, word) >= 0,
                   "expected an operand, found +{} in {}", word, sample.extents);
      optional.push_back(word);
    } else if (value == "positive")
      positive.push_back(name);
    else if (value == "zero")
      zero.push_back(name);
    else if (name == "...") {
      Shape shape;
      for (std::string_view extent : split(value, ",")) shape.push_back(extent_of(sample, extent));
      match.set_more(shape);
      has_more = true;
    } else {
      const std::int64_t extent = extent_of(sample, equals == word.size() ? word : value);
      const auto symbol = std::ranges::find(form.symbols, name);
      LANCET_CHECK(symbol != form.symbols.end(), "expected an axis, found {} in {}", word, sample.extents);
      match.set(int(symbol - form.symbols.begin()), extent);
      if (std::string_view attribute = name; take(attribute, "@") && !sample.attributes.has(attribute))
        sample.attributes.set(attribute, extent);
    }
  }
  const auto add = [&](const Tensor& tensor) {
    LANCET_CHECK(match.unknowns(tensor) == 0 && (!tensor.more || has_more), "expected all extents of {}, found {}",
                 tensor.text, sample.extents);
    const TensorType type = match.type_of(tensor).value();
    const Fill fill = std::ranges::count(positive, tensor.name) ? Fill::positive
                      : std::ranges::count(zero, tensor.name)   ? Fill::zero
                                                                : fill_of(tensor, type.dtype);
    sample.operands.push_back({type, fill});
  };
  for (const Tensor& tensor : form.operands)
    if (!tensor.optional || std::ranges::count(optional, tensor.name)) add(tensor);
  for (const Tensor& tensor : form.results)
    if (tensor.accumulates && std::ranges::count(optional, tensor.name)) add(tensor);
}

// The form that has every axis for which the sample gives an extent.
const Parsed& form_of(const Sample& sample, const std::vector<Parsed>& forms) {
  const auto has = [&](const Parsed& form) {
    return std::ranges::all_of(split(sample.extents, " "), [&](std::string_view word) {
      const std::string_view name = word.substr(0, std::min(word.find('='), word.size()));
      return name.size() == word.size() || name == "..." || std::ranges::count(form.symbols, name) > 0 ||
             find(form.operands, name) >= 0;
    });
  };
  const auto found = std::ranges::find_if(forms, has);
  LANCET_CHECK(found != forms.end(), "no form has the extents {}", sample.extents);
  return *found;
}

}  // namespace

void complete(OpDef& op) {
  if (op.forms.empty()) return;
  auto forms = std::make_shared<std::vector<Parsed>>();
  for (const Form& form : op.forms) forms->push_back(parse(form.signature));
  op.required = std::ranges::min(*forms, {}, &Parsed::required).required;
  op.most = 0;
  std::vector<PartitionRow> rows;
  for (std::size_t f = 0; f < forms->size(); ++f) {
    const Parsed& form = (*forms)[f];
    op.most = std::max(op.most, form.most());
    if (auto ragged = ragged_of(form)) op.ragged = std::move(ragged);
    for (std::string_view cut : split(op.forms[f].cuts, ",")) rows.push_back(Cut(form, cut).row());
  }
  op.partition.insert(op.partition.begin(), rows.begin(), rows.end());
  const Parsed& form = forms->front();
  for (int i = 0; i < int(form.operands.size()); ++i)
    if (form.operands[std::size_t(i)].written) op.writes.push_back(i);
  int accumulator = int(form.operands.size());
  for (int i = 0; i < int(form.results.size()); ++i) {
    const Tensor& result = form.results[std::size_t(i)];
    if (result.accumulates) op.aliases.push_back({i, accumulator++});
    if (!result.of.empty()) op.aliases.push_back({i, find(form.operands, result.of)});
  }
  for (Sample& sample : op.samples)
    if (sample.operands.empty()) expand(sample, form_of(sample, *forms));
  op.infer = [forms, check = op.check](const OpInput& in) -> Inferred {
    const auto form = std::ranges::find_if(*forms, [&](const Parsed& f) { return f.takes(in.operands.size()); });
    if (form == forms->end()) return expected("another number of operands");
    LANCET_ASSIGN(Types results, Match(*form, in.attributes).results(in.operands));
    if (check) LANCET_TRY(check(in, results));
    return results;
  };
}

}  // namespace lancet::ops
