// The thread that makes every MPI call after start-up.
//
// A stream's thread posts a Request (sends and receives that start together) and sleeps until it is done. The progress
// thread starts posted requests, tests the outstanding messages of all streams together, and sleeps between tests. It
// copies no data except inside MPI, and sums nothing.
//
// The tag of a message holds the operation and its number on this communicator. A message is inspected (matched probe)
// before it is received. So a rank that is at another operation, or sends another size, is detected by its first
// message and not by a timeout, and before it does damage (Open MPI 4.1 writes a long message that does not fit beyond
// the end of its buffer). And MPI gets no buffer for a message that may never arrive.
#pragma once

#include <fmt/format.h>
#include <mpi.h>
#include <array>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../operation.h"
#include "lancet/comm/communicator.h"
#include "neighbours.h"
#include "receive_rate.h"

namespace lancet::comm::mpi {

// The longest message that is sent without a handshake. (The receiver buffers it until it is expected.)
inline constexpr std::size_t direct_bytes = 128 << 10;

struct Channel;
struct Request;

// One MPI message: a whole segment, or a fragment of a long one.
struct Piece {
  int peer = 0;
  std::byte* data = nullptr;
  int bytes = 0;
  bool is_send = false;
  bool done = false;
};

// A queue that does not allocate once its vector has grown: the vector is reused whenever the queue becomes empty.
template <class T>
class Fifo {
 public:
  bool empty() const { return head_ == items_.size(); }
  T& front() { return items_[head_]; }
  void push(T item) { items_.push_back(std::move(item)); }
  void pop() {
    if (++head_ == items_.size()) clear();
  }
  void clear() {
    items_.clear();
    head_ = 0;
  }

 private:
  std::vector<T> items_;
  std::size_t head_ = 0;
};

struct PieceOf {
  Request* request;
  std::size_t index;
};
// A message that has arrived and is not received yet.
struct Arrived {
  MPI_Message message;
  int tag, bytes;
};
// The progress thread's queues for one peer of a channel. At most one of them is not empty.
struct Peer {
  Fifo<PieceOf> expected;
  Fifo<Arrived> arrived;
};

// One operation or one step of it. A channel reuses its requests, so that a call allocates nothing once their vectors
// have grown.
struct Request {
  Channel* channel = nullptr;
  // Set by the stream's thread before post().
  Operation operation = Operation::barrier;
  std::uint32_t number = 0;     // counts the operations of this communicator
  std::size_t total_bytes = 0;  // of the whole call, for errors
  int first_member = 0;         // Operation::split: the lowest rank of this rank's group
  std::vector<Piece> pieces;    // receives and sends; those of one peer in order
  Clock::time_point deadline;
  // Owned by the progress thread from post() until done.
  std::size_t remaining = 0;
  MPI_Comm group = MPI_COMM_NULL;  // made by Operation::split
  bool done = true;                // guarded by channel->mutex
};

// One communicator. Lives as long as the Progress; one stream uses it.
struct Channel {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0, size = 1;
  std::vector<int> ranks;      // [size]: their numbers in the world, which errors name
  std::size_t world_size = 1;  // of the world
  int number(int peer) const { return ranks[static_cast<std::size_t>(peer)]; }
  std::chrono::milliseconds timeout{300'000};
  // Owned by the progress thread.
  std::vector<Peer> peers;
  std::size_t expected = 0;  // pieces expected from all peers
  // Owned by the stream's thread.
  std::uint32_t operations = 0, splits = 0;
  std::vector<float> scratch;     // all-reduce: the other ranks' pieces
  std::vector<std::byte> tokens;  // barrier, split
  std::vector<const float*> parts;
  std::array<Request, 4> requests;  // an all-reduce has two sums and two gathers in flight
  std::mutex mutex;
  std::condition_variable changed;
  std::string name = "world";
  bool broken = false;
  std::string error;  // why it is broken: one line
};

class Progress {
 public:
  Progress(MPI_Comm world, int rank, int size, Neighbours neighbours = {});
  ~Progress();
  Progress(const Progress&) = delete;

  Channel* world() { return world_; }
  // comm: over these ranks of the world, ascending.
  Channel* add_channel(MPI_Comm comm, std::vector<int> ranks, std::string name, std::chrono::milliseconds timeout);

  static Status check(Channel& channel);  // returns the channel's error if it is broken
  void post(Request& request);
  Status wait(Request& request);       // sleeps until the request is done or its channel is broken
  void abort(const std::string& why);  // any thread
  [[noreturn]] void abort_job(int exit_code);
  // Stops the thread; later calls fail. Returns true if no error has occurred and MPI may be finalised. If the thread
  // is stuck inside MPI after an error, it ends the process with code 5.
  bool stop();

 private:
  void run();
  void serve();
  void sleep(std::unique_lock<std::mutex>& lock, Clock::time_point now);
  void start(Request& request);
  void expect_messages(Request& request);
  void start_sends(Request& request);
  void add_active(MPI_Request handle, PieceOf piece);
  bool poll();
  bool look_for_messages(Channel& channel);
  void receive(Channel& channel, int from);
  bool test_active();
  void complete(PieceOf active, const MPI_Status& status);
  void finish(Request& request);
  void fail_collected();
  void check_deadlines();
  void check_neighbours(Clock::time_point now);
  void fail_those_waiting_for(const std::vector<int>& ended);
  void fail(Channel& channel, const std::string& error);
  void wake_those_waiting_for(const std::vector<int>& ended);
  void break_channel(Channel& channel, const std::string& error);
  void break_all(const std::string& error);
  void drop(Channel& channel);

  const int rank_, size_;  // in the world
  std::mutex channels_mutex_;
  std::deque<std::unique_ptr<Channel>> channels_;
  Channel* const world_;

  std::mutex mutex_;
  std::condition_variable posted_changed_;
  std::vector<Request*> posted_;
  bool stop_ = false, stopped_ = false, abort_seen_ = false;
  std::condition_variable stopped_changed_;
  std::string abort_reason_;
  std::atomic<bool> aborting_ = false;
  std::atomic<int> job_exit_code_ = -1;

  // Owned by the progress thread.
  std::vector<Request*> taken_, open_;  // just taken from posted_; started and not finished
  std::vector<Channel*> listening_;     // channels that expect messages
  std::vector<MPI_Request> handles_;    // handles_[i] belongs to active_[i]
  std::vector<PieceOf> active_;
  ReceiveRate rate_;
  std::vector<int> finished_;
  std::vector<MPI_Status> statuses_;
  Clock::time_point last_activity_, next_deadline_, next_look_;
  const Neighbours neighbours_;
  std::vector<std::pair<Channel*, std::string>> failures_;
  std::atomic<bool> failed_ = false;
  Rounds rounds_;
  std::thread thread_;
  NeighbourWatch watch_;  // last: it uses the above
};

std::string describe(const Request& request);
std::string describe_locked(const Request& request);  // the caller holds the channel's mutex

}  // namespace lancet::comm::mpi
