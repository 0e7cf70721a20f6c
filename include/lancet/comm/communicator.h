// Communicator: collectives and point-to-point messages among the ranks of one stream.
//
// Threading: one thread at a time calls a communicator; different communicators (one per stream, and per group of
// ranks, made with duplicate() and split()) are called from different threads at once. Calls block the calling thread,
// which sleeps; they return a communication error when a rank has not arrived within the timeout, when a peer is gone,
// when the ranks' calls do not match, or after abort(). A communicator that returned an error is broken: every later
// call returns that error again. The data of the failed call is undefined, and its buffers must live on until the
// process ends (a peer may still be reading or writing them). Order: all ranks call the same operations of one
// communicator in the same order.
#pragma once
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "lancet/base/result.h"

namespace lancet::comm {

// A range of bytes that is sent to, or received from, one peer. Sends to a peer match the peer's receives in order;
// both sides know the sizes. A segment of 0 bytes is not sent.
struct Segment {
  int peer = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual std::string transport() const = 0;  // "mpi", "self": for the banner

  // Sends and receives: every send segment reaches its peer's matching receive segment. Segments to oneself are allowed
  // (copied). A call returns when its own receives are complete and its send buffers are free again; peers may still be
  // receiving.
  virtual Status send_receive(std::span<const Segment> sends, std::span<const Segment> receives) = 0;
  // In place, over all ranks. Element i is ((x0[i] + x1[i]) + x2[i]) + ... in the order of the ranks, on every rank
  // and every transport: the bits depend neither on the element's position nor on how the transport cuts the call.
  virtual Status all_reduce_sum(std::span<float> values) = 0;
  virtual Status broadcast(std::span<std::byte> bytes, int root) = 0;
  virtual Status barrier() = 0;

  // A new communicator over a group of this one's ranks, with this one's timeout: rank i of it is members[i] of this
  // one. Collective over all ranks of this communicator. Each passes the ranks of its own group, ascending, itself
  // among them; the groups of two ranks are equal or disjoint. Meant for start-up, before the streams carry traffic;
  // all ranks make their communicators in one order, one at a time. Internal errors: members that are not ascending, no
  // ranks, or without this rank; groups that overlap (found on all ranks).
  virtual Result<std::unique_ptr<Communicator>> split(std::span<const int> members) = 0;
  // A new communicator over the same ranks, for another stream: split() with all ranks as the one group.
  Result<std::unique_ptr<Communicator>> duplicate();
  // Wakes every blocked call of this rank, on all communicators that were split from one, with an error; later calls
  // fail at once. Any thread.
  virtual void abort(const std::string& why) = 0;
  // How long a call waits for the other ranks before it fails. Default 300 s.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  // From now on an all-reduce goes in as many rounds as one of `scale` times its bytes would (make_scaled).
  virtual void scale_messages(double /*scale*/) {}
  // False: messages hold no values of the callers, which need not prepare or use them (make_scaled).
  virtual bool carries_values() const { return true; }
  // The communicator's name in errors: that of its stream and group. Default "world", and "world.1", ... for those
  // split from it. Errors name ranks by their numbers in the world.
  virtual void set_name(const std::string& /*name*/) {}
};

// One rank alone: sends to oneself are copied, reductions return their input.
std::unique_ptr<Communicator> make_self();

// A communicator whose messages are a fraction of those that are asked for. It forwards every call to `communicator`,
// which outlives it, with the same segments in the same order. A segment of n bytes becomes one of n / scale, rounded
// up, and a vector of n elements one of n / scale, in as many rounds. They go from and to memory of this object, so the
// caller's data is neither read nor written. broadcast() and barrier() are not scaled.
std::unique_ptr<Communicator> make_scaled(Communicator& communicator, double scale);

// Duration of a call among `ranks`, in milliseconds. all_to_all_ms: by the bytes that the rank sends to others;
// all_reduce_ms: by the bytes of the vector.
struct Network {
  std::string name;  // of the declared hardware
  std::function<double(std::span<const int> ranks, double bytes)> all_to_all_ms, all_reduce_ms;
};
// A single rank that trains as rank 0 of `ranks`, whose peers do not exist: calls last as long as the declared network
// would need. Its duplicates and groups serve the streams.
//
// Every other rank mirrors this one: it returns the bytes that it is sent, and contributes the same gradients. So each
// expert gets as many rows as under an even distribution of tokens, and training stays valid: it is that of a model
// whose ranks share their experts.
std::unique_ptr<Communicator> make_mirrored_world(int ranks, Network network);

}  // namespace lancet::comm
