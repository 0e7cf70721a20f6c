#include "lancet/schedule/schedule_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <sstream>

#include "lancet/cost/costs.h"
#include "lancet/ops/catalogue.h"

namespace lancet::schedule {
namespace {

using ir::Role;
using ir::Stream;

bool takes_time(const ir::Interval& when) { return when.end > when.start; }
bool is_part(const ir::Instruction& at) { return at.attributes.has("parts") && at.attributes.has("part"); }
// The micro batches of a step are split alike, so the first one stands for all.
bool is_first_part(const ir::Instruction& at) {
  return is_part(at) && at.attributes.integer("part") == 0 && at.micro_batch == 0;
}

// Returns the name of an instruction's work, which all its parts share: "h.2.attn.c_attn dw".
std::string work_of(const ir::Instruction& at) { return fmt::format("{} {}", site_of(at), ir::name(at.role)); }

// Disjoint sets of instructions (union-find).
class Components {
 public:
  explicit Components(std::size_t size) : parent_(size) {
    for (std::size_t i = 0; i < size; ++i) parent_[i] = i;
  }
  std::size_t of(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { parent_[of(b)] = of(a); }

 private:
  std::vector<std::size_t> parent_;
};

// The intervals in which a communication stream is busy, disjoint and in order.
std::vector<ir::Interval> busy_network(const ir::Program& program, std::span<const ir::Interval> when) {
  std::vector<ir::Interval> all, joined;
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    if (program.instructions[i].stream != Stream::compute && takes_time(when[i])) all.push_back(when[i]);
  std::ranges::sort(all, {}, &ir::Interval::start);
  for (const ir::Interval& next : all) {
    if (!joined.empty() && next.start <= joined.back().end)
      joined.back().end = std::max(joined.back().end, next.end);
    else
      joined.push_back(next);
  }
  return joined;
}

// A label with * for the numbers of block and bucket: "h.*.attn.c_proj.sum_shards".
std::string place_of_all(const std::string& label) {
  std::string text;
  std::istringstream words(label);
  for (std::string word; std::getline(words, word, '.');) {
    const bool number = word.find_first_not_of("0123456789") == word.npos;
    text += (text.empty() ? "" : ".") + (number ? std::string("*") : word);
  }
  return text;
}

double overlap_of(const ir::Interval& span, const std::vector<ir::Interval>& busy) {
  double ms = 0;
  for (auto at = std::ranges::lower_bound(busy, span.start, {}, &ir::Interval::end);
       at != busy.end() && at->start < span.end; ++at)
    ms += std::min(span.end, at->end) - std::max(span.start, at->start);
  return ms;
}

}  // namespace

void CommunicationSite::add_under(const std::string& work, double under_ms) {
  auto same = std::ranges::find(under, work, [](const auto& item) { return item.first; });
  if (same == under.end()) same = under.insert(same, {work, 0});
  same->second += under_ms;
}

void CommunicationSite::sort_under() {
  std::ranges::stable_sort(under, std::ranges::greater(), [](const auto& item) { return item.second; });
}

std::vector<CommunicationSite> communication_sites(const ir::Program& program, std::span<const ir::Interval> when) {
  std::vector<std::size_t> compute;
  for (std::size_t i = 0; i < program.instructions.size(); ++i)
    if (program.instructions[i].stream == Stream::compute && takes_time(when[i])) compute.push_back(i);
  // By stream: the first computation that may still overlap; streams run in order.
  std::array<std::size_t, ir::stream_count> next{};
  std::vector<CommunicationSite> sites;
  std::map<std::pair<std::string, std::string_view>, std::size_t> index;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    const ir::Interval& span = when[i];
    if (at.stream == Stream::compute || !takes_time(span)) continue;
    if (ops::kind(at) == ops::Kind::part_helper || cost::reached(at) == 0)
      continue;  // copies or counts on its own rank
    const std::string site = ir::between_stages(at.stream) ? at.label + "." + at.op : site_of(at);
    const auto [it, is_new] = index.emplace(std::pair(site, pass_of(at.role)), sites.size());
    if (is_new) sites.push_back({.site = site, .pass = pass_of(at.role), .stream = at.stream, .under = {}});
    CommunicationSite& sum = sites[it->second];
    sum.parts += at.micro_batch <= 0;  // what the step before has left is of its last micro batch, counted here alone
    sum.ms += span.end - span.start;
    std::size_t& first = next[std::size_t(at.stream)];
    while (first < compute.size() && when[compute[first]].end <= span.start) ++first;
    double covered_ms = 0;
    for (std::size_t c = first; c < compute.size() && when[compute[c]].start < span.end; ++c) {
      const ir::Interval& other = when[compute[c]];
      const double ms = std::min(span.end, other.end) - std::max(span.start, other.start);
      sum.add_under(work_of(program.instructions[compute[c]]), ms);
      covered_ms += ms;
    }
    sum.covered_ms += covered_ms;
  }
  for (CommunicationSite& sum : sites) sum.sort_under();
  return sites;
}

std::vector<RecomputedSite> recomputed_sites(const ir::Program& program, std::span<const ir::Interval> when) {
  const std::vector<ir::Interval> busy = busy_network(program, when);
  std::vector<RecomputedSite> sites;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    if (at.role != Role::recompute) continue;
    const std::string place = place_of_all(site_of(at));
    auto site = std::ranges::find_if(
        sites, [&](const RecomputedSite& known) { return known.op == at.op && known.place == place; });
    if (site == sites.end()) site = sites.insert(site, {.op = at.op, .place = place});
    ++site->count;
    site->ms += when[i].end - when[i].start;
    site->beside_ms += overlap_of(when[i], busy);
  }
  return sites;
}

