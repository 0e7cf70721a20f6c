// Runs the program as a user would.
#pragma once
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "lancet/base/check.h"
#include "temporary_folder.h"
#include "text.h"

namespace lancet::test {

struct Outcome {
  int code = -1;       // exit code; 128 + signal if one ended it
  std::string output;  // stdout, then stderr
  // The number of output lines that contain this text.
  int lines_with(const std::string& text) const {
    int count = 0;
    std::istringstream in(output);
    for (std::string line; std::getline(in, line);) count += line.find(text) != std::string::npos;
    return count;
  }
};

// Keeps the two streams apart until the end: mpirun forwards stdout in blocks, and a line of stderr between two blocks
// would cut a line in two.
inline Outcome shell(const std::string& command) {
  Outcome outcome;
  const TemporaryFolder folder;
  const std::string errors = folder / "stderr";
  std::FILE* pipe = popen(("exec 2>'" + errors + "'; " + command).c_str(), "r");
  LANCET_CHECK(pipe, "expected a shell");
  std::array<char, 4096> buffer;
  for (std::size_t n; (n = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
    outcome.output.append(buffer.data(), n);
  const int status = pclose(pipe);
  std::ostringstream said;
  said << std::ifstream(errors).rdbuf();
  outcome.output += said.str();
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

inline Outcome lancet(const std::string& arguments) { return shell(LANCET_BINARY " " + arguments); }

#if defined(LANCET_HAVE_MPI)
inline Outcome mpirun(int ranks, const std::string& arguments) {
  return shell("mpirun --allow-run-as-root --oversubscribe --bind-to none -np " + std::to_string(ranks) +
               " " LANCET_BINARY " " + arguments);
}
#endif

// The records of steps; held-out losses have lines of their own.
inline std::vector<nlohmann::json> metrics(const std::string& run_dir) {
  std::vector<nlohmann::json> records;
  std::ifstream in(run_dir + "/metrics.jsonl");
  for (std::string line; std::getline(in, line);)
    if (auto record = test::json_in(line); record.contains("loss")) records.push_back(std::move(record));
  return records;
}

// A model that trains in milliseconds, on synthetic tokens.
inline const char* small_config_text = R"({
  "model": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 16, "vocab_size": 300, "moe_layer_freq": 2,
            "num_local_experts": 4, "capacity_factor": 4, "router_aux_loss_scope": "global"},
  "data": {"synthetic": true},
  "train": {"steps": 20, "seq_len": 16, "micro_batch_size": 4, "lr": 1e-3, "clip_grad": 1.0, "save_minutes": 0},
  "log": {"peak_tflops": 1}, "threads": 1})";

}  // namespace lancet::test
