// The few calls by which a checkpoint reaches the disk and comes back, as an interface: tests inject faults into them.
#pragma once
#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "lancet/base/result.h"
#include "lancet/checkpoint/input_file.h"

namespace lancet::checkpoint {

class OutputFile {
 public:
  virtual ~OutputFile() = default;  // closes; what was not synced may be lost with the machine
  // One attempt: how many of the bytes it took, which may be fewer than given.
  virtual Result<std::size_t> write_some(std::span<const std::byte> bytes) = 0;
  virtual Status sync() = 0;   // what was written is on the disk
  virtual Status close() = 0;  // some file systems report errors only here
};

// All errors are data errors that name the path and the system's reason.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<OutputFile>> create(const std::filesystem::path& path) = 0;  // empty, or emptied
  virtual Status make_folder(const std::filesystem::path& path) = 0;  // with those above it; fine where it is there
  // The folder's names, those renamed into it too, are on the disk. Success where the file system cannot do that.
  virtual Status sync_folder(const std::filesystem::path& path) = 0;
  virtual Status rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual Status remove(const std::filesystem::path& path) = 0;  // a folder with all in it; fine where nothing is there
  // As InputFile::read, which says what its errors are. Several threads at once.
  virtual Status read(const InputFile& file, std::uint64_t at, std::span<std::byte> bytes) {
    return file.read(at, bytes);
  }
};

FileSystem& disk();

Status write_all(OutputFile& file, std::span<const std::byte> bytes);
// Written, synced and closed; its name is on the disk once the folder is synced.
Status write_file(FileSystem& files, const std::filesystem::path& path, std::string_view content);

}  // namespace lancet::checkpoint
