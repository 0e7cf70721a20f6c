#pragma once
#include <cstdint>

#include "lancet/config/config.h"

namespace lancet::model {

// The slots of an expert for a group of tokens, each of which chooses `choices` experts:
// ceil(capacity_factor * choices * tokens / experts), at least 1, at most `tokens`.
std::int64_t capacity(double capacity_factor, std::int64_t tokens, std::int64_t experts, std::int64_t choices = 1);

// The choices of `tokens` tokens at experts that have as many slots together. Where experts choose, these fill all
// slots.
std::int64_t choices_of(const config::Model& model, std::int64_t tokens, std::int64_t slots);

}  // namespace lancet::model
