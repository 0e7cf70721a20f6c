// Event-driven list scheduling. Whenever a job ends, each idle stream starts its most urgent ready job. The
// urgency of a job is the longest path in milliseconds from its start to the end of the step, less the lead of its
// part. With fill_gaps, fillers (weight gradients and updates) wait in a list of their own, by length; ListOptions says
// when the compute stream takes one. Launch times and the slowdown of streams that run at once are ignored here;
// simulate.h adds them when it evaluates the order.
#include "orders.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

namespace lancet::schedule {
namespace {

constexpr double no_end = std::numeric_limits<double>::infinity();

// Of streams that are free at once, the first starts first.
constexpr ir::Stream in_turn[] = {ir::Stream::expert,      ir::Stream::compute,          ir::Stream::reduce,
                                  ir::Stream::send_next,   ir::Stream::receive_previous, ir::Stream::send_previous,
                                  ir::Stream::receive_next};

// The jobs that wait for each job.
class Users {
 public:
  explicit Users(std::span<const Job> jobs) : begin_(jobs.size() + 1) {
    for (const Job& of : jobs)
      for (std::int32_t need : of.needs) ++begin_[std::size_t(need) + 1];
    for (std::size_t i = 0; i < jobs.size(); ++i) begin_[i + 1] += begin_[i];
    users_.resize(begin_.back());
    std::vector<std::size_t> next(begin_.begin(), begin_.end() - 1);
    for (std::size_t i = 0; i < jobs.size(); ++i)
      for (std::int32_t need : jobs[i].needs) users_[next[std::size_t(need)]++] = std::int32_t(i);
  }
  std::span<const std::int32_t> of(std::size_t i) const {
    return std::span(users_).subspan(begin_[i], begin_[i + 1] - begin_[i]);
  }

 private:
  std::vector<std::size_t> begin_;  // by job: where its users begin in users_; and the end
  std::vector<std::int32_t> users_;
};

// The longest path after a job. Chunks of one all-reduce run one after another, so their times add up.
double path_after(std::span<const Job> jobs, std::span<const std::int32_t> users, const std::vector<double>& urgency) {
  double path = 0, chunks = 0, after_chunks = 0;
  for (std::int32_t user : users) {
    const Job& job = jobs[std::size_t(user)];
    if (job.stream == ir::Stream::reduce) {
      chunks += job.ms;
      after_chunks = std::max(after_chunks, urgency[std::size_t(user)] - job.ms);
    } else {
      path = std::max(path, urgency[std::size_t(user)]);
    }
  }
  return std::max(path, chunks + after_chunks);
}

// The urgency of each job.
std::vector<double> urgencies_of(std::span<const Job> jobs, const Users& users, const ListOptions& options) {
  std::vector<double> urgency(jobs.size());
  double longest = 0;
  for (std::size_t i = jobs.size(); i-- > 0;) {
    urgency[i] = jobs[i].ms + path_after(jobs, users.of(i), urgency);
    longest = std::max(longest, urgency[i]);
  }
  for (std::size_t i = 0; i < jobs.size(); ++i)
    if (jobs[i].part >= 0 && !jobs[i].filler)
      urgency[i] -= (jobs[i].backward ? options.backward_lead : options.lead) * longest * jobs[i].part;
  return urgency;
}

// The jobs that touch each block; what is alive after the last job counts as one.
std::vector<int> users_of_blocks(std::span<const Job> jobs, const ListMemory& memory) {
  std::vector<int> users(memory.bytes.size());
  for (std::int32_t block : memory.after) ++users[std::size_t(block)];
  for (const Job& job : jobs)
    for (std::int32_t block : job.blocks) ++users[std::size_t(block)];
  return users;
}

// A set of small numbers, as bits.
class Bits {
 public:
  explicit Bits(std::size_t count = 0) : words_((count + 63) / 64), low_(words_.size()) {}
  void insert(std::size_t i) {
    words_[i / 64] |= std::uint64_t{1} << i % 64;
    low_ = std::min(low_, i / 64);
  }
  void erase(std::size_t i) {
    words_[i / 64] &= ~(std::uint64_t{1} << i % 64);
    while (low_ < words_.size() && words_[low_] == 0) ++low_;
  }
  bool empty() const { return low_ == words_.size(); }
  // The least one from i on, and the greatest one before i; -1: none.
  std::int32_t first_from(std::size_t i) const {
    std::size_t word = std::max(i / 64, low_);
    if (word >= words_.size()) return -1;
    std::uint64_t bits = word == i / 64 ? words_[word] >> i % 64 << i % 64 : words_[word];
    while (bits == 0 && ++word < words_.size()) bits = words_[word];
    return bits == 0 ? -1 : std::int32_t(word * 64) + std::countr_zero(bits);
  }
  std::int32_t last_before(std::size_t i) const {
    std::size_t word = i / 64;
    std::uint64_t bits = i % 64 == 0 ? 0 : words_[word] << (64 - i % 64) >> (64 - i % 64);
    while (bits == 0 && word > low_) bits = words_[--word];
    return bits == 0 ? -1 : std::int32_t(word * 64) + 63 - std::countl_zero(bits);
  }

