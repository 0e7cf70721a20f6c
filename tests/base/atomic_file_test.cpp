#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <string>

#include "lancet/base/files.h"
#include "temporary_folder.h"

namespace lancet {
namespace {

// True if this file system supports files without names.
bool holds_nameless(const std::string& folder) {
  const int fd = ::open(folder.c_str(), O_WRONLY | O_TMPFILE, 0600);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

std::string content_of(const std::string& path) { return *read_file(path, "a text"); }

TEST_CASE("a committed file is complete and replaces the one before") {
  const test::TemporaryFolder folder;
  const std::string path = folder.write("text", "the one before");
  {
    auto file = AtomicFile::create(path);
    REQUIRE(file.ok());
    REQUIRE(file->append("half", 4).ok());
    CHECK(content_of(path) == "the one before");
  }
  CHECK(content_of(path) == "the one before");  // destroyed without a commit
  auto file = AtomicFile::create(path);
  REQUIRE(file.ok());
  REQUIRE(file->append("the whole", 9).ok());
  REQUIRE(file->overwrite(4, "W", 1).ok());
  REQUIRE(file->commit().ok());
  CHECK(content_of(path) == "the Whole");
  CHECK(folder.names() == std::vector<std::string>{"text"});
}

TEST_CASE("a process killed while it writes leaves no file if the file system supports unnamed files") {
  const test::TemporaryFolder folder;
  const pid_t writer = ::fork();
  if (writer == 0) {
    auto file = AtomicFile::create(folder / "text");
    if (file.ok() && file->append("half", 4).ok()) ::raise(SIGKILL);
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(writer, &status, 0) == writer);
  REQUIRE(WIFSIGNALED(status));
  CHECK(folder.names().size() == (holds_nameless(folder / ".") ? 0u : 1u));
}

}  // namespace
}  // namespace lancet
