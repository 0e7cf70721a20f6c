// Collective agreement on errors and small values, so that no rank continues, or waits, alone.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/collect.h"
#include "lancet/comm/communicator.h"

namespace lancet::comm {

// Collective. Success if all ranks pass success; otherwise all ranks return the error of the first rank that failed,
// which the message names unless every rank failed.
Status agree(comm::Communicator& world, const Status& mine);

// Collective. Config error, on all ranks, if a rank's text differs from rank 0's. what: "the same options".
Status agree_on(comm::Communicator& world, std::string_view what, std::string_view mine);

// Collective: returns root's status on all ranks. The message names no rank, since only root did the work.
Status broadcast_status(comm::Communicator& world, const Status& mine, int root);

// Collective: true if `mine` is true on any rank.
Result<bool> any(comm::Communicator& world, bool mine);

// Collective: returns every rank's number, by rank.
Result<std::vector<std::int64_t>> gather(comm::Communicator& world, std::int64_t mine);

// Collective: returns every rank's text, by rank, on root; an empty list on the other ranks.
Result<std::vector<std::string>> gather_texts(comm::Communicator& world, const std::string& mine, int root);

using comm::broadcast_text;

// Collective: returns root's texts on all ranks. A text may hold any character, a newline too, except '\0'.
Result<std::vector<std::string>> broadcast_texts(comm::Communicator& world, const std::vector<std::string>& texts,
                                                 int root);

}  // namespace lancet::comm