std::int64_t kept_bytes(const ir::Program& program) {
  std::vector<bool> forward(program.tensors.size()), backward(program.tensors.size());
  for (const ir::Instruction& at : program.instructions) {
    if (at.micro_batch != 0 || at.role == Role::sync || at.role == Role::update) continue;
    std::vector<bool>& touched = at.role == Role::forward ? forward : backward;
    for (const auto* list : {&at.operands, &at.results})
      for (const ir::TensorId id : *list) touched[program.root(id).index()] = true;
  }
  std::int64_t bytes = 0;
  for (std::size_t i = 0; i < program.tensors.size(); ++i)
    if (forward[i] && backward[i] && program.tensors[i].number >= 0) bytes += ir::bytes(program.tensors[i].type);
  return bytes;
}

std::string longest_first(std::span<const std::pair<std::string, double>> under) {
  constexpr std::size_t shown = 3;
  std::vector<std::string> items;
  double rest = 0;
  for (std::size_t i = 0; i < under.size(); ++i) {
    if (i < shown)
      items.push_back(fmt::format("{} {:.2f}", under[i].first, under[i].second));
    else
      rest += under[i].second;
  }
  if (under.size() > shown) items.push_back(fmt::format("{} more {:.2f}", under.size() - shown, rest));
  return items.empty() ? "-" : fmt::format("{}", fmt::join(items, ", "));
}

std::string_view pass_of(Role role) { return role == Role::dx || role == Role::dw ? "backward" : ir::name(role); }

std::string site_of(const ir::Instruction& instruction) {
  return is_part(instruction) ? instruction.label.substr(0, instruction.label.rfind('/')) : instruction.label;
}

std::vector<SplitRange> split_ranges(const ir::Program& program) {
  const auto& instructions = program.instructions;
  Components components(instructions.size());
  std::vector<std::vector<std::size_t>> makers(program.tensors.size());  // by root tensor: instructions that write it
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const ir::Instruction& at = instructions[i];
    if (!is_first_part(at)) continue;
    for (ir::TensorId operand : at.operands)
      for (std::size_t maker : makers[program.root(operand).index()])
        if (instructions[maker].role == at.role &&
            instructions[maker].attributes.integer("parts") == at.attributes.integer("parts"))
          components.join(maker, i);
    for (ir::TensorId result : at.results) makers[program.root(result).index()].push_back(i);
  }
  std::vector<SplitRange> ranges;
  std::map<std::size_t, std::size_t> index;  // by component, its index in `ranges`
  for (std::size_t i = 0; i < instructions.size(); ++i) {
    const ir::Instruction& at = instructions[i];
    if (!is_first_part(at) || (at.role != Role::forward && at.role != Role::dx)) continue;
    const auto [it, first] = index.emplace(components.of(i), ranges.size());
    if (first) ranges.push_back({at.role, int(at.attributes.integer("parts")), site_of(at), site_of(at)});
    ranges[it->second].last = site_of(at);
  }
  return ranges;
}

}  // namespace lancet::schedule
