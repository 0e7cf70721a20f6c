// Event-driven list scheduling. Whenever a job ends, each idle stream starts its ready job of the highest rank. The
// rank of a job is the longest path in milliseconds from its start to the end of the step, less the lead of its part.
// With fill_gaps, fillers (weight gradients and updates) wait in a list of their own, by length; ListOptions says when
// the compute stream takes one. Launch times and the slowdown of streams that run at once are ignored here; simulate.h
// adds them when it evaluates the order.
#include "list_schedule.h"

#include <algorithm>
#include <array>
#include <limits>
#include <queue>
#include <set>

namespace lancet::schedule {
namespace {

constexpr double never = std::numeric_limits<double>::infinity();

class Scheduler {
 public:
  Scheduler(std::span<const Job> jobs, const ListOptions& options, std::span<const std::int64_t> block_bytes)
      : jobs_(jobs),
        options_(options),
        block_bytes_(block_bytes),
        block_jobs_(block_bytes.size()),
        alive_(block_bytes.size()),
        rank_(jobs.size()),
        users_(jobs.size()),
        missing_(jobs.size()) {
    result_.end.resize(jobs.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      missing_[i] = static_cast<int>(jobs[i].needs.size());
      for (std::int32_t block : jobs[i].blocks) ++block_jobs_[std::size_t(block)];
      for (std::int32_t need : jobs[i].needs) users_[std::size_t(need)].push_back(std::int32_t(i));
    }
    double longest = 0;
    for (std::size_t i = jobs.size(); i-- > 0;) {
      rank_[i] = jobs[i].ms + path_after(i);
      longest = std::max(longest, rank_[i]);
    }
    for (std::size_t i = 0; i < jobs.size(); ++i)
      if (jobs[i].part >= 0 && !jobs[i].filler)
        rank_[i] -= (jobs[i].backward ? options.backward_lead : options.lead) * longest * jobs[i].part;
  }

  // The longest path after a job. Chunks of one all-reduce run one after another, so their times add up.
  double path_after(std::size_t i) const {
    double path = 0, chunks = 0, after_chunks = 0;
    for (std::int32_t user : users_[i]) {
      const double rank = rank_[std::size_t(user)];
      if (job(user).stream == ir::Stream::reduce) {
        chunks += job(user).ms;
        after_chunks = std::max(after_chunks, rank - job(user).ms);
      } else {
        path = std::max(path, rank);
      }
    }
    return std::max(path, chunks + after_chunks);
  }

  ListSchedule run() {
    for (std::size_t i = 0; i < jobs_.size(); ++i)
      if (missing_[i] == 0) make_ready(std::int32_t(i));
    while (result_.order.size() < jobs_.size()) {
      while (start_some()) {
      }
      advance();
    }
    for (double end : result_.end) result_.makespan = std::max(result_.makespan, end);
    return std::move(result_);
  }

 private:
  struct Running {
    std::int32_t job = -1;
    double end = never;
  };
  // Orders jobs by urgency, the most urgent first.
  struct Urgent {
    const std::vector<double>* rank;
    bool operator()(std::int32_t a, std::int32_t b) const {
      const double ra = (*rank)[std::size_t(a)], rb = (*rank)[std::size_t(b)];
      return ra != rb ? ra > rb : a < b;
    }
  };
  using Queue = std::set<std::int32_t, Urgent>;
  using Fillers = std::set<std::pair<double, std::int32_t>>;  // by length

  static std::size_t index(ir::Stream stream) { return static_cast<std::size_t>(stream); }
  const Job& job(std::int32_t id) const { return jobs_[std::size_t(id)]; }

  void make_ready(std::int32_t id) {
    if (options_.fill_gaps && job(id).filler && job(id).stream == ir::Stream::compute)
      fillers_.insert({job(id).ms, id});
    else
      ready_[index(job(id).stream)].insert(id);
  }

  bool start_some() {
    bool started = false;
    for (ir::Stream stream : {ir::Stream::expert, ir::Stream::compute, ir::Stream::reduce}) {
      if (running_[index(stream)].job >= 0 || blocked(stream)) continue;
      const std::int32_t next = pick(stream);
      if (next < 0) continue;
      start(stream, next);
      started = true;
    }
    return started;
  }

  bool blocked(ir::Stream stream) const {
    if (!options_.shared_network || stream == ir::Stream::compute) return false;
    return running_[index(stream == ir::Stream::expert ? ir::Stream::reduce : ir::Stream::expert)].job >= 0;
  }

