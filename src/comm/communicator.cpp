#include "lancet/comm/communicator.h"

#include <numeric>
#include <vector>

namespace lancet::comm {

Result<std::unique_ptr<Communicator>> Communicator::duplicate() {
  std::vector<int> all(static_cast<std::size_t>(size()));
  std::iota(all.begin(), all.end(), 0);
  return split(all);
}

}  // namespace lancet::comm
