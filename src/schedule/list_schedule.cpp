// Event-driven list scheduling. Whenever a job ends or becomes ready, each idle stream of its rank class starts its
// most urgent ready job. The urgency of a job is the longest path in milliseconds from its start to the end of the
// step, less the lead of its part, or what the caller says. With fill_gaps, fillers (weight gradients and updates) wait
// in lists of their own; ListOptions says when the compute stream takes one. What several classes do together waits in
// a list of its own, too, and goes first. The slowdown of streams that run at once is ignored here, and so are launch
// times but for the lags that a caller gives; simulate.h adds them when it evaluates the order.
//
// The jobs that wait are bits, by their places in the order of urgency.
#include "orders.h"

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

namespace lancet::schedule {
namespace {

constexpr double no_end = std::numeric_limits<double>::infinity();

// Of streams that are free at once, the first starts first.
constexpr ir::Stream in_turn[] = {ir::Stream::expert,      ir::Stream::compute,          ir::Stream::reduce,
                                  ir::Stream::send_next,   ir::Stream::receive_previous, ir::Stream::send_previous,
                                  ir::Stream::receive_next};

// The longest path after a job. Chunks of one all-reduce run one after another, so their times add up.
double path_after(std::span<const Job> jobs, std::span<const JobList::User> users, const std::vector<double>& paths) {
  double path = 0, chunks = 0, after_chunks = 0;
  for (const auto& [user, _] : users) {
    const Job& job = jobs[std::size_t(user)];
    if (job.stream == ir::Stream::reduce) {
      chunks += job.ms;
      after_chunks = std::max(after_chunks, paths[std::size_t(user)] - job.ms);
    } else {
      path = std::max(path, paths[std::size_t(user)]);
    }
  }
  return std::max(path, chunks + after_chunks);
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

// Places of the jobs in an order, by class: those with the least keys first; of equals, the earlier job. What several
// classes do together is in a list of its own before those of the classes.
struct Ranks {
  struct List {
    std::vector<std::int32_t> job;  // by place
    std::vector<double> key;        // likewise
  };
  std::vector<List> lists;
  std::vector<std::int32_t> place;  // by job, in its list

  // keys: of the jobs that have a place; sorted faster if nearly in order.
  Ranks(const JobList& jobs, std::size_t classes, std::vector<std::pair<double, std::int32_t>> keys)
      : lists(classes + 1), place(jobs.size(), -1) {
    std::ranges::sort(keys);
    for (const auto& [key, id] : keys) {
      const JobList::Own& job = jobs[id];
      List& list = lists[job.meets ? 0 : std::size_t(job.of) + 1];
      place[std::size_t(id)] = std::int32_t(list.job.size());
      list.job.push_back(id);
      list.key.push_back(key);
    }
  }
};

// Jobs of a list that wait, by their places.
class Queue {
 public:
  Queue(const Ranks& ranks, std::size_t list)
      : list_(&ranks.lists[list]), place_(&ranks.place), bits_(list_->job.size()) {}
  bool empty() const { return bits_.empty(); }
  void insert(std::int32_t id) { bits_.insert(std::size_t((*place_)[std::size_t(id)])); }
  void erase(std::int32_t id) { bits_.erase(std::size_t((*place_)[std::size_t(id)])); }
  // The first one of which `is` holds; -1: none.
  template <class Is>
  std::int32_t find(Is is) const {
    for (std::int32_t at = bits_.first_from(0); at >= 0; at = bits_.first_from(std::size_t(at) + 1))
      if (const std::int32_t id = list_->job[std::size_t(at)]; is(id)) return id;
    return -1;
  }
  std::int32_t first() const {
    return find([](std::int32_t) { return true; });
  }
  // The last one whose key is at most `most`; -1: none.
  std::int32_t last_within(double most) const {
    const auto end = std::ranges::upper_bound(list_->key, most) - list_->key.begin();
    const std::int32_t at = bits_.last_before(std::size_t(end));
    return at < 0 ? -1 : list_->job[std::size_t(at)];
  }

 private:
  const Ranks::List* list_;
  const std::vector<std::int32_t>* place_;
  Bits bits_;
};

// What a class has at the time.
struct ClassState {
  ClassState(const ListClass& of, std::vector<int> block_users, const Ranks& urgency, const Ranks& length,
             std::size_t number)
      : memory(of.memory.bytes, std::move(block_users)),
        ready(ir::stream_count, Queue(urgency, number)),
        fillers(length, number),
        urgent_fillers(urgency, number),
        feeders(length, number),
        urgent_feeders(urgency, number) {
    memory.start(of.memory.before);
  }

  LiveBlocks memory;
  std::vector<Queue> ready;  // by stream
  // Fillers that wait, in two orders: all, and those that an all-reduce needs.
  Queue fillers, urgent_fillers, feeders, urgent_feeders;
  std::array<std::int32_t, ir::stream_count> running = filled(-1);
  double message_end = 0;   // of the all-to-all under way
  int begun = -1;           // the last pass that has begun
  std::vector<int> to_end;  // by pass: the jobs that end it and have not ended
  int passes_ended = 0;     // all before the first one that has some left
  bool touched = true;      // something has ended or become ready since it was looked at

 private:
  static std::array<std::int32_t, ir::stream_count> filled(std::int32_t with) {
    std::array<std::int32_t, ir::stream_count> all;
    all.fill(with);
    return all;
  }
};

class Scheduler {
 public:
  // urgency: by job.
  Scheduler(const JobList& jobs, const std::vector<double>& urgency, std::span<const ListClass> classes,
            const ListBound& bound = {})
      : jobs_(jobs),
        classes_(classes),
        bound_(bound),
        urgency_(jobs, classes.size(), urgent_first(jobs, urgency)),
        length_(jobs, classes.size(), fillers_by_length(jobs)),
        together_(urgency_, 0),
        missing_(jobs.needs()),
        ready_ms_(jobs.size()) {
    for (std::size_t c = 0; c < classes.size(); ++c) {
      std::vector<int> block_users = jobs.block_users(c);
      block_users.resize(classes[c].memory.bytes.size());
      for (std::int32_t block : classes[c].memory.after) ++block_users[std::size_t(block)];
      states_.emplace_back(classes[c], std::move(block_users), urgency_, length_, c + 1);
      states_.back().to_end = jobs.ending(c);
    }
    result_.end.resize(jobs.size());
    result_.order.reserve(jobs.size());
  }

  ListSchedule run() {
    for (std::size_t i = 0; i < jobs_.size(); ++i)
      if (missing_[i] == 0) make_ready(std::int32_t(i));
    while (result_.order.size() < jobs_.size() && result_.makespan == 0) {
      start_all();
      if (events_.empty()) start_held();
      advance();
    }
    for (double end : result_.end) result_.makespan = std::max(result_.makespan, end);
    for (const ClassState& state : states_) result_.peak_bytes.push_back(state.memory.peak_bytes());
    return std::move(result_);
  }

 private:
  struct Event {
    double ms;
    std::int32_t job;
    bool ends;  // else it becomes ready
    bool operator>(const Event& other) const { return ms > other.ms; }
  };
  static std::size_t index(ir::Stream stream) { return static_cast<std::size_t>(stream); }
  const JobList::Own& job(std::int32_t id) const { return jobs_[id]; }

  static std::vector<std::pair<double, std::int32_t>> urgent_first(const JobList& jobs,
                                                                   const std::vector<double>& urgency) {
    std::vector<std::pair<double, std::int32_t>> keys;
    keys.reserve(jobs.size());
    for (const std::int32_t id : jobs.by_path()) keys.emplace_back(-urgency[std::size_t(id)], id);
    return keys;
  }
  static std::vector<std::pair<double, std::int32_t>> fillers_by_length(const JobList& jobs) {
    std::vector<std::pair<double, std::int32_t>> keys;
    for (const std::int32_t id : jobs.fillers()) keys.emplace_back(jobs[id].ms, id);
    return keys;
  }

  bool waits_for_gap(const JobList::Own& job) const {
    return job.is_filler && classes_[std::size_t(job.of)].options.fill_gaps;
  }

  void make_ready(std::int32_t id) {
    const JobList::Own& ready = job(id);
    if (ready.meets) return together_.insert(id);
    ClassState& state = states_[std::size_t(ready.of)];
    state.touched = true;
    if (!waits_for_gap(ready)) return state.ready[index(ready.stream)].insert(id);
    for (Queue* queue : {&state.fillers, &state.urgent_fillers}) queue->insert(id);
    if (ready.feeds_network)
      for (Queue* queue : {&state.feeders, &state.urgent_feeders}) queue->insert(id);
  }

  std::int32_t take_filler(ClassState& state, std::int32_t id) const {
    for (Queue* queue : {&state.fillers, &state.urgent_fillers}) queue->erase(id);
    if (job(id).feeds_network)
      for (Queue* queue : {&state.feeders, &state.urgent_feeders}) queue->erase(id);
    return id;
  }

  // A job that takes no time may let others start at the same moment.
  void start_all() {
    for (bool started = true; started;) {
      started = false;
      for (std::int32_t next; (next = together_.find([&](std::int32_t id) { return can_meet(id); })) >= 0;) {
        together_.erase(next);
        start(next);
        started = true;
      }
      for (std::size_t c = 0; c < states_.size(); ++c)
        if (std::exchange(states_[c].touched, false))
          while (start_some(c)) started = true;
    }
  }

  bool can_meet(std::int32_t id) const {
    bool can = true;
    jobs_.each_member(id, [&](const JobList::Member& member) {
      const auto c = std::size_t(member.of);
      can = can && states_[c].running[index(member.stream)] < 0 && may_begin(c, member.begins);
    });
    return can;
  }

  bool start_some(std::size_t c) {
    bool started = false;
    for (ir::Stream stream : in_turn) {
      if (states_[c].running[index(stream)] >= 0 || blocked(c, stream)) continue;
      const std::int32_t next = pick(c, stream);
      if (next < 0) continue;
      start(next);
      started = true;
    }
    return started;
  }

  bool blocked(std::size_t c, ir::Stream stream) const {
    if (!classes_[c].options.shared_network || stream == ir::Stream::compute || ir::between_stages(stream))
      return false;
    return states_[c].running[index(stream == ir::Stream::expert ? ir::Stream::reduce : ir::Stream::expert)] >= 0;
  }

  bool may_begin(std::size_t c, int pass) const {
    const ClassState& state = states_[c];
    if (pass <= std::max(state.passes_ended, state.begun)) return true;
    return pass < state.passes_ended + classes_[c].ahead && state.memory.bytes() <= classes_[c].begin_bytes;
  }

  std::int32_t pick(std::size_t c, ir::Stream stream) {
    ClassState& state = states_[c];
    const ListOptions& options = classes_[c].options;
    const bool computes = stream == ir::Stream::compute;
    if (computes && state.memory.bytes() > options.memory_bytes)
      if (const std::int32_t filler = options.best_filler ? most_freeing_filler(state) : state.urgent_fillers.first();
          filler >= 0)
        return take_filler(state, filler);
    if (computes && options.feed_network && network_is_idle(state))
      if (const std::int32_t filler = state.urgent_feeders.first(); filler >= 0) return take_filler(state, filler);
    if (const std::int32_t next = take_ready(c, stream); next >= 0) return next;
    if (!computes || state.fillers.empty()) return -1;
    const bool fits = options.best_filler && state.message_end > now_;
    return take_filler(state, fits ? best_fit(state, state.message_end - now_) : state.urgent_fillers.first());
  }

  // The most urgent one that need not wait for memory; -1: none.
  std::int32_t take_ready(std::size_t c, ir::Stream stream) {
    ClassState& state = states_[c];
    const ListOptions& options = classes_[c].options;
    Queue& queue = state.ready[index(stream)];
    std::int32_t next = -1;
    if (stream != ir::Stream::compute && state.memory.bytes() > options.memory_bytes)
      next = queue.find([&](std::int32_t id) { return job(id).feeds_filler; });
    if (next < 0)
      next = queue.find([&](std::int32_t id) {
        return may_begin(c, job(id).begins) && state.memory.bytes() + new_bytes(id) <= options.hold_bytes;
      });
    if (next >= 0) queue.erase(next);
    return next;
  }

  // Of the ready jobs of all streams, all of which wait for memory, the one that needs least.
  void start_held() {
    std::int32_t least = -1;
    for (const ClassState& state : states_)
      for (const Queue& queue : state.ready)
        queue.find([&](std::int32_t id) {
          if (least < 0 || new_bytes(id) < new_bytes(least)) least = id;
          return false;
        });
    LANCET_CHECK(least >= 0 || result_.order.size() == jobs_.size(), "{} of {} jobs wait for one another",
                 jobs_.size() - result_.order.size(), jobs_.size());
    if (least < 0) return;
    states_[std::size_t(job(least).of)].ready[index(job(least).stream)].erase(least);
    start(least);
  }

  // What a job would add to the memory, if that is limited.
  std::int64_t new_bytes(std::int32_t id) const {
    const auto c = std::size_t(job(id).of);
    return classes_[c].options.hold_bytes == std::numeric_limits<std::int64_t>::max()
               ? 0
               : states_[c].memory.new_bytes(jobs_.blocks(id));
  }

  // The longest filler that ends before the all-to-all under way does, so that the jobs which wait for it start at
  // once. Fillers that an all-reduce needs are preferred, since the others can still run beside the last all-reduces.
  // If none is short enough, the shortest.
  static std::int32_t best_fit(const ClassState& state, double gap) {
    if (const std::int32_t feeder = state.feeders.last_within(gap); feeder >= 0) return feeder;
    if (const std::int32_t filler = state.fillers.last_within(gap); filler >= 0) return filler;
    return state.fillers.first();
  }

  // -1 if none frees anything.
  std::int32_t most_freeing_filler(const ClassState& state) const {
    std::int32_t best = -1;
    std::int64_t most = 0;
    state.fillers.find([&](std::int32_t id) {
      if (const std::int64_t freed = state.memory.freed_by(jobs_.blocks(id)); freed > most) {
        most = freed;
        best = id;
      }
      return false;
    });
    return best;
  }

  static bool network_is_idle(const ClassState& state) {
    for (ir::Stream stream : {ir::Stream::expert, ir::Stream::reduce})
      if (state.running[index(stream)] >= 0 || !state.ready[index(stream)].empty()) return false;
    return true;
  }

  void start(std::int32_t id) {
    const JobList::Own& started = job(id);
    result_.order.push_back({id});
    const double end = now_ + started.ms;
    if (!bound_.least_ms.empty() && now_ + bound_.least_ms[std::size_t(id)] > bound_.most_ms * (1 + 1e-9))
      result_.makespan = bound_.most_ms;
    // What several classes do together ends once each has started what it can.
    const bool runs = started.ms > 0 || started.meets;
    result_.end[std::size_t(id)] = end;
    jobs_.each_member(id, [&](const JobList::Member& member) {
      ClassState& state = states_[std::size_t(member.of)];
      state.memory.start(member.blocks);
      if (member.begins >= 0 && !member.arrives) state.begun = std::max(state.begun, member.begins);
      if (member.stream == ir::Stream::expert) state.message_end = end;
      if (runs) state.running[index(member.stream)] = id;
    });
    if (runs)
      events_.push({end, id, true});
    else
      finish(id);
  }

  void finish(std::int32_t id) {
    jobs_.each_member(id, [&](const JobList::Member& member) {
      ClassState& state = states_[std::size_t(member.of)];
      state.memory.finish(member.blocks);
      state.touched = true;
      if (member.ends < 0) return;
      --state.to_end[std::size_t(member.ends)];
      while (std::size_t(state.passes_ended) < state.to_end.size() &&
             state.to_end[std::size_t(state.passes_ended)] == 0)
        ++state.passes_ended;
    });
    for (const auto& [user, lag] : jobs_.users(id)) {
      double& ready = ready_ms_[std::size_t(user)];
      ready = std::max(ready, now_ + lag);
      if (--missing_[std::size_t(user)] > 0) continue;
      if (ready <= now_)
        make_ready(user);
      else
        events_.push({ready, user, false});
    }
  }

  void advance() {
    if (events_.empty()) return;  // at the end, or if all jobs that just started take no time
    now_ = events_.top().ms;
    while (!events_.empty() && events_.top().ms <= now_) {
      const auto [_, id, ends] = events_.top();
      events_.pop();
      if (!ends) {
        make_ready(id);
        continue;
      }
      jobs_.each_member(id, [&](const JobList::Member& member) {
        states_[std::size_t(member.of)].running[index(member.stream)] = -1;
      });
      finish(id);
    }
  }

  const JobList& jobs_;
  std::span<const ListClass> classes_;
  const ListBound bound_;
  const Ranks urgency_, length_;    // the most urgent first; of fillers, the shortest first
  std::vector<ClassState> states_;  // by class
  Queue together_;                  // what several classes do
  std::vector<int> missing_;        // by job: needs that have not ended
  std::vector<double> ready_ms_;    // by job: the latest of those that have, and the lag behind it
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  double now_ = 0;
  ListSchedule result_;
};

}  // namespace

JobList::JobList(std::vector<Job> jobs) : jobs_(std::move(jobs)), users_begin_(jobs_.size() + 1) {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const Job& job = jobs_[i];
    Own own{job.ms, job.of, job.begins, job.ends, std::uint32_t(blocks_.size()), 0, job.stream};
    blocks_.insert(blocks_.end(), job.blocks.begin(), job.blocks.end());
    own.blocks_end = std::uint32_t(blocks_.size());
    own.is_filler = job.filler && job.stream == ir::Stream::compute;
    own.feeds_network = job.feeds_network;
    own.feeds_filler = job.feeds_filler;
    own.arrives = job.arrives;
    own.meets = !job.others.empty();
    own_.push_back(own);
    if (own.is_filler) fillers_.push_back(std::int32_t(i));
    needs_.push_back(int(job.needs.size()));
    for (const std::int32_t need : job.needs) ++users_begin_[std::size_t(need) + 1];
    each_member(std::int32_t(i), [&](const Member& member) { count(member); });
  }
  for (std::size_t i = 0; i < jobs_.size(); ++i) users_begin_[i + 1] += users_begin_[i];
  users_.resize(users_begin_.back());
  std::vector<std::size_t> next(users_begin_.begin(), users_begin_.end() - 1);
  for (std::size_t i = 0; i < jobs_.size(); ++i)
    for (std::size_t k = 0; k < jobs_[i].needs.size(); ++k)
      users_[next[std::size_t(jobs_[i].needs[k])]++] = {std::int32_t(i), jobs_[i].lags.empty() ? 0 : jobs_[i].lags[k]};
  paths_.resize(jobs_.size());
  for (std::size_t i = jobs_.size(); i-- > 0;) {
    paths_[i] = jobs_[i].ms + path_after(jobs_, users(std::int32_t(i)), paths_);
    by_path_.push_back(std::int32_t(i));
  }
  const auto path_of = [&](std::int32_t id) { return paths_[std::size_t(id)]; };
  std::ranges::stable_sort(by_path_, std::greater(), path_of);
}

void JobList::count(const Member& member) {
  const auto counted = [&](std::vector<std::vector<int>>& counts, std::int32_t number) {
    counts.resize(std::max(counts.size(), std::size_t(member.of) + 1));
    std::vector<int>& of_class = counts[std::size_t(member.of)];
    of_class.resize(std::max(of_class.size(), std::size_t(number) + 1));
    ++of_class[std::size_t(number)];
  };
  for (const std::int32_t block : member.blocks) counted(block_users_, block);
  if (member.ends >= 0) counted(ending_, member.ends);
}

std::vector<double> JobList::urgencies(const ListOptions& options) const {
  std::vector<double> urgency = paths_;
  const double longest = by_path_.empty() ? 0 : paths_[std::size_t(by_path_.front())];
  for (std::size_t i = 0; i < jobs_.size(); ++i)
    if (jobs_[i].part >= 0 && !jobs_[i].filler)
      urgency[i] -= (jobs_[i].backward ? options.backward_lead : options.lead) * longest * jobs_[i].part;
  return urgency;
}

ListSchedule list_schedule(const JobList& jobs, const ListOptions& options, const ListMemory& memory) {
  const ListClass all{options, memory};
  return Scheduler(jobs, jobs.urgencies(options), {&all, 1}).run();
}

ListSchedule list_schedule(const JobList& jobs, const std::vector<double>& urgency, std::span<const ListClass> classes,
                           const ListBound& bound) {
  return Scheduler(jobs, urgency, classes, bound).run();
}

}  // namespace lancet::schedule
