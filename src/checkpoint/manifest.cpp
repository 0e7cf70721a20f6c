#include "lancet/checkpoint/checkpoint.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <set>

#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/base/shown.h"

namespace lancet::checkpoint {
namespace {

using nlohmann::ordered_json;

constexpr int format = 2;
constexpr std::string_view checksum_key = "\"manifest_xxh3\": \"";
constexpr std::string_view no_checksum = "0000000000000000";

constexpr std::size_t hash_digits = 16;
bool parse_hash(const char* digits, std::uint64_t& value) {
  const auto [end, error] = std::from_chars(digits, digits + hash_digits, value, 16);
  return error == std::errc() && end == digits + hash_digits;
}
std::string print_hashes(const std::vector<std::uint64_t>& hashes) {
  std::string text;
  for (const std::uint64_t hash : hashes) text += hex(hash);
  return text;
}

// Reads the fields of a JSON object. It keeps the first error, which finish() returns; finish() also refuses unknown
// keys.
class Fields {
 public:
  Fields(const ordered_json& object, std::string where) : object_(object), where_(std::move(where)) {
    if (!object.is_object()) fail("expected an object {...}");
  }

  std::int64_t whole(const char* name, std::int64_t most = std::int64_t{1} << 53) {
    const ordered_json* value = take(name);
    if (!value) return 0;
    if (!value->is_number_unsigned() || value->get<std::uint64_t>() > std::uint64_t(most))
      return fail(fmt::format("{}: expected a whole number in [0, {}]", name, most)), 0;
    return value->get<std::int64_t>();
  }
  double real(const char* name) {
    const ordered_json* value = take(name);
    if (!value) return 0;
    if (!value->is_number() || !std::isfinite(value->get<double>()))
      return fail(fmt::format("{}: expected a number", name)), 0;
    return value->get<double>();
  }
  std::string text(const char* name) {
    const ordered_json* value = take(name);
    if (!value) return "";
    if (!value->is_string()) return fail(fmt::format("{}: expected a text", name)), "";
    return value->get<std::string>();
  }
  std::uint64_t hash(const char* name) {
    const std::string digits = text(name);
    std::uint64_t value = 0;
    if (digits.size() != hash_digits || !parse_hash(digits.data(), value))
      fail(fmt::format("{}: expected 16 hexadecimal digits", name));
    return value;
  }
  // The hashes are one string of digits without separators: a JSON list would be printed with one line per hash.
  std::vector<std::uint64_t> hashes(const char* name) {
    const std::string digits = text(name);
    std::vector<std::uint64_t> values(digits.size() / hash_digits);
    bool sound = digits.size() % hash_digits == 0;
    for (std::size_t i = 0; sound && i < values.size(); ++i) sound = parse_hash(&digits[i * hash_digits], values[i]);
    if (!sound) fail(fmt::format("{}: expected 16 hexadecimal digits for each tensor", name));
    return values;
  }
  const ordered_json& member(const char* name) {
    static const ordered_json none;
    const ordered_json* value = take(name);
    return value ? *value : none;
  }
  void fail(const std::string& what) {
    if (error_.empty()) error_ = where_ + what;
  }
  Status finish() {
    if (error_.empty() && object_.is_object())
      for (const auto& [key, value] : object_.items())
        if (!taken_.contains(key)) fail("unknown key " + shown(key));
    return error_.empty() ? Status() : Status(data_error(error_));
  }

