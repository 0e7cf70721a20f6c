#include "lancet/train/agree.h"

#include <fmt/format.h>

#include <array>
#include <cstring>
#include <span>
#include <vector>

namespace lancet::train {
namespace {

struct Verdict {
  int code = 0;  // of the exit code; 0: success
  std::array<char, 1020> message{};
};

}  // namespace

Status agree(comm::Communicator& world, const Status& mine) {
  const auto ranks = static_cast<std::size_t>(world.size());
  std::vector<Verdict> sent(ranks), all(ranks);
  if (!mine.ok()) {
    sent[0].code = static_cast<int>(mine.error().code);
    const std::string& text = mine.error().message;
    std::memcpy(sent[0].message.data(), text.data(), std::min(text.size(), sent[0].message.size() - 1));
  }
  std::vector<comm::Segment> sends, receives;
  for (std::size_t r = 0; r < ranks; ++r) {
    sends.push_back({static_cast<int>(r), reinterpret_cast<std::byte*>(&sent[0]), sizeof(Verdict)});
    receives.push_back({static_cast<int>(r), reinterpret_cast<std::byte*>(&all[r]), sizeof(Verdict)});
  }
  LANCET_TRY(world.exchange(sends, receives));
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

Result<std::string> broadcast_text(comm::Communicator& world, const std::string& text, int root) {
  std::uint64_t size = text.size();
  LANCET_TRY(world.broadcast(std::as_writable_bytes(std::span(&size, 1)), root));
  std::string result = world.rank() == root ? text : std::string(size, '\0');
  LANCET_TRY(world.broadcast(std::as_writable_bytes(std::span(result.data(), result.size())), root));
  return result;
}

}  // namespace lancet::train
