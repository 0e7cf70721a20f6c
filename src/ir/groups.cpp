#include "lancet/ir/groups.h"

#include <algorithm>
#include <charconv>

#include "lancet/ir/program.h"

namespace lancet::ir {

void set_group(Attributes& attributes, const Mesh& mesh, Axes axes) {
  axes = axes & mesh.wide();
  if (axes != mesh.wide()) attributes.set(axes_attribute, ir::to_string(axes));
}

std::string_view axes_text(const Instruction& instruction) {
  if (!instruction.attributes.has(axes_attribute)) return {};
  return instruction.attributes.text(axes_attribute);
}

Axes group_of(const Instruction& instruction, const Mesh& mesh) {
  const Axes named = group_of(instruction);
  return named.empty() ? mesh.wide() : named;
}

Axes group_of(const Instruction& instruction) {
  const std::string_view text = axes_text(instruction);
  return text.empty() ? Axes() : ir::parse_axes(text).value();
}

std::string key_of(const Instruction& instruction) {
  std::string key(axes_text(instruction));
  if (instruction.attributes.has(stages_attribute)) key += ":" + instruction.attributes.text(stages_attribute);
  return key;
}

namespace {

// "0,3" -> 0, 3; nothing for another text.
std::optional<std::vector<int>> parse_stages(std::string_view text) {
  std::vector<int> stages;
  while (true) {
    int stage = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), stage);
    if (error != std::errc() || stage < 0 || (!stages.empty() && stage <= stages.back())) return std::nullopt;
    stages.push_back(stage);
    text.remove_prefix(std::size_t(end - text.data()));
    if (text.empty()) return stages;
    if (text[0] != ',') return std::nullopt;
    text.remove_prefix(1);
  }
}

}  // namespace

std::vector<int> ranks_of(std::string_view key, const Mesh& mesh, int rank) {
  const std::size_t colon = key.find(':');
  const Axes axes = ir::parse_axes(key.substr(0, colon)).value();
  std::vector<int> ranks = mesh.group(rank, axes.empty() ? mesh.wide() : axes);
  if (colon == key.npos) return ranks;
  const std::vector<int> stages = parse_stages(key.substr(colon + 1)).value();
  const auto within = [&](int other) { return std::ranges::count(stages, mesh.coordinate(other, Axis::stage)) > 0; };
  if (!within(rank)) return {rank};
  std::erase_if(ranks, [&](int other) { return !within(other); });
  return ranks;
}

bool is_along_stages(const Instruction& instruction) {
  if (instruction.stream != Stream::expert && instruction.stream != Stream::reduce) return false;
  const Axes axes = group_of(instruction);
  return axes.empty() || axes.has(Axis::stage);
}

std::optional<int> neighbour(const Mesh& mesh, int rank, Stream stream) {
  const int stages = mesh[Axis::stage], stride = mesh.ranks() / stages;
  const bool next = stream == Stream::send_next || stream == Stream::receive_next;
  if (stages == 1) return std::nullopt;
  const int stage = mesh.coordinate(rank, Axis::stage);
  return rank + ((stage + (next ? 1 : stages - 1)) % stages - stage) * stride;
}

Stream opposite(Stream stream) {
  constexpr std::array<Stream, stream_count> other = {Stream::compute,          Stream::expert,    Stream::reduce,
                                                      Stream::receive_previous, Stream::send_next, Stream::receive_next,
                                                      Stream::send_previous};
  return other[static_cast<std::size_t>(stream)];
}

bool has_sound_axes(const Instruction& instruction) {
  return std::ranges::all_of(instruction.attributes.items(), [](const auto& item) {
    if (item.first != axes_attribute && item.first != stages_attribute) return true;
    const auto* text = std::get_if<std::string>(&item.second);
    if (item.first == stages_attribute) return text && parse_stages(*text);
    const auto axes = text ? ir::parse_axes(*text) : std::nullopt;
    return axes && !axes->empty();
  });
}

std::array<std::set<std::string>, stream_count> used_keys(const Program& program) {
  std::array<std::set<std::string>, stream_count> used;
  const auto add = [&](const Instruction& instruction) {
    if (std::string key = key_of(instruction); !key.empty())
      used[static_cast<std::size_t>(instruction.stream)].insert(std::move(key));
  };
  for (const Instruction& instruction : program.instructions) {
    if (!is_repeat(instruction)) add(instruction);  // a repeat goes over the groups of its body
    std::ranges::for_each(instruction.body, add);
  }
  return used;
}

}  // namespace lancet::ir
