// A fuzz over mixes: draws models, meshes and ways to train, and holds each against one rank.
//
//     build/tests/mixes                      40 mixes of fixed seeds, as in the quick tests
//     build/tests/mixes --from 1000 --count 1000
//     build/tests/mixes 'train.seed=7' 'mesh.data=2' ... --then 'mesh.tensor=2' ...
//
// A mix is a list of fields over base_of_mixes (mix.h). Its reference trains on one rank, without overlap, ZeRO and
// stages, with the same micro batches of the whole batch and the same groups of tokens. Held are
//
// - losses, auxiliary and z-losses, norms, drops and the tokens of every expert, of each step;
// - all moments and weights after the interruption (in most mixes after step 1, where a first moment is a gradient)
//   and at the end, element by element, relative to the largest of the tensor;
// - the last checkpoint of the interrupted run against the one of a run without interruption: the same bytes;
// - what another mesh loads from the interruption and saves again: the same bits of every whole tensor;
// - the run that resumes there, as above.
//
// Scores that are nearly equal may choose another expert when sums are split, and nothing after that can be compared.
// So where a mix disagrees, its reference trains again from weights that are moved by rounding. If that disagrees, too,
// the mix says nothing, and the next seed is tried.
//
// A mix that fails is shrunk: fields are left out as long as it fails. What remains is printed as one command. Mixes
// that the config or the planner refuses are counted by their message.
//
// Four times 1,000 mixes; refused: train.memory_limit_mb below what any plan needs; nothing said: in bf16.
//
//     an earlier draw   987 hold,  5 refused, 7 say nothing, 1 fails
//     --from 3000       981 hold,  7 refused, 7 say nothing, 5 fail
//     --from 5000       983 hold,  5 refused, 8 say nothing, 4 fail
//     --from 7000       982 hold,  7 refused, 10 say nothing, 1 fails (with what the others found mended)
//
// Found and mended: under collective_matmul the copies of biases and gates drifted apart in the last bits, so that a
// resumed run was not the uninterrupted one; in layers that drop nothing autodiff wrote to a list that had grown
// elsewhere; where ranks along tensor divide the gradient of a tied embedding in another way than its weights, stages
// did not add their sums. Three were bounds: 1.1e-5 in a weight, 0.37 in moments of bf16 without master weights (mix
// 5859) and 0.065 in a norm of gradients that travel in bf16 (mix 7470), whose bounds were round numbers then; they
// follow from the mix since (bounds_of_bf16), and where a rounding moves it too far, the next seed is tried. faults.py
// plants faults; each was found within 31 mixes.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <optional>

#include "doubles/inproc.h"
#include "in_memory.h"
#include "lancet/base/json.h"
#include "lancet/checkpoint/checkpoint.h"
#include "lancet/ir/plan.h"
#include "lancet/run/checkpoint_tensors.h"
#include "lancet/run/resume_point.h"
#include "lancet/run/saver.h"
#include "lancet/schedule/step.h"
#include "lancet/train/trainer.h"
#include "mixes/compare.h"
#include "mixes/mix.h"
#include "temporary_folder.h"
#include "train/rank_state.h"

namespace lancet::test {
namespace {

namespace fs = std::filesystem;
using config::Config;

// The config or the planner refuses the mix.
struct Refused {
  std::string why;
};

// ---- training

template <class T>
T good(Result<T> result) {
  if (result.ok()) return std::move(result).value();
  if (result.error().code == ExitCode::config) throw Refused{result.error().message};
  throw Fails{result.error().message};
}

int ranks_of(const Config& config) {
  const config::MeshSizes& mesh = config.mesh;
  return int(mesh.data.value_or(1) * mesh.expert.value_or(1) * mesh.tensor * mesh.stage);
}

Config config_of(std::span<const std::string> fields) {
  Config config = good(config::parse(base_of_mixes(fields), "mixes", fields));
  const Status checked = config::check(config, ranks_of(config));
  if (!checked.ok()) throw Refused{checked.error().message};
  return config;
}

// train() in the config's run folder, which ends with this code. What has begun may not be refused later.
enum class Refusal { is_counted, is_failure };
void train_until(const Config& config, ExitCode expected, Refusal refusal, const std::string& init_from = "") {
  const MixCosts costs(config);
  const int ranks = ranks_of(config);
  Error error{ExitCode::done, "", true};
  std::mutex mutex;
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const Status mine = train::train(config, world, {.local_ranks = ranks, .costs = &costs, .init_from = init_from});
    const std::lock_guard lock(mutex);
    if (!mine.ok() && (world.rank() == 0 || !mine.error().agreed)) error = mine.error();
    return {};
  });
  if (!status.ok()) throw Fails{status.error().message};
  if (error.code == ExitCode::config && refusal == Refusal::is_counted) throw Refused{error.message};
  if (error.code != expected)
    throw Fails{fmt::format("expected exit code {}, found {}: {}", int(expected), int(error.code), error.message)};
}

