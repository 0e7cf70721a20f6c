// The progress thread runs in rounds. A round takes the posted requests and starts them, tests all outstanding messages
// once (transfers.cpp), fails requests whose deadline has passed or whose peer has ended, and sleeps until the next
// test is due. Without an open request it sleeps until one is posted. While no data arrives, its pauses grow with the
// time since the last message; while data arrives, a pause is the time in which a share of the expected bytes arrives
// (receive_rate.h). Callers sleep on their channel's condition variable. They have a deadline of their own, and abort()
// wakes them directly, so that they return even if the progress thread is stuck inside MPI.
#include "progress.h"

#include <fmt/format.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "lancet/base/log.h"

namespace lancet::comm::mpi {
namespace {

using namespace std::chrono_literals;

// Pacing between tests, measured with 2 ranks on a virtual machine of 2 cores, where a timed sleep costs 15 us of
// processor and wakes 35 us late (a test itself: under 0.5 us). While nothing arrives: the thread tests without
// sleeping for 50 us after the last activity, which catches the answer of a peer that is ready (a barrier takes 12 us;
// with a sleep after 20 us it takes 100 us). Then pauses grow with the time since the last activity, so that they add
// 6% to a wait on average, up to 500 us: one second of waiting costs 45 ms of processor (with a limit of 200 us: 85 ms;
// of 100 us: 170 ms).
constexpr std::chrono::nanoseconds spin = 50us, shortest_pause = 20us, longest_pause = 500us;
constexpr int idle_per_pause = 8;
// While data arrives: a pause lasts as long as 64 KB, or an eighth of the bytes still expected if that is less, take at
// the recent rate. The system's buffers hold that much, and the end is detected 6% late on average. 4 MB at 60 MB/s
// cost 0.8 ms of processor per MB; with spinning and pauses of 20 us they cost 5 to 6 ms.
constexpr std::chrono::nanoseconds longest_data_pause = 1ms;
constexpr double bytes_per_pause = 64 << 10, rest_per_pause = 8;
// After this time without a message the thread checks whether a neighbour has ended; messages sent before its end have
// arrived by then. Open MPI's launcher kills the other ranks a second after it has notified them of a dead rank; they
// must have logged the missing rank before that.
constexpr std::chrono::nanoseconds silence = 300ms, look_interval = 50ms;
// A caller returns without the progress thread's answer this long after the request's deadline.
constexpr auto grace = 5s;
double seconds(std::chrono::milliseconds d) { return static_cast<double>(d.count()) / 1e3; }

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

std::string describe(const Request& request) {
  std::lock_guard lock(request.channel->mutex);
  return describe_locked(request);
}

std::string describe_locked(const Request& r) {
  return fmt::format("{} #{} of {} bytes on \"{}\" ({})", name(r.operation), r.number, r.total_bytes, r.channel->name,
                     describe_rank(r.channel->rank, r.channel->ranks, r.channel->world_size));
}

Progress::Progress(MPI_Comm world, int rank, int size, Neighbours neighbours)
    : rank_(rank),
      size_(size),
      world_(add_channel(world, all_ranks(size), "world", std::chrono::seconds(300))),
      neighbours_(std::move(neighbours)),
      thread_([this] { run(); }),
      watch_(neighbours_, rounds_, std::chrono::duration_cast<std::chrono::milliseconds>(silence),
             [this](const std::vector<int>& ended) { wake_those_waiting_for(ended); }) {}

Progress::~Progress() { stop(); }

Channel* Progress::add_channel(MPI_Comm comm, std::vector<int> ranks, std::string name,
                               std::chrono::milliseconds timeout) {
  auto channel = std::make_unique<Channel>();
  channel->comm = comm;
  channel->name = std::move(name);
  channel->timeout = timeout;
  channel->rank = static_cast<int>(std::ranges::lower_bound(ranks, rank_) - ranks.begin());
  channel->size = static_cast<int>(ranks.size());
  channel->peers.resize(ranks.size());
  channel->ranks = std::move(ranks);
  channel->world_size = static_cast<std::size_t>(size_);
  for (Request& request : channel->requests) request.channel = channel.get();
  std::lock_guard lock(channels_mutex_);
  channels_.push_back(std::move(channel));
  return channels_.back().get();
}

Status Progress::check(Channel& channel) {
  std::lock_guard lock(channel.mutex);
  if (channel.broken) return communication_error(channel.error);
  return {};
}

void Progress::post(Request& request) {
  {
    std::lock_guard lock(request.channel->mutex);
    if (request.channel->broken) return;  // wait() returns the error
    request.done = false;
  }
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(&request);
  }
  posted_changed_.notify_one();
}

Status Progress::wait(Request& request) {
  Channel& channel = *request.channel;
  std::unique_lock lock(channel.mutex);
  const auto last_moment = request.deadline + grace;
  while (!channel.broken && !request.done) {
    if (Clock::now() >= last_moment) {
      channel.broken = failed_ = true;
      channel.error = fmt::format("{}: MPI itself has not returned for {:.3g} s", describe_locked(request),
                                  seconds(channel.timeout) + std::chrono::duration<double>(grace).count());
      break;
    }
    channel.changed.wait_until(lock, last_moment);
  }
  if (channel.broken) return communication_error(channel.error);
  return {};
}

void Progress::abort(const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    if (!aborting_) abort_reason_ = why;  // the first reason is the cause
    aborting_ = true;
  }
  posted_changed_.notify_one();
  // The callers are woken here and not by the progress thread, which may be stuck inside MPI.
  std::lock_guard lock(channels_mutex_);
  for (auto& channel : channels_) {
    std::lock_guard channel_lock(channel->mutex);
    if (!channel->broken) channel->error = "communication was aborted: " + why;
    channel->broken = true;
    channel->changed.notify_all();
  }
}

