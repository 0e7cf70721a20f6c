// A TensorBoard event file, which holds the scalars of each step. The format is TensorFlow's: records framed by length
// and CRC-32C (TFRecord), each a protocol buffer `Event`.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/run/append_file.h"
#include "lancet/run/metrics.h"

namespace lancet::run {

struct Scalar {
  std::string tag;  // "train/loss": TensorBoard groups tags by the text before the slash
  double value = 0;
};

// The numbers of a record that are set, and those of the layers under "layers/...".
std::vector<Scalar> scalars(const StepRecord& record, std::span<const LayerLoad> layers);

// Castagnoli's CRC, which TFRecord uses, before masking.
std::uint32_t crc32c(std::string_view bytes);

class EventFile {
 public:
  // Creates events.out.tfevents.<second>.<host>.<process> in `folder`. resumed: the step after which the run resumes;
  // TensorBoard then ignores later steps in earlier files. Data error: the file cannot be created.
  static Result<EventFile> create(const std::filesystem::path& folder, std::optional<std::int64_t> resumed = {});
  // Appends one event. Data error on a full disk.
  Status write(std::int64_t step, std::span<const Scalar> scalars);

 private:
  explicit EventFile(AppendFile file) : file_(std::move(file)) {}
  Status append(std::string_view event);
  AppendFile file_;
};

}  // namespace lancet::run