 private:
  const ordered_json* take(const char* name) {
    taken_.insert(name);
    if (!object_.is_object()) return nullptr;
    const auto at = object_.find(name);
    if (at == object_.end()) fail(fmt::format("expected '{}', found none", name));
    return at == object_.end() ? nullptr : &*at;
  }
  const ordered_json& object_;
  const std::string where_;
  std::set<std::string, std::less<>> taken_;
  std::string error_;
};

Result<std::vector<ShardFile>> read_files(const ordered_json& list, std::string_view origin) {
  if (!list.is_array()) return data_error(fmt::format("{}: files: expected a list", origin));
  std::vector<ShardFile> files;
  std::set<std::string> names;
  for (const ordered_json& entry : list) {
    Fields fields(entry, fmt::format("{}: files: ", origin));
    ShardFile file{fields.text("name"), std::uint64_t(fields.whole("bytes", std::int64_t{1} << 60)),
                   fields.hash("header_xxh3"), fields.hashes("tensors_xxh3")};
    LANCET_TRY(fields.finish());
    if (!is_shard_name(file.name))
      return data_error(fmt::format("{}: files: expected the name of a safetensors file in this folder, found {}",
                                    origin, shown(file.name)));
    if (!names.insert(file.name).second)
      return data_error(fmt::format("{}: files: expected each file once, found {} twice", origin, shown(file.name)));
    files.push_back(std::move(file));
  }
  return files;
}

ordered_json load_json(const LoadHistory& history) {
  return {{"steps", history.steps},
          {"planned", history.planned},
          {"compared", history.compared},
          {"recorded", history.recorded}};
}

Result<LoadHistory> read_load(const ordered_json& json, const std::string& where) {
  LoadHistory history;
  if (json.is_object() && json.contains("fullest_sum")) return history;  // older: two means, which nothing plans from
  Fields fields(json, where + "load: ");
  history.steps = fields.whole("steps");
  const auto read = [&](const char* name) -> Result<LoadHistory::Counts> {
    LoadHistory::Counts counts;
    bool fits = fields.member(name).is_array();
    for (const ordered_json& layers : fits ? fields.member(name) : ordered_json::array()) {
      auto& of_step = counts.emplace_back();
      for (const ordered_json& experts : layers) {
        auto& of_layer = of_step.emplace_back();
        for (const ordered_json& count : experts) of_layer.push_back(count.is_number() ? count.get<double>() : -1);
        fits = fits && !of_layer.empty() && of_layer.size() == counts[0][0].size() && std::ranges::min(of_layer) >= 0 &&
               std::ranges::max(of_layer) > 0;
      }
      fits = fits && !of_step.empty() && of_step.size() == counts[0].size();
    }
    if (fits) return counts;
    return data_error(
        fmt::format("{}load: {}: expected counts of tokens by step, layer and expert, found others", where, name));
  };
  LANCET_ASSIGN(history.planned, read("planned"));
  LANCET_ASSIGN(history.compared, read("compared"));
  LANCET_ASSIGN(history.recorded, read("recorded"));
  LANCET_TRY(fields.finish());
  return history;
}

}  // namespace

bool is_shard_name(std::string_view name) {
  if (name.size() > 200 || name.starts_with('.') || !name.ends_with(".safetensors")) return false;
  return name.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-") == name.npos;
}

std::string to_json(const Manifest& m) {
  ordered_json root{
      {"format", format},
      {"step", m.step},
      {"tokens", m.tokens},
      {"skipped_steps", m.skipped_steps},
      {"sampler", {{"next_sample", m.next_sample}, {"rows", m.rows}}},
      {"random", {{"generator", "philox4x32-10"}, {"seed", m.seed}, {"next_step", m.step}}},
      {"schedule", {{"lr_schedule", m.lr_schedule}, {"lr", m.lr}}},
      {"ranks", m.ranks},
      {"experts", m.experts},
      {"asked",
       {{"micro_batch_size", m.micro_batch_size}, {"gradient_accumulation_steps", m.gradient_accumulation_steps}}},
      {"optimizer", m.optimizer},
      {"plan", m.plan},
      {"config", json_of<ordered_json>(m.config)},
      {"files", ordered_json::array()}};
  if (m.skips_in_a_row > 0) root["skips_in_a_row"] = m.skips_in_a_row;
  if (m.device_bytes > 0) root["device_bytes"] = m.device_bytes;
  if (m.tokenizer_hash != 0) root["tokenizer"] = hex(m.tokenizer_hash);
  if (m.load != LoadHistory()) root["load"] = load_json(m.load);
  for (const ShardFile& file : m.files)
    root["files"].push_back({{"name", file.name},
                             {"bytes", file.bytes},
                             {"header_xxh3", hex(file.header_xxh3)},
                             {"tensors_xxh3", print_hashes(file.tensors_xxh3)}});
  root["manifest_xxh3"] = no_checksum;
  std::string text = json_text(root, {.indent = 2, .strict = true}) + "\n";
  const std::string checksum = hex(hash64(text));
  text.replace(text.rfind(checksum_key) + checksum_key.size(), no_checksum.size(), checksum);
  return text;
}

Result<Manifest> parse_manifest(std::string_view text, std::string_view origin) {
  const std::size_t key = text.rfind(checksum_key);
  const std::size_t at = key + checksum_key.size();
  if (key == text.npos || text.size() - at < no_checksum.size())
    return data_error(fmt::format("{}: expected a manifest that ends with its checksum, found none", origin));
  std::string blank(text);
  blank.replace(at, no_checksum.size(), no_checksum);
  const std::string expected = hex(hash64(blank));
  if (text.substr(at, no_checksum.size()) != expected)
    return data_error(fmt::format("{}: expected the checksum {}, found {}: the file was changed or cut", origin,
                                  expected, shown(text.substr(at, no_checksum.size()))));
  return parse_manifest_fields(text, origin);
}

Result<Manifest> parse_manifest_fields(std::string_view text, std::string_view origin) {
  LANCET_ASSIGN(const ordered_json root, parse_json<ordered_json>(text, origin, ExitCode::data));
  const std::string where = fmt::format("{}: ", origin);
  Fields fields(root, where);
  Manifest m;
  if (const std::int64_t found = fields.whole("format"); found != format)
    fields.fail(fmt::format("format: expected {}, found {}", format, found));
  m.step = fields.whole("step");
  m.tokens = fields.whole("tokens", std::int64_t{1} << 62);
  m.skipped_steps = fields.whole("skipped_steps", m.step);
  if (root.contains("skips_in_a_row")) m.skips_in_a_row = fields.whole("skips_in_a_row");
  if (root.contains("device_bytes")) m.device_bytes = fields.whole("device_bytes", std::int64_t{1} << 62);
  Fields sampler(fields.member("sampler"), where + "sampler: ");
  m.next_sample = sampler.whole("next_sample");
  m.rows = sampler.whole("rows");
  Fields random(fields.member("random"), where + "random: ");
  if (random.text("generator") != "philox4x32-10") random.fail("generator: expected philox4x32-10");
  m.seed = random.whole("seed", std::numeric_limits<std::int64_t>::max());
  if (random.whole("next_step") != m.step) random.fail("next_step: expected the step");
  Fields schedule(fields.member("schedule"), where + "schedule: ");
  m.lr_schedule = schedule.text("lr_schedule");
  m.lr = schedule.real("lr");
  m.ranks = int(fields.whole("ranks", 1 << 24));
  if (m.ranks == 0) fields.fail("ranks: expected at least 1");
  m.experts = fields.whole("experts", 1 << 24);
  Fields requested(fields.member("asked"), where + "asked: ");
  m.micro_batch_size = requested.whole("micro_batch_size");
  m.gradient_accumulation_steps = requested.whole("gradient_accumulation_steps");
  m.optimizer = fields.text("optimizer");
  if (m.optimizer != "adamw" && m.optimizer != "sgd" && m.optimizer != "none")
    fields.fail("optimizer: expected adamw, sgd or none, found " + shown(m.optimizer));
  m.plan = fields.text("plan");
  if (root.contains("tokenizer")) m.tokenizer_hash = fields.hash("tokenizer");
  if (root.contains("load")) {
    LANCET_ASSIGN(m.load, read_load(fields.member("load"), where));
  }
  const ordered_json& config = fields.member("config");
  if (!config.is_object()) fields.fail("config: expected an object {...}");
  const ordered_json& files = fields.member("files");
  fields.text("manifest_xxh3");
  LANCET_TRY(fields.finish());
  for (Fields* inner : {&sampler, &random, &schedule, &requested}) LANCET_TRY(inner->finish());
  m.config = json_text(config, {.indent = 2});
  LANCET_ASSIGN(m.files, read_files(files, origin));
  return m;
}

}  // namespace lancet::checkpoint
