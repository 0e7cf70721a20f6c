// Expands an experiment's grids into points, and makes their ids.
//
// Each grid is the product of its models, gates, ranks and policies, in this order. A point's config is the model's
// file with the overrides of the model, the gate, the grid and the policy, the last one winning.
//
// A point's id is a 64-bit hash of a text of all that read_experiment() names. New config fields change no id, since
// fields that have their defaults are left out. The config of a measured point is first reduced to what measure() runs.
#include "lancet/experiment/experiment.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <tuple>

#include "json_file.h"
#include "lancet/base/atomic_file.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/base/shipped_files.h"
#include "lancet/base/shown.h"
#include "lancet/planner/planner.h"
#include "lancet/planning/plan_file.h"
#include "machine.h"

namespace lancet::experiment {
namespace {

using nlohmann::json;

constexpr std::size_t most_points = 100'000;

// Returns the fields of a config that differ from the defaults, as JSON text.
std::string choices_in(const config::Config& config) {
  const json all = json_of(config::to_json(config)), defaults = json_of(config::to_json(config::Config{}));
  json choices;
  for (const auto& [section, value] : all.items()) {
    if (!value.is_object()) {
      if (value != defaults.value(section, json())) choices[section] = value;
      continue;
    }
    for (const auto& [field, set] : value.items())
      if (!defaults.contains(section) || set != defaults[section].value(field, json())) choices[section][field] = set;
  }
  return json_text(choices, {.ascii = true});
}

// Returns the config that measure() runs, without saving, evaluation and generation.
config::Config as_measured(config::Config config) {
  const config::Train defaults;
  config.train.save_minutes = 0, config.train.save_interval = 0;
  config.train.keep_last = defaults.keep_last, config.train.save_buffer_mb = defaults.save_buffer_mb;
  config.train.eval_interval = 0, config.train.sample_tokens = 0;
  return config;
}

Result<std::filesystem::path> find_experiment(const std::filesystem::path& file) {
  std::vector<std::filesystem::path> places = shipped_places(file);
  if (!file.has_parent_path() && file.extension() != ".json")
    for (const auto& place : shipped_places("configs/experiments/" + file.string() + ".json")) places.push_back(place);
  std::vector<std::filesystem::path> files = places;  // a sweep's --out may have made a folder of the same name
  std::error_code ignored;
  std::erase_if(files, [&](const auto& place) { return is_directory(place, ignored); });
  const std::filesystem::path found = first_there(files);
  if (found.empty())
    return config_error(fmt::format("{}: expected an experiment, found none at {}", file.string(), either_of(places)));
  return found;
}

constexpr const char* settings_inline =
    "\"settings\": {\"models\": {\"NAME\": {\"config\": \"FILE\"}}, "
    "\"policies\": {\"NAME\": {\"set\": [\"overlap.policy=lancet\"]}}}";

Result<JsonFile> settings_of(const JsonFile& file) {
  const json& root = file.root();
  if (root.contains("settings") && root["settings"].is_object()) return file.part(root["settings"], "settings");
  if (root.contains("settings") && !root["settings"].is_string())
    return file.fail("settings", std::string("the name of a file, or an object: ") + settings_inline,
                     shown(root["settings"]));
  const bool named = root.contains("settings");
  const std::filesystem::path name = named ? root["settings"].get<std::string>() : "settings.json";
  std::vector<std::filesystem::path> places{file.folder() / name};
  if (named)
    for (const std::filesystem::path& place : shipped_places(name))
      if (place != places.front()) places.push_back(place);
  const std::filesystem::path found = first_there(places);
  if (found.empty())
    return file.fail("settings",
                     fmt::format("a file{} that says what its models and policies mean, or, in place of a name, {}",
                                 named ? "" : " settings.json beside it", settings_inline),
                     "none at " + either_of(places));
  return JsonFile::read(found, "the settings of an experiment");
}

// One combination of a grid's lists.
struct Choice {
  std::string on, label, model, gate, policy;
  std::string variation;  // of the hardware file's numbers
  int ranks = 1;
  double imbalance = 1;
};

class Reader {
 public:
  Reader(const JsonFile& file, const JsonFile& settings, std::string on, Identity identity, std::string profile)
      : file_(file),
        settings_(settings),
        on_(std::move(on)),
        identity_(std::move(identity)),
        profile_path_(std::move(profile)) {}

