// Reads Hugging Face's tokenizer.json into the parts of a tokenizer. Every object is read with the list of its fields:
// a field, type or value that is not in this file is an error, since ids would otherwise silently differ. The reader
// keeps the first error and continues with empty values; read_tokenizer_json() returns that error.
#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <limits>
#include <map>
#include <optional>
#include <unordered_map>

#include "lancet/base/files.h"
#include "lancet/base/json.h"
#include "lancet/base/log.h"
#include "lancet/base/shown.h"
#include "text.h"
#include "tokenizer_tables.h"

namespace lancet::data {
namespace {

using nlohmann::json;

// A value and where it is: "pre_tokenizer.pretokenizers[0]".
struct Value {
  const json* value;
  std::string at;

  const json& operator*() const { return *value; }
  const json* operator->() const { return value; }
};

// Reads fields, and keeps the first error.
class FieldReader {
 public:
  explicit FieldReader(std::string path) : path_(std::move(path)) {}

  void fail(const std::string& at, std::string_view expected, std::string_view found) {
    if (!error_)
      error_ =
          data_error(fmt::format("{}: {}{}expected {}, found {}", path_, at, at.empty() ? "" : ": ", expected, found));
  }
  void fail(const Value& value, std::string_view expected) { fail(value.at, expected, shown(*value)); }

  static Value field(const Value& object, const std::string& name) {
    static const json none;
    const auto it = object->is_object() ? object->find(name) : object->end();
    return {object->is_object() && it != object->end() ? &*it : &none,
            object.at + (object.at.empty() ? "" : ".") + name};
  }
  // The elements of a list; none if it is null.
  std::vector<Value> elements(const Value& list) {
    std::vector<Value> all;
    if (!list->is_null() && !list->is_array()) fail(list, "a list");
    if (list->is_array())
      for (const json& value : *list) all.push_back({&value, fmt::format("{}[{}]", list.at, all.size())});
    return all;
  }
  void check_fields(const Value& object, std::initializer_list<std::string_view> known) {
    if (!object->is_object()) return fail(object, "an object");
    for (const auto& [name, value] : object->items())
      if (std::ranges::count(known, name) == 0)
        fail(field(object, name).at, fmt::format("one of the fields {}", fmt::join(known, ", ")), "another");
  }
  bool flag(const Value& value, bool missing) {
    if (!value->is_null() && !value->is_boolean()) fail(value, "true or false");
    return value->is_boolean() ? value->get<bool>() : missing;
  }
  std::string text(const Value& value) {
    if (!value->is_string() || value->get_ref<const std::string&>().empty()) fail(value, "a text");
    return value->is_string() ? value->get<std::string>() : "";
  }
  // The number of the value among the names.
  std::size_t one_of(const Value& value, std::initializer_list<std::string_view> names) {
    const std::string name = value->is_string() ? value->get<std::string>() : "";
    const auto it = std::ranges::find(names, name);
    if (it == names.end()) fail(value, fmt::format("one of {}", fmt::join(names, ", ")));
    return it == names.end() ? 0 : std::size_t(it - names.begin());
  }

 protected:
  std::string path_;
  std::optional<Error> error_;
};

class TokenizerJson : private FieldReader {
 public:
  using FieldReader::FieldReader;

  Result<TokenizerParts> read(const json& root) {
    const Value file{&root, ""};
    check_fields(file, {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                        "post_processor", "decoder", "model"});
    for (const char* name : {"truncation", "padding"})
      if (!field(file, name)->is_null()) log::warn("{}: {} is not applied", path_, name);
    parts_.infers_added = false;
    pipeline_.splits.clear();
    pipeline_.byte_level = false;
    read_normalizer(field(file, "normalizer"));
    read_pre_tokenizer(field(file, "pre_tokenizer"), true, true);
    read_decoder(field(file, "decoder"));
    read_model(field(file, "model"), field(file, "added_tokens"));
    if (!error_) read_post_processor(field(file, "post_processor"));
    if (error_) return *error_;
    return std::move(parts_);
  }

 private:
  TextStep read_replace(const Value& object) {
    check_fields(object, {"type", "pattern", "content"});
    const Value pattern = field(object, "pattern"), content = field(object, "content");
    check_fields(pattern, {"String"});
    if (!content->is_string()) fail(content, "a text");
    return {.kind = TextStep::Kind::replace,
            .from = text(field(pattern, "String")),
            .to = content->is_string() ? content->get<std::string>() : ""};
  }

