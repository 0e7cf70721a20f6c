// Records of made-up runs, the pages of their folders, and the data in them.
#pragma once
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

#include "lancet/report/report.h"
#include "temporary_folder.h"
#include "text.h"

namespace lancet::test {

inline std::string record(int step, double loss, const std::string& more = "") {
  return fmt::format(R"({{"step": {}, "loss": {}{}}})", step, loss, more) + "\n";
}

inline Result<std::string> page_of(const TemporaryFolder& folder) {
  const std::filesystem::path run = folder / "";
  return report::page(std::span(&run, 1));
}

// The JSON in the page, as a browser reads it: up to the first end of a script element.
inline nlohmann::json data_of(const std::string& page) {
  const std::string mark = "<script id=\"data\" type=\"application/json\">";
  const auto begin = page.find(mark) + mark.size();
  return test::json_in(page.substr(begin, page.find("</script", begin) - begin));
}

}  // namespace lancet::test
