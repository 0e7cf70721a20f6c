// TrainingData: the data that a rank trains on and is evaluated on.
#pragma once
#include <memory>
#include <optional>

#include "lancet/data/batches.h"

namespace lancet::train {

class TrainingData {
 public:
  // replacement: takes the place of what the config names; may be null.
  explicit TrainingData(data::Batches* replacement) : replacement_(replacement) {}
  // sample_offset: data::SamplerOptions.
  Status open(const config::Config& config, int rank, int ranks, std::int64_t sample_offset) {
    if (replacement_) return {};
    LANCET_TRY(config::check_data(config));
    LANCET_ASSIGN(tokenizer_, data::load_tokenizer(config));
    data::TokenizerId expected;
    if (tokenizer_) expected = {tokenizer_->hash(), config.data.tokenizer};
    LANCET_ASSIGN(batches_, data::training_batches(config, expected, rank, ranks, sample_offset));
    LANCET_ASSIGN(expected, data::tokenizer_of_training(config));
    LANCET_ASSIGN(evaluation_, data::evaluation_batches(config, expected, rank, ranks));
    return {};
  }

  data::Batches& batches() { return replacement_ ? *replacement_ : *batches_; }
  const std::optional<data::Tokenizer>& tokenizer() const { return tokenizer_; }  // empty: the config names none
  const std::optional<data::Evaluation>& evaluation() const { return evaluation_; }

 private:
  data::Batches* const replacement_;
  std::optional<data::Tokenizer> tokenizer_;
  std::unique_ptr<data::Batches> batches_;
  std::optional<data::Evaluation> evaluation_;
};

}  // namespace lancet::train
