// Any bytes as a safetensors file give tensors inside it, with each byte in one of them, or an error of one line.
#include "fuzz/fuzz.h"
#include "lancet/checkpoint/safetensors.h"

using namespace lancet;

namespace {

void check_tensors(std::span<const checkpoint::TensorInfo> tensors, std::uint64_t data_bytes) {
  std::uint64_t end = 0;
  for (const checkpoint::TensorInfo& tensor : tensors) {
    if (tensor.begin != end) abort();
    end += tensor.bytes();
  }
  if (end != data_bytes) abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const test::MemoryFile bytes(data, size);
  const test::AllocationLimit limit(size, 256);
  if (const auto file = checkpoint::SafetensorsFile::open(bytes.path()); file.ok()) {
    check_tensors(file->tensors(), file->size() - file->data_start());
    for (const checkpoint::TensorInfo& tensor : file->tensors()) {
      std::vector<std::byte> content(tensor.bytes());
      if (!file->read(tensor, 0, content).ok()) abort();
    }
  } else {
    test::check_error(file.error(), ExitCode::data);
  }
  // The header alone, with as much data as it claims: the fuzzer rarely guesses lengths.
  std::uint64_t data_bytes = 0;
  const std::size_t tail = std::min<std::size_t>(size, 2);
  std::memcpy(&data_bytes, data, tail);
  const std::string_view text(reinterpret_cast<const char*>(data) + tail, size - tail);
  if (const auto header = checkpoint::parse_safetensors_header(text, data_bytes, "fuzz"); header.ok())
    check_tensors(header->tensors, data_bytes);
  else
    test::check_error(header.error(), ExitCode::data);
  return 0;
}