Config in(Config config, const std::string& run) {
  config.log.run_dir = run;
  return config;
}

// Saves a new model that `prepare` has changed as the run's checkpoint of this step.
void save(const Config& config, std::int64_t step, const std::function<Status(runtime::TensorStore&)>& prepare) {
  const MixCosts costs(config);
  const int ranks = ranks_of(config);
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(const auto trainer, train::Trainer::create(config, world, {.local_ranks = ranks, .costs = &costs}));
    LANCET_TRY(prepare(trainer->store()));
    run::Saver saver(config, world, trainer->store());
    LANCET_TRY(saver.reserve());
    LANCET_TRY(saver.begin(run::manifest_of(config, config, {.step = step}, ranks, 0, ""), true));
    LANCET_TRY(saver.finish());
    return saver.last_failure() ? Status(*saver.last_failure()) : Status();
  });
  if (!status.ok() && status.error().code == ExitCode::config) throw Refused{status.error().message};
  if (!status.ok()) throw Fails{status.error().message};
}

checkpoint::Checkpoint checkpoint_of(const Config& config, std::int64_t step) {
  return good(
      checkpoint::Checkpoint::open(fs::path(config.log.run_dir) / "checkpoints" / checkpoint::folder_name(step)));
}

Tensors tensors_in(const checkpoint::Checkpoint& saved) {
  Tensors tensors;
  std::map<std::string, checkpoint::Checkpoint::Target> targets;
  for (const std::string& name : saved.names()) {
    std::vector<float>& values = tensors[name];
    values.resize(saved.find(name)->bytes() / sizeof(float));
    targets[name].memory = reinterpret_cast<std::byte*>(values.data());
  }
  const Status loaded = saved.load(targets, 1);
  if (!loaded.ok()) throw Fails{loaded.error().message};
  return tensors;
}

// The records by step, of both processes of a run that was interrupted.
std::vector<Json> records_of(const Config& config) {
  std::vector<Json> records;
  std::ifstream in(fs::path(config.log.run_dir) / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) records.push_back(json_of(line));
  if (std::ssize(records) != config.train.steps)
    throw Fails{fmt::format("expected {} records, found {}", config.train.steps, records.size())};
  return records;
}

// ---- one rank

Config on_one_rank(const Config& mix) {
  Config config = mix;
  const Config defaults;
  config.train.micro_batch_size *= mix.mesh.data.value_or(1) * mix.mesh.expert.value_or(1);
  if (mix.model.has_moe()) config.model.router_group_size = mix.group_sequences();
  if (mix.model.router_aux_loss_scope == config::AuxLossScope::rank) {
    config.model.router_aux_loss_scope = config::AuxLossScope::group;
    if (mix.group_sequences() != mix.train.micro_batch_size) throw Refused{"mixes: no reference for this scope"};
  }
  config.mesh = {.data = 1, .expert = 1};
  config.overlap = defaults.overlap;
  config.train.zero = 0;
  config.train.sequence_parallel = false;
  config.train.memory_limit_mb = 0;
  config.train.reduce_dtype = DType::f32;
  config.train.pipeline_schedule = defaults.train.pipeline_schedule;
  config.train.save_interval = mix.train.stop_after;
  config.train.stop_after = 0;
  return config;
}

