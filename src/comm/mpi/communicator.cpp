// A collective is one Request or several: a list of messages that the progress thread carries out (progress.cpp). An
// all-reduce sums in two steps. Each rank receives its own piece of everybody's values, adds the pieces in the order of
// ranks, so that the bits are the same on all of them (post_sums, sum_own_piece), and sends the sum to all
// (post_gather). A long array goes in rounds, two of them in flight.
//
// At the end of the file are the start and the end of MPI: settings of Open MPI, a watch over MPI_Init, and the session
// that owns the progress thread.
#include "lancet/comm/mpi.h"

#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "../operation.h"
#include "lancet/base/log.h"
#include "progress.h"

namespace lancet::comm {
namespace mpi {
namespace {

// A message is cut into pieces that Open MPI sends over TCP without a handshake (tune()). It announces longer
// messages and sends them after the receiver's answer; the answer queues after the data that the receiver itself is
// sending, so that only one of two ranks that send to each other sends at a time: 4 MB each way at 62 MB/s took 130 ms
// with handshakes, and takes 66 ms without. MPI counts in int, hence the limit on the number of pieces.
constexpr std::size_t shortest_cut = direct_bytes, most_cuts = 4096;
// All-reduce: an array up to this size is sent whole to every rank, in one step instead of two.
constexpr std::size_t small_floats = 1024;

void add_message(Request& request, int peer, void* data, std::size_t bytes, bool is_send) {
  const std::size_t longest = std::max(shortest_cut, (bytes + most_cuts - 1) / most_cuts);
  auto* at = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const std::size_t n = std::min(bytes, longest);
    request.pieces.push_back({peer, at, static_cast<int>(n), is_send, false});
    at += n;
    bytes -= n;
  }
}

void add_send(Request& r, int peer, std::span<float> values) {
  add_message(r, peer, values.data(), values.size_bytes(), true);
}
void add_receive(Request& r, int peer, std::span<float> values) {
  add_message(r, peer, values.data(), values.size_bytes(), false);
}

// Every operation is a set of point-to-point messages that the progress thread carries.
class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(std::shared_ptr<Progress> progress, Channel* channel)
      : progress_(std::move(progress)), channel_(*channel) {}
  int rank() const override { return channel_.rank; }
  int size() const override { return channel_.size; }
  std::string transport() const override { return "mpi"; }
  Status send_receive(std::span<const Segment> sends, std::span<const Segment> receives) override;
  Status all_reduce_sum(std::span<float> values) override;
  Status broadcast(std::span<std::byte> bytes, int root) override;
  Status barrier() override;
  Result<std::unique_ptr<Communicator>> split(std::span<const int> members) override;
  void abort(const std::string& why) override { progress_->abort(why); }
  void set_timeout(std::chrono::milliseconds timeout) override { channel_.timeout = timeout; }
  void scale_messages(double scale) override { scale_ = scale; }
  void set_name(const std::string& name) override;

 private:
  // The partition of an all-reduce: in round k rank r sums the `piece` floats from offset (k * size + r) * piece on.
  struct Cut {
    std::size_t rounds, piece;
  };
  Cut cut(std::size_t count) const;
  std::span<float> piece_of(std::span<float> values, const Cut& cut, std::size_t round, int rank) const;
  float* received(const Cut& cut, std::size_t round, int from);
  Status begin();
  Status check_all_groups(std::span<const int> members);
  Request& prepare(std::size_t slot, Operation operation, std::size_t total_bytes);
  Status run(Request& request);
  Status reduce_small(std::span<float> values);
  void post_sums(std::span<float> values, const Cut& cut, std::size_t round);
  void post_gather(std::span<float> values, const Cut& cut, std::size_t round);
  void sum_own_piece(std::span<float> values, const Cut& cut, std::size_t round);

