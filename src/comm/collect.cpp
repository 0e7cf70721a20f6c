#include "lancet/comm/collect.h"

#include <fmt/format.h>
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "lancet/base/hash.h"

namespace lancet::comm {

Result<double> largest(Communicator& communicator, double value) {
  LANCET_ASSIGN(const auto all, collect(communicator, value));
  return *std::max_element(all.begin(), all.end());
}

Result<double> mean(Communicator& communicator, double value) {
  LANCET_ASSIGN(const auto all, collect(communicator, value));
  return std::accumulate(all.begin(), all.end(), 0.0) / static_cast<double>(all.size());
}

Result<std::string> broadcast_text(Communicator& communicator, const std::string& text, int root) {
  std::uint64_t size = text.size();
  LANCET_TRY(communicator.broadcast(std::as_writable_bytes(std::span(&size, 1)), root));
  std::string result = communicator.rank() == root ? text : std::string(size, '\0');
  LANCET_TRY(communicator.broadcast(std::as_writable_bytes(std::span(result)), root));
  return result;
}

AllToAll::AllToAll(const Communicator& communicator, std::size_t bytes) {
  const auto others = static_cast<std::size_t>(std::max(communicator.size() - 1, 1));
  const std::size_t each = communicator.size() > 1 ? std::max<std::size_t>(bytes / others, 1) : 0;
  out_.resize(each * others);
  in_.resize(out_.size());
  std::size_t at = 0;
  for (int peer = 0; peer < communicator.size(); ++peer) {
    if (peer == communicator.rank()) continue;
    sends_.push_back({peer, out_.data() + at, each});
    receives_.push_back({peer, in_.data() + at, each});
    at += each;
  }
}

// Every function is one or two collectives on small data. agree() gathers a fixed-size Verdict of each rank, so that it
// needs no second round for the message; the message is cut after 1,019 bytes. Errors that all ranks share are marked
// `agreed`, so that callers do not agree on them again.
namespace {

struct Verdict {
  int code = 0;  // exit code; 0: success
  std::array<char, 1020> message{};
};

}  // namespace

Status agree(comm::Communicator& world, const Status& mine) {
  Verdict verdict;
  if (!mine.ok()) {
    verdict.code = static_cast<int>(mine.error().code);
    const std::string& text = mine.error().message;
    std::memcpy(verdict.message.data(), text.data(), std::min(text.size(), verdict.message.size() - 1));
  }
  LANCET_ASSIGN(const std::vector<Verdict> all, comm::collect(world, verdict));
  const std::size_t ranks = all.size();
  std::size_t failed = 0, first = ranks;
  for (std::size_t r = ranks; r-- > 0;)
    if (all[r].code != 0) {
      ++failed;
      first = r;
    }
  if (failed == 0) return {};
  const std::string message = all[first].message.data();
  return Error{static_cast<ExitCode>(all[first].code),
               failed == ranks ? message : fmt::format("rank {}: {}", first, message), true};
}

Status agree_on(comm::Communicator& world, std::string_view what, std::string_view mine, ExitCode code) {
  LANCET_ASSIGN(const std::vector<std::uint64_t> all, comm::collect(world, hash64(mine)));
  const auto other = std::find_if(all.begin(), all.end(), [&](std::uint64_t hash) { return hash != all[0]; });
  if (other == all.end()) return {};
  return Error{
      code, fmt::format("expected {} on all ranks, found others on rank {} than on rank 0", what, other - all.begin()),
      true};
}

Status broadcast_status(comm::Communicator& world, const Status& mine, int root) {
  std::int32_t code = mine.ok() ? 0 : static_cast<std::int32_t>(mine.error().code);
  LANCET_TRY(world.broadcast(std::as_writable_bytes(std::span(&code, 1)), root));
  if (code == 0) return {};
  LANCET_ASSIGN(std::string message, broadcast_text(world, mine.ok() ? "" : mine.error().message, root));
  return Error{static_cast<ExitCode>(code), std::move(message), true};
}

Result<bool> any(comm::Communicator& world, bool mine) {
  float sum = mine ? 1 : 0;
  LANCET_TRY(world.all_reduce_sum(std::span(&sum, 1)));
  return sum > 0;
}

Error during(std::string_view phase, Error error) {
  if (error.code == ExitCode::communication) error.message = fmt::format("{}: {}", phase, error.message);
  return error;
}

Result<std::vector<std::string>> gather_texts(comm::Communicator& world, const std::string& mine, int root) {
  LANCET_ASSIGN(const auto sizes, comm::collect(world, mine.size()));
  std::string sent = mine;
  const comm::Segment send{root, reinterpret_cast<std::byte*>(sent.data()), sent.size()};
  std::vector<std::string> texts;
  std::vector<comm::Segment> receives;
  if (world.rank() == root) {
    for (const std::size_t size : sizes) texts.emplace_back(size, '\0');
    for (std::size_t r = 0; r < texts.size(); ++r)
      receives.push_back({static_cast<int>(r), reinterpret_cast<std::byte*>(texts[r].data()), texts[r].size()});
  }
  LANCET_TRY(world.send_receive(std::span(&send, 1), receives));
  return texts;
}

Result<std::vector<std::string>> broadcast_texts(comm::Communicator& world, const std::vector<std::string>& texts,
                                                 int root) {
  std::string all;
  for (const std::string& text : texts) (all += text) += '\0';
  LANCET_ASSIGN(all, broadcast_text(world, all, root));
  std::vector<std::string> result;
  for (std::size_t at = 0, end; (end = all.find('\0', at)) != all.npos; at = end + 1)
    result.push_back(all.substr(at, end - at));
  return result;
}

}  // namespace lancet::comm
