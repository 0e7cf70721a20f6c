// Reads the hardware file: {"what": ..., "device": {"memory_gib": {"value": 32, "source": "..."}, ...}, ...}. A number
// without a source is an error.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>

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
};
struct Curve {
  const char* name;
  std::vector<Efficiency>& (*member)(Hardware&);
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
    FIELD(node, link_efficiency, least_share, 1),
    FIELD(node, latency_us, 0, most_rate),
    FIELD(network, nics, 1, 4096),
    FIELD(network, nic_gbit_per_s, least_rate, most_rate),
    FIELD(network, efficiency, least_share, 1),
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
    {"fp32_efficiency", [](Hardware& h) -> std::vector<Efficiency>& { return h.device.fp32_efficiency; }},
    {"bf16_efficiency", [](Hardware& h) -> std::vector<Efficiency>& { return h.device.bf16_efficiency; }},
};
constexpr const char* sections[] = {"device", "node", "network", "overlap"};

class Parser {
 public:
  explicit Parser(std::string_view origin) : origin_(origin) {}

  Result<Hardware> operator()(std::string_view text) {
    LANCET_ASSIGN(const json root, parse_json(text, origin_, ExitCode::config, JsonComments::ignored));
    Hardware hardware;
    LANCET_TRY(known(root, "", {"what", "device", "node", "network", "overlap"}));
    LANCET_TRY(read_text(root, "what", hardware.what));
    for (const char* section : sections) LANCET_TRY(read_section(root, section, hardware));
    if (hardware.node.devices != double(int(hardware.node.devices)))
      return fail("node.devices", "an integer", fmt::format("{}", hardware.node.devices));
    hardware.name = std::filesystem::path(origin_).stem().string();
    hardware.identity = hex(hash64(json_text(root, {.ascii = true})));
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

  Status read_section(const json& root, const std::string& section, Hardware& hardware) const {
    if (!root.contains(section)) return fail(section, "an object of numbers with their sources", "none");
    std::vector<std::string> names;
    for (const Field& field : fields)
      if (section == field.section) names.push_back(field.name);
    for (const Curve& curve : curves)
      if (section == "device") names.push_back(curve.name);
    LANCET_TRY(known(root[section], section, names));
    for (const Field& field : fields)
      if (section == field.section) LANCET_TRY(read_number(root[section], field, hardware));
    for (const Curve& curve : curves)
      if (section == "device") LANCET_TRY(read_curve(root[section], curve, hardware));
    return {};
  }

  // The JSON value under `key` of the field `name`, after checking that the field states its source.
  Result<const json*> sourced(const json& section, const std::string& where, const char* name, const char* key) const {
    if (!section.contains(name)) return fail(where, "a number with its source", "none");
    const json& value = section[name];
    LANCET_TRY(known(value, where, {key, "source"}));
    if (!value.contains(key)) return fail(where + "." + key, "a number", "none");
    if (!value.contains("source") || !value["source"].is_string() || value["source"].get<std::string>().empty())
      return fail(where + ".source", "where the number comes from", "none");
    return &value[key];
  }

  Status read_number(const json& section, const Field& field, Hardware& hardware) const {
    const std::string where = fmt::format("{}.{}", field.section, field.name);
    LANCET_ASSIGN(const json* number, sourced(section, where, field.name, "value"));
    if (!number->is_number() || !(number->get<double>() >= field.least && number->get<double>() <= field.most))
      return fail(where + ".value", fmt::format("a number from {} to {}", field.least, field.most), shown(*number));
    field.member(hardware) = number->get<double>();
    return {};
  }

  Status read_curve(const json& section, const Curve& curve, Hardware& hardware) const {
    const std::string where = fmt::format("device.{}", curve.name);
    LANCET_ASSIGN(const json* points, sourced(section, where, curve.name, "points"));
    std::vector<Efficiency>& into = curve.member(hardware);
    if (!points->is_array() || points->empty()) return fail(where + ".points", "a list of [n, share]", shown(*points));
    for (const json& point : *points) {
      const bool pair = point.is_array() && point.size() == 2 && point[0].is_number() && point[1].is_number();
      const Efficiency e = pair ? Efficiency{point[0].get<double>(), point[1].get<double>()} : Efficiency{};
      const double before = into.empty() ? 0 : into.back().n;
      if (!pair || !(e.n > before && e.n <= most_rate && e.share >= least_share && e.share <= 1))
        return fail(where + ".points", "[n, share] with rising n and a share of the peak in [0.001, 1]", shown(point));
      into.push_back(e);
    }
    return {};
  }

  const std::string origin_;
};

const std::filesystem::path folder = "configs/hardware";

std::string names_there() {
  std::set<std::string> names;
  std::error_code error;
  for (const std::filesystem::path& place : shipped_places(folder))
    for (const auto& entry : std::filesystem::directory_iterator(place, error))
      if (entry.path().extension() == ".json") names.insert(entry.path().stem().string());
  return names.empty() ? "" : fmt::format(" or one of {}", fmt::join(names, ", "));
}

}  // namespace

Result<Hardware> parse_hardware(std::string_view text, std::string_view origin) { return Parser(origin)(text); }

Result<Hardware> read_hardware(const std::string& name_or_path) {
  const bool is_path = name_or_path.ends_with(".json") || name_or_path.find('/') != std::string::npos;
  const std::filesystem::path path = is_path ? std::filesystem::path(name_or_path) : folder / (name_or_path + ".json");
  const std::filesystem::path found = find_shipped(path);
  if (found.empty())
    return config_error(fmt::format("hardware: expected a file{}, found '{}', which is not at {}", names_there(),
                                    name_or_path, either_of(shipped_places(path))));
  auto text = read_file(found, "a hardware file");
  if (!text.ok()) return config_error(text.error().message);
  return parse_hardware(*text, found.string());
}

}  // namespace lancet::cost
