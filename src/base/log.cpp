#include "lancet/base/log.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>

namespace lancet::log {
namespace {

// Writes "warning: " or "error: " before a line of that level; nothing before a line of level info.
class LevelPrefix final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&, spdlog::memory_buf_t& to) override {
    if (line.level < spdlog::level::warn) return;
    const std::string_view colon = ": ";
    const auto level = spdlog::level::to_string_view(line.level);
    to.append(level.data(), level.data() + level.size());
    to.append(colon.data(), colon.data() + colon.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<LevelPrefix>(); }
};

}  // namespace

void set_up(int rank, int ranks) {
  auto logger = std::make_shared<spdlog::logger>("lancet", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  const std::string where = rank > 0 && ranks > 1 ? fmt::format("[rank {}] ", rank) : "";
  formatter->add_flag<LevelPrefix>('*').set_pattern("%^" + where + "%*%v%$");
  logger->set_formatter(std::move(formatter));
  spdlog::set_default_logger(logger);
  spdlog::set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
}

}  // namespace lancet::log
