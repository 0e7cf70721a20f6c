#include "lancet/model/initialize.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/base/random.h"

namespace lancet::model {
namespace {

// A value is a function of its index, so any division of the values among threads gives the same result.
void fill_normal(std::uint64_t seed, const std::string& stream, float deviation, std::span<float> values) {
  constexpr std::size_t worth_a_thread = 1 << 18;  // half a millisecond
  const Philox random(seed, stream_of(stream));
  auto fill = [&](std::size_t begin, std::size_t end) {
    constexpr std::size_t in_cache = 4096;
    for (; begin < end; begin += in_cache) {
      const std::span<float> piece = values.subspan(begin, std::min(in_cache, end - begin));
      random.normals(begin, piece);
      for (float& value : piece) value *= deviation;
    }
  };
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t parts = std::clamp<std::size_t>(values.size() / worth_a_thread, 1, cores);
  std::vector<std::jthread> helpers;
  for (std::size_t part = 1; part < parts; ++part)
    helpers.emplace_back(fill, values.size() * part / parts, values.size() * (part + 1) / parts);
  fill(0, values.size() / parts);
}

}  // namespace

void initialize(const Parameter& parameter, int expert_coordinate, std::uint64_t seed, std::span<float> values) {
  const Shape& shape = parameter.shape;
  LANCET_CHECK(std::int64_t(values.size()) == shape.elements(), "{} has {} elements, not {}", parameter.name,
               shape.elements(), values.size());
  if (!parameter.deviation) return std::fill(values.begin(), values.end(), parameter.value);
  const std::span<float> drawn = values.first(values.size() - std::size_t(parameter.unused));
  std::fill(values.begin() + std::ptrdiff_t(drawn.size()), values.end(), 0.f);
  if (!parameter.is_experts) return fill_normal(seed, parameter.name, *parameter.deviation, drawn);
  const std::int64_t here = shape[0];
  const std::size_t each = drawn.size() / std::size_t(here);
  for (std::int64_t e = 0; e < here; ++e)
    fill_normal(seed, fmt::format("{}.{}", parameter.name, expert_coordinate * here + e), *parameter.deviation,
                drawn.subspan(std::size_t(e) * each, each));
}

}  // namespace lancet::model
