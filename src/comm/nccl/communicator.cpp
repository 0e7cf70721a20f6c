// Device communicator over NCCL. The NCCL communicator is non-blocking: after each call its state is polled until NCCL
// has accepted the call, for at most the stream's timeout, so that a lost peer ends the step instead of blocking it. A
// mutex guards the NCCL communicator against an abort by another thread; calls hold it only while they hand work over.
// The ranks agree over the host communicator on every result that must be the same everywhere (the connection, the
// window), so that either all ranks have it or none. A failed window registration leaves the NCCL communicator
// unusable; it is then aborted and made again. A second window takes the place of the first, with a communicator that
// is made again, too.
//
// A healthy communicator is finalized when it ends, since its proxy may still be sending what a peer waits for. One
// that has failed is aborted, and so is one whose peers do not finalize theirs in time: a broken peer must not block
// the end of the process.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nccl.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "lancet/backend/device.h"
#include "lancet/comm/collect.h"
#include "lancet/comm/device_communicator.h"
#include "window.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 20, 0));

namespace lancet::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds most_for_pushes(500);  // far longer than a push lasts
constexpr std::chrono::milliseconds most_for_end(3000);    // healthy ranks end at nearly the same time

// The network interface that the environment sets for NCCL, for errors.
std::string interfaces() {
  std::string text;
  for (const char* name : {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_NET"})
    if (const char* value = std::getenv(name)) text += fmt::format(" {}={}", name, value);
  return text.empty() ? "by the interface that NCCL chose (NCCL_DEBUG=INFO shows it)" : "by" + text;
}

// The end of the last push into a window: an event, because the stream of the push may be gone when it is asked for.
class EndOfPushes {
 public:
  EndOfPushes() = default;
  EndOfPushes(const EndOfPushes&) = delete;
  EndOfPushes& operator=(const EndOfPushes&) = delete;
  ~EndOfPushes() {
    if (event_) cudaEventDestroy(event_);
  }

  Status make() {
    if (event_) return {};
    return check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  Status record(cudaStream_t stream) { return check(cudaEventRecord(event_, stream), "cudaEventRecord"); }
  // False if there was no push.
  bool pending() const {
    const bool found = cudaEventQuery(event_) == cudaErrorNotReady;
    if (found) cudaGetLastError();  // so that the next call does not report it
    return found;
  }

 private:
  static Status check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return {};
    return internal_error(fmt::format("{}: {}", what, cudaGetErrorString(error)));
  }
  cudaEvent_t event_ = nullptr;
};

class Nccl final : public DeviceCommunicator {
 public:
  explicit Nccl(const DeviceStream& stream) : stream_(stream) {}
  ~Nccl() override { end(connected_); }

  // Collective.
  Status connect() {
    ncclUniqueId id{};
    Status made;
    if (rank() == 0) made = check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    // Sent even after a failure: the other ranks wait for it, and agree() reports the failure to them.
    LANCET_TRY(stream_.host->broadcast(std::as_writable_bytes(std::span(&id, 1)), 0));
    if (made.ok()) made = start(id);
    LANCET_TRY(agree(made));
    connected_ = true;
    return {};
  }

  int rank() const override { return stream_.host->rank(); }
  int size() const override { return stream_.host->size(); }
  std::string transport() const override { return "nccl"; }

  Status send_receive(backend::Stream& stream, std::span<const Segment> sends,
                      std::span<const Segment> receives) override {
    auto* queue = static_cast<cudaStream_t>(stream.native());
    LANCET_TRY(copy_to_self(stream, sends, receives));
    LANCET_TRY(with_comm([&] { return put_all_to_all(sends, receives, queue); }));
    return queued("an all-to-all");
  }

  Status all_reduce_sum(backend::Stream& stream, std::span<float> values) override {
    auto* queue = static_cast<cudaStream_t>(stream.native());
    LANCET_TRY(with_comm([&] {
      return check(ncclAllReduce(values.data(), values.data(), values.size(), ncclFloat, ncclSum, comm_, queue),
                   "ncclAllReduce");
    }));
    return queued("an all-reduce");
  }

  // An error with `agreed` set means that no rank has a window; the stream remains usable.
  Result<std::span<std::byte>> make_window(std::size_t bytes) override {
    if (lsa_) LANCET_TRY(end_window());
    constexpr int blocks = 16;  // enough for the links between GPUs
    auto made = NcclWindow::allocate(comm_, rank(), size(), bytes, stream_.max_ctas > 0 ? stream_.max_ctas : blocks);
    LANCET_TRY(window_on_all(made.ok() ? pushed_.make() : Status(made.error())));
    const Status opened = (*made)->open([this](ncclResult_t result, const char* what) -> Status {
      LANCET_TRY(check(result, what));
      return queued(what, stream_.timeout / 2);  // a rank whose call has failed waits on the host meanwhile
    });
    const Status all = window_on_all(opened);  // no rank writes to a window before all have opened theirs
    if (all.ok()) {
      const std::lock_guard lock(mutex_);
      lsa_ = std::move(*made);
      stoppable_ = lsa_.get();
      window_ = lsa_->memory();
      return window_;
    }
    end(false);  // it holds the memory, and the failed call's state in it would break the next call
    if (all.error().agreed) LANCET_TRY(connect());
    return all.error();
  }
  Status in_windows(backend::Stream& stream, const WindowLaunch& launch) override {
    return with_comm([&]() -> Status {
      if (!lsa_) return internal_error("NCCL: there is no window");
      LANCET_TRY(launch(stream, lsa_->next()));
      return pushed_.record(static_cast<cudaStream_t>(stream.native()));
    });
  }

  Status check() override {
    LANCET_ASSIGN(const ncclResult_t found, state());
    return check(found, "a queued call");
  }

  // A barrier over the host communicator: its error names the ranks that do not respond.
  std::string who_is_missing() override {
    stream_.host->set_timeout(std::min<std::chrono::milliseconds>(stream_.timeout, std::chrono::seconds(5)));
    const Status alive = stream_.host->barrier();
    stream_.host->set_timeout(stream_.timeout);
    return alive.ok() ? fmt::format("all ranks respond, so a message sent {} was lost", interfaces())
                      : alive.error().message;
  }

  // Ends queued calls at once, with an error, and so releases device streams that wait for them. It may wait for the
  // mutex only briefly, since calls hold it only while they hand work over.
  void abort(const std::string& why) override {
    const std::lock_guard lock(mutex_);
    if (!comm_) return;
    why_ = why;
    static_cast<void>(stream_.device->bind_thread());  // any thread may call abort()
    if (lsa_) wait_for_pushes();
    ncclCommAbort(comm_);
    comm_ = nullptr;
  }
  void stop_pushes() override {
    if (NcclWindow* window = stoppable_.load()) window->stop();  // no lock: a call that holds it may be stuck
  }

 private:
  // The communicator's end unmaps the peers' memory, so kernels that access it must end first. If they do not start
  // before the deadline, because the stream waits for something later, none is running.
  void wait_for_pushes() {
    lsa_->stop();
    const auto deadline = Clock::now() + most_for_pushes;
    while (pushed_.pending() && Clock::now() < deadline) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }

  // Ends the NCCL communicator: a healthy one once the ranks have finalized theirs.
  void end(bool healthy) {
    healthy = healthy && finalize().ok();
    const std::lock_guard lock(mutex_);
    if (comm_) healthy ? ncclCommDestroy(comm_) : ncclCommAbort(comm_);
    comm_ = nullptr;
    connected_ = false;
  }

  // Collective: a window ends after its NCCL communicator, which is made again.
  Status end_window() {
    end(true);
    stoppable_ = nullptr;
    lsa_.reset();
    window_ = {};
    return connect();
  }

  // Collective: waits until the work of all ranks has ended. Error: the communicator has failed, or a rank does not
  // respond.
  Status finalize() {
    LANCET_ASSIGN(const ncclResult_t found, state());
    LANCET_TRY(check(found, "a queued call"));
    LANCET_TRY(with_comm([&] { return check(ncclCommFinalize(comm_), "ncclCommFinalize"); }));
    return queued("ncclCommFinalize", std::min(stream_.timeout, most_for_end));
  }

  Status start(const ncclUniqueId& id) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    if (stream_.max_ctas > 0) config.maxCTAs = stream_.max_ctas;
    if (stream_.max_ctas > 0) config.minCTAs = 1;
    const ncclResult_t result = ncclCommInitRankConfig(&comm_, size(), id, rank(), &config);
    if (result != ncclSuccess && result != ncclInProgress) return check(result, "ncclCommInitRankConfig");
    return queued("the connection");
  }

  // Collective, over the host: the ranks on which `holds` is false.
  Result<std::vector<int>> not_on(bool holds) {
    LANCET_ASSIGN(const auto all, collect(*stream_.host, std::int32_t(holds)));
    std::vector<int> ranks;
    for (int peer = 0; peer < size(); ++peer)
      if (!all[std::size_t(peer)]) ranks.push_back(peer);
    return ranks;
  }
  // Collective: an error on all ranks if any rank has one; this rank's own error is added to its message.
  Status window_on_all(const Status& mine) {
    LANCET_ASSIGN(const auto failed, not_on(mine.ok()));
    if (failed.empty()) return {};
    return Error{ExitCode::config,
                 fmt::format("ranks {} have no window{}", fmt::join(failed, ", "),
                             mine.ok() ? std::string() : ": " + mine.error().message),
                 true};
  }

  // Collective: an error on all ranks, which names those that did not connect, if any has not.
  Status agree(const Status& mine) {
    LANCET_ASSIGN(const auto failed, not_on(mine.ok()));
    if (failed.empty()) return {};
    return communication_error(fmt::format("NCCL: ranks {} of {} did not connect {}{}", fmt::join(failed, ", "), size(),
                                           interfaces(), mine.ok() ? std::string() : ": " + mine.error().message));
  }

  Status copy_to_self(backend::Stream& stream, std::span<const Segment> sends, std::span<const Segment> receives) {
    std::vector<backend::Copy> copies;
    std::size_t to = 0;
    for (const Segment& send : sends) {
      if (send.peer != rank() || send.bytes == 0) continue;
      while (to < receives.size() && (receives[to].peer != rank() || receives[to].bytes == 0)) ++to;
      if (to == receives.size() || receives[to].bytes != send.bytes)
        return internal_error("segments to oneself: the sizes of send and receive differ");
      backend::append_copy(copies, {receives[to++].data, send.data, send.bytes});
    }
    return stream.copy_all(copies);
  }

  Status put_all_to_all(std::span<const Segment> sends, std::span<const Segment> receives, cudaStream_t queue) {
    LANCET_TRY(check(ncclGroupStart(), "ncclGroupStart"));
    Status status;
    auto add = [&](const Segment& segment, auto call, const char* name) {
      if (!status.ok() || segment.bytes == 0 || segment.peer == rank()) return;
      status = check(call(segment.data, segment.bytes, ncclInt8, segment.peer, comm_, queue), name);
    };
    for (const Segment& segment : sends) add(segment, ncclSend, "ncclSend");
    for (const Segment& segment : receives) add(segment, ncclRecv, "ncclRecv");
    const Status ended = check(ncclGroupEnd(), "ncclGroupEnd");
    LANCET_TRY(status);
    return ended;
  }

  // Runs call() while no other thread can abort the communicator.
  template <class Call>
  Status with_comm(const Call& call) {
    const std::lock_guard lock(mutex_);
    if (!comm_) return communication_error("communication was aborted: " + why_);
    return call();
  }

  Result<ncclResult_t> state() {
    ncclResult_t found = ncclSuccess;
    LANCET_TRY(with_comm([&] { return check(ncclCommGetAsyncError(comm_, &found), "ncclCommGetAsyncError"); }));
    return found;
  }

  // Waits until NCCL has accepted the call; its work on the device stream may still run.
  Status queued(const char* what) { return queued(what, stream_.timeout); }
  Status queued(const char* what, std::chrono::milliseconds most) {
    const auto deadline = Clock::now() + most;
    for (int turn = 0;; ++turn) {
      LANCET_ASSIGN(const ncclResult_t found, state());
      if (found != ncclInProgress) return check(found, what);
      if (Clock::now() > deadline) break;
      if (turn < 1000)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return communication_error(fmt::format("NCCL: {} with {} other ranks {} timed out after {} s", what, size() - 1,
                                           interfaces(), double(most.count()) * 1e-3));
  }

  Status check(ncclResult_t result, const char* what) const {
    if (result == ncclSuccess || result == ncclInProgress) return {};
    return communication_error(
        fmt::format("NCCL: {} failed: {}; {}", what, ncclGetErrorString(result), ncclGetLastError(comm_)));
  }

  const DeviceStream stream_;
  ncclComm_t comm_ = nullptr;
  bool connected_ = false;  // all ranks are
  std::mutex mutex_;
  std::string why_;
  std::unique_ptr<NcclWindow> lsa_;
  std::atomic<NcclWindow*> stoppable_{nullptr};  // lsa_, once it is open
  EndOfPushes pushed_;
};

}  // namespace

Result<std::unique_ptr<DeviceCommunicator>> make_nccl(const DeviceStream& stream) {
  auto communicator = std::make_unique<Nccl>(stream);
  LANCET_TRY(communicator->connect());
  return std::unique_ptr<DeviceCommunicator>(std::move(communicator));
}

}  // namespace lancet::comm
