// Reads and writes files in Hugging Face's safetensors format: 8 bytes with the header's length, the header (JSON: name
// -> dtype, shape, data_offsets; "__metadata__": texts), the tensors' bytes. All little-endian.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/hash.h"
#include "lancet/base/result.h"
#include "lancet/base/shape.h"
#include "lancet/checkpoint/file_system.h"

namespace lancet::checkpoint {

using Metadata = std::map<std::string, std::string>;

// Bytes of one element of a dtype of the format ("F32", "BF16", "I64", ...); 0 for an unknown one.
int element_bytes(std::string_view dtype);

struct TensorInfo {
  std::string name;
  std::string dtype;
  Shape shape;              // row-major
  std::uint64_t begin = 0;  // in the data, which follows the header; a writer computes it
  std::uint64_t bytes() const {
    return static_cast<std::uint64_t>(shape.elements()) * std::uint64_t(element_bytes(dtype));
  }
};
std::string to_string(const TensorInfo& tensor);  // "F32[96,32]"

// Data error, with the tensor's name and the element: a number is infinite or not a number. piece: the tensor's values
// as f32, or a part of them that begins at byte `at`.
Status check_finite(const TensorInfo& tensor, std::uint64_t at, std::span<const std::byte> piece);

// The parsed header. Data errors begin with `origin`: bad syntax, an unknown or missing key, a value of a wrong type, a
// name twice, more than Shape::max_rank axes, a size that is not that of shape and dtype, tensors that do not cover
// data_bytes from 0 to the end without overlap or gap.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their bytes
  Metadata metadata;
};
Result<SafetensorsHeader> parse_safetensors_header(std::string_view text, std::uint64_t data_bytes,
                                                   std::string_view origin);

// A file opened for reading. Threads may share it.
class SafetensorsFile {
 public:
  // Reads the header. Data errors: no such regular file, an unsound length or header. refused: see
  // InputFile::open.
  static Result<SafetensorsFile> open(const std::filesystem::path& path, ExitCode refused = ExitCode::data);

  const std::filesystem::path& path() const { return file_.path(); }
  std::uint64_t size() const { return file_.size(); }       // of the file
  std::uint64_t data_start() const { return data_start_; }  // in the file
  std::uint64_t header_hash() const { return hash_; }       // XXH3 of all bytes before the data
  std::span<const TensorInfo> tensors() const { return header_.tensors; }
  const TensorInfo* find(std::string_view name) const;  // null if there is none
  const Metadata& metadata() const { return header_.metadata; }

  // Fills `bytes` from the tensor's byte `at` on. Data error: the file has become shorter.
  Status read(const TensorInfo& tensor, std::uint64_t at, std::span<std::byte> bytes) const;
  // Closes the descriptor. The header stays; read() must not be called any more.
  void close() { file_.close(); }

 private:
  explicit SafetensorsFile(InputFile file) : file_(std::move(file)) {}
  Status read_header();
  InputFile file_;
  std::uint64_t data_start_ = 0, hash_ = 0;
  SafetensorsHeader header_;
  std::map<std::string, std::size_t, std::less<>> by_name_;
};

// A file that is written from front to back.
class SafetensorsWriter {
 public:
  // Writes the header; the data begins at a multiple of 64 bytes. Names must differ (an InternalError).
  static Result<SafetensorsWriter> create(FileSystem& files, const std::filesystem::path& path,
                                          std::vector<TensorInfo> tensors, const Metadata& metadata = {});

  Status append(std::span<const std::byte> bytes);  // of the tensors, in their order, in pieces of any size
  Status finish();                                  // after the last byte: sync, close

  std::uint64_t bytes() const { return bytes_; }              // of the file, written or pending
  std::uint64_t header_hash() const { return header_hash_; }  // XXH3 of all bytes before the data
  // XXH3 of each tensor's bytes, in their order; complete after finish().
  const std::vector<std::uint64_t>& tensor_hashes() const { return hashes_; }

 private:
  explicit SafetensorsWriter(std::unique_ptr<OutputFile> file) : file_(std::move(file)) {}
  Status flush();
  Status write(std::span<const std::byte> piece);
  void hash(std::span<const std::byte> piece);
  std::unique_ptr<OutputFile> file_;
  std::vector<std::uint64_t> ends_;  // offset in the file of each tensor's end
  std::uint64_t header_hash_ = 0;
  std::vector<std::uint64_t> hashes_;  // of the complete tensors
  Hasher hasher_;                      // of the next one
  std::vector<std::byte> pending_;     // small pieces, collected for one write
  std::uint64_t bytes_ = 0;            // of the file, including pending ones
  std::uint64_t total_ = 0;            // of the complete file
};

}  // namespace lancet::checkpoint
