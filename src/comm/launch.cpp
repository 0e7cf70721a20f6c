#include "lancet/comm/mpi.h"

#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>

namespace lancet::comm {
namespace {

struct Launcher {
  const char *rank, *size, *local_rank, *local_size;
};
// In order of precedence: inside a Slurm job, mpirun's variables take precedence over Slurm's, which are also set.
constexpr Launcher launchers[] = {
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
    {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"},
};

// Parses the leading number: Slurm writes tasks per node as "4(x2)".
std::optional<int> number(const char* text) {
  if (!text) return std::nullopt;
  const std::string_view view(text);
  int value = 0;
  const auto [end, error] = std::from_chars(view.data(), view.data() + view.size(), value);
  if (error != std::errc{}) return std::nullopt;
  return value;
}

}  // namespace

Launch detect_launch(const std::function<const char*(const char*)>& get) {
  for (const Launcher& names : launchers) {
    const auto rank = number(get(names.rank)), size = number(get(names.size));
    if (!rank || !size || *size < 1 || *rank < 0 || *rank >= *size) continue;
    return {*rank, *size, number(get(names.local_rank)).value_or(0), number(get(names.local_size)).value_or(1)};
  }
  return {};
}

Launch detect_launch() {
  return detect_launch([](const char* name) -> const char* { return std::getenv(name); });
}

}  // namespace lancet::comm
