#pragma once
#include <string>

namespace lancet {

// This machine's name, fit for a file's name; "host" where the system gives none.
std::string host_name();

}  // namespace lancet
