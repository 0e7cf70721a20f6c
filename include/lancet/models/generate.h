// Generates text with a model by drawing tokens one by one.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/models/decoder.h"

namespace lancet::models {

// How a token is drawn, in Hugging Face's order: divide logits by temperature; keep the top_k largest; of these keep
// the fewest whose probabilities sum to top_p.
struct SamplingOptions {
  double temperature = 1;  // 0: the largest logit, always
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;        // 1: all
  std::uint64_t seed = 1;
};
// Config error: a temperature below 0 or not finite, top_k below 0, top_p outside (0, 1].
Status check(const SamplingOptions& options);

// Draws tokens. The same seed and logits give the same tokens; of equal logits the lower id comes first.
class TokenPicker {
 public:
  explicit TokenPicker(const SamplingOptions& options) : options_(options) {}
  // Numerical error: a logit that is not finite.
  Result<std::int32_t> pick(std::span<const float> logits);

 private:
  struct Candidate {
    float logit;
    std::int32_t id;
  };
  void sort_front(std::size_t count);
  std::int32_t draw(std::span<const float> logits, float top);
  std::int32_t draw_front(float top);
  double weight(float logit, float top) const;

  const SamplingOptions options_;
  std::uint64_t drawn_ = 0;
  std::vector<Candidate> candidates_;
  std::vector<double> cumulative_;
};

struct GenerateOptions {
  SamplingOptions sampling = {};
  std::int64_t max_tokens = 0;
  std::int32_t end_of_text = -1;  // the token that ends the text; -1: none
  // True: at the window's end, reads its last half again and continues. False: stops there.
  bool slide = false;
};

enum class Ending { max_tokens, end_of_text, window };

// Reads the prompt (at least one token, fewer than fit the window), draws tokens and calls each(token) for all but
// end_of_text. Collective if the decoder is; every rank draws the same tokens.
Result<Ending> generate(Decoder& decoder, std::span<const std::int32_t> prompt, const GenerateOptions& options,
                        const std::function<Status(std::int32_t)>& each);

}  // namespace lancet::models
