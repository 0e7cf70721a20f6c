// Any text as config.json of a Hugging Face folder gives a valid config of a model, or an error of one line.
#include "fuzz/fuzz.h"
#include "lancet/config/hugging_face.h"
#include "models/files.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::MemoryFile file(data, size);
  const test::AllocationLimit limit(size, 256);
  const auto config = config::read_hugging_face(file.path());
  if (!test::is_read(config, ExitCode::data)) return 0;
  if (!config::check(*config, 1).ok()) abort();
  const test::MemoryFile written = [&] {
    const std::string text = models::config_text(config->model, {}).value();
    return test::MemoryFile(reinterpret_cast<const std::uint8_t*>(text.data()), text.size());
  }();
  const auto again = config::read_hugging_face(written.path());
  if (!again.ok() || !(again->model.resolved() == config->model.resolved())) abort();
  return 0;
}
