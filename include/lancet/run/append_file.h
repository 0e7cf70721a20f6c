// AppendFile: a file of whole records. A record that a full disk cuts short is removed again.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string_view>

#include "lancet/base/descriptor.h"
#include "lancet/base/result.h"

namespace lancet::run {

class AppendFile {
 public:
  // bytes: of the records that the file holds already.
  AppendFile(std::filesystem::path path, Descriptor file, std::int64_t bytes = 0)
      : path_(std::move(path)), file_(std::move(file)), bytes_(bytes) {}
  // Data error on a full disk: "cannot write <what> to PATH: ...". unit: the word for a record, if even its removal
  // fails.
  Status append(std::string_view record, std::string_view what, std::string_view unit);

 private:
  std::filesystem::path path_;
  Descriptor file_;
  std::int64_t bytes_;
};

}  // namespace lancet::run
