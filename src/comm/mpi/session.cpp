// Start and end of MPI: settings of Open MPI, a watch over MPI_Init, and the session that owns the progress thread.
#include <fmt/format.h>
#include <mpi.h>
#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "communicator.h"
#include "lancet/base/log.h"
#include "lancet/comm/mpi.h"
#include "progress.h"

namespace lancet::comm {
namespace mpi {
namespace {

// Sets Open MPI's options for TCP that the user has not set: messages of direct_bytes are sent without a handshake (see
// communicator.cpp). A megabyte of all-to-all costs as much processor time as with handshakes, which save copies.
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
