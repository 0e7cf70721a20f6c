// Reads the hardware file: {"what": ..., "device": {"memory_gib": {"value": 32, "source": "..."}, ...}, ...}. A number
// without a source is an error. Curves and tables have "points" in place of "value". The "low" and "high" ends of a
// number that is not known exactly are for scripts/bench, which writes files with other values, and are not read here.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>

#include "lancet/base/files.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
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

#define FIELD(section, name, least, most)                                                \
  Field {                                                                                \
#section, #name, [](Hardware & h) -> double& { return h.section.name; }, least, most \
  }
constexpr Field fields[] = {
    FIELD(device, memory_gib, least_rate, most_rate),
    FIELD(device, reserved_gib, 0, most_rate),
    FIELD(device, memory_gb_per_s, least_rate, most_rate),
    FIELD(device, memory_efficiency, least_share, 1),
    FIELD(device, fp32_tflops, least_rate, most_rate),
    FIELD(device, bf16_tflops, least_rate, most_rate),
    FIELD(device, vector_tflops, least_rate, most_rate),
    FIELD(device, attention_efficiency, least_share, 1),
    FIELD(device, launch_us, 0, most_rate),
    FIELD(node, devices, 1, 4096),
    FIELD(node, link_gb_per_s, least_rate, most_rate),
    FIELD(node, latency_us, 0, most_rate),
    FIELD(network, nics, 1, 4096),
    FIELD(network, nic_gbit_per_s, least_rate, most_rate),
    FIELD(network, latency_us, 0, most_rate),
    FIELD(network, hop_us, 0, most_rate),
    FIELD(network, message_us, 0, most_rate),
    FIELD(overlap, core_share, 0, 1),
    FIELD(overlap, core_ms_per_mb, 0, most_rate),
    FIELD(overlap, network_beside_compute, least_share, 1),
    FIELD(overlap, network_beside_network, least_share, 1),
    FIELD(overlap, signal_us, 0, most_rate),
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
  Parser(std::string_view origin, std::string_view values) : origin_(origin), values_text_(values) {}

  Result<Hardware> operator()(std::string_view text) {
    LANCET_ASSIGN(const json root, parse_json(text, origin_, ExitCode::config, JsonComments::ignored));
    LANCET_TRY(parse_values());
    Hardware hardware;
    LANCET_TRY(known(root, "", {"what", "device", "node", "network", "overlap"}));
    LANCET_TRY(read_text(root, "what", hardware.what));
    for (const char* section : sections) LANCET_TRY(read_section(root, section, hardware));
    if (hardware.device.reserved_gib > hardware.device.memory_gib)
      return fail("device.reserved_gib", fmt::format("at most device.memory_gib = {}", hardware.device.memory_gib),
                  fmt::format("{}", hardware.device.reserved_gib));
    if (hardware.node.devices != double(int(hardware.node.devices)))
      return fail("node.devices", "an integer", fmt::format("{}", hardware.node.devices));
    if (!values_.empty()) return wrong_value(values_.begin()->first);
    const std::string suffix = values_text_.empty() ? "" : ":" + values_text_;
    hardware.name = std::filesystem::path(origin_).stem().string() + suffix;
    hardware.identity = hex(hash64(json_text(root, {.ascii = true}) + suffix));
    return hardware;
  }

 private:
  Error fail(const std::string& where, const std::string& expected, const std::string& found) const {
    return config_error(fmt::format("{}: {}: expected {}, found {}", origin_, where, expected, found));
  }

  static Error wrong_value(const std::string& text) {
    return config_error(
        "hardware: expected values behind a name as in NAME:network.latency_us=50,device.fp32_tflops=10, found " +
        shown(text));
  }

  Status parse_values() {
    for (std::size_t at = 0; at < values_text_.size();) {
      const std::size_t comma = std::min(values_text_.find(',', at), values_text_.size());
      const std::string text = values_text_.substr(at, comma - at), number = text.substr(text.find('=') + 1);
      char* end = nullptr;
      const double value = std::strtod(number.c_str(), &end);
      if (number.empty() || number.size() == text.size() || *end != '\0' || !std::isfinite(value))
        return wrong_value(text);
      values_[text.substr(0, text.find('='))] = value;
      at = comma + 1;
    }
    return {};
  }

  // Takes the value of a field out of those behind the name; nothing if it has none there.
  std::optional<double> value_of(const std::string& field) {
    const auto found = values_.find(field);
    if (found == values_.end()) return std::nullopt;
    const double value = found->second;
    values_.erase(found);
    return value;
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

  // The value of a field: what the file has at the key, "value" or "points".
  Result<json> read_field(const json& section, const std::string& where, const char* name, const char* key) const {
    if (!section.contains(name)) return fail(where, "a number with its source", "none");
    const json& field = section[name];
    LANCET_TRY(known(field, where, {key, "low", "high", "source"}));
    if (!field.contains(key)) return fail(where + "." + key, "a number", "none");
    if (!field.contains("source") || !field["source"].is_string() || field["source"].get<std::string>().empty())
      return fail(where + ".source", "where the number comes from", "none");
    return field[key];
  }

  Status read_number(const json& section, const Field& field, Hardware& hardware) {
    const std::string where = fmt::format("{}.{}", field.section, field.name);
    LANCET_ASSIGN(json value, read_field(section, where, field.name, "value"));
    if (const auto other = value_of(where)) value = *other;
    if (!value.is_number() || !(value.get<double>() >= field.least && value.get<double>() <= field.most))
      return fail(where + ".value", fmt::format("a number from {} to {}", field.least, field.most), shown(value));
    field.member(hardware) = value.get<double>();
    return {};
  }

  // Replaces the shares of a curve or a table by the value behind the name.
  template <class Points>
  Status replace_shares(const std::string& where, Points& points) {
    const auto share = value_of(where);
    if (!share) return {};
    if (!(*share >= least_share && *share <= 1)) return fail(where, "shares in [0.001, 1]", fmt::format("{}", *share));
    for (auto& point : points) point.share = *share;
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
    LANCET_ASSIGN(const json list, read_field(section, where, curve.name, "points"));
    std::vector<Efficiency> points;
    for (const auto& row : rows_of(list, 2)) points.push_back({row[0], row[1]});
    const auto falls = [](const Efficiency& a, const Efficiency& b) { return a.n >= b.n; };
    if (points.empty() || std::adjacent_find(points.begin(), points.end(), falls) != points.end())
      return fail(where + ".points", "a list of [n, share] with rising n and a share of the peak in [0.001, 1]",
                  shown(list));
    LANCET_TRY(replace_shares(where, points));
    curve.member(hardware) = std::move(points);
    return {};
  }

  Status read_table(const json& section, const Table& table, Hardware& hardware) {
    const std::string where = fmt::format("{}.{}", table.section, table.name);
    const std::string places = table.section == std::string("node") ? "devices" : "nodes";
    LANCET_ASSIGN(const json list, read_field(section, where, table.name, "points"));
    LinkShares shares;
    for (const auto& row : rows_of(list, 3)) shares.push_back({row[0], row[1], row[2]});
    const auto falls = [](const LinkShare& a, const LinkShare& b) {
      return std::pair(a.places, a.mb) >= std::pair(b.places, b.mb);
    };
    if (shares.empty() || std::adjacent_find(shares.begin(), shares.end(), falls) != shares.end())
      return fail(
          where + ".points",
          fmt::format("a list of [{0}, MB, share] in rising order of {0} and MB, with shares in [0.001, 1]", places),
          shown(list));
    LANCET_TRY(replace_shares(where, shares));
    table.member(hardware) = std::move(shares);
    return {};
  }

  const std::string origin_, values_text_;
  std::map<std::string, double> values_;  // by SECTION.FIELD: those behind the name that no field has taken yet
};

}  // namespace

std::pair<std::string, std::string> split_values(const std::string& hardware) {
  const std::size_t colon = std::min(hardware.find(':'), hardware.size());
  return {hardware.substr(0, colon), colon < hardware.size() ? hardware.substr(colon + 1) : ""};
}

Result<Hardware> parse_hardware(std::string_view text, std::string_view origin, std::string_view values) {
  return Parser(origin, values)(text);
}

Result<Hardware> read_hardware(const std::string& name_or_path) {
  const auto [name, values] = split_values(name_or_path);
  LANCET_ASSIGN(const ShippedText file, read_shipped_json("hardware", "configs/hardware", name));
  return parse_hardware(file.text, file.path.string(), values);
}

}  // namespace lancet::cost
