#include "lancet/ir/sharding.h"

#include <fmt/format.h>
#include <algorithm>
#include <charconv>
#include <numeric>

namespace lancet::ir {
namespace {

// "data,expert", in the order of the split.
std::string axis_list(const Split& split) {
  std::string text;
  for (const Axis axis : split.axes) {
    if (!text.empty()) text += ',';
    text += name(axis);
  }
  return text;
}

// A number of at least `least` in the shortest decimal form; none for any other text.
std::optional<std::int64_t> parse_number(std::string_view text, std::int64_t least) {
  std::int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || stop != end || value < least || text != std::to_string(value)) return std::nullopt;
  return value;
}

// One axis or more, each once, outermost first.
std::optional<std::vector<Axis>> parse_axis_list(std::string_view text) {
  std::vector<Axis> axes;
  for (bool another = true; another;) {
    const std::size_t end = text.find(',');
    const auto axis = parse_axis(text.substr(0, end));
    if (!axis || std::ranges::count(axes, *axis) > 0) return std::nullopt;
    axes.push_back(*axis);
    another = end != std::string_view::npos;
    if (another) text.remove_prefix(end + 1);
  }
  return axes;
}

}  // namespace

Blocks Blocks::of(std::vector<std::int64_t> widths) {
  std::int64_t common = 0;
  for (const std::int64_t width : widths) common = std::gcd(common, width);
  for (std::int64_t& width : widths) width /= common;
  Blocks blocks(std::accumulate(widths.begin(), widths.end(), std::int64_t{0}));
  if (blocks.units > std::int64_t(widths.size())) blocks.widths = std::move(widths);
  return blocks;
}

std::string to_string(const Blocks& blocks) {
  return blocks.widths.empty() ? fmt::format("{}", blocks.units) : fmt::format("{}", fmt::join(blocks.widths, "+"));
}

