// A transport for tests: the ranks are threads of one process.
#pragma once
#include <chrono>
#include <functional>

#include "lancet/comm/communicator.h"

namespace lancet::comm {

// Runs body(communicator) on `ranks` threads and joins them. The first error or exception aborts the others and is
// returned (an exception is rethrown).
Status run_inproc(int ranks, const std::function<Status(Communicator&)>& body,
                  std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace lancet::comm
