// Reads fields of a JSON file with comments, or of one of its objects. Every error is a config error that names the
// file, the field, the expected and the found value.
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
  // Returns one of the file's values as a JsonFile, whose errors begin with `where`.
  JsonFile part(const json& value, const std::string& where) const { return {path_, origin_ + ": " + where, value}; }

  const json& root() const { return root_; }
  // The file's folder, one of those in which relative names are searched.
  std::filesystem::path folder() const { return path_.parent_path(); }

  Error fail(const std::string& where, const std::string& expected, const std::string& found) const;
  Status object(const json& value, const std::string& where, const Names& known) const;
  // missing: the default of an optional field; null: the field is required.
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
