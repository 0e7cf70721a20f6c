// Exceptions that reach a top level: of broken invariants (check.h), and of the system and of libraries, whose own
// texts say nothing to a user.
#pragma once
#include <exception>

#include "lancet/base/result.h"

namespace lancet {

// The internal error of an exception: what was wanted, and what the system said.
Error error_of(const std::exception& thrown);

}  // namespace lancet