  void read_normalizer(const Value& object) {
    if (object->is_null() || error_) return;
    switch (one_of(field(object, "type"), {"NFC", "Prepend", "Replace", "Sequence"})) {
      case 0:
        check_fields(object, {"type"});
        return pipeline_.normalizer.push_back({});
      case 1:
        check_fields(object, {"type", "prepend"});
        return pipeline_.normalizer.push_back({.kind = TextStep::Kind::prepend, .to = text(field(object, "prepend"))});
      case 2:
        return pipeline_.normalizer.push_back(read_replace(object));
      default:
        check_fields(object, {"type", "normalizers"});
        for (const Value& step : elements(field(object, "normalizers"))) read_normalizer(step);
    }
  }

  // is_first, is_last: of all pre-tokenizers.
  void read_pre_tokenizer(const Value& object, bool is_first, bool is_last) {
    if (object->is_null() || error_) return;
    switch (one_of(field(object, "type"), {"ByteLevel", "Split", "Metaspace", "Sequence"})) {
      case 0:
        return read_byte_level(object, is_first, is_last);
      case 1:
        return read_split(object);
      case 2:
        return read_metaspace(object, is_first);
      default:
        break;
    }
    check_fields(object, {"type", "pretokenizers"});
    const auto steps = elements(field(object, "pretokenizers"));
    for (std::size_t i = 0; i < steps.size(); ++i)
      read_pre_tokenizer(steps[i], is_first && i == 0, is_last && i + 1 == steps.size());
  }

