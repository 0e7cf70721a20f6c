#include "lancet/base/check.h"

#include <string_view>

namespace lancet {

void fail_check(const char* file, int line, const char* condition, const std::string& message) {
  std::string_view name(file);
  if (auto slash = name.rfind('/'); slash != std::string_view::npos) name.remove_prefix(slash + 1);
  throw InternalError(fmt::format("{} ({} at {}:{})", message, condition, name, line));
}

}  // namespace lancet
