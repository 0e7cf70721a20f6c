// The traits of the devices that tests emulate: those of an H100 and of an H200, which are equal (NVIDIA's tables of
// compute capability 9.0; 132 multiprocessors in the SXM form).
#pragma once
#include "lancet/backend/device.h"

namespace lancet::test {

inline constexpr backend::DeviceTraits hopper_traits{
    .capability = 90, .multiprocessors = 132, .shared_bytes_of_block = 227 * 1024};

}  // namespace lancet::test
