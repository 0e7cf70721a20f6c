#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "commands.h"
#include "lancet/base/files.h"

namespace lancet::cli {

void add_bench(CLI::App& app, Selection& selection) {
  CLI::App* bench = app.add_subcommand("bench", "Benchmarks: lancet bench ops configs/bench-small.json");
  bench->require_subcommand(1);
  add_bench_network(*bench, selection);
  add_bench_policies(*bench, selection);
  add_bench_ops(*bench, selection);
}

// Asks git for the commit of the folder that holds the configs which the build tree links.
namespace {

// Returns the first line that a command prints; empty if it fails.
std::string line_of(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::array<char, 128> buffer{};
  if (!pipe || !std::fgets(buffer.data(), buffer.size(), pipe.get())) return "";
  std::string line = buffer.data();
  while (!line.empty() && line.back() == '\n') line.pop_back();
  return line;
}

// Quotes a text as one word for the shell.
std::string quoted(const std::string& text) {
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace

std::string commit() {
  std::error_code error;
  const std::filesystem::path configs =
      std::filesystem::canonical(program_path().parent_path() / "share/lancet/configs", error);
  if (error) return "unknown";
  const std::string git = "git -C " + quoted(configs.parent_path().string());
  const std::string hash = line_of(git + " rev-parse --short=10 HEAD 2>/dev/null");
  if (hash.empty()) return "unknown";
  const bool clean = line_of(git + " status --porcelain -- src include configs CMakeLists.txt 2>/dev/null").empty();
  return clean ? hash : hash + " and changes";
}

}  // namespace lancet::cli
