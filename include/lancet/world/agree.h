// What ranks decide together, so that none goes on, or waits, alone.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/collect.h"
#include "lancet/comm/communicator.h"

namespace lancet::world {

// Collective. Success where every rank brings success; else, on all ranks, the error of the first rank that failed,
// with that rank named where the others did not fail.
Status agree(comm::Communicator& world, const Status& mine);

// Collective. Config error, on all ranks, where a rank's text is another than rank 0's. what: "the same options".
Status agree_on(comm::Communicator& world, std::string_view what, std::string_view mine);

// Collective: root's outcome on all ranks, in its own words: where root alone looked, no rank needs to be named.
Status broadcast_status(comm::Communicator& world, const Status& mine, int root);

// Collective: whether any rank says so.
Result<bool> any(comm::Communicator& world, bool mine);

// Collective: every rank's number, by rank.
Result<std::vector<std::int64_t>> gather(comm::Communicator& world, std::int64_t mine);

// Collective: every rank's text, by rank, on root; nothing elsewhere.
Result<std::vector<std::string>> gather_texts(comm::Communicator& world, const std::string& mine, int root);

using comm::broadcast_text;

// Collective: root's texts on all ranks. They hold no '\0'; a path may hold anything else, a newline too.
Result<std::vector<std::string>> broadcast_texts(comm::Communicator& world, const std::vector<std::string>& texts,
                                                 int root);

}  // namespace lancet::world
