#include "lancet/base/host_name.h"

#include <unistd.h>

#include <algorithm>
#include <array>

namespace lancet {

std::string host_name() {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0 || name[0] == '\0') return "host";
  std::replace(name.begin(), name.end(), '/', '_');
  return name.data();
}

}  // namespace lancet
