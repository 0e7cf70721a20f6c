// The progress thread's MPI calls: it starts, tests and drops messages.
//
// A send is an MPI_Isend whose tag names the operation and its number. A receive is not posted to MPI at first: it
// waits in the queue `expected` of its peer. poll() probes every channel that expects messages (MPI_Improbe) and
// appends each message to the queue `arrived` of its sender. receive() pairs the heads of the two queues, which is
// right because MPI keeps the order of messages between two ranks: if tag and size match, MPI_Imrecv receives the
// message, otherwise the channel fails. MPI_Testsome then tests all started sends and receives; a request is done with
// its last piece. Errors are collected in failures_ while lists are iterated; afterwards each breaks its channel, which
// drops the channel's messages and wakes its callers.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "progress.h"

namespace lancet::comm::mpi {
namespace {

// Tags hold operation numbers modulo this, so that every tag is below 32767, the limit that MPI guarantees.
constexpr int numbers = 4096;

int tag_of(const Request& r) {
  return (static_cast<int>(r.operation) + 1) * numbers + static_cast<int>(r.number % numbers);
}

// Names the operation of a tag. Numbers in tags are modulo `numbers`; the one nearest to `ours` is meant.
std::string describe_tag(int tag, std::uint32_t ours) {
  const int operation = tag / numbers - 1;
  if (operation < 0 || operation >= operation_count) return fmt::format("an unknown message (tag {})", tag);
  const int behind = (static_cast<int>(ours % numbers) - tag % numbers + numbers + numbers / 2) % numbers - numbers / 2;
  return fmt::format("{} #{}", name(static_cast<Operation>(operation)), static_cast<std::int64_t>(ours) - behind);
}

// Describes how an arrived message differs from the expected one; empty if it matches.
std::string mismatch(const Request& request, const Piece& piece, const Arrived& arrived) {
  const char* rule = "; all ranks must make the same calls in the same order";
  if (arrived.tag != tag_of(request))
    return fmt::format("rank {} is at {}{}", request.channel->number(piece.peer),
                       describe_tag(arrived.tag, request.number), rule);
  if (arrived.bytes == piece.bytes) return {};
  return fmt::format("expected {} bytes from rank {}, which sent {}{}", piece.bytes,
                     request.channel->number(piece.peer), arrived.bytes, rule);
}

// The peers of the unfinished sends (or receives) by their numbers in the world, each once, in ascending order.
std::vector<int> unfinished_peers(const Request& request, bool sends) {
  std::vector<int> peers;
  for (const Piece& piece : request.pieces)
    if (!piece.done && piece.is_send == sends) peers.push_back(request.channel->number(piece.peer));
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  return peers;
}

// Those of `ranks`, numbers in the world, that the request waits for. A split waits for all ranks of its channel.
std::vector<int> peers_among(const Request& request, const std::vector<int>& ranks) {
  std::vector<int> found;
  if (request.operation == Operation::split) {
    std::ranges::set_intersection(request.channel->ranks, ranks, std::back_inserter(found));
    return found;
  }
  std::copy_if(ranks.begin(), ranks.end(), std::back_inserter(found), [&](int rank) {
    return std::any_of(request.pieces.begin(), request.pieces.end(),
                       [&](const Piece& p) { return request.channel->number(p.peer) == rank; });
  });
  return found;
}

std::string waited_for(const std::string& request, const std::vector<int>& gone) {
  return fmt::format("{}: waited for {}, which ended without it", request, list_ranks(gone));
}

std::string who_is_missing(const Request& request) {
  const auto missing_senders = unfinished_peers(request, false), stalled_receivers = unfinished_peers(request, true);
  if (!missing_senders.empty()) return "nothing came from " + list_ranks(missing_senders);
  return list_ranks(stalled_receivers) + " did not take what was sent";
}

}  // namespace

void Progress::start(Request& request) {
  Channel& channel = *request.channel;
  if (aborting_) return break_channel(channel, "communication was aborted");
  {
    std::lock_guard lock(channel.mutex);
    if (channel.broken) {
      request.done = true;
      return;
    }
  }
  next_deadline_ = open_.empty() ? request.deadline : std::min(next_deadline_, request.deadline);
  open_.push_back(&request);
  request.remaining = 1;  // for this function, so that the request is not finished before all of it is started
  if (request.operation == Operation::split) {
    const int code = MPI_Comm_split(channel.comm, request.first_member, channel.rank, &request.group);
    if (code != MPI_SUCCESS) return fail(channel, describe(request) + ": " + error_text(code));
  } else {
    expect_messages(request);
    failures_.clear();
    start_sends(request);
    for (int peer = 0; peer < channel.size; ++peer) receive(channel, peer);  // early messages
    if (!failures_.empty()) return fail_collected();
  }
  if (--request.remaining == 0) finish(request);
}

void Progress::expect_messages(Request& request) {
  Channel& channel = *request.channel;
  for (std::size_t i = 0; i < request.pieces.size(); ++i) {
    Piece& piece = request.pieces[i];
    piece.done = false;
    if (piece.is_send) continue;
    channel.peers[static_cast<std::size_t>(piece.peer)].expected.push({&request, i});
    rate_.expect(static_cast<std::size_t>(piece.bytes));
    ++channel.expected;
    ++request.remaining;
  }
  if (channel.expected > 0 && std::find(listening_.begin(), listening_.end(), &channel) == listening_.end())
    listening_.push_back(&channel);
}

// Each rank sends to the next ranks first and to those before it last. If all began with rank 0, its link would have a
// queue from every rank while the others' links wait: among 8 hosts, an all-to-all of 250 KB took 4% longer.
void Progress::start_sends(Request& request) {
  for (const bool next : {true, false})
    for (std::size_t i = 0; i < request.pieces.size(); ++i) {
      Piece& piece = request.pieces[i];
      if (!piece.is_send || (piece.peer > request.channel->rank) != next) continue;
      MPI_Request handle;
      const int code =
          MPI_Isend(piece.data, piece.bytes, MPI_BYTE, piece.peer, tag_of(request), request.channel->comm, &handle);
      if (code != MPI_SUCCESS) {
        failures_.emplace_back(request.channel, fmt::format("{}: sending to rank {}: {}", describe(request),
                                                            request.channel->number(piece.peer), error_text(code)));
        return;
      }
      add_active(handle, {&request, i});
      ++request.remaining;
    }
}

void Progress::add_active(MPI_Request handle, PieceOf piece) {
  handles_.push_back(handle);
  active_.push_back(piece);
}

// Tests all outstanding messages once. Returns true if a message arrived or was finished.
bool Progress::poll() {
  failures_.clear();
  bool moved = false;
  for (Channel* channel : listening_) moved |= look_for_messages(*channel);
  std::erase_if(listening_, [](const Channel* channel) { return channel->expected == 0; });
  moved |= test_active();
  fail_collected();
  return moved;
}

// Collects the messages that have arrived on this channel; one that no request expects yet stays in its peer's queue.
bool Progress::look_for_messages(Channel& channel) {
  bool any = false;
  while (channel.expected > 0) {
    int found = 0;
    MPI_Message message;
    MPI_Status status;
    const int code = MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, channel.comm, &found, &message, &status);
    if (code != MPI_SUCCESS) {
      failures_.emplace_back(&channel, fmt::format("looking for messages: {}", error_text(code)));
      return true;
    }
    if (!found) break;
    any = true;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    channel.peers[static_cast<std::size_t>(status.MPI_SOURCE)].arrived.push({message, status.MPI_TAG, bytes});
    receive(channel, status.MPI_SOURCE);
  }
  return any;
}

