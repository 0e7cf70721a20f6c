// The machine's name, for names of files.
#pragma once
#include <string>

namespace lancet {

// This machine's name with '/' replaced by '_'; "host" if the system gives none.
std::string host_name();

}  // namespace lancet
