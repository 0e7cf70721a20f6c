#include "lancet/ir/program.h"

#include <algorithm>
#include <array>

#include "lancet/ir/micro_batch_name.h"

namespace lancet::ir {
namespace {

constexpr std::array<std::string_view, stream_count> streams{
    "compute", "expert", "reduce", "send_next", "receive_previous", "send_previous", "receive_next"};
constexpr std::array<std::string_view, 6> roles{"forward", "dx", "dw", "sync", "update", "recompute"};
constexpr std::array<std::string_view, 5> kinds{"value", "input", "parameter", "state", "view"};
constexpr std::array<std::string_view, 8> state_words{"", "m", "v", "master", "grad", "load", "keys", "values"};
constexpr std::array<std::string_view, 10> output_words{"",       "loss", "aux",    "load",      "grad",
                                                        "z_loss", "bias", "rounds", "grad_norm", "logits"};

template <class Enum, std::size_t n>
std::optional<Enum> parse_name(const std::array<std::string_view, n>& names, std::string_view text) {
  const auto it = std::find(names.begin(), names.end(), text);
  if (it == names.end()) return std::nullopt;
  return static_cast<Enum>(it - names.begin());
}

}  // namespace

std::int64_t bytes(const TensorType& type) { return type.shape.elements() * size_of(type.dtype); }

std::string to_string(const TensorType& type) { return fmt::format("{}[{}]", name(type.dtype), to_string(type.shape)); }

std::string_view name(Stream stream) { return streams[static_cast<std::size_t>(stream)]; }
std::string_view name(Role role) { return roles[static_cast<std::size_t>(role)]; }
std::string_view name(TensorKind kind) { return kinds[static_cast<std::size_t>(kind)]; }
std::optional<Stream> parse_stream(std::string_view text) { return parse_name<Stream>(streams, text); }
std::optional<Role> parse_role(std::string_view text) { return parse_name<Role>(roles, text); }
std::optional<TensorKind> parse_tensor_kind(std::string_view text) { return parse_name<TensorKind>(kinds, text); }

std::string state_name(std::string_view owner, StateKind kind) {
  return fmt::format("{}.{}", owner, state_words[static_cast<std::size_t>(kind)]);
}

std::string output_name(OutputKind kind, std::string_view subject) {
  return fmt::format("{}.{}", output_words[static_cast<std::size_t>(kind)], subject);
}

const Attributes::Items& Attributes::items() const {
  static const Items none;
  return items_ ? *items_ : none;
}

const AttributeValue* Attributes::find(std::string_view name) const {
  for (const auto& [key, value] : items())
    if (key == name) return &value;
  return nullptr;
}

void Attributes::set(std::string_view name, AttributeValue value) {
  if (items_.use_count() != 1) items_ = std::make_shared<Items>(items());
  for (auto& [key, old] : *items_)
    if (key == name) {
      old = std::move(value);
      return;
    }
  items_->emplace_back(std::string(name), std::move(value));
}

std::int64_t Attributes::integer(std::string_view name) const {
  const auto* value = find(name);
  LANCET_CHECK(value && std::holds_alternative<std::int64_t>(*value), "attribute {} must be an integer", name);
  return std::get<std::int64_t>(*value);
}

double Attributes::real(std::string_view name) const {
  const auto* value = find(name);
  LANCET_CHECK(value && !std::holds_alternative<std::string>(*value), "attribute {} must be a number", name);
  if (const auto* i = std::get_if<std::int64_t>(value)) return double(*i);
  return std::get<double>(*value);
}

const std::string& Attributes::text(std::string_view name) const {
  const auto* value = find(name);
  LANCET_CHECK(value && std::holds_alternative<std::string>(*value), "attribute {} must be a string", name);
  return std::get<std::string>(*value);
}

Blocks Attributes::blocks(std::string_view name) const {
  const auto* value = find(name);
  if (!value || std::holds_alternative<std::int64_t>(*value)) return Blocks(integer(name, 1));
  const auto blocks = parse_blocks(text(name));
  LANCET_CHECK(blocks, "attribute {} must be blocks", name);
  return *blocks;
}

void Attributes::set_blocks(std::string_view name, const Blocks& blocks) {
  if (!blocks.widths.empty())
    set(name, to_string(blocks));
  else if (blocks != 1)
    set(name, blocks.units);
}

bool Instruction::writes_operand(TensorId id) const {
  return std::find(writes.begin(), writes.end(), id) != writes.end();
}

Program Program::without_instructions() const {
  Program result;
  result.name = name;
  result.attributes = attributes;
  result.tensors = tensors;
  result.outputs = outputs;
  result.next_number_ = next_number_;
  result.names_ = names_;
  return result;
}

TensorId Program::add_value(TensorType type, TensorId storage, std::optional<Slice> slice) {
  tensors.push_back({type, TensorKind::value, "", next_number_++, storage, slice});
  return {static_cast<std::int32_t>(tensors.size()) - 1};
}

TensorId Program::add_view(TensorType type, TensorId storage, std::optional<Slice> slice) {
  const TensorId id = add_value(type, storage, slice);
  (*this)[id].kind = TensorKind::view;
  return id;
}

TensorId Program::add_named(TensorKind kind, std::string name, TensorType type, std::optional<ir::Sharding> sharding) {
  const TensorId id{static_cast<std::int32_t>(tensors.size())};
  LANCET_CHECK(names_.emplace(name, id).second, "two tensors are named @{}", name);
  const std::size_t dot = name.rfind('.');
  StateKind state = StateKind::other;
  if (kind == TensorKind::state && dot != name.npos)
    state = parse_name<StateKind>(state_words, std::string_view(name).substr(dot + 1)).value_or(state);
  tensors.push_back({type, kind, std::move(name), -1, {}, {}, state, std::move(sharding)});
  return id;
}

void Program::add_output(std::string name, TensorId tensor) {
  const auto [text, micro_batch] = parse_micro_batch(name);
  const std::size_t end = std::min(text.find('.'), text.size());
  OutputKind kind = parse_name<OutputKind>(output_words, text.substr(0, end)).value_or(OutputKind::other);
  TensorId parameter;
  if (kind == OutputKind::gradient) {
    parameter = find(text.substr(std::min(end + 1, text.size())));
    if (!parameter.valid()) kind = OutputKind::other;
  }
  outputs.push_back({std::move(name), tensor, kind, parameter, micro_batch});
}

TensorId Program::find(std::string_view name) const {
  const auto it = names_.find(name);
  return it == names_.end() ? TensorId{} : it->second;
}

TensorId Program::output(std::string_view name) const {
  for (const Output& out : outputs)
    if (out.name == name) return out.tensor;
  return {};
}

TensorId Program::root(TensorId id) const {
  while (tensors[id.index()].storage.valid()) id = tensors[id.index()].storage;
  return id;
}

Region Program::region(TensorId id) const {
  Region region{id, 0, bytes((*this)[id].type)};
  for (TensorId at = id; (*this)[at].storage.valid(); at = (*this)[at].storage) {
    const Tensor& tensor = (*this)[at];
    region.root = tensor.storage;
    if (!tensor.slice) continue;
    if (tensor.slice->parts > 0) {
      region.begin = 0;
      region.end = bytes((*this)[tensor.storage].type);
      region.part = tensor.slice->part;
      region.parts = tensor.slice->parts;
    } else {
      region.begin += tensor.slice->offset;
      region.end += tensor.slice->offset;
    }
  }
  return region;
}

bool overlap(const Region& a, const Region& b) {
  if (a.root != b.root || a.begin >= b.end || b.begin >= a.end) return false;
  return a.parts == 0 || a.parts != b.parts || a.part == b.part;
}

bool contains(const Region& outer, const Region& inner) {
  if (outer.root != inner.root || outer.begin > inner.begin || outer.end < inner.end) return false;
  return outer.parts == 0 || (outer.parts == inner.parts && outer.part == inner.part);
}

std::string Program::display(TensorId id) const {
  if (!id.valid() || id.index() >= tensors.size()) return "%?";
  const Tensor& tensor = (*this)[id];
  return tensor.number >= 0 ? fmt::format("%{}", tensor.number) : "@" + tensor.name;
}

}  // namespace lancet::ir
