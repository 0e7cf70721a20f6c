// Reads the hardware file: {"what": ..., "device": {"memory_gib": {"value": 32, "source": "..."}, ...}, ...}. A number
// without a source is an error. A number that is not known exactly has "low" and "high" besides "value"; curves and
// tables have "points" in place of "value", and their ends are whole lists. Which of the three is taken, and what
// replaces it, is decided by the changes behind the file's name (hardware.h).
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "hardware_changes.h"
#include "lancet/base/atomic_file.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/base/shipped_files.h"
#include "lancet/base/shown.h"
#include "lancet/cost/hardware.h"

namespace lancet::cost {
namespace {

using nlohmann::json;

struct Field {
  const char* section;
  const char* name;
  double& (*member)(Hardware&);
  double least, most;
  Slow slow;
};
struct Curve {
  const char* section;
  const char* name;
  std::vector<Efficiency>& (*member)(Hardware&);
};
struct Table {
  const char* section;
  const char* name;
  LinkShares& (*member)(Hardware&);
};

constexpr double least_rate = 1e-6, most_rate = 1e9;
constexpr double least_share = 1e-3;  // not 0, since times are divided by shares

#define FIELD(section, name, least, most, slow)                                                      \
  Field {                                                                                            \
#section, #name, [](Hardware & h) -> double& { return h.section.name; }, least, most, Slow::slow \
  }
constexpr Field fields[] = {
    FIELD(device, memory_gib, least_rate, most_rate, low),
    FIELD(device, reserved_gib, 0, most_rate, high),
    FIELD(device, memory_gb_per_s, least_rate, most_rate, low),
    FIELD(device, memory_efficiency, least_share, 1, low),
    FIELD(device, fp32_tflops, least_rate, most_rate, low),
    FIELD(device, bf16_tflops, least_rate, most_rate, low),
    FIELD(device, vector_tflops, least_rate, most_rate, low),
    FIELD(device, attention_efficiency, least_share, 1, low),
    FIELD(device, launch_us, 0, most_rate, high),
    FIELD(node, devices, 1, 4096, low),
    FIELD(node, link_gb_per_s, least_rate, most_rate, low),
    FIELD(node, latency_us, 0, most_rate, high),
    FIELD(network, nics, 1, 4096, low),
    FIELD(network, nic_gbit_per_s, least_rate, most_rate, low),
    FIELD(network, latency_us, 0, most_rate, high),
    FIELD(network, hop_us, 0, most_rate, high),
    FIELD(network, message_us, 0, most_rate, high),
    FIELD(overlap, core_share, 0, 1, high),
    FIELD(overlap, core_ms_per_mb, 0, most_rate, high),
    FIELD(overlap, network_beside_compute, least_share, 1, low),
    FIELD(overlap, network_beside_network, least_share, 1, low),
    FIELD(overlap, signal_us, 0, most_rate, high),
};
#undef FIELD
constexpr Curve curves[] = {
    {"device", "fp32_efficiency", [](Hardware& h) -> std::vector<Efficiency>& { return h.device.fp32_efficiency; }},
    {"device", "bf16_efficiency", [](Hardware& h) -> std::vector<Efficiency>& { return h.device.bf16_efficiency; }},
};
constexpr Table tables[] = {
    {"node", "all_to_all_efficiency", [](Hardware& h) -> LinkShares& { return h.node.all_to_all_efficiency; }},
    {"node", "all_reduce_efficiency", [](Hardware& h) -> LinkShares& { return h.node.all_reduce_efficiency; }},
    {"network", "all_to_all_efficiency", [](Hardware& h) -> LinkShares& { return h.network.all_to_all_efficiency; }},
    {"network", "all_reduce_efficiency", [](Hardware& h) -> LinkShares& { return h.network.all_reduce_efficiency; }},
};
constexpr const char* sections[] = {"device", "node", "network", "overlap"};

class Parser {
 public:
  Parser(std::string_view origin, HardwareChanges changes) : origin_(origin), changes_(std::move(changes)) {}

  Result<Hardware> operator()(std::string_view text) {
    LANCET_ASSIGN(const json root, parse_json(text, origin_, ExitCode::config, JsonComments::ignored));
    Hardware hardware;
    LANCET_TRY(known(root, "", {"what", "device", "node", "network", "overlap"}));
    LANCET_TRY(read_text(root, "what", hardware.what));
    for (const char* section : sections) LANCET_TRY(read_section(root, section, hardware));
    if (hardware.node.devices != double(int(hardware.node.devices)))
      return fail("node.devices", "an integer", fmt::format("{}", hardware.node.devices));
    LANCET_TRY(changes_.all_used());
    hardware.name = std::filesystem::path(origin_).stem().string() + changes_.suffix();
    hardware.identity = hex(hash64(json_text(root, {.ascii = true}) + changes_.suffix()));
    return hardware;
  }

