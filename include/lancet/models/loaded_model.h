// Loads a trained model on any number of ranks, for evaluation and generation.
#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/data/tokenizer.h"
#include "lancet/run/stream_communicators.h"
#include "lancet/runtime/accelerator.h"
#include "lancet/runtime/tensor_store.h"

namespace lancet::run {
struct ModelFolder;
}

namespace lancet::models {

struct LoadOptions {
  int local_ranks = 1;
  int threads = 0;                              // per rank; 0: its share of the cores
  std::optional<DType> dtype;                   // f32 or bf16; empty: that of training
  std::optional<config::Device> device = {};    // empty: that of training
  runtime::Accelerator* accelerator = nullptr;  // replaces the one that `device` names; it outlives the model
  std::vector<std::string> accepted = {};       // HuggingFaceFolder::open
  bool generates = false;                       // the store gets a decoder's KV cache, too
};

class LoadedModel {
 public:
  LoadedModel();  // empty
  ~LoadedModel();
  // Collective; an error of any rank is returned on all. from: run_folder.h, which says on which mesh, or a folder of
  // Hugging Face's format (hugging_face.h), of which each rank reads what it holds. Config errors:
  // the model, or its KV cache, does not fit the memory; those of open_accelerator (run/rank_device.h).
  static Result<std::unique_ptr<LoadedModel>> load(const std::filesystem::path& from, comm::Communicator& world,
                                                   const LoadOptions& options);

  const config::Config& config() const { return config_; }
  const std::string& name() const { return name_; }  // the checkpoint's folder, or that of Hugging Face's format
  std::int64_t step() const { return step_; }        // optimizer steps of its training
  const std::optional<std::filesystem::path>& tokenizer() const { return tokenizer_; }
  const data::TextBounds& bounds() const { return bounds_; }                   // run::ModelFolder
  data::TokenizerId tokenizer_id() const { return {tokenizer_hash_, name_}; }  // of the tokens it was trained on
  runtime::TensorStore& store() { return store_; }
  run::Streams& streams() { return *streams_; }
  int threads() const { return threads_; }

 private:
  Status load_folder(const std::filesystem::path& from, comm::Communicator& world, const LoadOptions& options);
  void describe(const run::ModelFolder& folder);
  Status adapt(comm::Communicator& world, const LoadOptions& options);
  Status take_device(comm::Communicator& world, const LoadOptions& options);
  Status make_store(comm::Communicator& world, const LoadOptions& options);

  config::Config config_;
  std::string name_;
  std::int64_t step_ = 0;
  std::optional<std::filesystem::path> tokenizer_;
  data::TextBounds bounds_;
  std::uint64_t tokenizer_hash_ = 0;
  // Null: the CPU. Declared before the store and the streams, which are destroyed first.
  std::unique_ptr<runtime::Accelerator> owned_accelerator_;
  runtime::Accelerator* accelerator_ = nullptr;
  runtime::TensorStore store_;
  int threads_ = 1;
  std::optional<run::Streams> streams_;
};

// Loss over a token file.
struct EvaluateOptions {
  std::string data;                // token file
  std::int64_t max_sequences = 0;  // most windows of train.seq_len tokens, from the first; 0: all
};
struct EvaluateResult {
  double loss = 0;  // mean cross-entropy of a token, in nats
  double perplexity() const;
  std::int64_t sequences = 0, tokens = 0;
};
// Collective. Gates drop nothing, so the loss of a sequence depends on no other one and the result is the same at any
// number of ranks, up to rounding. Data errors: the file, its vocabulary, tokenizer, ids. Numerical error: a loss that
// is not finite.
Result<EvaluateResult> evaluate(LoadedModel& model, comm::Communicator& world, const EvaluateOptions& options);

}  // namespace lancet::models
