// Orders of a program's instructions by list scheduling.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "lancet/cost/costs.h"
#include "lancet/schedule/simulate.h"
#include "lancet/schedule/step.h"

namespace lancet::schedule {

// Reorders the instructions of a Program.

// Per position in the new order, the instruction that moves there.
using Order = std::vector<ir::InstructionId>;

// The order of the Program, except that the instructions that `after` lists for an instruction follow right after it.
// An instruction of the reduce stream comes no earlier than before, and moves later if its dependencies do.
// Dependencies (ir::dependencies) always hold: those of an instruction that are not yet in the order are put before it.
Order reordered(const ir::Program& program, const Dependencies& dependencies, const std::vector<Order>& after);

ir::Program permuted(ir::Program program, const Order& order);

// `values`, which are per instruction, in the new order.
template <class T>
std::vector<T> permuted(const std::vector<T>& values, const Order& order) {
  std::vector<T> result;
  result.reserve(order.size());
  for (ir::InstructionId id : order) result.push_back(values[id.index()]);
  return result;
}

// The dependencies of permuted(program, order), of which `dependencies` are those before.
Dependencies renumbered(const Dependencies& dependencies, const Order& order);

// List scheduling: orders the instructions of the streams greedily by urgency.

// What one class has to do with a job. (Rank classes: simulate.h.)
struct JobMember {
  int of = 0;  // the class
  ir::Stream stream = ir::Stream::compute;
  std::vector<std::int32_t> blocks = {};  // blocks of memory that it touches
  // The pass that has to have begun, or may begin with it, and the one that ends when all that end it have; -1: none.
  int begins = -1, ends = -1;
  bool arrives = false;  // it does not begin the pass itself
};

struct Job {
  int of = 0;
  ir::Stream stream = ir::Stream::compute;
  double ms = 0;
  int part = -1;  // of a split instruction; -1: whole
  bool backward = false;
  bool feeds_network = false;       // an all-reduce needs it
  bool feeds_filler = false;        // a message for which only fillers wait
  bool filler = false;              // may wait: only the end of the step needs it (weight gradients, updates)
  std::vector<std::int32_t> needs;  // jobs, earlier ones if urgencies are not given
  std::vector<std::int32_t> blocks;
  int begins = -1, ends = -1;
  bool arrives = false;
  std::vector<double> lags = {};       // by need: from its end to the start; empty: none
  std::vector<JobMember> others = {};  // what other classes do in it at the same time
};

struct ListOptions;

// Jobs, with what all list schedules of them share.
class JobList {
 public:
  JobList(std::vector<Job> jobs);  // needs are jobs of the list

  // What schedules read of a job, in little memory, as they read it often.
  struct Own {
    double ms;
    std::int32_t of, begins, ends;
    std::uint32_t blocks, blocks_end;  // where its blocks begin and end
    ir::Stream stream;
    bool is_filler = false;  // of the compute stream
    bool feeds_network = false, feeds_filler = false, arrives = false;
    bool meets = false;  // other classes take part
  };
  struct Member {
    std::int32_t of, begins, ends;
    ir::Stream stream;
    bool arrives;
    std::span<const std::int32_t> blocks;
  };
  struct User {
    std::int32_t job;
    double lag_ms;
  };

