// An object of JSON with comments, a file's or a part of one, and what its errors say: the file, where in it, what was
// expected, what was found.
#pragma once
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::experiment {

using Names = std::vector<std::string>;

class JsonFile {
 public:
  using json = nlohmann::json;

  static Result<JsonFile> read(const std::filesystem::path& path, std::string_view what);
  // Of a file that was read: one of its values, errors in which say `where`.
  JsonFile part(const json& value, const std::string& where) const { return {path_, origin_ + ": " + where, value}; }

  const json& root() const { return root_; }
  // Relative names in it may lie here.
  std::filesystem::path folder() const { return path_.parent_path(); }

  Error fail(const std::string& where, const std::string& expected, const std::string& found) const;
  Status object(const json& value, const std::string& where, const Names& known) const;
  // missing: what it is where there is none; null: an error.
  Result<std::string> text(const json& value, const char* key, const std::string& where,
                           const char* missing = nullptr) const;
  Result<Names> texts(const json& value, const char* key, const std::string& where, bool required) const;
  Result<int> count(const json& value, const char* key, const std::string& where, int missing, int least,
                    int most) const;

 private:
  JsonFile(std::filesystem::path path, std::string origin, json root)
      : path_(std::move(path)), origin_(std::move(origin)), root_(std::move(root)) {}
  std::filesystem::path path_;
  std::string origin_;
  json root_;
};

}  // namespace lancet::experiment
