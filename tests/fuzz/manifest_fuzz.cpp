// Any text as a checkpoint's manifest gives only files of this folder, or an error of one line.
#include "fuzz/fuzz.h"
#include "lancet/checkpoint/checkpoint.h"

using namespace lancet;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const test::AllocationLimit limit(size, 512);
  if (const auto whole = checkpoint::parse_manifest(text, "fuzz"); !whole.ok() && whole.error().code != ExitCode::data)
    abort();
  const auto manifest = checkpoint::parse_manifest_fields(text, "fuzz");  // no fuzzer guesses the checksum
  if (!test::is_read(manifest, ExitCode::data)) return 0;
  for (const checkpoint::ShardFile& file : manifest->files)
    if (file.name.find('/') != file.name.npos || file.name.starts_with('.')) abort();
  const auto again = checkpoint::parse_manifest(checkpoint::to_json(*manifest), "again");
  if (!again.ok() || again->files != manifest->files || again->step != manifest->step) abort();
  return 0;
}