  std::shared_ptr<Progress> progress_;
  Channel& channel_;
  double scale_ = 1;
};

void MpiCommunicator::set_name(const std::string& name) {
  std::lock_guard lock(channel_.mutex);
  channel_.name = name;
}

// Counts an operation. Calls on a broken channel end here, before they touch a request slot, because the progress
// thread may still hold the slots and the memory that they name.
Status MpiCommunicator::begin() {
  LANCET_TRY(progress_->check(channel_));
  ++channel_.operations;
  return {};
}

// Fills request `slot` for the operation counted last.
Request& MpiCommunicator::prepare(std::size_t slot, Operation operation, std::size_t total_bytes) {
  Request& request = channel_.requests[slot];
  request.operation = operation;
  request.number = channel_.operations;
  request.total_bytes = total_bytes;
  request.pieces.clear();
  request.deadline = Clock::now() + channel_.timeout;
  return request;
}

Status MpiCommunicator::run(Request& request) {
  progress_->post(request);
  return progress_->wait(request);
}

Status MpiCommunicator::send_receive(std::span<const Segment> sends, std::span<const Segment> receives) {
  LANCET_TRY(check_peers(sends, "send", rank(), size()));
  LANCET_TRY(check_peers(receives, "receive", rank(), size()));
  LANCET_TRY(begin());
  std::size_t bytes = 0;
  for (const Segment& s : receives) bytes += s.bytes;
  Request& request = prepare(0, Operation::send_receive, bytes);
  for (const Segment& s : receives)
    if (s.peer != rank()) add_message(request, s.peer, s.data, s.bytes, false);
  for (const Segment& s : sends)
    if (s.peer != rank()) add_message(request, s.peer, s.data, s.bytes, true);
  progress_->post(request);
  Status copied = copy_to_self(sends, receives, rank());  // while the messages travel
  LANCET_TRY(progress_->wait(request));
  return copied;
}

Status MpiCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  if (root < 0 || root >= size())
    return internal_error(fmt::format("broadcast: root is rank {}, expected 0 to {}", root, size() - 1));
  LANCET_TRY(begin());
  Request& request = prepare(0, Operation::broadcast, bytes.size());
  // Root sends to all: a tree would be faster on many ranks, but broadcasts are for plans and settings, at start-up.
  if (rank() != root) add_message(request, root, bytes.data(), bytes.size(), false);
  for (int peer = 0; rank() == root && peer < size(); ++peer)
    if (peer != root) add_message(request, peer, bytes.data(), bytes.size(), true);
  return run(request);
}

// Every rank sends a byte to every other: one step, after which every rank can name the missing ones. (A tree sends
// fewer messages, but a node can name only the missing ranks below it.)
Status MpiCommunicator::barrier() {
  LANCET_TRY(begin());
  Request& request = prepare(0, Operation::barrier, 0);
  channel_.tokens.resize(static_cast<std::size_t>(size()) + 1);
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    add_message(request, peer, &channel_.tokens[static_cast<std::size_t>(peer)], 1, false);
    add_message(request, peer, &channel_.tokens.back(), 1, true);
  }
  return run(request);
}

// Sends each rank's members, as a byte for each rank, to all ranks. The bytes are in the channel, which outlives a
// failed call.
Status MpiCommunicator::check_all_groups(std::span<const int> members) {
  const auto ranks = static_cast<std::size_t>(size());
  channel_.tokens.assign(ranks + ranks * ranks, std::byte{0});
  std::byte *const mine = channel_.tokens.data(), *const all = mine + ranks;
  for (const int member : members) mine[static_cast<std::size_t>(member)] = std::byte{1};
  std::vector<Segment> sends, receives;
  for (int peer = 0; peer < size(); ++peer) {
    sends.push_back({peer, mine, ranks});
    receives.push_back({peer, all + static_cast<std::size_t>(peer) * ranks, ranks});
  }
  LANCET_TRY(send_receive(sends, receives));
  std::vector<std::vector<int>> members_of(ranks);
  for (std::size_t rank = 0; rank < ranks; ++rank)
    for (std::size_t member = 0; member < ranks; ++member)
      if (all[rank * ranks + member] != std::byte{0}) members_of[rank].push_back(static_cast<int>(member));
  return check_groups(members_of);
}

// After check_all_groups(), which has the deadline of every call and names missing ranks, all ranks are about to split,
// so MPI's own call is short. It blocks the progress thread, since MPI has no split that does not block. If a rank ends
// or halts between the two, wait() still returns an error, at its own deadline or sooner, but the thread stays in MPI:
// the session then ends the process, in abort_job() or as it is destroyed.
Result<std::unique_ptr<Communicator>> MpiCommunicator::split(std::span<const int> members) {
  LANCET_TRY(check_members(members, rank(), size()));
  LANCET_TRY(check_all_groups(members));
  LANCET_TRY(begin());
  Request& request = prepare(0, Operation::split, 0);
  request.first_member = members.front();
  LANCET_TRY(run(request));
  std::string name;
  {
    std::lock_guard lock(channel_.mutex);
    name = fmt::format("{}.{}", channel_.name, ++channel_.splits);
  }
  std::vector<int> ranks;
  for (const int member : members) ranks.push_back(channel_.number(member));
  Channel* channel = progress_->add_channel(request.group, std::move(ranks), name, channel_.timeout);
  return std::unique_ptr<Communicator>(new MpiCommunicator(progress_, channel));
}

