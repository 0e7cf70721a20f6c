// InputFile: a regular file opened for reads at any offset. Threads may share it.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "lancet/base/descriptor.h"
#include "lancet/base/result.h"

namespace lancet::checkpoint {

class InputFile {
 public:
  // what: the noun that errors use, such as "a safetensors file". Data error: no such regular file. If the file may be
  // sound but cannot be read now (no descriptor left, no permission, an I/O error), the error's code is `refused`.
  static Result<InputFile> open(const std::filesystem::path& path, std::string_view what,
                                ExitCode refused = ExitCode::data);

  const std::filesystem::path& path() const { return path_; }
  std::uint64_t size() const { return size_; }
  // Fills `bytes` from the file's byte `at` on. Data error: the file ends before.
  Status read(std::uint64_t at, std::span<std::byte> bytes) const;
  void close() { file_.close(); }  // read() must not be called after it

 private:
  InputFile(std::filesystem::path path, Descriptor file, ExitCode refused)
      : path_(std::move(path)), file_(std::move(file)), refused_(refused) {}
  std::filesystem::path path_;
  Descriptor file_;
  std::uint64_t size_ = 0;
  ExitCode refused_;
};

}  // namespace lancet::checkpoint
