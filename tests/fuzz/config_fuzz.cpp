// Any text as a config file gives a Config or an error of one line. A config prints as text that parses to the same.
#include "fuzz/fuzz.h"
#include "lancet/config/config.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const test::AllocationLimit limit(size, 512);
  const auto parsed = config::parse(text, "fuzz.json");
  const bool of_folder = !parsed.ok() && parsed.error().code == ExitCode::data && text.find("from") != text.npos;
  if (!test::is_read(parsed, of_folder ? ExitCode::data : ExitCode::config)) return 0;
  const auto again = config::parse(config::to_json(*parsed), "again.json");
  if (!again.ok() || !(*again == *parsed)) abort();
  for (const int ranks : {1, 2, 7})
    if (const Status fits = config::check(*parsed, ranks); !fits.ok())
      test::check_error(fits.error(), ExitCode::config);
  return 0;
}