std::optional<Blocks> parse_blocks(std::string_view text) {
  std::vector<std::int64_t> widths;
  std::int64_t units = 0;
  for (std::string_view rest = text; !rest.empty() || text.empty();) {
    const std::size_t end = std::min(rest.find('+'), rest.size());
    const auto width = parse_number(rest.substr(0, end), 1);
    if (!width || __builtin_add_overflow(units, *width, &units)) return std::nullopt;
    widths.push_back(*width);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  Blocks blocks = widths.size() == 1 ? Blocks(units) : Blocks::of(std::move(widths));
  return to_string(blocks) == text ? std::optional(std::move(blocks)) : std::nullopt;
}

bool Sharding::is_whole() const { return used().empty(); }

Axes Sharding::used() const {
  Axes axes = partial;
  for (const Split& split : dimensions) axes = axes | Axes(split.axes);
  return axes;
}

std::string to_string(const Dimension& dimension) {
  const Split& split = dimension.split;
  if (split.axes.empty()) return fmt::format("{}", dimension.extent);
  if (split.blocks == 1) return fmt::format("{}{{{}}}", dimension.extent, axis_list(split));
  return fmt::format("{}x{}{{{}}}", to_string(split.blocks), dimension.extent / split.blocks.units, axis_list(split));
}

std::optional<Dimension> parse_dimension(std::string_view text) {
  const std::size_t open = text.find('{');
  std::string_view extents = text.substr(0, open);
  Dimension dimension;
  if (open != std::string_view::npos) {
    if (!text.ends_with('}')) return std::nullopt;
    auto axes = parse_axis_list(text.substr(open + 1, text.size() - open - 2));
    if (!axes) return std::nullopt;
    dimension.split.axes = std::move(*axes);
    if (const std::size_t by = extents.find('x'); by != std::string_view::npos) {
      const auto blocks = parse_blocks(extents.substr(0, by));
      if (!blocks || *blocks == 1) return std::nullopt;
      dimension.split.blocks = *blocks;
      extents.remove_prefix(by + 1);
    }
  }
  const auto extent = parse_number(extents, 0);
  if (!extent || __builtin_mul_overflow(*extent, dimension.split.blocks.units, &dimension.extent)) return std::nullopt;
  return dimension;
}

std::string to_string(const Shape& shape, const Sharding& sharding) {
  std::string text;
  for (int d = 0; d < shape.rank(); ++d) {
    if (d > 0) text += ',';
    text += to_string(Dimension{shape[d], sharding.dimensions[std::size_t(d)]});
  }
  if (sharding.is_whole()) return text + " whole";
  if (!sharding.partial.empty()) text += " partial{" + to_string(sharding.partial) + "}";
  return text;
}

Status check(const Shape& shape, const Sharding& sharding) {
  if (sharding.dimensions.size() != std::size_t(shape.rank()))
    return config_error(
        fmt::format("expected a split for each of {} dimensions, found {}", shape.rank(), sharding.dimensions.size()));
  Axes used = sharding.partial;
  for (int d = 0; d < shape.rank(); ++d) {
    const Split& split = sharding.dimensions[std::size_t(d)];
    for (const Axis axis : split.axes) {
      if (used.has(axis))
        return config_error(
            fmt::format("dimension {}: expected each axis once in a sharding, found {} again", d, name(axis)));
      used.add(axis);
    }
    if ((split.axes.empty() && split.blocks != 1) || !split.blocks.unit_of(shape[d]))
      return config_error(fmt::format("dimension {}: expected blocks of {}, found {} in {}", d,
                                      split.blocks.widths.empty() ? "equal size" : "such widths",
                                      to_string(split.blocks), shape[d]));
  }
  return {};
}

std::int64_t shards(const Split& split, const Mesh& mesh) { return mesh.size(Axes(split.axes)); }

bool divides(const Dimension& dimension, const Mesh& mesh) {
  const auto unit = dimension.split.blocks.unit_of(dimension.extent);
  return unit && *unit % shards(dimension.split, mesh) == 0;
}

Result<Shape> shard_shape(const Shape& shape, const Sharding& sharding, const Mesh& mesh) {
  LANCET_TRY(check(shape, sharding));
  Shape shard = shape;
  for (int d = 0; d < shape.rank(); ++d) {
    const Split& split = sharding.dimensions[std::size_t(d)];
    const std::int64_t n = shards(split, mesh);
    if (!divides({shape[d], split}, mesh))
      return config_error(fmt::format("dimension {}: expected a multiple of {}, the ranks along {}, found {}{}", d, n,
                                      axis_list(split), shape[d] / split.blocks.units,
                                      split.blocks == 1 ? ""
                                      : split.blocks.widths.empty()
                                          ? fmt::format(" in each of {} blocks", split.blocks.units)
                                          : fmt::format(" in a unit of blocks of {}", to_string(split.blocks))));
    shard.set(d, shape[d] / n);
  }
  return shard;
}

Shape whole_shape(const Shape& shard, const Sharding& sharding, const Mesh& mesh) {
  Shape whole = shard;
  for (int d = 0; d < shard.rank(); ++d) whole.set(d, shard[d] * shards(sharding.dimensions[std::size_t(d)], mesh));
  return whole;
}

Axes holders(const std::optional<Sharding>& sharding) {
  return Axes(all_axes) - (sharding ? sharding->used() : Axes{});
}

// The runs are built from the last dimension to the first: those of a row of the dimensions behind are repeated at each
// index that the rank holds of the dimension. As long as a row is whole, a segment of indices is a single run.
namespace {

// Appends elements behind those that are held already.
void append(std::vector<HeldRun>& runs, std::int64_t whole, std::int64_t count) {
  if (count == 0) return;
  if (!runs.empty() && runs.back().whole + runs.back().count == whole) {
    runs.back().count += count;
    return;
  }
  runs.push_back({whole, runs.empty() ? 0 : runs.back().held + runs.back().count, count});
}

// The indices of a dimension that the rank holds, as runs.
std::vector<HeldRun> held_indices(std::int64_t extent, const Split& split, const Mesh& mesh, int rank) {
  std::int64_t number = 0;  // of the rank's shard; the axes of a split need not be in the mesh's order
  for (const Axis axis : split.axes) number = number * mesh[axis] + mesh.coordinate(rank, axis);
  const std::int64_t unit = extent / split.blocks.units, shard = unit / shards(split, mesh);
  std::vector<HeldRun> indices;
  std::int64_t begin = 0;  // of the block
  for (std::int64_t b = 0; b < split.blocks.count(); ++b) {
    const std::int64_t width = split.blocks.width(b);
    append(indices, begin + number * width * shard, width * shard);
    begin += width * unit;
  }
  return indices;
}

}  // namespace

std::vector<HeldRun> held_elements(const Shape& whole, const std::optional<Sharding>& sharding, const Mesh& mesh,
                                   int rank) {
  if (sharding) {
    const auto shard = shard_shape(whole, *sharding, mesh);
    LANCET_CHECK(shard.ok(), "a tensor of [{}]: {}", to_string(whole), shard.error().message);
  }
  std::vector<HeldRun> runs{{0, 0, 1}};  // of a row of the dimensions behind
  std::int64_t row = 1;                  // its elements
  for (int d = whole.rank() - 1; d >= 0; --d) {
    const Split split = sharding ? sharding->dimensions[std::size_t(d)] : Split{};
    const bool is_whole_row = runs.size() == 1 && runs[0].count == row;
    std::vector<HeldRun> next;
    for (const HeldRun& indices : held_indices(whole[d], split, mesh, rank)) {
      if (is_whole_row) {
        append(next, indices.whole * row, indices.count * row);
        continue;
      }
      for (std::int64_t i = indices.whole; i < indices.whole + indices.count; ++i)
        for (const HeldRun& run : runs) append(next, i * row + run.whole, run.count);
    }
    runs = std::move(next);
    row *= whole[d];
  }
  return runs;
}

namespace {

// The runs cut to the range of the counter `first` (whole or held).
std::vector<HeldRun> intersect(const std::vector<HeldRun>& runs, std::int64_t HeldRun::*first, const FlatRange& range) {
  std::vector<HeldRun> inside;
  auto at = std::ranges::upper_bound(runs, range.begin, {}, first);
  if (at != runs.begin()) --at;  // the run before may reach into the range
  for (; at != runs.end() && (*at).*first < range.end; ++at) {
    const std::int64_t skipped = std::max<std::int64_t>(0, range.begin - (*at).*first),
                       end = std::min(at->count, range.end - (*at).*first);
    if (skipped < end) inside.push_back({at->whole + skipped, at->held + skipped, end - skipped});
  }
  return inside;
}

}  // namespace

std::vector<HeldRun> of_held(const std::vector<HeldRun>& runs, const FlatRange& range) {
  std::vector<HeldRun> inside = intersect(runs, &HeldRun::held, range);
  for (HeldRun& run : inside) run.held -= range.begin;
  return inside;
}

std::vector<HeldRun> of_whole(const std::vector<HeldRun>& runs, const FlatRange& range) {
  return intersect(runs, &HeldRun::whole, range);
}

std::int64_t elements_of(const std::vector<HeldRun>& runs) {
  return runs.empty() ? 0 : runs.back().held + runs.back().count - runs.front().held;
}

}  // namespace lancet::ir
