// What memory this process has and may still take.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "lancet/base/result.h"

namespace lancet::world {

std::int64_t resident_bytes();  // of this process now

// That this process can still take: what the host has free, or less where a control group (cgroup v1 or v2: a
// container, a batch system's job) allows less. Empty where the system does not say. root: for tests.
std::optional<std::int64_t> available_bytes(const std::filesystem::path& root = "/");

// Config error: `needed` bytes of a rank, one of local_ranks on this host, are more than its share of what is free.
// what: "the weights".
Status check_memory(std::int64_t needed, int local_ranks, std::string_view what);

}  // namespace lancet::world
