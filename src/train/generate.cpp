#include "generate.h"

#include <algorithm>
#include <cmath>

#include "lancet/base/random.h"

namespace lancet::train {

Result<std::vector<std::int32_t>> continue_text(runtime::Executor& executor, const config::Config& config,
                                                std::vector<std::int32_t> ids, std::int64_t count) {
  const ops::TensorView tokens = executor.input("tokens"), logits = executor.output("logits");
  const std::int64_t window = tokens.shape()[1], vocabulary = config.model.vocab_size;
  const Philox random(static_cast<std::uint64_t>(config.train.seed), stream_of("sample"));
  std::vector<double> cumulative(static_cast<std::size_t>(vocabulary));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t length = std::min<std::int64_t>(std::int64_t(ids.size()), window);
    std::fill_n(tokens.as<std::int32_t>(), window, 0);  // later positions do not reach earlier ones
    std::copy(ids.end() - length, ids.end(), tokens.as<std::int32_t>());
    LANCET_TRY(executor.run());
    auto logit = [&](std::int64_t v) {
      const std::int64_t at = (length - 1) * logits.shape()[2] + v;
      return logits.dtype() == DType::bf16 ? to_f32(logits.as<bf16>()[at]) : logits.as<float>()[at];
    };
    float top = logit(0);
    for (std::int64_t v = 1; v < vocabulary; ++v) top = std::max(top, logit(v));
    double sum = 0;
    for (std::int64_t v = 0; v < vocabulary; ++v) cumulative[std::size_t(v)] = sum += std::exp(double(logit(v)) - top);
    const double drawn = double(random.uniform(static_cast<std::uint64_t>(i))) * sum;
    const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), drawn) - cumulative.begin();
    ids.push_back(static_cast<std::int32_t>(std::min<std::int64_t>(at, vocabulary - 1)));
  }
  return ids;
}

}  // namespace lancet::train
