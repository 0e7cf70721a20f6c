// The command line of the `lancet` program.
#pragma once

namespace lancet::cli {

// Runs the command line; returns the process's exit code (base/result.h).
int main(int argc, char** argv);

}  // namespace lancet::cli