// All-reduce. Rank r receives piece r of every rank, sums the pieces in the order of the ranks and sends the sum to
// all. Each element is summed once, on one rank, in one order, so that the bits are the same on all ranks, for any
// number of rounds, and equal to those of the other transports. (MPI_Iallreduce promises neither: its algorithm, and
// with it the order, depends on size and library.) It moves as many bytes as a ring, in 2 steps instead of 2 (size-1).
// Two rounds are in flight: while the stream's thread sums one, the messages of the next are sent; between rounds the
// other streams' messages get their turn.
Status MpiCommunicator::all_reduce_sum(std::span<float> values) {
  LANCET_TRY(begin());
  if (size() == 1 || values.empty()) return {};
  if (static_cast<double>(values.size()) * scale_ <= small_floats) return reduce_small(values);
  const Cut how = cut(values.size());
  channel_.scratch.resize(std::max(channel_.scratch.size(), 2 * static_cast<std::size_t>(size()) * how.piece));
  auto& requests = channel_.requests;  // 0, 1: sums of even and odd rounds; 2, 3: gathers
  post_sums(values, how, 0);
  for (std::size_t k = 0; k < how.rounds; ++k) {
    if (k + 1 < how.rounds) post_sums(values, how, k + 1);
    LANCET_TRY(progress_->wait(requests[k % 2]));
    sum_own_piece(values, how, k);
    if (k >= 2) LANCET_TRY(progress_->wait(requests[2 + k % 2]));
    post_gather(values, how, k);
  }
  if (how.rounds > 1) LANCET_TRY(progress_->wait(requests[2 + how.rounds % 2]));
  return progress_->wait(requests[2 + (how.rounds - 1) % 2]);
}

Status MpiCommunicator::reduce_small(std::span<float> values) {
  const Cut how{1, values.size()};
  channel_.scratch.resize(std::max(channel_.scratch.size(), static_cast<std::size_t>(size()) * values.size()));
  Request& request = prepare(0, Operation::all_reduce_sum, values.size_bytes());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    add_receive(request, peer, {received(how, 0, peer), values.size()});
    add_send(request, peer, values);
  }
  LANCET_TRY(run(request));
  channel_.parts.clear();
  for (int peer = 0; peer < size(); ++peer)
    channel_.parts.push_back(peer == rank() ? values.data() : received(how, 0, peer));
  sum_in_rank_order(channel_.parts, values.data(), values.size());
  return {};
}

MpiCommunicator::Cut MpiCommunicator::cut(std::size_t count) const {
  const auto ranks = static_cast<std::size_t>(size());
  const std::size_t whole = floats_of_rank(ranks);
  const auto longest = std::max<std::size_t>(static_cast<std::size_t>(static_cast<double>(whole) / scale_), 16);
  const std::size_t rounds = (count + ranks * longest - 1) / (ranks * longest);
  const std::size_t piece = (count + ranks * rounds - 1) / (ranks * rounds);
  return {rounds, (piece + 15) / 16 * 16};  // whole cache lines
}

std::span<float> MpiCommunicator::piece_of(std::span<float> values, const Cut& cut, std::size_t round, int rank) const {
  const std::size_t index = round * static_cast<std::size_t>(size()) + static_cast<std::size_t>(rank);
  const std::size_t start = std::min(index * cut.piece, values.size());
  return values.subspan(start, std::min(cut.piece, values.size() - start));
}

float* MpiCommunicator::received(const Cut& cut, std::size_t round, int from) {
  const auto ranks = static_cast<std::size_t>(size());
  return channel_.scratch.data() + (round % 2 * ranks + static_cast<std::size_t>(from)) * cut.piece;
}

void MpiCommunicator::post_sums(std::span<float> values, const Cut& cut, std::size_t round) {
  Request& request = prepare(round % 2, Operation::all_reduce_sum, values.size_bytes());
  const std::size_t own = piece_of(values, cut, round, rank()).size();
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    add_receive(request, peer, {received(cut, round, peer), own});
    add_send(request, peer, piece_of(values, cut, round, peer));
  }
  progress_->post(request);
}

void MpiCommunicator::sum_own_piece(std::span<float> values, const Cut& cut, std::size_t round) {
  const auto own = piece_of(values, cut, round, rank());
  channel_.parts.clear();
  for (int peer = 0; peer < size(); ++peer)
    channel_.parts.push_back(peer == rank() ? own.data() : received(cut, round, peer));
  sum_in_rank_order(channel_.parts, own.data(), own.size());
}