  std::int32_t pick(ir::Stream stream) {
    if (stream == ir::Stream::compute && live_bytes_ > options_.memory_bytes)
      if (const auto at = most_freeing_filler(); at != fillers_.end()) return take(at);
    if (stream == ir::Stream::compute && options_.feed_network && network_is_idle())
      if (const auto at = most_urgent_filler(true); at != fillers_.end()) return take(at);
    Queue& queue = ready_[index(stream)];
    if (!queue.empty()) {
      const std::int32_t next = *queue.begin();
      queue.erase(queue.begin());
      return next;
    }
    if (stream != ir::Stream::compute || fillers_.empty()) return -1;
    const double gap = running_[index(ir::Stream::expert)].end - now_;
    return take(gap == never ? most_urgent_filler(false) : best_fit(gap));
  }

  // The longest filler that ends before the all-to-all under way does, so that the jobs which wait for it start at
  // once. Fillers that an all-reduce needs are preferred, since the others can still run beside the last all-reduces.
  // If none is short enough, the shortest.
  Fillers::iterator best_fit(double gap) {
    auto best = fillers_.begin();
    for (auto at = fillers_.begin(); at != fillers_.end() && at->first <= gap; ++at)
      if (job(at->second).feeds_network || !job(best->second).feeds_network) best = at;
    return best;
  }

  std::int32_t take(Fillers::iterator at) {
    const std::int32_t next = at->second;
    fillers_.erase(at);
    return next;
  }

  // Bytes of the blocks whose last job this is.
  std::int64_t freed_by(std::int32_t id) const {
    std::int64_t bytes = 0;
    for (std::int32_t block : job(id).blocks)
      if (block_jobs_[std::size_t(block)] == 1) bytes += block_bytes_[std::size_t(block)];
    return bytes;
  }

  // end() if none frees anything.
  Fillers::iterator most_freeing_filler() {
    auto best = fillers_.end();
    std::int64_t most = 0;
    for (auto at = fillers_.begin(); at != fillers_.end(); ++at)
      if (const std::int64_t freed = freed_by(at->second); freed > most) {
        most = freed;
        best = at;
      }
    return best;
  }

  // end() if there is none. feeding: considers only fillers that an all-reduce needs.
  Fillers::iterator most_urgent_filler(bool feeding) {
    const Urgent urgent{&rank_};
    auto best = fillers_.end();
    for (auto at = fillers_.begin(); at != fillers_.end(); ++at)
      if ((!feeding || job(at->second).feeds_network) && (best == fillers_.end() || urgent(at->second, best->second)))
        best = at;
    return best;
  }

  bool network_is_idle() const {
    for (ir::Stream stream : {ir::Stream::expert, ir::Stream::reduce})
      if (running_[index(stream)].job >= 0 || !ready_[index(stream)].empty()) return false;
    return true;
  }

  void start(ir::Stream stream, std::int32_t id) {
    result_.order.push_back({id});
    for (std::int32_t block : job(id).blocks)
      if (!alive_[std::size_t(block)]) {
        alive_[std::size_t(block)] = true;
        live_bytes_ += block_bytes_[std::size_t(block)];
      }
    result_.peak_bytes = std::max(result_.peak_bytes, live_bytes_);
    const double end = now_ + job(id).ms;
    result_.end[std::size_t(id)] = end;
    if (job(id).ms > 0)
      running_[index(stream)] = {id, end};
    else
      finish(id);
  }

  void finish(std::int32_t id) {
    for (std::int32_t block : job(id).blocks)
      if (--block_jobs_[std::size_t(block)] == 0) live_bytes_ -= block_bytes_[std::size_t(block)];
    for (std::int32_t user : users_[std::size_t(id)])
      if (--missing_[std::size_t(user)] == 0) make_ready(user);
  }

  void advance() {
    double next = never;
    for (const Running& running : running_) next = std::min(next, running.end);
    if (next == never) return;  // at the end, or if all jobs that just started take no time
    now_ = next;
    for (Running& running : running_)
      if (running.job >= 0 && running.end <= now_) {
        const std::int32_t id = running.job;
        running = {};
        finish(id);
      }
  }

  std::span<const Job> jobs_;
  const ListOptions& options_;
  std::span<const std::int64_t> block_bytes_;
  std::vector<int> block_jobs_;  // by block: jobs that touch it and have not ended
  std::vector<bool> alive_;
  std::int64_t live_bytes_ = 0;
  std::vector<double> rank_;  // urgency: the longest path from a job's start in milliseconds, less the lead of its part
  std::vector<std::vector<std::int32_t>> users_;
  std::vector<int> missing_;
  Urgent urgent_{&rank_};
  std::array<Queue, ir::stream_count> ready_{Queue(urgent_), Queue(urgent_), Queue(urgent_)};
  Fillers fillers_;
  std::array<Running, ir::stream_count> running_;
  double now_ = 0;
  ListSchedule result_;
};

}  // namespace

ListSchedule list_schedule(std::span<const Job> jobs, const ListOptions& options,
                           std::span<const std::int64_t> block_bytes) {
  return Scheduler(jobs, options, block_bytes).run();
}

}  // namespace lancet::schedule