  Status read(Experiment& experiment) {
    const json& root = file_.root();
    if (!profile_path_.empty()) {
      LANCET_ASSIGN(profile_, cost::read_profile(profile_path_));
    }
    LANCET_TRY(settings_.object(settings_.root(), "the settings", {"models", "policies"}));
    LANCET_ASSIGN(experiment.title, file_.text(root, "title", "the experiment"));
    LANCET_ASSIGN(experiment.rate, file_.text(root, "rate", "the experiment", "200mbit"));
    LANCET_ASSIGN(experiment.warmup, file_.count(root, "warmup", "the experiment", 2, 0, 10000));
    LANCET_ASSIGN(experiment.steps, file_.count(root, "steps", "the experiment", 5, 1, 10000));
    if (root.contains("time_planning") && !root["time_planning"].is_boolean())
      return file_.fail("the experiment.time_planning", "true or false", shown(root["time_planning"]));
    experiment.time_planning = root.value("time_planning", false);
    if (!root.contains("grids") || !root["grids"].is_array() || root["grids"].empty())
      return file_.fail("grids", "a list of grids", root.contains("grids") ? shown(root["grids"]) : "none");
    for (std::size_t i = 0; i < root["grids"].size(); ++i)
      LANCET_TRY(read_grid(root["grids"][i], fmt::format("grids[{}]", i), experiment));
    return {};
  }

 private:
  Status read_grid(const json& grid, const std::string& where, Experiment& experiment) {
    LANCET_TRY(file_.object(grid, where,
                            {"on", "label", "models", "gates", "ranks", "policies", "set", "routing", "hardware"}));
    Choice choice;
    LANCET_ASSIGN(choice.on, file_.text(grid, "on", where));
    if (!on_.empty()) choice.on = on_;
    LANCET_ASSIGN(Names variations, file_.texts(grid, "hardware", where, false));
    if (variations.empty()) variations.push_back("");
    LANCET_ASSIGN(choice.label, file_.text(grid, "label", where, ""));
    LANCET_ASSIGN(const Names models, file_.texts(grid, "models", where, true));
    LANCET_ASSIGN(const Names gates, file_.texts(grid, "gates", where, true));
    LANCET_ASSIGN(const Names policies, file_.texts(grid, "policies", where, true));
    LANCET_ASSIGN(const Names set, file_.texts(grid, "set", where, false));
    LANCET_ASSIGN(const std::vector<int> ranks, read_ranks(grid, where));
    LANCET_ASSIGN(choice.imbalance, read_imbalance(grid, where));
    for (const std::string& variation : variations)
      for (const std::string& model : models)
        for (const std::string& gate : gates)
          for (int count : ranks)
            for (const std::string& policy : policies) {
              choice.variation = variation, choice.model = model, choice.gate = gate, choice.policy = policy;
              choice.ranks = count;
              LANCET_TRY(add(choice, set, where, experiment));
            }
    return {};
  }

  Result<std::vector<int>> read_ranks(const json& grid, const std::string& where) const {
    const bool list = grid.contains("ranks") && grid["ranks"].is_array() && !grid["ranks"].empty();
    if (!list)
      return file_.fail(where + ".ranks", "a list of integers", grid.contains("ranks") ? shown(grid["ranks"]) : "none");
    std::vector<int> ranks;
    for (const json& item : grid["ranks"]) {
      if (!item.is_number_integer() || item < 1 || item > 65536)
        return file_.fail(where + ".ranks", "integers from 1 to 65536", shown(item));
      ranks.push_back(item.get<int>());
    }
    return ranks;
  }

