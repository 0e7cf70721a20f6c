#include "lancet/model/capacity.h"

#include <algorithm>
#include <cmath>

namespace lancet::model {

std::int64_t capacity(double capacity_factor, std::int64_t tokens, std::int64_t experts, std::int64_t choices) {
  // The small subtraction prevents that 1.25 * 1024 / 4, which is exactly 320, is rounded up to 321.
  const double exact = capacity_factor * double(choices * tokens) / double(experts);
  return static_cast<std::int64_t>(std::clamp(std::ceil(exact - 1e-9 * exact), 1.0, double(tokens)));
}

std::int64_t choices_of(const config::Model& model, std::int64_t tokens, std::int64_t slots) {
  return model.experts_choose() ? slots : tokens * model.num_experts_per_tok;
}

}  // namespace lancet::model
