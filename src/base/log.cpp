#include "lancet/base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace lancet::log {

void set_up(int rank, int ranks) {
  auto logger = std::make_shared<spdlog::logger>("lancet", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  spdlog::set_default_logger(logger);
  const std::string where = ranks > 1 ? fmt::format("[rank {}] ", rank) : "";
  spdlog::set_pattern(rank == 0 ? "%^%v%$" : "%^" + where + "%l: %v%$");
  spdlog::set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
}

}  // namespace lancet::log
