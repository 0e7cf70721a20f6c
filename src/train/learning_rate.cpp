#include "lancet/train/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace lancet::train {

double learning_rate(const config::Train& train, std::int64_t step) {
  const double low = train.min_lr, high = train.lr;
  if (step < train.lr_warmup_steps) return high * double(step + 1) / double(train.lr_warmup_steps);
  // 0 at the first step of the decay, 1 at the last step of the run.
  auto progress = [&](std::int64_t begin) {
    const auto length = std::max<std::int64_t>(train.steps - 1 - begin, 1);
    return std::clamp(double(step - begin) / double(length), 0.0, 1.0);
  };
  switch (train.lr_schedule) {
    case config::LrSchedule::constant:
      return high;
    case config::LrSchedule::linear:
      return high + (low - high) * progress(train.lr_warmup_steps);
    case config::LrSchedule::cosine:
      return low + (high - low) * 0.5 * (1 + std::cos(std::numbers::pi * progress(train.lr_warmup_steps)));
    case config::LrSchedule::wsd: {
      const std::int64_t begin = std::max(train.steps - train.lr_decay_steps, train.lr_warmup_steps);
      return step < begin ? high : high + (low - high) * progress(begin);
    }
  }
  return high;
}

}  // namespace lancet::train
