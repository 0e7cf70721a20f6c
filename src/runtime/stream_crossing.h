// A trial of what a step relies on: that device streams wait for each other without blocking each other.
#pragma once
#include <chrono>

#include "lancet/backend/device.h"

namespace lancet::runtime {

// Lets each two of the device's shared streams wait for each other, with copies in both directions before and after the
// waits. The shared streams must be empty. Config error: they have not ended within `most`, or what they copied is
// wrong.
Status cross_streams(backend::Device& device, std::chrono::milliseconds most = std::chrono::seconds(5));

}  // namespace lancet::runtime
