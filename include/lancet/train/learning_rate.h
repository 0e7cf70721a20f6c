#pragma once
#include <cstdint>

#include "lancet/config/config.h"

namespace lancet::train {

// The learning rate of step `step` (0 is the first). Warm-up rises in equal steps to lr, reached at its end (a run may
// be shorter); then constant, linear or cosine to min_lr at the last step, or wsd: lr until the last lr_decay_steps,
// which fall linearly to min_lr.
double learning_rate(const config::Train& train, std::int64_t step);

}  // namespace lancet::train
