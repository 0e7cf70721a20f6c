// Reports the memory that this process uses and the memory that is still available to it.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "lancet/base/result.h"

namespace lancet::run {

std::int64_t resident_bytes();  // of this process, at present

// Bytes that this process can still allocate: the host's free memory, or less if a control group (cgroup v1 or v2: a
// container, a batch system's job) allows less. Empty if the system does not report it. root: for tests.
std::optional<std::int64_t> available_bytes(const std::filesystem::path& root = "/");

// Config error: a rank, one of local_ranks on this host, needs more bytes than its share of the available memory.
// what: "the weights".
Status check_memory(std::int64_t needed, int local_ranks, std::string_view what);

}  // namespace lancet::run
