// Any text as a config file: a Config or one line that says why not. What is read prints as text that reads as the
// same.
#include <cstdlib>

#include "lancet/config/config.h"

using namespace lancet;

namespace {

void check_error(const Error& error) {
  if (error.code != ExitCode::config || error.message.empty() || error.message.find('\n') != error.message.npos)
    abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto parsed = config::parse(text, "fuzz.json");
  if (!parsed.ok()) {
    check_error(parsed.error());
    return 0;
  }
  const auto again = config::parse(config::to_json(*parsed), "again.json");
  if (!again.ok() || !(*again == *parsed)) abort();
  for (const int ranks : {1, 2, 7})
    if (const Status fits = config::check(*parsed, ranks); !fits.ok()) check_error(fits.error());
  return 0;
}
