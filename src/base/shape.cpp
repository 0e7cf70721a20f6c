#include "lancet/base/shape.h"

#include <fmt/ranges.h>

namespace lancet {

std::string to_string(const Shape& shape) { return fmt::format("{}", fmt::join(shape.span(), ",")); }

}  // namespace lancet
