// DrawnRouting: which experts the tokens of an emulated device choose, drawn from the seed.
#pragma once
#include <cstdint>
#include <memory>
#include <span>

#include "lancet/cost/loads.h"

namespace lancet::runtime {

class DrawnRouting {
 public:
  explicit DrawnRouting(std::shared_ptr<const cost::Loads> loads) : loads_(std::move(loads)) {}

  // Makes the scores [tokens, experts] of tokens first, first + 1, ... of a rank's micro batch. The highest scores of
  // a token are those of the experts which it chooses, the first choice first; all are from 0 to below 10. Under even
  // loads token i chooses expert i modulo the experts, and those after it. pass: the micro batches before this one.
  // place: of the rank among those that have other tokens; ranks with the same tokens have the same.
  void draw(int layer, std::int64_t pass, int place, std::int64_t first, std::span<float> scores) const;

 private:
  std::shared_ptr<const cost::Loads> loads_;
};

}  // namespace lancet::runtime
