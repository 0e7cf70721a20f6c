// A decoder reads tokens one after the other and returns the logits of the next one. It keeps the keys and values of
// the tokens it has read (the KV cache), so that each token costs one pass over the weights.
#pragma once
#include <cstdint>
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

// Config error: a router that is not causal, by which a token's experts depend on tokens that are not generated yet.
Status check_generates(const config::Model& model);

// Runs plans of model::Mode::decode: of one row, and of more rows for a prompt. Gates drop nothing: an expert computes
// every token that chose it. With several ranks, every rank passes the same tokens and gets the same logits, and read()
// is collective.
class Decoder {
 public:
  // Collective. store: the weights; the KV cache is added to it ([heads, n_positions, head size] twice a block, in
  // train.dtype). streams: opens the groups that the plans name. store and streams outlive the decoder. Config error:
  // see check_generates.
  static Result<std::unique_ptr<Decoder>> create(const config::Config& config, comm::Communicator& world,
                                                 runtime::TensorStore& store, run::Streams& streams, int threads);

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
          int threads);
  Result<Pass*> pass_of(std::int64_t rows);

  const config::Config config_;
  comm::Communicator& world_;
  runtime::TensorStore& store_;
  run::Streams& streams_;
  const int threads_;
  const std::int64_t window_;
  std::int64_t length_ = 0;
  std::vector<std::unique_ptr<Pass>> passes_;
  std::vector<float> logits_;
};

}  // namespace lancet::models
