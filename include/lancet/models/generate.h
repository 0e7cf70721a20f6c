// Generates text with a model by drawing tokens one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/run/stream_communicators.h"
#include "lancet/runtime/executor.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::models {

// A decoder reads tokens one after the other and returns the logits of the next one. It keeps the keys and values of
// the tokens it has read (the KV cache), so that each token costs one pass over the weights.

// Config error: a router that is not causal, by which a token's experts depend on tokens that are not generated yet.
Status check_generates(const config::Model& model);

// Runs plans of model::Mode::decode: of one row, and of more rows for a prompt. Gates drop nothing: an expert computes
// every token that chose it. With several ranks, every rank passes the same tokens and gets the same logits, and read()
// is collective.
class Decoder {
 public:
  // Collective. store: the weights; the KV cache is added to it unless it has one ([heads, window, head size] twice
  // a block, in train.dtype). streams: opens the groups that the plans name. store and streams outlive the decoder.
  // first_blocks: planner::StepModel::first_blocks, if the config has several pipeline stages. Config error: see
  // check_generates.
  static Result<std::unique_ptr<Decoder>> create(const config::Config& config, comm::Communicator& world,
                                                 runtime::TensorStore& store, run::Streams& streams, int threads,
                                                 std::vector<int> first_blocks = {});

  // Appends at least one token to those read before. Returns the logits [vocab_size] of the token after the last; they
  // are valid until the next call. length() + tokens.size() is at most window().
  Result<std::span<const float>> read(std::span<const std::int32_t> tokens);
  void forget() { length_ = 0; }
  std::int64_t length() const { return length_; }  // tokens read since the start or forget()
  std::int64_t window() const { return window_; }  // the longest sequence that the model was trained on

 private:
  struct Pass {
    std::int64_t rows = 0;
    std::unique_ptr<runtime::Executor> executor;
    std::span<std::int32_t> tokens;  // empty on a pipeline stage that reads none
    std::span<std::int32_t> position;
    ops::TensorView logits;
  };

  Decoder(const config::Config& config, comm::Communicator& world, runtime::TensorStore& store, run::Streams& streams,
          int threads, std::vector<int> first_blocks);
  Result<Pass*> pass_of(std::int64_t rows);

  const config::Config config_;
  comm::Communicator& world_;
  runtime::TensorStore& store_;
  run::Streams& streams_;
  const int threads_;
  const std::vector<int> first_blocks_;
  const std::int64_t window_;
  std::int64_t length_ = 0;
  std::vector<std::unique_ptr<Pass>> passes_;
  std::vector<float> logits_;
};

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
  std::vector<std::int32_t> ends = {};  // the tokens that end the text
  // True: at the window's end, reads its last half again and continues. False: stops there.
  bool slide = false;
};

enum class Ending { max_tokens, end_of_text, window };

// Reads the prompt (at least one token, fewer than fit the window), draws tokens and calls each(token) for all but
// `ends`. Collective if the decoder is; every rank draws the same tokens.
Result<Ending> generate(Decoder& decoder, std::span<const std::int32_t> prompt, const GenerateOptions& options,
                        const std::function<Status(std::int32_t)>& each);

}  // namespace lancet::models