void Progress::abort_job(int exit_code) {
  {
    std::lock_guard lock(mutex_);
    job_exit_code_ = exit_code;
  }
  posted_changed_.notify_one();
  std::this_thread::sleep_for(grace);  // MPI_Abort ends the process; if it hangs, the launcher sees this exit
  _exit(exit_code);
}

bool Progress::stop() {
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    posted_changed_.notify_one();
    const bool may_be_stuck = failed_ || aborting_;
    if (may_be_stuck && !stopped_changed_.wait_for(lock, grace, [this] { return stopped_; })) {
      log::error("communication: MPI itself has not returned; this process ends without it");
      _exit(static_cast<int>(ExitCode::communication));  // the launcher then ends the job
    }
  }
  if (thread_.joinable()) thread_.join();
  return !failed_ && !aborting_;
}

void Progress::run() {
  // Linux rounds a sleep up by the thread's timer slack, 50 us by default: more than a pause.
  prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);
  serve();
  std::lock_guard lock(mutex_);
  stopped_ = true;
  stopped_changed_.notify_all();
}

// Works in rounds until stop().
void Progress::serve() {
  std::unique_lock lock(mutex_);
  while (true) {
    if (job_exit_code_ >= 0) MPI_Abort(MPI_COMM_WORLD, job_exit_code_);
    if (stop_ || (aborting_ && !abort_seen_)) {
      abort_seen_ = aborting_;
      const std::string why = aborting_ ? "communication was aborted: " + abort_reason_ : "the MPI session has ended";
      lock.unlock();
      break_all(why);
      lock.lock();
      if (stop_) return;
    }
    taken_.clear();
    std::swap(taken_, posted_);
    lock.unlock();
    rounds_.enter();
    for (Request* request : taken_) start(*request);
    const bool moved = poll();
    rounds_.leave();
    const auto now = Clock::now();
    rate_.sample(now);
    if (moved || !taken_.empty()) last_activity_ = now;
    if (!open_.empty() && now >= next_deadline_) check_deadlines();
    if (!open_.empty() && now - last_activity_ > silence && now >= next_look_) check_neighbours(now);
    lock.lock();
    sleep(lock, now);
  }
}

void Progress::check_neighbours(Clock::time_point now) {
  next_look_ = now + look_interval;
  if (const std::vector<int> ended = neighbours_.ended(); !ended.empty()) fail_those_waiting_for(ended);
}

// Sleeps until the next test is due or a request is posted.
void Progress::sleep(std::unique_lock<std::mutex>& lock, Clock::time_point now) {
  const auto has_news = [&] { return !posted_.empty() || stop_ || (aborting_ && !abort_seen_) || job_exit_code_ >= 0; };
  if (open_.empty()) {
    posted_changed_.wait(lock, has_news);
    return;
  }
  const std::chrono::nanoseconds idle = now - last_activity_;
  const double bytes = std::min(bytes_per_pause, static_cast<double>(rate_.expected()) / rest_per_pause);
  const auto data_pause = std::min<std::chrono::nanoseconds>(rate_.time_of(bytes), longest_data_pause);
  if (data_pause < spin && idle < spin) return;
  const auto idle_pause = std::clamp<std::chrono::nanoseconds>(idle / idle_per_pause, shortest_pause, longest_pause);
  posted_changed_.wait_for(lock, std::max(data_pause, idle_pause), has_news);
}

}  // namespace lancet::comm::mpi
