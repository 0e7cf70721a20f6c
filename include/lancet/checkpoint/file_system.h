// FileSystem: the calls that write and read a checkpoint, as an interface, so that tests can inject faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "lancet/base/files.h"
#include "lancet/base/result.h"

namespace lancet::checkpoint {

// InputFile: a regular file opened for reads at any offset. Threads may share it.
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

class OutputFile {
 public:
  virtual ~OutputFile() = default;  // closes; a crash of the machine may lose bytes that were not synced
  // One attempt; returns how many of the bytes were written, which may be fewer than given.
  virtual Result<std::size_t> write_some(std::span<const std::byte> bytes) = 0;
  virtual Status sync() = 0;   // after it, all written bytes are on the disk
  virtual Status close() = 0;  // some file systems report errors only here
};

// All errors are data errors that name the path and the system's reason.
class FileSystem {
 public:
  virtual ~FileSystem() = default;
  virtual Result<std::unique_ptr<OutputFile>> create(const std::filesystem::path& path) = 0;  // empty, or emptied
  virtual Status make_folder(const std::filesystem::path& path) = 0;  // with its parents; may exist
  // Puts the folder's entries, renames included, on the disk. Succeeds if the file system cannot sync folders.
  virtual Status sync_folder(const std::filesystem::path& path) = 0;
  virtual Status rename(const std::filesystem::path& from, const std::filesystem::path& to) = 0;
  virtual Status remove(const std::filesystem::path& path) = 0;  // a folder with its content; may be missing
  // Calls InputFile::read, with its errors. Several threads may call it at once.
  virtual Status read(const InputFile& file, std::uint64_t at, std::span<std::byte> bytes) {
    return file.read(at, bytes);
  }
};

FileSystem& disk();

Status write_all(OutputFile& file, std::span<const std::byte> bytes);
// Writes, syncs and closes a file. Its name is on the disk after sync_folder().
Status write_file(FileSystem& files, const std::filesystem::path& path, std::string_view content);

}  // namespace lancet::checkpoint
