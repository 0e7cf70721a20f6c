// Any text as model.safetensors.index.json beside two sound shards gives their tensors, or an error of one line. No
// file outside the folder is opened.
#include "fuzz/fuzz.h"
#include "models/files.h"

using namespace lancet;

namespace {

// One tensor of two bytes.
std::string shard(const std::string& name) {
  const std::string header = "{\"" + name + "\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
  std::string length(8, '\0');
  length[0] = static_cast<char>(header.size());
  return length + header + "ab";
}

const test::ScratchFolder& folder() {
  static const auto made = [] {
    auto made = std::make_unique<test::ScratchFolder>();
    made->write("a.safetensors", shard("x"));
    made->write("b.safetensors", shard("y"));
    return made;
  }();
  return *made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  folder().write(std::string(models::index_file).c_str(), {reinterpret_cast<const char*>(data), size});
  const test::AllocationLimit limit(size, 256);
  const auto files = models::TensorFiles::open(folder().path(), "");
  if (!test::is_read(files, ExitCode::data)) return 0;
  for (const auto& [name, tensor] : files->tensors())
    if ((name != "x" && name != "y") || tensor.file->path().parent_path() != folder().path()) abort();
  return 0;
}
