// Lists of copies for Stream::copy_all().
#pragma once
#include <vector>

#include "lancet/backend/device.h"

namespace lancet::backend {

// Appends a copy. One whose source and target both begin where those of the last copy end lengthens that copy.
inline void append_copy(std::vector<Copy>& copies, const Copy& next) {
  if (next.bytes == 0) return;
  if (!copies.empty()) {
    Copy& last = copies.back();
    if (last.to + last.bytes == next.to && last.from + last.bytes == next.from) {
      last.bytes += next.bytes;
      return;
    }
  }
  copies.push_back(next);
}

}  // namespace lancet::backend
