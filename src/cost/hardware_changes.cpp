#include "hardware_changes.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "lancet/base/shown.h"
#include "lancet/cost/hardware.h"

namespace lancet::cost {
namespace {

Error wrong_change(const std::string& text) {
  return config_error(
      "hardware: expected changes like slow, device=fast, network.latency_us=50 or device.fp32_efficiency=x0.8, "
      "found " +
      shown(text));
}

}  // namespace

std::pair<std::string, std::string> split_changes(const std::string& hardware) {
  const std::size_t colon = std::min(hardware.find(':'), hardware.size());
  return {hardware.substr(0, colon), colon < hardware.size() ? hardware.substr(colon + 1) : ""};
}

Result<HardwareChanges::Change> HardwareChanges::parse_change(const std::string& text) {
  Change change;
  change.text = text;
  std::string to = text;
  if (const std::size_t equals = text.find('='); equals != std::string::npos) {
    const std::string where = text.substr(0, equals);
    const std::size_t dot = where.find('.');
    change.section = where.substr(0, dot);
    if (dot != std::string::npos) change.field = where.substr(dot + 1);
    if (change.section.empty() || (dot != std::string::npos && change.field.empty())) return wrong_change(text);
    to = text.substr(equals + 1);
  }
  if (to == "slow" || to == "fast") {
    change.kind = to == "slow" ? Change::Kind::slow : Change::Kind::fast;
    return change;
  }
  change.kind = to.starts_with('x') ? Change::Kind::factor : Change::Kind::value;
  const std::string number = to.starts_with('x') ? to.substr(1) : to;
  char* end = nullptr;
  change.number = std::strtod(number.c_str(), &end);
  if (change.field.empty() || number.empty() || *end != '\0' || !std::isfinite(change.number))
    return wrong_change(text);
  return change;
}

Result<HardwareChanges> HardwareChanges::parse(std::string_view text) {
  HardwareChanges changes;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    LANCET_ASSIGN(Change change, parse_change(std::string(text.substr(0, comma))));
    changes.changes_.push_back(std::move(change));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return changes;
}

std::size_t HardwareChanges::index(std::string_view section, std::string_view field, Slow slow) {
  std::size_t index = 1;
  for (Change& change : changes_) {
    if (!change.concerns(section, field) || !change.takes_an_end()) continue;
    change.used = true;
    const bool high = (change.kind == Change::Kind::slow) == (slow == Slow::high);
    index = high ? 2 : 0;
  }
  return index;
}

double HardwareChanges::applied(std::string_view section, std::string_view field, double number) {
  for (Change& change : changes_) {
    if (!change.concerns(section, field) || change.takes_an_end()) continue;
    change.used = true;
    number = change.kind == Change::Kind::factor ? number * change.number : change.number;
  }
  return number;
}

Status HardwareChanges::all_used() const {
  for (const Change& change : changes_)
    if (!change.used) return wrong_change(change.text);
  return {};
}

std::string HardwareChanges::suffix() const {
  std::string text;
  for (const Change& change : changes_) text += (text.empty() ? ":" : ",") + change.text;
  return text;
}

}  // namespace lancet::cost
