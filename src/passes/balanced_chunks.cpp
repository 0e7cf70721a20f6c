// A lap is p consecutive chunks, one of each stage. Dynamic programming fills the laps together, stage by stage: a
// state is where both laps have got to, its value that of the stages so far. The blocks with which the second lap may
// begin are tried one after the other; a model of one lap has an empty second one. The three goals are three searches,
// each within what the ones before it have found. A state is left out if its value, with what the rest of the work adds
// at least, is no better than what has been found.
#include <fmt/format.h>
#include <algorithm>
#include <limits>
#include <map>
#include <string_view>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/micro_batches.h"
#include "lancet/ops/catalogue.h"
#include "lancet/passes/passes.h"

namespace lancet::passes {
namespace {

int block_count(const ir::Program& program) {
  int count = 0;
  for (const ir::Instruction& at : program.instructions)
    count = std::max(count, ir::block_of(at.label).value_or(-1) + 1);
  return count;
}

// Peak flops in the time in which memory moves a byte: 17 (V100, fp32), 150 (A100, bf16), 300 (H100, bf16).
constexpr double flops_per_byte = 100;

constexpr double infinite = std::numeric_limits<double>::infinity();

// Sums of the same numbers in another order are equal.
bool is_less(double a, double b) { return a < b * (1 - 1e-9); }

enum class Goal { sum, chunk, squares };

class BalancedChunks {
 public:
  BalancedChunks(std::span<const double> work, Chunks chunks)
      : count_(int(work.size()) - 1), stages_(chunks.stages), laps_(chunks.laps), after_(work.back()) {
    for (int block = 0; block < count_; ++block) before_.push_back(before_.back() + work[std::size_t(block)]);
  }

  std::vector<int> run() {
    search(Goal::sum);
    most_sum_ = best_;
    search(Goal::chunk);
    most_chunk_ = best_;
    search(Goal::squares);
    return first_;
  }

 private:
  // Where the two laps of a stage end.
  struct Ends {
    int first, second;
  };
  struct State {
    double value = infinite;
    Ends from{};
  };

  double work(int begin, int end) const { return before_[std::size_t(end)] - before_[std::size_t(begin)]; }
  // Least blocks of a stage's chunk in the first or second lap.
  int least_blocks(int lap, int stage) const {
    if (lap >= laps_) return 0;
    return lap == laps_ - 1 && stage == stages_ - 1 && after_ > 0 ? 0 : 1;
  }

  static double with(Goal goal, double value, double more) {
    return goal == Goal::squares ? value + more : std::max(value, more);
  }

  // What stages from `stage` on add at least, if `left` is their work.
  double least(Goal goal, double left, int stage) const {
    const int stages = stages_ - stage;
    if (stages == 0) return 0;
    const double mean = left / stages;
    if (goal == Goal::sum) return std::max(mean, after_);
    if (goal == Goal::chunk) return std::max(mean / laps_, after_);
    const double chunks = 1 + 1. / laps_;  // the squares of a stage's chunks, beside that of their sum
    if (mean >= after_ || stages == 1) return chunks * left * mean;
    return chunks * (after_ * after_ + (left - after_) * (left - after_) / (stages - 1));
  }

  // From the middle on, so that of equal cuts the one is found whose laps are most alike.
  void search(Goal goal) {
    best_ = infinite;
    const double floor = least(goal, before_.back() + after_, 0);
    const int begin = laps_ == 1 ? count_ : stages_;
    const int end = laps_ == 1 ? count_ : count_ - stages_ + 1 - least_blocks(1, stages_ - 1);
    const int middle = std::clamp(count_ / 2, begin, end);
    for (int away = 0; away <= end - begin && is_less(floor, best_); ++away)
      for (const int second : {middle - away, middle + away})
        if (second >= begin && second <= end) search_from(goal, second);
  }

  // The second lap begins with block `second`.
  void search_from(Goal goal, int second) {
    second_ = second;
    states_.assign(std::size_t(stages_ + 1), std::vector<State>(std::size_t((second + 1) * (count_ - second + 1))));
    at(0, {0, second}).value = 0;
    for (int stage = 0; stage < stages_; ++stage)
      for (int first = 0; first <= second; ++first)
        for (int other = second; other <= count_; ++other)
          if (at(stage, {first, other}).value < infinite) add_stage(goal, stage, {first, other});
    const double found = at(stages_, {second, count_}).value;
    if (!is_less(found, best_)) return;
    best_ = found;
    keep();
  }

