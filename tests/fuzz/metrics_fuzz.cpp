// Any bytes as a run's records give columns of one length, or an error of one line.
#include "fuzz/fuzz.h"
#include "report/run_files.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::MemoryFile file(data, size);
  const test::AllocationLimit limit(size, 512);
  const auto metrics = report::read_metrics(file.path());
  if (!test::is_read(metrics, ExitCode::data)) return 0;
  for (const auto& values : metrics->series)
    if (values.size() != metrics->steps.size()) abort();
  for (std::size_t i = 1; i < metrics->steps.size(); ++i)
    if (metrics->steps[i] <= metrics->steps[i - 1]) abort();
  return 0;
}
