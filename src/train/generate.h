// Text from a model: tokens drawn one by one.
#pragma once
#include <cstdint>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/config/config.h"
#include "lancet/runtime/executor.h"

namespace lancet::train {

// `ids` and `count` more tokens, each drawn from the model's distribution with the config's seed. executor: of a plan
// in Mode::generate. Collective.
Result<std::vector<std::int32_t>> continue_text(runtime::Executor& executor, const config::Config& config,
                                                std::vector<std::int32_t> ids, std::int64_t count);

}  // namespace lancet::train