 private:
  Error fail(const std::string& where, const std::string& expected, const std::string& found) const {
    return config_error(fmt::format("{}: {}: expected {}, found {}", origin_, where, expected, found));
  }

  Status known(const json& value, const std::string& where, const std::vector<std::string>& names) const {
    if (!value.is_object()) return fail(where.empty() ? "the file" : where, "an object", value.type_name());
    for (const auto& [name, _] : value.items())
      if (std::find(names.begin(), names.end(), name) == names.end())
        return fail((where.empty() ? "" : where + ".") + cut(name, 60),
                    fmt::format("one of {}", fmt::join(names, ", ")), "this field");
    return {};
  }

  Status read_text(const json& root, const char* name, std::string& into) const {
    if (!root.contains(name) || !root[name].is_string() || root[name].get<std::string>().empty())
      return fail(name, "a text", root.contains(name) ? shown(root[name]) : "none");
    into = root[name].get<std::string>();
    return {};
  }

  Status read_section(const json& root, const std::string& section, Hardware& hardware) {
    if (!root.contains(section)) return fail(section, "an object of numbers with their sources", "none");
    std::vector<std::string> names;
    const auto in_section = [&](const auto& all, const auto& read) -> Status {
      for (const auto& entry : all)
        if (section == entry.section) LANCET_TRY(read(entry));
      return {};
    };
    const auto add_name = [&](const auto& entry) -> Status { return names.push_back(entry.name), Status(); };
    LANCET_TRY(in_section(fields, add_name));
    LANCET_TRY(in_section(curves, add_name));
    LANCET_TRY(in_section(tables, add_name));
    LANCET_TRY(known(root[section], section, names));
    LANCET_TRY(in_section(fields, [&](const Field& f) { return read_number(root[section], f, hardware); }));
    LANCET_TRY(in_section(curves, [&](const Curve& c) { return read_curve(root[section], c, hardware); }));
    return in_section(tables, [&](const Table& t) { return read_table(root[section], t, hardware); });
  }

  // The three values of a field: [low, nominal, high], all equal without a band. key: "value" or "points". parse:
  // converts the JSON value at a place into the field's value.
  template <class Value, class Parse>
  Result<std::array<Value, 3>> read_band(const json& section, const std::string& where, const char* name,
                                         const char* key, const Parse& parse) const {
    if (!section.contains(name)) return fail(where, "a number with its source", "none");
    const json& field = section[name];
    LANCET_TRY(known(field, where, {key, "low", "high", "source"}));
    if (!field.contains(key)) return fail(where + "." + key, "a number", "none");
    if (!field.contains("source") || !field["source"].is_string() || field["source"].get<std::string>().empty())
      return fail(where + ".source", "where the number comes from", "none");
    if (field.contains("low") != field.contains("high")) return fail(where, "both of low and high, or none", "one");
    std::array<Value, 3> band;
    for (std::size_t i = 0; i < 3; ++i) {
      const char* from = i == 1 || !field.contains("low") ? key : i == 0 ? "low" : "high";
      LANCET_ASSIGN(band[i], parse(where + "." + from, field[from]));
    }
    return band;
  }

  Status read_number(const json& section, const Field& field, Hardware& hardware) {
    const std::string where = fmt::format("{}.{}", field.section, field.name);
    const std::string expected = fmt::format("a number from {} to {}", field.least, field.most);
    const auto parse = [&](const std::string& at, const json& value) -> Result<double> {
      if (!value.is_number() || !(value.get<double>() >= field.least && value.get<double>() <= field.most))
        return fail(at, expected, shown(value));
      return value.get<double>();
    };
    LANCET_ASSIGN(const auto band, read_band<double>(section, where, field.name, "value", parse));
    if (!std::is_sorted(band.begin(), band.end()))
      return fail(where, "low, value and high in rising order", fmt::format("{}", fmt::join(band, ", ")));
    const double number =
        changes_.applied(field.section, field.name, band[changes_.index(field.section, field.name, field.slow)]);
    if (!(number >= field.least && number <= field.most)) return fail(where, expected, fmt::format("{}", number));
    field.member(hardware) = number;
    return {};
  }