void MpiCommunicator::post_gather(std::span<float> values, const Cut& cut, std::size_t round) {
  Request& request = prepare(2 + round % 2, Operation::all_reduce_sum, values.size_bytes());
  for (int peer = 0; peer < size(); ++peer) {
    if (peer == rank()) continue;
    add_receive(request, peer, piece_of(values, cut, round, peer));
    add_send(request, peer, piece_of(values, cut, round, rank()));
  }
  progress_->post(request);
}

// Sets Open MPI's options for TCP that the user has not set: messages of direct_bytes are sent without a handshake (see
// shortest_cut). A megabyte of all-to-all costs as much processor time as with handshakes, which save copies.
void tune() {
  const std::string longest = std::to_string(direct_bytes + 1024);  // with Open MPI's header
  for (const char* name : {"eager_limit", "rndv_eager_limit", "max_send_size"})
    setenv(("OMPI_MCA_btl_tcp_" + std::string(name)).c_str(), longest.c_str(), 0);
}

// Open MPI writes to sockets of peers that may have ended; such a write must be an error and not kill this process.
void ignore_broken_pipes() {
  struct sigaction action = {};
  if (::sigaction(SIGPIPE, nullptr, &action) != 0 || action.sa_handler != SIG_DFL) return;
  action.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &action, nullptr);
}

// Ends the process if MPI_Init does not return within the timeout, since it waits for missing ranks forever.
class StartWatch {
 public:
  explicit StartWatch(std::chrono::milliseconds timeout) : thread_([this, timeout] { watch(timeout); }) {}
  ~StartWatch() {
    const std::lock_guard lock(mutex_);
    started_ = true;
    changed_.notify_one();
  }

 private:
  void watch(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, timeout, [this] { return started_; })) return;
    log::error("start-up: timed out after {:.3g} s: MPI has not started; check that all ranks were started",
               std::chrono::duration<double>(timeout).count());
    _exit(static_cast<int>(ExitCode::communication));  // the launcher then ends the job
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::jthread thread_;  // last: it uses the above
};

int init(int& provided, std::chrono::milliseconds timeout) {
  const StartWatch watch(timeout);
  return MPI_Init_thread(nullptr, nullptr, MPI_THREAD_SERIALIZED, &provided);
}

class Session final : public MpiSession {
 public:
  explicit Session(std::shared_ptr<Progress> progress) : progress_(std::move(progress)) {}
  // After a failure MPI is not finalised, since MPI_Finalize would wait for the other ranks, which may wait for this
  // one. The launcher takes a process that exits without it for an error and ends the other ranks.
  ~Session() override {
    if (progress_->stop()) MPI_Finalize();
  }
  std::unique_ptr<Communicator> world() override {
    return std::make_unique<MpiCommunicator>(progress_, progress_->world());
  }
  [[noreturn]] void abort_job(int exit_code) override { progress_->abort_job(exit_code); }

 private:
  std::shared_ptr<Progress> progress_;
};

}  // namespace
}  // namespace mpi

Result<std::unique_ptr<MpiSession>> MpiSession::start(std::chrono::milliseconds launch,
                                                      std::chrono::milliseconds first_message) {
  int initialized = 0;
  MPI_Initialized(&initialized);
  if (initialized) return internal_error("MPI was started already; expected one MPI session a process");
  mpi::tune();
  int provided = MPI_THREAD_SINGLE;
  if (int code = mpi::init(provided, launch); code != MPI_SUCCESS)
    return communication_error("starting MPI: " + mpi::error_text(code));
  if (provided < MPI_THREAD_SERIALIZED) {
    MPI_Finalize();
    return communication_error(
        fmt::format("this MPI library gives {}, expected MPI_THREAD_SERIALIZED or better",
                    provided == MPI_THREAD_SINGLE ? "MPI_THREAD_SINGLE" : "MPI_THREAD_FUNNELED"));
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  // No duplicate is made of it, since that would wait for the other ranks without a timeout.
  const MPI_Comm world = MPI_COMM_WORLD;
  int rank = 0, size = 1;
  MPI_Comm_rank(world, &rank);
  MPI_Comm_size(world, &size);
  if (size > 1) mpi::ignore_broken_pipes();
  LANCET_ASSIGN(mpi::Neighbours neighbours, mpi::Neighbours::find(world, first_message));
  return std::unique_ptr<MpiSession>(
      new mpi::Session(std::make_shared<mpi::Progress>(world, rank, size, std::move(neighbours))));
}

}  // namespace lancet::comm
