#include "lancet/backend/cpu/buffer.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>

namespace lancet::backend::cpu {
namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
}

Buffer Buffer::raw(std::size_t bytes) {
  Buffer buffer;
  if (bytes == 0) return buffer;
  const std::size_t alignment = bytes >= kHugePage ? kHugePage : 64;
  const std::size_t rounded = (bytes + 63) / 64 * 64;
  buffer.data_ = std::aligned_alloc(alignment, (rounded + alignment - 1) / alignment * alignment);
  if (!buffer.data_) throw std::bad_alloc();
  buffer.size_ = bytes;
  if (alignment == kHugePage) madvise(buffer.data_, rounded, MADV_HUGEPAGE);  // a request: refusal costs speed only
  return buffer;
}

Buffer Buffer::zeroed(std::size_t bytes) {
  Buffer buffer = raw(bytes);
  if (bytes) std::memset(buffer.data_, 0, bytes);
  return buffer;
}

Buffer::~Buffer() { std::free(data_); }

}  // namespace lancet::backend::cpu