Outcome outcome_of(const Config& config, std::int64_t interruption) {
  return {records_of(config), tensors_in(checkpoint_of(config, interruption)),
          tensors_in(checkpoint_of(config, config.train.steps))};
}

bool is_in_bf16(const Config& config) {
  return config.train.dtype != DType::f32 || config.train.reduce_dtype != DType::f32;
}

// How far the reference gets from itself where each weight that it starts with is moved by up to `rounding`.
Differences moved(const Config& config, double rounding, const Outcome& expected, std::int64_t interruption,
                  const TemporaryFolder& folder) {
  Differences largest;
  for (unsigned seed = 1; seed <= 6; ++seed) {
    const Config moved = in(config, folder / fmt::format("moved-{}", seed));
    save(in(config, folder / fmt::format("start-{}", seed)), 0, [&](runtime::TensorStore& store) -> Status {
      std::mt19937 random(seed);
      std::uniform_real_distribution<double> noise(1 - rounding, 1 + rounding);
      for (const auto& [name, tensor] : store.all()) {
        if (tensor.kind != ir::TensorKind::parameter) continue;
        std::vector<float> values(std::size_t(tensor.type.shape.elements()));
        LANCET_TRY(run::read_f32(store, tensor, 0, std::as_writable_bytes(std::span(values))));
        for (float& value : values) value = float(value * noise(random));
        LANCET_TRY(train::set_parameter(store, name, values));
      }
      return {};
    });
    train_until(moved, ExitCode::done, Refusal::is_failure, folder / fmt::format("start-{}", seed));
    compare("moved", outcome_of(moved, interruption), expected, no_bounds, largest);
  }
  return largest;
}

// ---- a mix

// The largest differences over all mixes, in shares of their bounds.
Differences largest_shares;

// What the plans of all mixes have, so that a fuzz which no longer meets a mechanism is noticed.
std::map<std::string, int> plans_with;

void count_plan(const Config& config) {
  std::ifstream in(fs::path(config.log.run_dir) / "plan.ir");
  const ir::Plan plan = good(ir::parse_plan(std::string(std::istreambuf_iterator<char>(in), {})));
  ++plans_with["policy " + plan.header.text("policy")];
  const auto& all = plan.program.instructions;
  plans_with["recomputed activations"] += std::ranges::count(all, ir::Role::recompute, &ir::Instruction::role) > 0;
  plans_with["rings"] += std::ranges::count(all, "permute_shards", &ir::Instruction::op) > 0;
  plans_with["parts"] += schedule::most_parts(plan.program) > 1;
  plans_with["stages"] += config.mesh.stage > 1;
}

void count_shares(const Differences& found, const Differences& bounds) {
  for (const auto kind : {&Differences::record, &Differences::moment, &Differences::weight})
    largest_shares.*kind = std::max(largest_shares.*kind, found.*kind / bounds.*kind);
}

void run_mix(const Config& mix, const std::optional<Config>& other, const Outcome& expected, const Differences& bounds,
             const TemporaryFolder& folder) {
  const std::int64_t interruption = mix.train.stop_after;
  Differences largest;
  Config whole = in(mix, folder / "whole"), stopped = in(mix, folder / "stopped");
  whole.train.stop_after = 0;
  train_until(whole, ExitCode::done, Refusal::is_counted);
  count_plan(whole);
  train_until(stopped, interruption < mix.train.steps ? ExitCode::saved : ExitCode::done, Refusal::is_failure);
  const auto interrupted = checkpoint_of(stopped, interruption);
  if (other) fs::copy(folder / "stopped", folder / "elsewhere", fs::copy_options::recursive);
  train_until(stopped, ExitCode::done, Refusal::is_failure);
  const auto resumed = checkpoint_of(stopped, mix.train.steps);
  const auto uninterrupted = checkpoint_of(whole, mix.train.steps);
  if (uninterrupted.manifest().files != resumed.manifest().files)
    throw Fails{fmt::format("the resumed run's checkpoint is not that of the run without interruption: {}",
                            first_other(tensors_in(resumed), tensors_in(uninterrupted)))};
  compare("without interruption", {records_of(whole), {}, tensors_in(resumed)}, expected, bounds, largest);
  compare("interrupted", outcome_of(stopped, interruption), expected, bounds, largest);
  if (!other) return count_shares(largest, bounds);

  Config again = in(*other, folder / "again");
  again.overlap.policy = "sequential";
  save(again, interruption,
       [&](runtime::TensorStore& store) { return run::load_tensors(store, interrupted, run::LoadScope::all); });
  const Tensors saved = tensors_in(checkpoint_of(again, interruption)), loaded = tensors_in(interrupted);
  if (saved != loaded)
    throw Fails{fmt::format("the other mesh loads and saves other tensors: {}", first_other(saved, loaded))};
  const Config elsewhere = in(*other, folder / "elsewhere");
  train_until(elsewhere, ExitCode::done, Refusal::is_failure);
  compare("on the other mesh", outcome_of(elsewhere, interruption), expected, bounds, largest);
  count_shares(largest, bounds);
}

