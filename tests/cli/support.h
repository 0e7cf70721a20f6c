// Helpers of the program's tests.
#pragma once
#include <sys/mount.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "lancet/data/token_file.h"
#include "program.h"
#include "temporary_folder.h"

namespace lancet::test {

// Checks the exit code, and that each of these texts is in one line of the output.
inline void check_said(const Outcome& outcome, int code, const std::vector<std::string>& said) {
  INFO(outcome.output);
  CHECK(outcome.code == code);
  for (const std::string& text : said) CHECK(outcome.lines_with(text) == 1);
}

inline std::string token_file(const TemporaryFolder& folder, const std::vector<data::TokenId>& tokens,
                              std::int64_t vocabulary) {
  const std::string path = folder / "tokens.bin";
  auto writer = data::TokenWriter::create(path, vocabulary, 0);
  REQUIRE(writer.ok());
  REQUIRE(writer->append(tokens).ok());
  REQUIRE(writer->finish().ok());
  return path;
}

// A text that takes minutes to process.
inline std::string long_token_file(const TemporaryFolder& folder, std::int64_t vocabulary) {
  std::vector<data::TokenId> tokens;
  for (int i = 0; i < 8'000'000; ++i) tokens.push_back(i % int(vocabulary - 1));
  return token_file(folder, tokens, vocabulary);
}

// A private file system in memory, unless this process may not make one.
class SmallDisk {
 public:
  SmallDisk(std::string path, const char* size) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    there_ = ::mount("tmpfs", path_.c_str(), "tmpfs", 0, (std::string("size=") + size).c_str()) == 0;
    if (!there_) WARN("SKIPPED: expected root, who may mount a small disk, found: " << std::strerror(errno));
  }
  ~SmallDisk() {
    if (there_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  bool is_there() const { return there_; }

 private:
  const std::string path_;
  bool there_;
};

}  // namespace lancet::test