  // Applies the changes to the shares of a curve or a table.
  template <class Points>
  Status change_shares(const std::string& section, const std::string& name, Points& points) {
    for (auto& point : points) {
      point.share = changes_.applied(section, name, point.share);
      if (!(point.share >= least_share && point.share <= 1))
        return fail(section + "." + name, "shares in [0.001, 1]", fmt::format("{}", point.share));
    }
    return {};
  }

  // The rows of a list of lists of `width` numbers, of which the last is a share; empty if it is anything else.
  static std::vector<std::vector<double>> rows_of(const json& list, std::size_t width) {
    std::vector<std::vector<double>> rows;
    if (!list.is_array()) return {};
    for (const json& row : list) {
      const auto is_number = [](const json& value) { return value.is_number(); };
      if (!row.is_array() || row.size() != width || !std::all_of(row.begin(), row.end(), is_number)) return {};
      rows.push_back(row.get<std::vector<double>>());
      const std::vector<double>& last = rows.back();
      if (!(last.back() >= least_share && last.back() <= 1)) return {};
      for (std::size_t i = 0; i + 1 < width; ++i)
        if (!(last[i] > 0 && last[i] <= most_rate)) return {};
    }
    return rows;
  }

  Status read_curve(const json& section, const Curve& curve, Hardware& hardware) {
    const std::string where = fmt::format("{}.{}", curve.section, curve.name);
    const auto parse = [&](const std::string& at, const json& list) -> Result<std::vector<Efficiency>> {
      std::vector<Efficiency> points;
      for (const auto& row : rows_of(list, 2)) points.push_back({row[0], row[1]});
      const auto falls = [](const Efficiency& a, const Efficiency& b) { return a.n >= b.n; };
      if (points.empty() || std::adjacent_find(points.begin(), points.end(), falls) != points.end())
        return fail(at, "a list of [n, share] with rising n and a share of the peak in [0.001, 1]", shown(list));
      return points;
    };
    LANCET_ASSIGN(auto band, read_band<std::vector<Efficiency>>(section, where, curve.name, "points", parse));
    curve.member(hardware) = std::move(band[changes_.index(curve.section, curve.name, Slow::low)]);
    return change_shares(curve.section, curve.name, curve.member(hardware));
  }

  Status read_table(const json& section, const Table& table, Hardware& hardware) {
    const std::string where = fmt::format("{}.{}", table.section, table.name);
    const std::string places = table.section == std::string("node") ? "devices" : "nodes";
    const auto parse = [&](const std::string& at, const json& list) -> Result<LinkShares> {
      LinkShares shares;
      for (const auto& row : rows_of(list, 3)) shares.push_back({row[0], row[1], row[2]});
      const auto falls = [](const LinkShare& a, const LinkShare& b) {
        return std::pair(a.places, a.mb) >= std::pair(b.places, b.mb);
      };
      if (shares.empty() || std::adjacent_find(shares.begin(), shares.end(), falls) != shares.end())
        return fail(
            at,
            fmt::format("a list of [{0}, MB, share] in rising order of {0} and MB, with shares in [0.001, 1]", places),
            shown(list));
      return shares;
    };
    LANCET_ASSIGN(auto band, read_band<LinkShares>(section, where, table.name, "points", parse));
    table.member(hardware) = std::move(band[changes_.index(table.section, table.name, Slow::low)]);
    return change_shares(table.section, table.name, table.member(hardware));
  }

  const std::string origin_;
  HardwareChanges changes_;
};

const std::filesystem::path folder = "configs/hardware";

}  // namespace

Result<Hardware> parse_hardware(std::string_view text, std::string_view origin, std::string_view changes) {
  LANCET_ASSIGN(HardwareChanges parsed, HardwareChanges::parse(changes));
  return Parser(origin, std::move(parsed))(text);
}

Result<Hardware> read_hardware(const std::string& name_or_path) {
  const auto [file, changes] = split_changes(name_or_path);
  const bool is_path = file.ends_with(".json") || file.find('/') != std::string::npos;
  const std::filesystem::path path = is_path ? std::filesystem::path(file) : folder / (file + ".json");
  const std::filesystem::path found = find_shipped(path);
  if (found.empty())
    return config_error(fmt::format("hardware: expected a file{}, found '{}', which is not at {}",
                                    or_shipped_json(folder), file, either_of(shipped_places(path))));
  auto text = read_file(found, "a hardware file");
  if (!text.ok()) return config_error(text.error().message);
  return parse_hardware(*text, found.string(), changes);
}

}  // namespace lancet::cost
