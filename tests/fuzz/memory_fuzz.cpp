// Any bytes as a run's memory plan give numbers of bytes, or an error of one line.
#include "fuzz/fuzz.h"
#include "report/run_files.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::MemoryFile file(data, size);
  const test::AllocationLimit limit(size, 512);
  const auto memory = report::read_memory(file.path());
  if (!test::is_read(memory, ExitCode::data)) return 0;
  for (const double bytes : memory->bytes)
    if (!(bytes >= 0)) abort();
  return 0;
}