// Starts to receive those messages of a peer that have arrived and are expected.
void Progress::receive(Channel& channel, int from) {
  Peer& peer = channel.peers[static_cast<std::size_t>(from)];
  while (!peer.expected.empty() && !peer.arrived.empty()) {
    const PieceOf next = peer.expected.front();
    Arrived arrived = peer.arrived.front();
    peer.expected.pop();
    peer.arrived.pop();
    --channel.expected;
    const Piece& piece = next.request->pieces[next.index];
    std::string error = mismatch(*next.request, piece, arrived);
    MPI_Request handle = MPI_REQUEST_NULL;
    if (error.empty())
      if (int code = MPI_Imrecv(piece.data, piece.bytes, MPI_BYTE, &arrived.message, &handle); code != MPI_SUCCESS)
        error = fmt::format("receiving from rank {}: {}", channel.number(from), error_text(code));
    if (!error.empty()) {
      failures_.emplace_back(&channel, describe(*next.request) + ": " + error);
      return;
    }
    add_active(handle, next);
  }
}

bool Progress::test_active() {
  if (active_.empty()) return false;
  finished_.resize(std::max(finished_.size(), handles_.size()));
  statuses_.resize(std::max(statuses_.size(), handles_.size()));
  int count = 0;
  const int code =
      MPI_Testsome(static_cast<int>(handles_.size()), handles_.data(), &count, finished_.data(), statuses_.data());
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) {
    failed_ = true;
    break_all("MPI_Testsome: " + error_text(code));
    return true;
  }
  if (count <= 0) return false;
  for (int i = 0; i < count; ++i) {
    MPI_Status& status = statuses_[static_cast<std::size_t>(i)];
    if (code == MPI_SUCCESS) status.MPI_ERROR = MPI_SUCCESS;  // MPI sets it only with MPI_ERR_IN_STATUS
    complete(active_[static_cast<std::size_t>(finished_[static_cast<std::size_t>(i)])], status);
  }
  std::size_t kept = 0;
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    if (handles_[i] == MPI_REQUEST_NULL) continue;
    handles_[kept] = handles_[i];
    active_[kept++] = active_[i];
  }
  handles_.resize(kept);
  active_.resize(kept);
  return true;
}