enum class Found { holds, refused, undecided, fails };
struct Verdict {
  Found found = Found::holds;
  std::string why;
};

Verdict verdict_of(const Mix& mix) {
  const TemporaryFolder folder;
  try {
    const Config config = config_of(mix.fields);
    std::optional<Config> other;
    if (!mix.then.empty()) {
      std::vector<std::string> fields = mix.fields;
      fields.insert(fields.end(), mix.then.begin(), mix.then.end());
      other = config_of(fields);
      const Config one = on_one_rank(config), its = on_one_rank(*other);
      if (one.train.micro_batch_size != its.train.micro_batch_size || one.model != its.model)
        throw Refused{"mixes: the other mesh has another step"};
    }
    const Config alone = in(on_one_rank(config), folder / "alone");
    const std::int64_t interruption = config.train.stop_after;
    if (interruption < 1) throw Refused{"mixes: train.stop_after: expected an interruption"};
    train_until(alone, ExitCode::done, Refusal::is_counted);
    const Outcome expected = outcome_of(alone, interruption);
    const bool is_bf16 = is_in_bf16(config);
    const auto moved_by = [&](double rounding) { return moved(alone, rounding, expected, interruption, folder); };
    Differences bounds = bounds_of_f32;
    if (is_bf16) {
      const Differences by_one = moved_by(0x1p-8);
      if (!within(by_one, {1, 1, 1})) return {Found::undecided, "a rounding moves the reference as far as its values"};
      bounds = bounds_of_bf16(by_one);
    }
    try {
      run_mix(config, other, expected, bounds, folder);
    } catch (const Disagrees& found) {
      const bool stands = is_bf16 || within(moved_by(0x1p-22), bounds_of_f32);
      return {stands ? Found::fails : Found::undecided, found.what};
    }
    return {};
  } catch (const Refused& refused) {
    return {Found::refused, refused.why};
  } catch (const Fails& failure) {
    return {Found::fails, failure.what};
  } catch (const std::exception& failure) {
    return {Found::fails, failure.what()};
  }
}

std::string in_words(const Verdict& verdict) {
  const char* words[] = {"holds", "refused", "undecided", "FAILS"};
  return fmt::format("{}{}", words[int(verdict.found)], verdict.why.empty() ? "" : ": " + verdict.why);
}

// Other seeds replace one whose reference does not stand.
Verdict verdict_of_seeds(Mix& mix) {
  Verdict verdict;
  for (int i = 0; i < 3; ++i) {
    if (i > 0) mix.fields.push_back(fmt::format("train.seed={}", 1'000'000 + i));
    verdict = verdict_of(mix);
    if (verdict.found != Found::undecided) break;
  }
  return verdict;
}

// Leaves out what the failure does not need: the other mesh, then fields one by one, as long as any goes.
Mix shrunk(Mix mix) {
  const auto still_fails = [](const Mix& smaller) { return verdict_of(smaller).found == Found::fails; };
  if (Mix here{mix.fields, {}}; still_fails(here)) mix = here;
  for (bool goes = true; goes;) {
    goes = false;
    for (auto list : {&Mix::fields, &Mix::then})
      for (std::size_t i = (mix.*list).size(); i-- > 0;) {
        Mix smaller = mix;
        (smaller.*list).erase((smaller.*list).begin() + std::ptrdiff_t(i));
        if (!still_fails(smaller)) continue;
        mix = smaller;
        goes = true;
      }
  }
  return mix;
}

