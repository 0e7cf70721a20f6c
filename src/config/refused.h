// Errors of fields that do not fit together.
#pragma once
#include <fmt/format.h>

#include <utility>

#include "lancet/config/config.h"

namespace lancet::config {

template <class... Args>
Error refused(fmt::format_string<Args...> text, Args&&... args) {
  return config_error("config: " + fmt::format(text, std::forward<Args>(args)...));
}

}  // namespace lancet::config
