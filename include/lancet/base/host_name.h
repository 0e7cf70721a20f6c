// The machine's name.
#pragma once
#include <string>

namespace lancet {

// For names of files: '/' is replaced by '_'. "host" if the system gives none.
std::string host_name();

}  // namespace lancet