// ---- the program

struct Counts {
  std::map<Found, int> found;
  std::map<std::string, int> refusals;
  std::vector<double> seconds;
};

// One "N" in place of each number.
std::string without_numbers(const std::string& text) {
  std::string masked;
  for (std::size_t i = 0; i < text.size(); ++i)
    if (std::isdigit(text[i]) == 0)
      masked += text[i];
    else if (i == 0 || std::isdigit(text[i - 1]) == 0)
      masked += 'N';
  return masked;
}

// shrinks: what fails is shrunk and printed.
void try_mix(Mix mix, const std::string& name, Counts& counts, bool shrinks) {
  fmt::print("{}: ", name);
  std::fflush(stdout);
  const auto start = std::chrono::steady_clock::now();
  const Verdict verdict = verdict_of_seeds(mix);
  counts.seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  ++counts.found[verdict.found];
  fmt::print("{:.2f} s, {}\n", counts.seconds.back(), in_words(verdict));
  if (verdict.found == Found::refused) ++counts.refusals[without_numbers(verdict.why)];
  if (verdict.found != Found::fails || !shrinks) return;
  fmt::print("    {}\n", mix.command());
  std::fflush(stdout);
  const Mix small = shrunk(mix);
  fmt::print("    shrunk: {}\n    {}\n", small.command(), verdict_of(small).why);
}

void print(Counts& counts) {
  std::ranges::sort(counts.seconds);
  fmt::print("{} mixes: {} hold, {} refused, {} undecided, {} fail; {:.2f} s in the median, {:.2f} s at most\n",
             counts.seconds.size(), counts.found[Found::holds], counts.found[Found::refused],
             counts.found[Found::undecided], counts.found[Found::fails], counts.seconds[counts.seconds.size() / 2],
             counts.seconds.back());
  for (const auto& [why, count] : counts.refusals) fmt::print("refused {} times: {}\n", count, why);
  for (const auto& [what, count] : plans_with) fmt::print("plans with {}: {}\n", what, count);
  fmt::print("largest shares of bounds: records {:.2f}, moments {:.2f}, weights {:.2f}\n", largest_shares.record,
             largest_shares.moment, largest_shares.weight);
}

int run(std::span<const std::string> arguments) {
  std::uint64_t from = 101, count = 40;
  Mix given;
  bool is_then = false, only_first = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& at = arguments[i];
    if (at == "--then") {
      is_then = true;
    } else if (at == "--first") {
      only_first = true;
    } else if (at.find('=') != at.npos) {
      (is_then ? given.then : given.fields).push_back(at);
    } else if ((at == "--from" || at == "--count") && i + 1 < arguments.size()) {
      (at == "--from" ? from : count) = std::stoull(arguments[++i]);
    } else {
      fmt::print(stderr,
                 "usage: mixes [--from SEED] [--count N] [--first] | mixes FIELD=VALUE... [--then FIELD=VALUE...]\n");
      return 2;
    }
  }
  const InMemory place;
  spdlog::set_level(spdlog::level::off);
  Counts counts;
  if (!given.fields.empty()) {
    const Verdict verdict = verdict_of(given);
    fmt::print("{}\n", in_words(verdict));
    return verdict.found == Found::fails ? 1 : 0;
  }
  for (std::uint64_t seed = from; seed < from + count && !(only_first && counts.found[Found::fails] > 0); ++seed)
    try_mix(Draw(seed).mix(), fmt::format("mix {}", seed), counts, !only_first);
  print(counts);
  return counts.found[Found::fails] > 0 ? 1 : 0;
}

}  // namespace
}  // namespace lancet::test

int main(int argc, char** argv) { return lancet::test::run(std::vector<std::string>(argv + 1, argv + argc)); }
