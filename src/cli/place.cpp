// lancet place: chooses a device for each op of a model, on a cluster of unlike devices.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>

#include "commands.h"
#include "lancet/base/clock.h"
#include "lancet/base/json.h"
#include "lancet/placement/graph.h"
#include "lancet/placement/solvers.h"
#include "lancet/placement/stages.h"
#include "lancet/placement/timetable.h"

namespace lancet::cli {

namespace {

using placement::Placement;
using placement::Problem;

struct PlaceArguments {
  std::string cluster, solver = "search";
  bool training = false, stages = false, fine = false, json = false;
  std::optional<double> seconds;
  std::uint64_t seed = 1;
};

// An answer to the graph that was solved, and the same placement of the model's own ops.
struct Answer {
  Placement coarse, fine;
  double bound_ms = 0, seconds = 0;
  std::string_view end;  // what ended the integer program; empty for other solvers
  double gap() const { return coarse.makespan_ms > 0 ? 1 - bound_ms / coarse.makespan_ms : 0; }
};

// By MilpAnswer::End: the word of --json, and what it means.
constexpr std::pair<std::string_view, std::string_view> ends[] = {
    {"proof", "no placement is shorter"},
    {"time", "the time is over"},
    {"tolerances", "CBC's answers, or its proof, hold within its tolerances only"},
    {"fault", "CBC failed, and what it found before is kept"},
};

// The error of a solver that found nothing, with what the search found in its place.
Error with_best(const Error& error, const Result<Placement>& best) {
  Error with = error;
  if (best.ok()) with.message += fmt::format("; --solver search finds one of {:.3f} ms", best->makespan_ms);
  return with;
}

// The integer program begins with what the search finds, whose time counts.
Result<Placement> solved_by_milp(const Problem& problem, const PlaceArguments& arguments, Answer& answer) {
  const auto before = std::chrono::steady_clock::now();
  const double limit = arguments.seconds.value_or(60);
  const auto start = placement::list_search(problem, {.seconds = std::min(2.0, limit / 4), .seed = arguments.seed});
  const placement::MilpOptions options{.seconds = std::max(0.0, limit - seconds_since(before)),
                                       .start = start.ok() ? &*start : nullptr};
  auto found = placement::solve_milp(problem, options);
  if (!found.ok()) return with_best(found.error(), start);
  answer.bound_ms = std::max(answer.bound_ms, found->bound_ms);
  answer.end = ends[std::size_t(found->end)].first;
  return std::move(found->placement);
}

Result<Placement> solved(const Problem& problem, const PlaceArguments& arguments, Answer& answer) {
  answer.bound_ms = placement::lower_bound_ms(problem);
  if (arguments.solver == "milp") return solved_by_milp(problem, arguments, answer);
  placement::SearchOptions options{.seed = arguments.seed};
  if (arguments.seconds) options.seconds = *arguments.seconds, options.moves = std::numeric_limits<std::int64_t>::max();
  if (arguments.solver == "search") return placement::list_search(problem, options);
  for (const placement::Solver& solver : placement::list_solvers()) {
    if (solver.name != arguments.solver) continue;
    auto found = solver.solve(problem);
    if (!found.ok()) return with_best(found.error(), placement::list_search(problem, {.seconds = 1}));
    return found;
  }
  return internal_error("no solver " + arguments.solver);
}

Result<Answer> answer_of(const placement::ModelGraph& graph, const placement::Coarse& coarse,
                         const PlaceArguments& arguments) {
  Answer answer;
  LANCET_TRY(placement::check_problem(coarse.problem));
  const auto start = std::chrono::steady_clock::now();
  LANCET_ASSIGN(answer.coarse, solved(coarse.problem, arguments, answer));
  answer.seconds = seconds_since(start);
  answer.fine = placement::refine(graph.problem, coarse, answer.coarse);
  return answer;
}

struct DeviceUse {
  int ops = 0;
  double busy_ms = 0, mb = 0;
};

std::vector<DeviceUse> use_of_devices(const Problem& problem, const Placement& placement) {
  std::vector<DeviceUse> uses(problem.devices.size());
  for (std::size_t op = 0; op < problem.ops.size(); ++op) {
    DeviceUse& use = uses[std::size_t(placement.device[op])];
    ++use.ops;
    use.busy_ms += placement.ops[op].end - placement.ops[op].start;
    use.mb += problem.ops[op].mb;
  }
  return uses;
}

std::string json_of_answer(const placement::ModelGraph& graph, const placement::Coarse& coarse, const Answer& answer,
                           const PlaceArguments& arguments) {
  using nlohmann::ordered_json;
  const Problem& problem = graph.problem;
  ordered_json out{{"solver", arguments.solver},
                   {"task", arguments.training ? "training" : "forward"},
                   {"makespan_ms", answer.coarse.makespan_ms},
                   {"bound_ms", answer.bound_ms},
                   {"seconds", answer.seconds},
                   {"op_by_op_ms", answer.fine.makespan_ms},
                   {"ops", problem.op_count()},
                   {"solved_ops", coarse.problem.op_count()}};
  if (!answer.end.empty()) out["end"] = answer.end;
  const auto uses = use_of_devices(problem, answer.fine);
  for (std::size_t k = 0; k < uses.size(); ++k)
    out["devices"].push_back({{"name", problem.devices[k].name},
                              {"ops", uses[k].ops},
                              {"busy_ms", uses[k].busy_ms},
                              {"memory_mb", uses[k].mb},
                              {"of_mb", problem.devices[k].memory_mb}});
  for (std::size_t op = 0; op < problem.ops.size(); ++op)
    out["assignment"].push_back({{"op", problem.ops[op].name},
                                 {"device", problem.devices[std::size_t(answer.fine.device[op])].name},
                                 {"start_ms", answer.fine.ops[op].start},
                                 {"end_ms", answer.fine.ops[op].end}});
  return json_text(out) + "\n";
}

// Neighbouring ops on one device as one line, in the order of the graph.
std::string table_of_runs(const Problem& problem, const Placement& placement) {
  std::string text = fmt::format("{:<12} {:>5}  {}\n", "device", "ops", "from, to");
  for (std::size_t first = 0; first < problem.ops.size();) {
    std::size_t next = first;
    while (next < problem.ops.size() && placement.device[next] == placement.device[first]) ++next;
    const std::string to = next - first > 1 ? ", " + problem.ops[next - 1].name : "";
    text += fmt::format("{:<12} {:>5}  {}{}\n", problem.devices[std::size_t(placement.device[first])].name,
                        next - first, problem.ops[first].name, to);
    first = next;
  }
  return text;
}

std::string text_of_answer(const placement::ModelGraph& graph, const placement::Coarse& coarse, const Answer& answer,
                           const PlaceArguments& arguments) {
  const Problem& problem = graph.problem;
  std::string text =
      fmt::format("graph: {}, {} ops{}\n", arguments.training ? "training" : "forward", problem.op_count(),
                  arguments.fine ? "" : fmt::format(", {} after coarsening", coarse.problem.op_count()));
  text += fmt::format("{}: {:.3f} ms, at least {:.3f} ms (gap {:.1f}%), in {:.2f} s\n", arguments.solver,
                      answer.coarse.makespan_ms, answer.bound_ms, 100 * answer.gap(), answer.seconds);
  for (const auto& [end, meaning] : ends)
    if (answer.end == end) text += fmt::format("milp ended by {}: {}\n", end, meaning);
  if (!arguments.fine) text += fmt::format("op by op: {:.3f} ms\n", answer.fine.makespan_ms);
  text += fmt::format("\n{:<12} {:>5} {:>10} {:>12} {:>12}\n", "device", "ops", "busy ms", "memory MB", "of MB");
  const auto uses = use_of_devices(problem, answer.fine);
  for (std::size_t k = 0; k < uses.size(); ++k)
    text += fmt::format("{:<12} {:>5} {:>10.3f} {:>12.1f} {:>12.1f}\n", problem.devices[k].name, uses[k].ops,
                        uses[k].busy_ms, uses[k].mb, problem.devices[k].memory_mb);
  return text + "\n" + table_of_runs(problem, answer.fine);
}

// Stages are searched. The solvers besides search and milp neither draw random numbers nor search for a time.
Status check_options_of_search(const PlaceArguments& arguments, bool seeded) {
  if (arguments.stages && arguments.solver != "search")
    return config_error(fmt::format("--stages: expected --solver search, found {}", arguments.solver));
  if (arguments.solver == "search" || arguments.solver == "milp" || (!seeded && !arguments.seconds)) return {};
  return config_error(fmt::format("{}: expected --solver search or milp, found {}", seeded ? "--seed" : "--time-limit",
                                  arguments.solver));
}

const placement::Cluster::Device& device_of(const placement::PlannedStages& stages, const placement::Cluster& cluster,
                                            std::size_t stage) {
  return cluster.devices[std::size_t(stages.split.devices[stage])];
}

std::string even_text(const placement::StageAnswer& answer) {
  const placement::PlannedStages& even = answer.even;
  if (even.step_ms <= 0) return fmt::format("even split: it cannot be planned: {}\n", answer.no_even);
  return fmt::format("even split: {:.3f} ms{}\n", even.step_ms, even.fits() ? "" : ", out of memory");
}

// Rounded as it is printed, so that a gap a little below 0 is printed as 0.0 and not as -0.0.
double gap_percent(const placement::StageAnswer& answer) {
  return std::round(1000 * (1 - answer.bound_ms / answer.best.step_ms)) / 10 + 0.0;
}

std::string text_of_stages(const placement::StageAnswer& answer, const placement::Cluster& cluster, double seconds) {
  const placement::PlannedStages& best = answer.best;
  std::string text =
      fmt::format("stages: {:.3f} ms a step, no split goes below {:.3f} ms (gap {:.1f}%), {} planned in {:.1f} s\n",
                  best.step_ms, answer.bound_ms, gap_percent(answer), answer.planned, seconds);
  if (best.least_ms > 0) text += fmt::format("no order of this split goes below {:.3f} ms\n", best.least_ms);
  text += even_text(answer);
  text += fmt::format("\n{:<6} {:<12} {:>7} {:>11} {:>11} {:>10}\n", "stage", "device", "blocks", "compute ms",
                      "memory MB", "of MB");
  for (std::size_t s = 0; s < best.bytes.size(); ++s)
    text += fmt::format("{:<6} {:<12} {:>7} {:>11.3f} {:>11.1f} {:>10.1f}\n", s, device_of(best, cluster, s).name,
                        best.split.blocks[s], best.compute_ms[s], double(best.bytes[s]) * 1e-6,
                        device_of(best, cluster, s).memory_mb);
  text += fmt::format("\nto run it on {} rank{}, a host each:", best.bytes.size(), best.bytes.size() == 1 ? "" : "s");
  for (const std::string& setting : best.settings()) text += fmt::format(" --set '{}'", setting);
  return text + "\n";
}

std::string json_of_stages(const placement::StageAnswer& answer, const placement::Cluster& cluster, double seconds) {
  using nlohmann::ordered_json;
  const placement::PlannedStages& best = answer.best;
  ordered_json out{{"makespan_ms", best.step_ms},
                   {"bound_ms", answer.bound_ms},
                   {"least_of_split_ms", best.least_ms},
                   {"even_ms", answer.even.step_ms > 0 ? ordered_json(answer.even.step_ms) : ordered_json()},
                   {"even_fits", answer.even.step_ms > 0 && answer.even.fits()},
                   {"planned", answer.planned},
                   {"seconds", seconds}};
  for (std::size_t s = 0; s < best.bytes.size(); ++s)
    out["assignment"].push_back({{"device", device_of(best, cluster, s).name},
                                 {"blocks", best.split.blocks[s]},
                                 {"compute_ms", best.compute_ms[s]},
                                 {"memory_mb", double(best.bytes[s]) * 1e-6},
                                 {"of_mb", device_of(best, cluster, s).memory_mb}});
  out["set"] = best.settings();
  return json_text(out) + "\n";
}

Status place_in_stages(const config::Config& config, const placement::Cluster& cluster,
                       const PlaceArguments& arguments) {
  placement::StageSearchOptions options;
  if (arguments.seconds) options.seconds = *arguments.seconds;
  const auto start = std::chrono::steady_clock::now();
  const auto answer = placement::place_stages(config, cluster, options);
  if (!answer.ok()) return Error{answer.error().code, cluster.name + ": " + answer.error().message};
  const double seconds = seconds_since(start);
  if (arguments.json) return print(json_of_stages(*answer, cluster, seconds));
  return print(fmt::format("cluster: {}, {}\n", cluster.name, cluster.what) +
               text_of_stages(*answer, cluster, seconds));
}

Status place(const config::Config& config, const PlaceArguments& arguments) {
  LANCET_ASSIGN(const placement::Cluster cluster, placement::read_cluster(arguments.cluster));
  if (arguments.stages) return place_in_stages(config, cluster, arguments);
  LANCET_TRY(config::check(config, 1));
  const auto task = arguments.training ? placement::Task::training : placement::Task::forward;
  LANCET_ASSIGN(const placement::ModelGraph graph, placement::model_graph(config, cluster, task));
  const placement::Coarse coarse = arguments.fine ? placement::coarsen(graph, {}) : placement::coarsen(graph);
  auto answer = answer_of(graph, coarse, arguments);
  if (!answer.ok()) return Error{answer.error().code, cluster.name + ": " + answer.error().message};
  if (arguments.json) return print(json_of_answer(graph, coarse, *answer, arguments));
  return print(fmt::format("cluster: {}, {}\n", cluster.name, cluster.what) +
               text_of_answer(graph, coarse, *answer, arguments));
}

}  // namespace

void add_place(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand("place",
                                         "Choose a device for each op of a model on unlike devices: lancet place "
                                         "configs/gpt2-s-moe.json --on moirai-inter");
  auto config_arguments = add_config_arguments(*command);
  auto arguments = std::make_shared<PlaceArguments>();
  std::vector<std::string> names{"milp", "search"};
  std::string solvers =
      "Solvers (--solver):\n  milp       the mixed-integer program, from what search finds; its bound is proven\n"
      "  search     moves from the best of those below\n";
  for (const placement::Solver& solver : placement::list_solvers()) {
    names.emplace_back(solver.name);
    solvers += fmt::format("  {:<10} {}\n", solver.name, solver.what);
  }
  command->footer(solvers + "\n" + command->get_footer());
  command
      ->add_option("--on", arguments->cluster, "The cluster: a name in configs/clusters, or a file (docs/placement.md)")
      ->required()
      ->type_name("CLUSTER");
  command->add_option("--solver", arguments->solver, "How to choose")
      ->capture_default_str()
      ->check(CLI::IsMember(names));
  command->add_flag("--training", arguments->training, "Place a training step: forward, backward and updates");
  CLI::Option* stages =
      command->add_flag("--stages", arguments->stages,
                        "Place a training step as pipeline stages of whole blocks, as lancet train runs it");
  command->add_flag("--no-coarsen", arguments->fine, "Place each op by itself, none fused with its neighbours");
  command
      ->add_option("--time-limit", arguments->seconds,
                   "Seconds of milp (with the search that it begins with) or search; left out: 60 and 2, with --stages "
                   "30")
      ->check(between(0.001, 86400));
  const CLI::Option* seed = add_seed_option(*command, arguments->seed, "Of the random numbers of search");
  command->add_flag("--json", arguments->json, "Print one JSON object, with the start and end of each op");
  for (const char* of_graph : {"--training", "--no-coarsen", "--seed"}) stages->excludes(of_graph);
  command->callback([config_arguments, arguments, seed, &selection] {
    selection.local = [config_arguments, arguments, seed]() -> Status {
      LANCET_TRY(check_options_of_search(*arguments, seed->count() > 0));
      LANCET_ASSIGN(const config::Config config, load_config(*config_arguments));
      return place(config, *arguments);
    };
  });
}

}  // namespace lancet::cli