 private:
  std::vector<std::uint64_t> words_;
  std::size_t low_;  // the first word that is not 0
};

// Places of the jobs in an order: those with the least keys first; of equals, the earlier job.
struct Ranks {
  std::vector<std::int32_t> job;  // by place
  std::vector<std::int32_t> of;   // by job; -1: it has none
  std::vector<double> key;        // by place

  template <class Key, class Has>
  Ranks(std::size_t jobs, Key key_of, Has has) : of(jobs, -1) {
    std::vector<std::pair<double, std::int32_t>> sorted;
    for (std::size_t i = 0; i < jobs; ++i)
      if (has(i)) sorted.emplace_back(key_of(i), std::int32_t(i));
    std::ranges::sort(sorted);
    for (const auto& [value, id] : sorted) {
      of[std::size_t(id)] = std::int32_t(job.size());
      job.push_back(id);
      key.push_back(value);
    }
  }
};

// Jobs that wait, by their places.
class Queue {
 public:
  explicit Queue(const Ranks& ranks) : ranks_(&ranks), bits_(ranks.job.size()) {}
  bool empty() const { return bits_.empty(); }
  void insert(std::int32_t id) { bits_.insert(place(id)); }
  void erase(std::int32_t id) { bits_.erase(place(id)); }
  // The first one of which `is` holds; -1: none.
  template <class Is>
  std::int32_t find(Is is) const {
    for (std::int32_t at = bits_.first_from(0); at >= 0; at = bits_.first_from(std::size_t(at) + 1))
      if (const std::int32_t id = ranks_->job[std::size_t(at)]; is(id)) return id;
    return -1;
  }
  std::int32_t first() const {
    return find([](std::int32_t) { return true; });
  }
  // The last one whose key is at most `most`; -1: none.
  std::int32_t last_within(double most) const {
    const auto end = std::ranges::upper_bound(ranks_->key, most) - ranks_->key.begin();
    const std::int32_t at = bits_.last_before(std::size_t(end));
    return at < 0 ? -1 : ranks_->job[std::size_t(at)];
  }

 private:
  std::size_t place(std::int32_t id) const { return std::size_t(ranks_->of[std::size_t(id)]); }
  const Ranks* ranks_;
  Bits bits_;
};

class Scheduler {
 public:
  Scheduler(std::span<const Job> jobs, const ListOptions& options, const ListMemory& memory)
      : jobs_(jobs),
        options_(options),
        memory_(memory.bytes, users_of_blocks(jobs, memory)),
        users_(jobs),
        urgency_(ranks_by_urgency()),
        length_(
            jobs.size(), [&](std::size_t i) { return jobs[i].ms; }, [&](std::size_t i) { return waits_for_gap(i); }),
        missing_(jobs.size()) {
    memory_.start(memory.before);
    result_.end.resize(jobs.size());
    for (std::size_t i = 0; i < jobs.size(); ++i) {
      missing_[i] = static_cast<int>(jobs[i].needs.size());
    }
  }

  ListSchedule run() {
    for (std::size_t i = 0; i < jobs_.size(); ++i)
      if (missing_[i] == 0) make_ready(std::int32_t(i));
    while (result_.order.size() < jobs_.size()) {
      while (start_some()) {
      }
      if (std::ranges::all_of(running_, [](const Running& running) { return running.job < 0; })) start_held();
      advance();
    }
    for (double end : result_.end) result_.makespan = std::max(result_.makespan, end);
    result_.peak_bytes = memory_.peak_bytes();
    return std::move(result_);
  }

 private:
  struct Running {
    std::int32_t job = -1;
    double end = no_end;
  };
  static std::size_t index(ir::Stream stream) { return static_cast<std::size_t>(stream); }
  const Job& job(std::int32_t id) const { return jobs_[std::size_t(id)]; }

  Ranks ranks_by_urgency() const {
    const std::vector<double> urgency = urgencies_of(jobs_, users_, options_);
    return {jobs_.size(), [&](std::size_t i) { return -urgency[i]; }, [](std::size_t) { return true; }};
  }

  bool waits_for_gap(std::size_t i) const {
    return options_.fill_gaps && jobs_[i].filler && jobs_[i].stream == ir::Stream::compute;
  }

  void make_ready(std::int32_t id) {
    if (!waits_for_gap(std::size_t(id))) return ready_[index(job(id).stream)].insert(id);
    for (Queue* queue : {&fillers_, &urgent_fillers_}) queue->insert(id);
    if (job(id).feeds_network)
      for (Queue* queue : {&feeders_, &urgent_feeders_}) queue->insert(id);
  }

  std::int32_t take_filler(std::int32_t id) {
    for (Queue* queue : {&fillers_, &urgent_fillers_}) queue->erase(id);
    if (job(id).feeds_network)
      for (Queue* queue : {&feeders_, &urgent_feeders_}) queue->erase(id);
    return id;
  }

  bool start_some() {
    bool started = false;
    for (ir::Stream stream : in_turn) {
      if (running_[index(stream)].job >= 0 || blocked(stream)) continue;
      const std::int32_t next = pick(stream);
      if (next < 0) continue;
      start(stream, next);
      started = true;
    }
    return started;
  }

