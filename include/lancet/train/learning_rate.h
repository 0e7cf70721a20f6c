// The learning-rate schedule.
#pragma once
#include <cstdint>

#include "lancet/config/config.h"

namespace lancet::train {

// The learning rate of step `step` (0 is the first). Warm-up rises in equal steps and reaches lr at its end; a run may
// be shorter. Then lr stays constant, or falls linearly or as a cosine to min_lr at the last step; wsd keeps lr until
// the last lr_decay_steps, in which it falls linearly to min_lr.
double learning_rate(const config::Train& train, std::int64_t step);

}  // namespace lancet::train
