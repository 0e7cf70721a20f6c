// Any text as a step's timeline gives rows of named events, or an error of one line.
#include "fuzz/fuzz.h"
#include "report/run_files.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::MemoryFile file(data, size);
  const test::AllocationLimit limit(size, 512);
  const auto timeline = report::read_timeline(file.path());
  if (!test::is_read(timeline, ExitCode::data)) return 0;
  for (const report::TimelineRow& row : timeline->rows)
    for (const report::TimelineEvent& event : row.events)
      if (!(event.start >= 0 && event.length >= 0) || event.name >= timeline->names.size() ||
          event.kind >= timeline->kinds.size())
        abort();
  return 0;
}