  Result<double> read_imbalance(const json& grid, const std::string& where) const {
    const json routing = grid.value("routing", json("even"));
    if (routing == "even") return 1.0;
    const bool object = routing.is_object() && routing.size() == 1 && routing.contains("imbalance");
    if (!object || !routing["imbalance"].is_number() || !(routing["imbalance"] >= 1 && routing["imbalance"] <= 1000))
      return file_.fail(where + ".routing", "\"even\" or {\"imbalance\": a number from 1 to 1000}", shown(routing));
    return routing["imbalance"].get<double>();
  }

  // Sets how the tokens of a simulated point spread over the experts. In real runs the gate decides.
  Status spread(const Choice& choice, const json& policy, const std::string& where, Point& point) const {
    const json padded = policy.value("padded", json(false));
    if (!padded.is_boolean())
      return settings_.fail("policies." + choice.policy + ".padded", "true or false", shown(padded));
    const auto mesh = config::make_mesh(point.config, point.ranks);
    if (!mesh.ok()) return file_.fail(where, "a mesh that fits the ranks", mesh.error().message);
    if (const auto& counts = point.config.mesh.expert_counts; point.source == Source::simulated && !counts.empty())
      return file_.fail(where, "mesh.expert_counts = [] where points are simulated",
                        fmt::format("[{}]", fmt::join(counts, ", ")));
    const std::int64_t experts = point.config.model.experts((*mesh)[mesh::Axis::expert]);
    const config::Model& model = point.config.model;
    // Experts that choose fill all their slots.
    const double slots = model.experts_choose() ? 1 : model.kept_factor();
    point.spread = {.imbalance = choice.imbalance,
                    .capacity = std::min(slots, double(experts) / double(model.num_experts_per_tok)),
                    .padded = padded.get<bool>()};
    if (point.source == Source::simulated || (choice.imbalance == 1 && !padded.get<bool>())) return {};
    return file_.fail(where,
                      "even routing and no padding where points are run, since only simulations can be given others",
                      point.describe());
  }

  // Returns the settings' entry of a name. kind: "models" or "policies".
  Result<const json*> setting(const char* kind, const std::string& name, const std::string& where,
                              const Names& known) const {
    const json& root = settings_.root();
    if (!root.contains(kind) || !root[kind].is_object())
      return settings_.fail(kind, "an object", root.contains(kind) ? shown(root[kind]) : "none");
    if (!root[kind].contains(name)) {
      Names names;
      for (const auto& [there, _] : root[kind].items()) names.push_back(there);
      return file_.fail(fmt::format("{}.{}", where, kind), fmt::format("some of {}", fmt::join(names, ", ")),
                        shown(name));
    }
    LANCET_TRY(settings_.object(root[kind][name], fmt::format("{}.{}", kind, name), known));
    return &root[kind][name];
  }

  Result<std::string> config_of(const json& model, const std::string& where) const {
    LANCET_ASSIGN(const std::filesystem::path name, settings_.text(model, "config", where));
    std::vector<std::filesystem::path> places = shipped_places(name);
    if (name.is_relative()) places.insert(places.begin() + 1, settings_.folder() / name);
    const std::filesystem::path found = first_there(places);
    if (found.empty()) return settings_.fail(where + ".config", "a config file at " + either_of(places), "none");
    return found.string();
  }