  State& at(int stage, Ends ends) {
    return states_[std::size_t(stage)][std::size_t(ends.first * (count_ - second_ + 1) + ends.second - second_)];
  }

  // All pairs of chunks that a stage may have. Those of the last stage end both laps.
  void add_stage(Goal goal, int stage, Ends from) {
    const bool last = stage == stages_ - 1;
    const double value = at(stage, from).value;
    Ends begin{from.first + least_blocks(0, stage), from.second + least_blocks(1, stage)};
    if (last) begin = {std::max(begin.first, second_), std::max(begin.second, count_)};
    for (int first = begin.first; first <= second_; ++first)
      for (int second = begin.second; second <= count_; ++second) {
        const double of_first = work(from.first, first) + (last && laps_ == 1 ? after_ : 0);
        const double of_second = work(from.second, second) + (last && laps_ == 2 ? after_ : 0);
        const double sum = of_first + of_second, larger = std::max(of_first, of_second);
        if (is_less(most_sum_, sum) || is_less(most_chunk_, larger)) break;
        const double squares = sum * sum + of_first * of_first + of_second * of_second;
        const double reached = with(goal, value, goal == Goal::sum ? sum : goal == Goal::chunk ? larger : squares);
        if (!is_less(reached, best_)) break;
        const double left = last ? 0 : work(first, second_) + work(second, count_) + after_;
        if (!is_less(with(goal, reached, least(goal, left, stage + 1)), best_)) continue;
        if (State& state = at(stage + 1, {first, second}); is_less(reached, state.value)) state = {reached, from};
      }
  }

  void keep() {
    first_.assign(std::size_t(stages_ * laps_), 0);
    Ends ends{second_, count_};
    for (int stage = stages_; stage-- > 0;) {
      ends = at(stage + 1, ends).from;
      first_[std::size_t(stage)] = ends.first;
      if (laps_ == 2) first_[std::size_t(stages_ + stage)] = ends.second;
    }
  }

  const int count_, stages_, laps_;
  const double after_;             // the work after the blocks
  std::vector<double> before_{0};  // the work of the blocks before each
  double most_sum_ = infinite, most_chunk_ = infinite, best_ = infinite;
  int second_ = 0;                          // the first block of the second lap
  std::vector<std::vector<State>> states_;  // by stages that are filled, and ends
  std::vector<int> first_;
};

}  // namespace

std::vector<int> blocks_of(const ir::Program& program) {
  std::vector<int> blocks(program.instructions.size());
  const std::vector<std::size_t> made = ir::makers_of(program);
  std::map<std::string_view, int> of_label;
  const int count = block_count(program);
  int reached = -1;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const ir::Instruction& at = program.instructions[i];
    if (const auto block = ir::block_of(at.label)) {
      blocks[i] = reached = *block;
      continue;
    }
    if (at.role == ir::Role::forward) {
      blocks[i] = of_label.try_emplace(at.label, reached + 1 == count ? count : 0).first->second;
      continue;
    }
    const auto known = of_label.find(at.label);
    blocks[i] = count;
    if (known != of_label.end()) {
      blocks[i] = known->second;
      continue;
    }
    for (const ir::TensorId id : at.operands)
      if (made[id.index()] < i) {
        blocks[i] = blocks[made[id.index()]];
        break;
      }
  }
  return blocks;
}

std::vector<int> balanced_chunks(std::span<const double> work, Chunks chunks) {
  return BalancedChunks(work, chunks).run();
}

Result<std::vector<int>> balanced_chunks(const ir::Program& step, Chunks chunks) {
  const std::vector<int> blocks = blocks_of(step);
  const int count = block_count(step);
  if (count < chunks.stages * chunks.laps)
    return config_error(
        fmt::format("config: mesh.stage: expected at most {}, the number of blocks of the model, found {}", count,
                    chunks.stages * chunks.laps));
  std::vector<double> work(std::size_t(count) + 1);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const ops::Work of = ops::work(step, step.instructions[i]);
    work[std::size_t(blocks[i])] += of.flops + flops_per_byte * of.bytes;
  }
  return balanced_chunks(work, chunks);
}

}  // namespace lancet::passes