  std::size_t size() const { return own_.size(); }
  const Own& operator[](std::int32_t id) const { return own_[std::size_t(id)]; }
  std::span<const std::int32_t> blocks(std::int32_t id) const {
    const Own& own = (*this)[id];
    return std::span(blocks_).subspan(own.blocks, own.blocks_end - own.blocks);
  }
  // The jobs that wait for it.
  std::span<const User> users(std::int32_t id) const {
    const std::size_t begin = users_begin_[std::size_t(id)];
    return std::span(users_).subspan(begin, users_begin_[std::size_t(id) + 1] - begin);
  }
  // What each class has to do with it.
  template <class F>
  void each_member(std::int32_t id, F f) const {
    const Own& own = (*this)[id];
    f(Member{own.of, own.begins, own.ends, own.stream, own.arrives, blocks(id)});
    if (!own.meets) return;
    for (const JobMember& other : jobs_[std::size_t(id)].others)
      f(Member{other.of, other.begins, other.ends, other.stream, other.arrives, other.blocks});
  }
  const std::vector<int>& needs() const { return needs_; }  // by job: how many it has
  const std::vector<std::int32_t>& fillers() const { return fillers_; }
  const std::vector<std::int32_t>& by_path() const { return by_path_; }  // the longest path to the end first
  // Of a class: how many jobs touch each block, and how many end each pass.
  std::vector<int> block_users(std::size_t of) const { return of < block_users_.size() ? block_users_[of] : none_; }
  std::vector<int> ending(std::size_t of) const { return of < ending_.size() ? ending_[of] : none_; }
  // By job: its path, less the lead of its part.
  std::vector<double> urgencies(const ListOptions& options) const;

 private:
  void count(const Member& member);

  std::vector<Job> jobs_;
  std::vector<Own> own_;
  std::vector<std::int32_t> blocks_;      // of all jobs
  std::vector<std::size_t> users_begin_;  // by job: where its users begin in users_; and the end
  std::vector<User> users_;
  std::vector<int> needs_, none_;
  std::vector<std::vector<int>> block_users_, ending_;  // by class
  std::vector<double> paths_;                           // by job: the longest path from its start to the end
  std::vector<std::int32_t> fillers_, by_path_;
};

struct ListOptions {
  // The communication streams take turns on the network: of an all-to-all and an all-reduce that are both ready, the
  // all-to-all starts first.
  bool shared_network = true;
  // Fillers run only where the compute stream would wait for the network. If false, they compete with all other jobs by
  // urgency.
  bool fill_gaps = true;
  // Of several fillers, the one that fits the gap beside an all-to-all best runs there (Lancet, section 4.2), and the
  // one that frees most where memory is short. If false, the most urgent.
  bool best_filler = true;
  // The lead of each part over the next one, as a share of the longest path. With 0 the parts run abreast: all need the
  // network at the same time and leave it idle at the same time. With a large lead they spread over the layers and the
  // network always has work, but the memory of many layers is alive at once.
  double lead = 1.0 / 64, backward_lead = 1.0 / 64;
  // If the network is idle and no message is ready, a filler that an all-reduce needs goes first.
  bool feed_network = false;
  // As soon as more memory than this is alive, the filler that frees most runs, and a message for fillers goes first.
  std::int64_t memory_bytes = std::numeric_limits<std::int64_t>::max();
  // A job after which more memory than this would be alive waits, as long as another runs or may run in its place.
  std::int64_t hold_bytes = std::numeric_limits<std::int64_t>::max();
  friend bool operator==(const ListOptions&, const ListOptions&) = default;
};

// The leads that searches try, since the best one depends on the model and the network. The long ones, at the end, need
// the memory of many layers.
inline constexpr double all_leads[] = {0, 1.0 / 256, 1.0 / 128, 1.0 / 64, 1.0 / 32, 1.0 / 16, 1.0 / 8, 1.0 / 4};
inline constexpr std::span<const double> short_leads = std::span(all_leads).first(6);

struct ListSchedule {
  Order order;              // all jobs, by start; needs come first
  std::vector<double> end;  // per job
  double makespan = 0;
  // By class, of its blocks; each is alive from the start of its first job to the end of its last.
  std::vector<std::int64_t> peak_bytes;
};

// The blocks that the jobs touch.
struct ListMemory {
  std::span<const std::int64_t> bytes = {};               // by the numbers in Job::blocks
  std::span<const std::int32_t> before = {}, after = {};  // blocks that are alive before the first job, after the last
};

// A class of ranks in a list schedule.
struct ListClass {
  ListOptions options;
  ListMemory memory;
  // A pass that has not begun may do so if less than `ahead` are between it and the first one that has not ended, and
  // at most this much memory is alive.
  int ahead = std::numeric_limits<int>::max();
  std::int64_t begin_bytes = std::numeric_limits<std::int64_t>::max();
};

// The memory that is alive: a block from the start of the first job that touches it to the end of the last one.
class LiveBlocks {
 public:
  // By block: its bytes, and the jobs that touch it.
  LiveBlocks(std::span<const std::int64_t> bytes, std::span<const int> jobs) {
    for (std::size_t i = 0; i < bytes.size(); ++i) blocks_.push_back({bytes[i], jobs[i]});
  }
  std::int64_t bytes() const { return bytes_; }
  std::int64_t peak_bytes() const { return peak_bytes_; }
  // blocks: those of one job.
  void start(std::span<const std::int32_t> blocks);
  void finish(std::span<const std::int32_t> blocks);
  std::int64_t new_bytes(std::span<const std::int32_t> blocks) const;  // of those whose first job this would be
  std::int64_t freed_by(std::span<const std::int32_t> blocks) const;   // of those whose last job this is

