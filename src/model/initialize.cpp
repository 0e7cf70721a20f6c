#include "lancet/model/transformer.h"

#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "lancet/base/check.h"
#include "lancet/base/random.h"

namespace lancet::model {
namespace {

// Draws elements of one parameter. Each expert has a random stream of its own, in which its elements count from 0.
class Draw {
 public:
  Draw(const Parameter& parameter, std::uint64_t seed)
      : parameter_(parameter),
        drawn_(parameter.shape.elements() - parameter.unused),
        of_stream_(parameter.is_experts ? parameter.shape.elements() / parameter.shape[0] : drawn_) {
    for (std::int64_t expert = 0; parameter.is_experts && expert < parameter.shape[0]; ++expert)
      streams_.emplace_back(Philox(seed, stream_of(fmt::format("{}.{}", parameter.name, expert))));
    if (!parameter.is_experts) streams_.emplace_back(Philox(seed, stream_of(parameter.name)));
  }

  void operator()(const std::vector<ir::HeldRun>& held, std::span<float> values) const {
    for (const ir::HeldRun& run : held) fill(run.whole, values.subspan(std::size_t(run.held), std::size_t(run.count)));
  }

 private:
  // The elements of the whole parameter from `first` on.
  void fill(std::int64_t first, std::span<float> values) const {
    const auto drawn = std::size_t(std::clamp<std::int64_t>(drawn_ - first, 0, std::int64_t(values.size())));
    std::ranges::fill(values.subspan(drawn), 0.f);
    constexpr std::int64_t in_cache = 4096;
    for (std::span<float> rest = values.first(drawn); !rest.empty();) {
      const std::int64_t stream = first / of_stream_, at = first % of_stream_,
                         count = std::min({in_cache, of_stream_ - at, std::int64_t(rest.size())});
      const std::span<float> piece = rest.first(std::size_t(count));
      streams_[std::size_t(stream)].normals(std::uint64_t(at), piece);
      for (float& value : piece) value *= *parameter_.deviation;
      rest = rest.subspan(piece.size());
      first += count;
    }
  }

  const Parameter& parameter_;
  std::int64_t drawn_, of_stream_;  // elements: all but the padding; those of one random stream
  std::vector<Philox> streams_;
};

}  // namespace

void initialize(const Parameter& parameter, std::uint64_t seed, const std::vector<ir::HeldRun>& held,
                std::span<float> values) {
  LANCET_CHECK(std::int64_t(values.size()) == elements_of(held), "{}: {} elements are held, not {}", parameter.name,
               elements_of(held), values.size());
  LANCET_CHECK(held.empty() || held.back().whole + held.back().count <= parameter.shape.elements(),
               "{} has {} elements, not {}", parameter.name, parameter.shape.elements(),
               held.back().whole + held.back().count);
  if (!parameter.deviation) return std::fill(values.begin(), values.end(), parameter.value);
  const Draw draw(parameter, seed);
  constexpr std::size_t worth_a_thread = 1 << 18;  // half a millisecond
  const std::size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t parts = std::clamp<std::size_t>(values.size() / worth_a_thread, 1, cores);
  // A value is a function of its element, so any division of the values among threads gives the same result.
  const auto fill = [&](std::size_t part) {
    const std::size_t begin = values.size() * part / parts, end = values.size() * (part + 1) / parts;
    draw(ir::of_held(held, {std::int64_t(begin), std::int64_t(end)}), values.subspan(begin, end - begin));
  };
  std::vector<std::jthread> helpers;
  for (std::size_t part = 1; part < parts; ++part) helpers.emplace_back(fill, part);
  fill(0);
}

}  // namespace lancet::model
