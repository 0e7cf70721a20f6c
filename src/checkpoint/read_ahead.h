// A file's bytes in order, read by a second thread ahead of their use, so that disk and processor work at once.
#pragma once
#include <cstdint>
#include <functional>
#include <span>

#include "lancet/checkpoint/safetensors.h"

namespace lancet::checkpoint {

// Pieces begin at multiples of 64 bytes of the file. An error of `use` ends it.
Status read_ahead(const SafetensorsFile& file,
                  const std::function<Status(std::uint64_t at, std::span<const std::byte> piece)>& use);

}  // namespace lancet::checkpoint