  Status add(const Choice& choice, const Names& set, const std::string& where, Experiment& experiment) {
    if (experiment.points.size() >= most_points)
      return file_.fail(where, fmt::format("at most {} points", most_points), "more");
    Point point;
    std::tie(point.on, point.variation) = cost::split_changes(choice.on);
    if (!choice.variation.empty()) point.variation += (point.variation.empty() ? "" : ",") + choice.variation;
    point.label = choice.label, point.model = choice.model, point.gate = choice.gate;
    point.policy = choice.policy, point.ranks = choice.ranks;
    point.source = point.on == "this"       ? Source::measured
                   : point.on == "emulated" ? Source::emulated
                                            : Source::simulated;
    LANCET_ASSIGN(const std::string hardware, place(point));
    LANCET_ASSIGN(const json* model, setting("models", choice.model, where, {"config", "set"}));
    LANCET_ASSIGN(const json* policy, setting("policies", choice.policy, where, {"set", "padded", "plan"}));
    LANCET_ASSIGN(point.config_file, config_of(*model, "models." + choice.model));
    LANCET_ASSIGN(point.overrides, settings_.texts(*model, "set", "models." + choice.model, false));
    LANCET_ASSIGN(const Names of_policy, settings_.texts(*policy, "set", "policies." + choice.policy, false));
    point.overrides.push_back("model.router=" + choice.gate);
    for (const Names* more : {&set, &of_policy})
      point.overrides.insert(point.overrides.end(), more->begin(), more->end());
    auto config = config::load(point.config_file, point.overrides);
    if (!config.ok()) return file_.fail(where, "a valid config", config.error().message);
    if (const Status fits = config::check(*config, point.ranks); !fits.ok())
      return file_.fail(fmt::format("{} ({} ranks)", where, point.ranks), "a config that fits them",
                        fits.error().message);
    if (const Status known = planner::check_policy(config->overlap.policy); !known.ok())
      return file_.fail(fmt::format("{}, policy {}", where, choice.policy), "a policy of this build",
                        known.error().message);
    point.config = *std::move(config);
    point.config.log.run_dir.clear();
    LANCET_TRY(spread(choice, *policy, where, point));
    if (profile_) LANCET_TRY(measured(where, point));
    LANCET_ASSIGN(const std::string plan, plan_of(*policy, choice, where, point));
    point.id = id_of(point, hardware, plan, experiment);
    experiment.points.push_back(std::move(point));
    return {};
  }

  // Attaches the profile. Its op times hold for even routing only, and a measured point has times of its own.
  Status measured(const std::string& where, Point& point) {
    if (point.source != Source::simulated || point.spread.imbalance != 1 || point.spread.padded)
      return file_.fail(where, "simulated points of even routing, without padding, where --profile is given",
                        point.describe() + (point.spread.padded ? ", padded" : ""));
    const auto& [device, cluster] = profile_->machine;
    if (profile_->ops.empty() || (point.config.threads > 0 && point.config.threads != device.threads))
      return config_error(
          fmt::format("{}: expected ops{}, found {} of {}", profile_path_,
                      point.config.threads > 0 ? fmt::format(" measured with threads={}", point.config.threads) : "",
                      profile_->ops.size(), cost::to_string(device)));
    const bool same_layout = cluster.ranks == point.ranks && cluster.hosts == point.hosts;
    std::shared_ptr<const cost::Profile>& known = same_layout ? whole_ : ops_alone_;
    if (!known)
      known = std::make_shared<const cost::Profile>(same_layout ? *profile_
                                                                : profile_->on({device, {"of another layout"}}));
    point.measured = known;
    return {};
  }

  // Sets the point's plan file and returns its text; empty if the policy names none.
  Result<std::string> plan_of(const json& policy, const Choice& choice, const std::string& where, Point& point) const {
    LANCET_ASSIGN(point.plan, settings_.text(policy, "plan", "policies." + choice.policy, ""));
    if (point.plan.empty()) return std::string();
    if (point.source != Source::simulated)
      return file_.fail(where, "simulated points where a policy is a plan file", point.describe());
    auto text = read_file(point.plan, "a plan, as lancet plan --out writes it");
    if (!text.ok())
      return settings_.fail("policies." + choice.policy + ".plan", "the path of a plan file", text.error().message);
    if (const auto plan = planning::read_plan(point.plan, point.config, point.ranks); !plan.ok())
      return settings_.fail("policies." + choice.policy + ".plan", "a plan of " + point.describe(),
                            plan.error().message);
    return text;
  }

