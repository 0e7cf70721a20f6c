// Any text as a file of measured costs gives a profile that prints as text which parses to the same, or an error of one
// line.
#include "fuzz/fuzz.h"
#include "lancet/cost/profile.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::AllocationLimit limit(size, 512);
  const auto file = cost::parse_profile({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (!test::is_read(file, ExitCode::config)) return 0;
  const std::string text = cost::print(*file);
  const auto again = cost::parse_profile(text, "again");
  if (!again.ok() || cost::print(*again) != text) abort();
  if (file->network.measured() && !(file->all_to_all_ms(1e6) >= 0)) abort();
  return 0;
}