  bool blocked(ir::Stream stream) const {
    if (!options_.shared_network || stream == ir::Stream::compute || ir::between_stages(stream)) return false;
    return running_[index(stream == ir::Stream::expert ? ir::Stream::reduce : ir::Stream::expert)].job >= 0;
  }

  std::int32_t pick(ir::Stream stream) {
    if (stream == ir::Stream::compute && memory_.bytes() > options_.memory_bytes)
      if (const std::int32_t filler = most_freeing_filler(); filler >= 0) return take_filler(filler);
    if (stream == ir::Stream::compute && options_.feed_network && network_is_idle())
      if (const std::int32_t filler = urgent_feeders_.first(); filler >= 0) return take_filler(filler);
    if (const std::int32_t next = take_ready(stream); next >= 0) return next;
    if (stream != ir::Stream::compute || fillers_.empty()) return -1;
    return take_filler(message_end_ > now_ ? best_fit(message_end_ - now_) : urgent_fillers_.first());
  }

  // The most urgent one that need not wait for memory; -1: none.
  std::int32_t take_ready(ir::Stream stream) {
    Queue& queue = ready_[index(stream)];
    std::int32_t next = -1;
    if (stream != ir::Stream::compute && memory_.bytes() > options_.memory_bytes)
      next = queue.find([&](std::int32_t id) { return job(id).feeds_filler; });
    if (next < 0)
      next = queue.find([&](std::int32_t id) { return memory_.bytes() + new_bytes(id) <= options_.hold_bytes; });
    if (next >= 0) queue.erase(next);
    return next;
  }

  // Of the ready jobs of all streams, all of which wait for memory, the one that needs least.
  void start_held() {
    std::int32_t least = -1;
    for (const Queue& queue : ready_)
      queue.find([&](std::int32_t id) {
        if (least < 0 || new_bytes(id) < new_bytes(least)) least = id;
        return false;
      });
    if (least < 0) return;
    ready_[index(job(least).stream)].erase(least);
    start(job(least).stream, least);
  }

  // What a job would add to the memory, if that is limited.
  std::int64_t new_bytes(std::int32_t id) const {
    return options_.hold_bytes == std::numeric_limits<std::int64_t>::max() ? 0 : memory_.new_bytes(job(id).blocks);
  }

  // The longest filler that ends before the all-to-all under way does, so that the jobs which wait for it start at
  // once. Fillers that an all-reduce needs are preferred, since the others can still run beside the last all-reduces.
  // If none is short enough, the shortest.
  std::int32_t best_fit(double gap) const {
    if (const std::int32_t feeder = feeders_.last_within(gap); feeder >= 0) return feeder;
    if (const std::int32_t filler = fillers_.last_within(gap); filler >= 0) return filler;
    return fillers_.first();
  }

  // -1 if none frees anything.
  std::int32_t most_freeing_filler() const {
    std::int32_t best = -1;
    std::int64_t most = 0;
    fillers_.find([&](std::int32_t id) {
      if (const std::int64_t freed = memory_.freed_by(job(id).blocks); freed > most) {
        most = freed;
        best = id;
      }
      return false;
    });
    return best;
  }

  bool network_is_idle() const {
    for (ir::Stream stream : {ir::Stream::expert, ir::Stream::reduce})
      if (running_[index(stream)].job >= 0 || !ready_[index(stream)].empty()) return false;
    return true;
  }

  void start(ir::Stream stream, std::int32_t id) {
    result_.order.push_back({id});
    memory_.start(job(id).blocks);
    const double end = now_ + job(id).ms;
    if (stream == ir::Stream::expert) message_end_ = end;
    result_.end[std::size_t(id)] = end;
    if (job(id).ms > 0)
      running_[index(stream)] = {id, end};
    else
      finish(id);
  }

  void finish(std::int32_t id) {
    memory_.finish(job(id).blocks);
    for (std::int32_t user : users_.of(std::size_t(id)))
      if (--missing_[std::size_t(user)] == 0) make_ready(user);
  }

  void advance() {
    double next = no_end;
    for (const Running& running : running_) next = std::min(next, running.end);
    if (next == no_end) return;  // at the end, or if all jobs that just started take no time
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
  LiveBlocks memory_;
  const Users users_;
  const Ranks urgency_;  // by the longest path from a job's start in ms, less the lead of its part
  const Ranks length_;   // of fillers
  std::vector<int> missing_;
  std::vector<Queue> ready_{ir::stream_count, Queue(urgency_)};  // by stream
  // Fillers that wait, in two orders: all, and those that an all-reduce needs.
  Queue fillers_{length_}, urgent_fillers_{urgency_}, feeders_{length_}, urgent_feeders_{urgency_};
  std::array<Running, ir::stream_count> running_;
  double now_ = 0;
  double message_end_ = 0;  // of the all-to-all under way
  ListSchedule result_;
};

}  // namespace

ListSchedule list_schedule(std::span<const Job> jobs, const ListOptions& options, const ListMemory& memory) {
  return Scheduler(jobs, options, memory).run();
}

}  // namespace lancet::schedule
