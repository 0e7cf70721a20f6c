#include "lancet/base/log.h"

#include <fmt/format.h>
#include <spdlog/details/os.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <string_view>

#include "lancet/base/shown.h"
#include "lancet/base/utf8.h"

namespace lancet::log {
namespace {

// Bytes that are no UTF-8, as of a file's name in Latin-1, become \xHH.
std::string escaped(std::string_view text) {
  return replace_invalid_utf8(text, [](unsigned char byte) { return fmt::format("\\x{:02x}", byte); });
}

// Writes a line's text: that of a warning or an error on one line, after "warning: " or "error: ".
class Text final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& line, const std::tm&, spdlog::memory_buf_t& to) override {
    std::string text(line.payload.data(), line.payload.size());
    if (line.level >= spdlog::level::warn) {
      const auto level = spdlog::level::to_string_view(line.level);
      text = fmt::format("{}: {}", std::string_view(level.data(), level.size()), escaped(cut(text, text.size())));
    }
    to.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<Text>(); }
};

// Leaves warnings and errors to the sink of stderr.
class InfoSink final : public spdlog::sinks::stdout_color_sink_mt {
  void log(const spdlog::details::log_msg& line) override {
    if (line.level < spdlog::level::warn) spdlog::sinks::stdout_color_sink_mt::log(line);
  }
};

}  // namespace

void write(Level level, fmt::string_view format, fmt::format_args arguments) {
  constexpr spdlog::level::level_enum levels[] = {spdlog::level::info, spdlog::level::warn, spdlog::level::err};
  const auto to = levels[int(level)];
  if (spdlog::should_log(to)) spdlog::default_logger_raw()->log(to, fmt::vformat(format, arguments));
}

void set_up(int rank, int ranks) {
  // The descriptor is asked, since stderr may be a stream of the program's own.
  const bool colored = ::isatty(STDERR_FILENO) != 0 && spdlog::details::os::is_color_terminal();
  auto logger =
      std::make_shared<spdlog::logger>("lancet", std::make_shared<spdlog::sinks::stderr_color_sink_mt>(
                                                     colored ? spdlog::color_mode::always : spdlog::color_mode::never));
  auto formatter = std::make_unique<spdlog::pattern_formatter>();
  const std::string where = rank > 0 && ranks > 1 ? fmt::format("[rank {}] ", rank) : "";
  formatter->add_flag<Text>('*').set_pattern("%^" + where + "%*%$");
  logger->set_formatter(std::move(formatter));
  spdlog::set_default_logger(logger);
  spdlog::set_level(rank == 0 ? spdlog::level::info : spdlog::level::warn);
}

void info_to_stdout() {
  auto& sinks = spdlog::default_logger()->sinks();
  sinks.front()->set_level(spdlog::level::warn);
  sinks.push_back(std::make_shared<InfoSink>());
  sinks.back()->set_pattern("%v");
}

}  // namespace lancet::log
