#include <algorithm>
#include <cstring>
#include <vector>

#include "lancet/ir/route_layout.h"
#include "ops/cpu.h"

namespace lancet::ops {
namespace {

struct Route {
  ir::RouteLayout layout;
  void* data;
  explicit Route(const TensorView& view) : layout{view.shape()[0], view.shape()[1]}, data(view.data) {}
};

template <class T>
void copy(const T* from, std::int64_t n, T* to) {
  std::memcpy(to, from, std::size_t(n) * sizeof(T));
}

Kernel bind_split(const KernelArgs& args) {
  const Route whole(args.operands[0]), part(args.results[0]);
  const std::int64_t first = args.attributes.integer("first");
  const std::int32_t* before = nullptr;
  if (args.has(1)) before = Route(args.operands[1]).layout.end(args.operands[1].data);
  return [=]() -> Status {
    const std::int64_t tokens = part.layout.tokens, experts = part.layout.experts;
    copy(whole.layout.expert(whole.data) + first, tokens, part.layout.expert(part.data));
    copy(whole.layout.slot(whole.data) + first, tokens, part.layout.slot(part.data));
    copy(whole.layout.weight(whole.data) + first, tokens, part.layout.weight(part.data));
    const std::int32_t *expert = part.layout.expert(part.data), *slot = part.layout.slot(part.data);
    std::int32_t *begin = part.layout.begin(part.data), *end = part.layout.end(part.data);
    for (std::int64_t e = 0; e < experts; ++e) begin[e] = end[e] = before ? before[e] : 0;
    for (std::int64_t t = 0; t < tokens; ++t)
      if (slot[t] != ir::RouteLayout::dropped) end[expert[t]] = std::max(end[expert[t]], slot[t] + 1);
    return {};
  };
}

Kernel bind_split_capacity(const KernelArgs& args) {
  const Route whole(args.operands[0]), part(args.results[0]);
  const std::int64_t parts = args.attributes.integer("parts"), p = args.attributes.integer("part"),
                     capacity = args.attributes.integer("capacity");
  const auto first = std::int32_t(capacity * p / parts), last = std::int32_t(capacity * (p + 1) / parts);
  return [=]() -> Status {
    const std::int32_t *begin = whole.layout.begin(whole.data), *end = whole.layout.end(whole.data);
    for (std::int64_t e = 0; e < whole.layout.experts; ++e) {
      part.layout.begin(part.data)[e] = std::clamp(first, begin[e], end[e]);
      part.layout.end(part.data)[e] = std::clamp(last, begin[e], end[e]);
    }
    return {};
  };
}

Kernel bind_split_peers(const KernelArgs& args) {
  const Route whole(args.operands[0]), part(args.results[0]);
  const std::int64_t parts = args.attributes.integer("parts"), ranks = args.attributes.integer("ranks");
  const std::int64_t group = ranks / parts, rank = args.comm ? args.comm->rank() : 0;
  const std::int64_t theirs = (rank / group + args.attributes.integer("part")) % parts;
  return [=]() -> Status {
    const std::int32_t *begin = whole.layout.begin(whole.data), *end = whole.layout.end(whole.data);
    const std::int64_t first = theirs * group * (whole.layout.experts / ranks),
                       last = first + whole.layout.experts / parts;
    for (std::int64_t e = 0; e < whole.layout.experts; ++e) {
      const bool mine = e >= first && e < last;
      part.layout.begin(part.data)[e] = begin[e];
      part.layout.end(part.data)[e] = mine ? end[e] : begin[e];
    }
    return {};
  };
}

Kernel bind_join_route(const KernelArgs& args) {
  const Route whole(args.results[0]);
  std::vector<Route> parts;
  for (const TensorView& part : args.operands) parts.emplace_back(part);
  return [=]() -> Status {
    std::int64_t first = 0;
    for (const Route& part : parts) {
      const std::int64_t tokens = part.layout.tokens;
      copy(part.layout.expert(part.data), tokens, whole.layout.expert(whole.data) + first);
      copy(part.layout.slot(part.data), tokens, whole.layout.slot(whole.data) + first);
      copy(part.layout.weight(part.data), tokens, whole.layout.weight(whole.data) + first);
      first += tokens;
    }
    const std::int64_t experts = whole.layout.experts;
    copy(parts.front().layout.begin(parts.front().data), experts, whole.layout.begin(whole.data));
    copy(parts.back().layout.end(parts.back().data), experts, whole.layout.end(whole.data));
    return {};
  };
}

Kernel bind_join_rows(const KernelArgs& args) {
  const std::int32_t *first = args.operands.front().as<std::int32_t>(), *last = args.operands.back().as<std::int32_t>();
  auto* whole = args.results[0].as<std::int32_t>();
  const std::int64_t experts = args.results[0].shape()[0], width = args.results[0].shape()[1];
  return [=]() -> Status {
    for (std::int64_t e = 0; e < experts; ++e) {
      whole[e * width] = first[e * width];
      std::fill_n(whole + e * width + 1, width - 1, last[e * width + width - 1]);
    }
    return {};
  };
}

Kernel bind_sum(const KernelArgs& args) {
  std::vector<const float*> parts;
  for (const TensorView& part : args.operands) parts.push_back(part.as<float>());
  float* sum = args.results[0].as<float>();
  const std::int64_t n = args.results[0].elements();
  return [=]() -> Status {
    copy(parts[0], n, sum);
    for (std::size_t p = 1; p < parts.size(); ++p)
      for (std::int64_t i = 0; i < n; ++i) sum[i] += parts[p][i];
    return {};
  };
}

const CpuKernel table[] = {
    {"split_route", bind_split},     {"split_capacity", bind_split_capacity}, {"split_peers", bind_split_peers},
    {"join_route", bind_join_route}, {"join_rows", bind_join_rows},           {"sum", bind_sum},
};

}  // namespace

std::span<const CpuKernel> route_parts_cpu() { return table; }

}  // namespace lancet::ops
