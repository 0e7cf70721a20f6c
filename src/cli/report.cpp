#include "lancet/report/report.h"

#include <fmt/format.h>

#include <fstream>

#include "commands.h"
#include "lancet/base/files.h"
#include "lancet/base/log.h"

namespace lancet::cli {
namespace {

// Refuses to overwrite any file but an HTML page, so that a mistyped path does not destroy a run's records.
Status check_out(const std::string& out) {
  std::ifstream there(out);
  if (const int first = there.get(); !there || first == '<') return {};
  return config_error(fmt::format("--out: expected a new file or an HTML page, found '{}', which is neither", out));
}

Status write_report(const std::vector<std::string>& folders, const std::string& out) {
  LANCET_TRY(check_out(out));
  const std::vector<std::filesystem::path> runs(folders.begin(), folders.end());
  LANCET_ASSIGN(const std::string page, report::page(runs));
  LANCET_TRY(write_file(out, page));
  log::info("{}: {:.1f} MB; open it in a browser", out, double(page.size()) * 1e-6);
  return {};
}

}  // namespace

void add_report(CLI::App& app, Selection& selection) {
  CLI::App* command = app.add_subcommand(
      "report", "Make an HTML page of one or several runs: lancet report runs/a runs/b --out report.html");
  auto folders = std::make_shared<std::vector<std::string>>();
  auto out = std::make_shared<std::string>("report.html");
  command->add_option("runs", *folders, "Run folders; several are overlaid and their configs compared")
      ->required()
      ->type_name("RUN");
  command->add_option("--out", *out, "File of the page")->capture_default_str()->type_name("FILE");
  command->callback(
      [folders, out, &selection] { selection.local = [folders, out] { return write_report(*folders, *out); }; });
}

}  // namespace lancet::cli