  std::string id_of(const Point& point, const std::string& hardware, const std::string& plan,
                    const Experiment& experiment) const {
    const bool simulated = point.source == Source::simulated;
    const std::string how =
        simulated ? fmt::format("{}|{}|{}", identity_.simulator, experiment.time_planning, point.routing())
                  : fmt::format("{}|{}|{}|{}", identity_.machine, experiment.warmup, experiment.steps,
                                point.source == Source::emulated ? experiment.rate : "");
    std::string measured = point.measured ? "|" + point.measured->identity() : "";
    if (!plan.empty()) measured += "|" + hex(hash64(plan));
    return hex(hash64(fmt::format("{}|{}|{}|{}|{}|{}|{}|{}|{}|{}{}", how, hardware, point.on, point.ranks, point.hosts,
                                  point.label, point.model, point.gate, point.policy,
                                  choices_in(simulated ? point.config : as_measured(point.config)), measured)));
  }

  // Sets the number of hosts and returns the text that identifies the hardware.
  Result<std::string> place(Point& point) {
    if (point.source == Source::simulated) {
      if (!hardware_ || hardware_->first != point.hardware()) {
        LANCET_ASSIGN(cost::Hardware found, cost::read_hardware(point.hardware()));
        hardware_ = {point.hardware(), std::move(found)};
      }
      point.hosts = hardware_->second.nodes(point.ranks);
      return hardware_->second.identity;
    }
    if (!point.variation.empty())
      return file_.fail("hardware", "no changes to numbers where points are run", shown(point.variation));
    point.hosts = point.source == Source::emulated ? point.ranks : 1;
    return std::string(point.on);
  }

  const JsonFile& file_;
  const JsonFile& settings_;
  const std::string on_;
  const Identity identity_;
  const std::string profile_path_;  // empty: none
  std::optional<cost::Profile> profile_;
  std::shared_ptr<const cost::Profile> whole_, ops_alone_;          // of profile_, shared by the points
  std::optional<std::pair<std::string, cost::Hardware>> hardware_;  // the last one that was read
};

}  // namespace

std::string_view name(Source source) {
  return source == Source::simulated ? "simulated" : source == Source::measured ? "measured" : "emulated";
}

std::string Point::describe() const {
  return fmt::format("{}{}, {}, {}, {} rank{}, {}{}", hardware(), label.empty() ? "" : ", " + label, model, gate, ranks,
                     ranks == 1 ? "" : "s", policy,
                     spread.imbalance == 1 ? "" : fmt::format(", imbalance {:g}", spread.imbalance));
}

std::string Point::routing() const {
  if (source != Source::simulated) return "as the gate decides on synthetic tokens";
  std::string text = "even: every expert gets the same tokens, none is dropped";
  if (spread.imbalance != 1)
    text =
        fmt::format("imbalance {:g}: the fullest expert is chosen by so many times the mean; {:.1f}% of the tokens fit",
                    spread.imbalance, 100 * spread.kept() * std::min(spread.capacity, 1.0));
  return spread.padded ? text + "; whole buffers are sent and multiplied" : text;
}

Identity Identity::here() { return {std::string(simulator_build()), processor_name()}; }

Result<Experiment> read_experiment(const std::filesystem::path& path, const std::string& on, const Identity& identity,
                                   const std::filesystem::path& profile) {
  LANCET_ASSIGN(const std::filesystem::path found, find_experiment(path));
  LANCET_ASSIGN(const JsonFile file, JsonFile::read(found, "an experiment"));
  LANCET_TRY(file.object(file.root(), "the experiment",
                         {"title", "settings", "warmup", "steps", "time_planning", "rate", "grids"}));
  LANCET_ASSIGN(const JsonFile settings, settings_of(file));
  Experiment experiment;
  experiment.name = found.stem().string();
  LANCET_TRY(Reader(file, settings, on, identity, profile.string()).read(experiment));
  return experiment;
}

}  // namespace lancet::experiment