// Handles a finished piece. After an error the request stays unfinished; fail() ends it.
void Progress::complete(PieceOf active, const MPI_Status& status) {
  Request& request = *active.request;
  Piece& piece = request.pieces[active.index];
  if (!piece.is_send) rate_.arrived(static_cast<std::size_t>(piece.bytes));
  if (status.MPI_ERROR != MPI_SUCCESS) {
    failures_.emplace_back(
        request.channel,
        fmt::format("{}: {} rank {}: {}", describe(request), piece.is_send ? "sending to" : "receiving from",
                    request.channel->number(piece.peer), error_text(status.MPI_ERROR)));
    return;
  }
  piece.done = true;
  if (--request.remaining == 0) finish(request);
}

void Progress::finish(Request& request) {
  std::erase(open_, &request);
  Channel& channel = *request.channel;
  std::lock_guard lock(channel.mutex);
  request.done = true;
  channel.changed.notify_one();
}

void Progress::check_deadlines() {
  const auto now = Clock::now();
  next_deadline_ = Clock::time_point::max();
  failures_.clear();
  for (const Request* open : open_) {
    const Request& request = *open;
    if (request.deadline > now) {
      next_deadline_ = std::min(next_deadline_, request.deadline);
      continue;
    }
    const auto listed = [&](const auto& failure) { return failure.first == request.channel; };
    if (std::none_of(failures_.begin(), failures_.end(), listed))
      failures_.emplace_back(
          request.channel,
          fmt::format("{}: timed out after {:.3g} s: {}", describe(request),
                      std::chrono::duration<double>(request.channel->timeout).count(), who_is_missing(request)));
  }
  fail_collected();
}

void Progress::fail_those_waiting_for(const std::vector<int>& ended) {
  failures_.clear();
  for (const Request* open : open_) {
    std::vector<int> gone;
    for (const bool sends : {false, true})
      for (const int peer : unfinished_peers(*open, sends))
        if (std::binary_search(ended.begin(), ended.end(), peer) &&
            std::find(gone.begin(), gone.end(), peer) == gone.end())
          gone.push_back(peer);
    if (gone.empty()) continue;
    failures_.emplace_back(open->channel, waited_for(describe(*open), gone));
  }
  fail_collected();
}

// Called by the NeighbourWatch while the progress thread is stuck inside MPI; does not touch the data that thread owns.
void Progress::wake_those_waiting_for(const std::vector<int>& ended) {
  std::lock_guard lock(channels_mutex_);
  for (auto& channel : channels_) {
    std::lock_guard channel_lock(channel->mutex);
    for (const Request& request : channel->requests) {
      if (channel->broken || request.done) continue;
      const std::vector<int> gone = peers_among(request, ended);
      if (gone.empty()) continue;
      channel->error = waited_for(describe_locked(request), gone);
      channel->broken = failed_ = true;
      channel->changed.notify_all();
    }
  }
}

void Progress::fail_collected() {
  for (auto& [channel, error] : failures_) fail(*channel, error);
  failures_.clear();
}

void Progress::fail(Channel& channel, const std::string& error) {
  failed_ = true;
  break_channel(channel, error);
}

// Drops the channel's messages first, so that a woken caller owns its buffers again (as far as MPI allows).
void Progress::break_channel(Channel& channel, const std::string& error) {
  drop(channel);
  std::lock_guard lock(channel.mutex);
  if (!channel.broken) channel.error = error;
  channel.broken = true;
  for (Request& request : channel.requests) request.done = true;
  channel.changed.notify_all();
}

void Progress::break_all(const std::string& error) {
  std::lock_guard lock(channels_mutex_);
  for (auto& channel : channels_) break_channel(*channel, error);
}

void Progress::drop(Channel& channel) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < handles_.size(); ++i) {
    if (active_[i].request->channel != &channel) {
      handles_[kept] = handles_[i];
      active_[kept++] = active_[i];
    } else {
      MPI_Request_free(&handles_[i]);
    }
  }
  handles_.resize(kept);
  active_.resize(kept);
  for (const Request* request : open_)
    for (const Piece& piece : request->pieces)
      if (request->channel == &channel && !piece.is_send && !piece.done)
        rate_.drop(static_cast<std::size_t>(piece.bytes));
  std::erase_if(open_, [&](const Request* request) { return request->channel == &channel; });
  std::erase(listening_, &channel);
  for (Peer& peer : channel.peers) peer.expected.clear();
  channel.expected = 0;
}

}  // namespace lancet::comm::mpi