  void read_byte_level(const Value& object, bool is_first, bool is_last) {
    check_fields(object, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (!is_last) fail(object.at, "ByteLevel as the last of all pre-tokenizers", "others after it");
    if (flag(field(object, "add_prefix_space"), true)) {
      if (!is_first) fail(field(object, "add_prefix_space"), "false after another pre-tokenizer");
      pipeline_.prepare.push_back({.kind = TextStep::Kind::prepend, .to = " ", .unless_there = true});
    }
    if (flag(field(object, "use_regex"), true)) pipeline_.splits.push_back(Split::gpt2());
    pipeline_.byte_level = true;
  }

  void read_split(const Value& object) {
    check_fields(object, {"type", "pattern", "behavior", "invert"});
    const Value pattern = field(object, "pattern");
    check_fields(pattern, {"Regex", "String"});
    const bool is_regex = pattern->is_object() && pattern->contains("Regex");
    const auto behavior = one_of(field(object, "behavior"),
                                 {"Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"});
    const std::string wanted = text(field(pattern, is_regex ? "Regex" : "String"));
    if (error_) return;
    auto split = Split::make(wanted, is_regex, SplitBehavior(behavior), flag(field(object, "invert"), false));
    if (split.ok()) return pipeline_.splits.push_back(*std::move(split));
    error_ = data_error(fmt::format("{}: {}: {}", path_, pattern.at, split.error().message));
  }

  // A space is written as `replacement`, which also begins the text; a word ends before each.
  void read_metaspace(const Value& object, bool is_first) {
    const auto [replacement, scheme] = metaspace(object);
    if (!is_first) fail(object.at, "Metaspace as the first of all pre-tokenizers", "others before it");
    if (error_) return;
    pipeline_.prepare.push_back({.kind = TextStep::Kind::replace, .from = " ", .to = replacement});
    if (scheme != kNever)
      pipeline_.prepare.push_back(
          {.kind = TextStep::Kind::prepend, .to = replacement, .unless_there = true, .first_only = scheme == kFirst});
    if (flag(field(object, "split"), true))
      pipeline_.splits.push_back(*Split::make(replacement, false, SplitBehavior::merged_with_next));
  }

  enum Scheme : std::size_t { kAlways, kFirst, kNever };
  std::pair<std::string, Scheme> metaspace(const Value& object) {
    check_fields(object, {"type", "replacement", "str_rep", "add_prefix_space", "prepend_scheme", "split"});
    const Value scheme = field(object, "prepend_scheme");
    const bool adds = flag(field(object, "add_prefix_space"), true);  // of older files, in place of the scheme
    return {text(field(object, "replacement")),
            scheme->is_null() ? (adds ? kAlways : kNever) : Scheme(one_of(scheme, {"always", "first", "never"}))};
  }

  void read_decoder(const Value& object) {
    if (error_) return;
    switch (one_of(field(object, "type"),
                   {"ByteLevel", "Replace", "ByteFallback", "Fuse", "Strip", "Metaspace", "Sequence"})) {
      case 0:
        check_fields(object, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
        if (!pipeline_.byte_level) fail(object.at, "no ByteLevel without a pre-tokenizer ByteLevel", "one");
        return;
      case 1:
        pipeline_.decoder.push_back(read_replace(object));
        break;
      case 2:
        pipeline_.decode_bytes = true;
        [[fallthrough]];
      case 3:
        check_fields(object, {"type"});
        break;
      case 4:
        check_fields(object, {"type", "content", "start", "stop"});
        if (*field(object, "content") != " ") fail(field(object, "content"), "\" \"");
        if (*field(object, "stop") != 0) fail(field(object, "stop"), "0");
        if (const Value start = field(object, "start"); start->is_number_unsigned() && *start < 1000)
          pipeline_.strip_spaces = start->get<int>();
        else
          fail(start, "a number below 1000");
        break;
      case 5: {
        const auto [replacement, scheme] = metaspace(object);
        pipeline_.decoder.push_back({.kind = TextStep::Kind::replace, .from = replacement, .to = " "});
        if (scheme != kNever) pipeline_.strip_spaces = std::numeric_limits<int>::max();
        break;
      }
      default:
        check_fields(object, {"type", "decoders"});
        for (const Value& step : elements(field(object, "decoders"))) read_decoder(step);
        return;
    }
    if (pipeline_.byte_level) fail(field(object, "type"), "ByteLevel alone after a pre-tokenizer ByteLevel");
  }

  void read_model(const Value& model, const Value& added) {
    check_fields(model, {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                         "byte_fallback", "ignore_merges", "vocab", "merges"});
    if (!field(model, "type")->is_null()) one_of(field(model, "type"), {"BPE"});
    if (const Value dropout = field(model, "dropout"); !dropout->is_null() && *dropout != 0) fail(dropout, "null");
    for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"})
      if (const Value affix = field(model, name); !affix->is_null() && *affix != "") fail(affix, "null");
    pipeline_.fuse_unknown = flag(field(model, "fuse_unk"), false);
    pipeline_.byte_fallback = flag(field(model, "byte_fallback"), false) && !pipeline_.byte_level;
    pipeline_.ignore_merges = flag(field(model, "ignore_merges"), false);
    const Value vocabulary = field(model, "vocab");
    if (!vocabulary->is_object()) fail(vocabulary, "tokens and their ids");
    if (error_) return;
    const auto& tokens = vocabulary->get_ref<const json::object_t&>();
    std::vector<std::string_view> names(tokens.size());  // by id
    ids_.reserve(tokens.size());
    for (const auto& [letters, id] : tokens) {
      if (!id.is_number_unsigned() || id >= names.size())
        return fail(vocabulary.at, fmt::format("the ids 0..{}", names.size() - 1),
                    fmt::format("{} for {}", shown(id), shown(letters)));
      std::string_view& name = names[id.get<std::size_t>()];
      if (!name.empty())
        return fail(vocabulary.at, "each id once",
                    fmt::format("{} for {} and {}", shown(id), shown(name), shown(letters)));
      if (letters.empty())
        return fail(vocabulary.at, "tokens that are not empty", fmt::format("{} for one", shown(id)));
      name = letters;
      ids_.emplace(letters, id.get<TokenId>());
    }
    read_added_tokens(added, names);
    if (error_) return;
    read_tokens(vocabulary.at, names);
    read_merges(field(model, "merges"));
    if (const Value unknown = field(model, "unk_token"); !unknown->is_null()) {
      const auto it = unknown->is_string() ? ids_.find(unknown->get_ref<const std::string&>()) : ids_.end();
      if (it == ids_.end()) return fail(unknown, "a token of the vocabulary");
      if (!pipeline_.byte_level) pipeline_.unknown = it->second;
    }
  }

  // Appends the names of those that the vocabulary lacks, whose ids come after its own.
  void read_added_tokens(const Value& added, std::vector<std::string_view>& names) {
    std::map<std::size_t, std::string_view> new_names;
    for (const Value& token : elements(added)) {
      check_fields(token, {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
      const Value id = field(token, "id"), name = field(token, "content");
      const std::string content = text(name);
      if (!id->is_number_unsigned() || *id > std::numeric_limits<TokenId>::max()) fail(id, "an id");
      if (first_invalid_utf8(content) != content.size()) fail(name, "UTF-8");
      if (error_) return;
      const auto it = ids_.find(content);
      const auto number = id->get<std::size_t>();
      if (it != ids_.end()
              ? *id != it->second
              : number < names.size() || !new_names.emplace(number, name->get_ref<const std::string&>()).second)
        return fail(id, fmt::format("an id of its own for {}", shown(content)));
      parts_.added.push_back({.id = TokenId(number),
                              .content = content,
                              .normalized = flag(field(token, "normalized"), true),
                              .lstrip = flag(field(token, "lstrip"), false),
                              .rstrip = flag(field(token, "rstrip"), false),
                              .single_word = flag(field(token, "single_word"), false)});
    }
    for (const auto& [id, name] : new_names) {
      if (id != names.size())
        return fail(added.at, fmt::format("the id {} before greater ones", names.size()),
                    fmt::format("{} for {}", id, shown(name)));
      names.push_back(name);
    }
  }

  void read_tokens(const std::string& at, const std::vector<std::string_view>& names) {
    parts_.of_model = ids_.size();
    std::vector<bool> is_added(names.size());
    for (const AddedToken& token : parts_.added) is_added[std::size_t(token.id)] = true;
    for (std::size_t id = 0; id < names.size(); ++id) {
      auto bytes =
          pipeline_.byte_level && !is_added[id] ? from_letters(names[id]) : std::optional(std::string(names[id]));
      if (!bytes) return fail(at, "GPT-2's byte letters", fmt::format("the token {}", shown(names[id])));
      parts_.tokens.push_back(*std::move(bytes));
    }
  }

  void read_merges(const Value& merges) {
    if (!merges->is_array()) return fail(merges, "a list");
    if (error_) return;
    for (const json& merge : *merges) {
      std::string_view left, right;
      if (merge.is_string()) {
        const std::string_view both = merge.get_ref<const std::string&>();
        const std::size_t space = std::min(both.find(' '), both.size());
        left = both.substr(0, space);
        right = both.substr(std::min(space + 1, both.size()));
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      }
      const auto l = ids_.find(left), r = ids_.find(right);
      if (l == ids_.end() || r == ids_.end())
        return fail(fmt::format("{}[{}]", merges.at, parts_.merges.size()), "two tokens of the vocabulary",
                    shown(merge));
      parts_.merges.push_back({l->second, r->second});
    }
  }

  // ByteLevel changes offsets alone. A template for one text: the token before it, the text, the token after it.
  void read_post_processor(const Value& object) {
    if (object->is_null() || error_) return;
    switch (one_of(field(object, "type"), {"ByteLevel", "TemplateProcessing", "Sequence"})) {
      case 0:
        return check_fields(object, {"type", "add_prefix_space", "trim_offsets", "use_regex"});
      case 1:
        return read_template(object);
      default:
        check_fields(object, {"type", "processors"});
        for (const Value& step : elements(field(object, "processors"))) read_post_processor(step);
    }
  }

  void read_template(const Value& object) {
    check_fields(object, {"type", "single", "pair", "special_tokens"});
    bool is_behind = false;
    for (const Value& piece : elements(field(object, "single"))) {
      check_fields(piece, {"SpecialToken", "Sequence"});
      if (piece->contains("Sequence")) {
        if (std::exchange(is_behind, true)) fail(piece.at, "the text once", "it again");
        continue;
      }
      const Value named = field(field(piece, "SpecialToken"), "id");
      const Value ids = field(field(field(object, "special_tokens"), text(named)), "ids");
      if (error_) return;
      if (!ids->is_array() || ids->size() != 1 || !ids->front().is_number_unsigned() ||
          ids->front() >= parts_.tokens.size())
        return fail(ids, "one id of the vocabulary");
      if (is_behind ? pipeline_.adds_eos : pipeline_.adds_bos)
        return fail(piece.at, "at most one token before the text and one after it", "more");
      const auto id = ids->front().get<TokenId>();
      if (is_behind)
        parts_.bounds.ends = {id};
      else
        parts_.bounds.begin = id;
      (is_behind ? pipeline_.adds_eos : pipeline_.adds_bos) = true;
    }
    if (!is_behind) fail(field(object, "single"), "the text among its parts");
  }

  TokenizerParts parts_;
  Pipeline& pipeline_ = parts_.pipeline;
  std::unordered_map<std::string_view, TokenId> ids_;  // of the vocabulary
};

}  // namespace

Result<TokenizerParts> read_tokenizer_json(const std::filesystem::path& path) {
  LANCET_ASSIGN(const std::string content, read_file(path, "a tokenizer"));
  LANCET_ASSIGN(const json root, parse_json(content, path.string(), ExitCode::data));
  return TokenizerJson(path.string()).read(root);
}

}  // namespace lancet::data
