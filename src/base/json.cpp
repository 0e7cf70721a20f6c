#include "lancet/base/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "lancet/base/shown.h"

namespace lancet {
namespace {

using nlohmann::json;

struct TooDeep {};

// A callback of the parser. It records the first key that appears twice in an object, of which nlohmann would silently
// keep the last, and throws TooDeep at most_json_depth.
template <class Json>
class KeyWatch {
 public:
  using Event = typename Json::parse_event_t;
  bool operator()(int depth, Event event, Json& parsed) {
    if (depth >= most_json_depth) throw TooDeep();
    if (event == Event::object_end || event == Event::array_end) {
      levels_.pop_back();
    } else if (event != Event::key && !levels_.empty()) {
      ++levels_.back().values;
    }
    if (event == Event::object_start || event == Event::array_start) {
      levels_.push_back({.is_list = event == Event::array_start});
    } else if (event == Event::key) {
      levels_.back().name = parsed.template get<std::string>();
      if (!levels_.back().seen.insert(levels_.back().name).second && duplicate_.empty()) duplicate_ = path();
    }
    return true;
  }
  const std::string& duplicate() const { return duplicate_; }

 private:
  struct Level {
    bool is_list = false;
    std::size_t values = 0;  // that were begun
    std::set<std::string> seen = {};
    std::string name = {};  // the key being read
  };
  std::string path() const {
    std::string text;
    for (const Level& level : levels_)
      text += level.is_list ? fmt::format("[{}]", level.values - 1) : (text.empty() ? "" : ".") + level.name;
    return "'" + cut(text, 60) + "'";
  }
  std::vector<Level> levels_;
  std::string duplicate_;
};

// nlohmann's message is "[id] parse error at line 1, column 2: syntax error while parsing value - REASON".
std::string reason(std::string_view what) {
  for (std::string_view mark : {" - ", ": ", "] "})
    if (const auto at = what.find(mark); at != what.npos) return cut(what.substr(at + mark.size()), 200);
  return cut(what, 200);
}

// ":line:column" of a byte of the text, both counted from 1.
std::string line_and_column(std::string_view text, std::size_t byte) {
  const auto before = text.substr(0, byte);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const auto column = 1 + before.size() - (before.rfind('\n') == before.npos ? 0 : before.rfind('\n') + 1);
  return fmt::format(":{}:{}", line, column);
}

// Appends the value's JSON and stops after `most` bytes. That also bounds the recursion: a file's nesting must not
// determine the depth of the stack.
template <class Json>
void write_front(const Json& value, std::size_t most, std::string& text) {
  if (!value.is_structured()) {
    text += json_text(value);
    return;
  }
  const bool object = value.is_object();
  text += object ? '{' : '[';
  bool first = true;
  for (auto it = value.begin(); it != value.end() && text.size() <= most; ++it) {
    if (!std::exchange(first, false)) text += ',';
    if (object) text += json_text(Json(it.key())) + ":";
    write_front(*it, most, text);
  }
  text += object ? '}' : ']';
}

}  // namespace

template <class Json>
Result<Json> parse_json(std::string_view text, std::string_view origin, ExitCode code, JsonComments comments) {
  if (const std::size_t nul = text.find('\0'); nul != text.npos)  // the parser would treat it as the end
    return Error{code, fmt::format("{}{}: expected JSON, found a NUL byte", origin, line_and_column(text, nul))};
  if (text.find_first_not_of(" \t\r\n") == text.npos)
    return Error{code, fmt::format("{}: expected JSON, found no text", origin)};
  KeyWatch<Json> watch;
  try {
    Json root = Json::parse(text, std::ref(watch), true, comments == JsonComments::ignored);
    if (watch.duplicate().empty()) return root;
    return Error{code, fmt::format("{}: key {} appears twice", origin, watch.duplicate())};
  } catch (const json::parse_error& error) {
    const std::size_t byte = std::min(text.size(), error.byte ? error.byte - 1 : 0);
    return Error{code,
                 fmt::format("{}{}: expected JSON: {}", origin, line_and_column(text, byte), reason(error.what()))};
  } catch (const json::exception& error) {  // a number that does not fit a double
    return Error{code, fmt::format("{}: expected JSON: {}", origin, reason(error.what()))};
  } catch (const TooDeep&) {
    return Error{code,
                 fmt::format("{}: expected JSON of at most {} nested brackets, found more", origin, most_json_depth)};
  }
}
template Result<json> parse_json<json>(std::string_view, std::string_view, ExitCode, JsonComments);
template Result<nlohmann::ordered_json> parse_json<nlohmann::ordered_json>(std::string_view, std::string_view, ExitCode,
                                                                           JsonComments);

template <class Json>
Json json_of(std::string_view text) {
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}
template json json_of<json>(std::string_view);
template nlohmann::ordered_json json_of<nlohmann::ordered_json>(std::string_view);

template <class Json>
std::string json_text(const Json& value, JsonStyle style) {
  using Handler = typename Json::error_handler_t;
  return value.dump(style.indent, ' ', style.ascii, style.strict ? Handler::strict : Handler::replace);
}
template std::string json_text<json>(const json&, JsonStyle);
template std::string json_text<nlohmann::ordered_json>(const nlohmann::ordered_json&, JsonStyle);

template <class Json>
requires requires { typename Json::error_handler_t; }
std::string shown(const Json& value) {
  constexpr std::size_t most = 60;
  std::string text;
  write_front(value, most, text);
  return cut(text, most);
}
template std::string shown<json>(const json&);
template std::string shown<nlohmann::ordered_json>(const nlohmann::ordered_json&);

}  // namespace lancet