 private:
  struct Block {
    std::int64_t bytes;
    int jobs_left;  // that touch it and have not ended
    bool alive = false;
  };
  std::vector<Block> blocks_;
  std::int64_t bytes_ = 0, peak_bytes_ = 0;
};

// Simulates the streams event by event; a free stream starts the most urgent job that is ready (ListOptions), the
// earlier one on ties.
ListSchedule list_schedule(const JobList& jobs, const ListOptions& options, const ListMemory& memory = {});
// The same of several classes, by the urgency of each job. What several classes do together starts once all of their
// streams are free.
// Broken off once a job starts so late that the makespan will be at least `most_ms`, which it then says. least_ms: by
// job, from its start to the end.
struct ListBound {
  std::span<const double> least_ms = {};
  double most_ms = std::numeric_limits<double>::infinity();
};
ListSchedule list_schedule(const JobList& jobs, const std::vector<double>& urgency, std::span<const ListClass> classes,
                           const ListBound& bound);

// A range [begin, end) of instructions.
using Span = std::pair<std::size_t, std::size_t>;

// The arena's tensors as blocks of a list schedule.
struct Blocks {
  explicit Blocks(const ir::Program& program);
  std::vector<std::vector<std::int32_t>> of;  // by instruction: the blocks that it touches
  std::vector<std::int64_t> bytes;            // by block
  LiveBlocks live() const;                    // none yet
};

// Orders all instructions of a program, which outlives this, or those of each span among themselves; the others keep
// their positions. Spans are ascending and disjoint.
class Orders {
 public:
  Orders(const ir::Program& program, std::vector<cost::OpCost> op_costs, const std::vector<Span>& spans);
  Orders(const ir::Program& program, std::vector<cost::OpCost> op_costs);

  struct Found {
    double makespan = 0;          // of the spans together, without the slowdown of streams that run at once
    std::int64_t peak_bytes = 0;  // of the spans: the arena's tensors that are alive at once
    Order order;
  };
  Found find(const ListOptions& options) const;
  // The simulated makespan of program(order).
  double makespan(const Order& order, const cost::Costs& costs) const {
    return makespan_in_order(program_, order, dependencies_, op_costs_, costs.interference(), costs.launch_ms());
  }
  // The program in that order.
  ir::Program program(const Order& order) const { return permuted(program_, order); }
  std::vector<cost::OpCost> op_costs(const Order& order) const { return permuted(op_costs_, order); }
  // The dependencies of program(order).
  Dependencies needed(const Order& order) const { return renumbered(dependencies_, order); }

 private:
  const ir::Program& program_;
  std::vector<cost::OpCost> op_costs_;
  Dependencies dependencies_;
  struct OfSpan {
    std::size_t begin;
    JobList jobs;
    std::vector<std::int32_t> before, after;  // blocks that are alive at its ends
  };
  OfSpan of_span(const Span& span, const Blocks& blocks) const;

  std::vector<OfSpan> spans_;
  std::vector<std::int64_t> block_bytes_;
};

}  // namespace lancet::schedule
