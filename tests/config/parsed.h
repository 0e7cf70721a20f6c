// Texts of configs that must be read, or refused.
#pragma once
#include <catch2/catch.hpp>

#include "good.h"
#include "lancet/config/config.h"

namespace lancet::config {

inline Config good(std::string_view text, const std::vector<std::string>& overrides = {}) {
  auto config = test::good(parse(text, "c.json", overrides));
  return *config;
}

// The message of a text that must be refused: one line, with the exit code of a config error.
inline std::string fault(std::string_view text, const std::vector<std::string>& overrides = {}) {
  auto config = parse(text, "c.json", overrides);
  REQUIRE_FALSE(config.ok());
  CHECK(config.error().code == ExitCode::config);
  CHECK(config.error().message.find('\n') == std::string::npos);
  return config.error().message;
}

inline std::string fault(const Status& status) {
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().code == ExitCode::config);
  return status.error().message;
}

}  // namespace lancet::config
