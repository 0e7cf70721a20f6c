// Any two texts as an experiment and its settings (with a zero byte between them) give points with valid configs, or an
// error of one line.
#include "fuzz/allocation_limit.h"
#include "fuzz/check_error.h"
#include "fuzz/scratch_folder.h"
#include "lancet/experiment/experiment.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const test::ScratchFolder folder;
  const auto [experiment, settings] = test::halves(data, size);
  folder.write("fuzz.json", experiment);
  folder.write("settings.json", settings);
  const test::AllocationLimit limit(size, 256, 16 << 20);  // lists multiply
  const auto read = experiment::read_experiment(folder.path() / "fuzz.json", "this", {"program", "machine"});
  if (!read.ok()) {
    test::check_error(read.error(), ExitCode::config);
    return 0;
  }
  for (const experiment::Point& point : read->points)
    if (point.id.size() != 16 || !config::check(point.config, point.ranks).ok()) abort();
  return 0;
}
