#include "lancet/placement/linear_solver.h"

#include <algorithm>
#include <cmath>

#include "lancet/base/check.h"

namespace lancet::placement {
namespace {

constexpr std::size_t line_width = 100;  // readers of the format limit lines, GLPK's to 255 characters

// Words of the text, broken into lines; a continued line is indented.
class Lines {
 public:
  explicit Lines(std::string& text) : text_(text) {}
  void word(const std::string& word) {
    if (width_ > 0 && width_ + word.size() > line_width) text_ += "\n  ", width_ = 2;
    text_ += ' ' + word;
    width_ += word.size() + 1;
  }
  void end() { text_ += '\n', width_ = 0; }

 private:
  std::string& text_;
  std::size_t width_ = 0;
};

std::string number(double value) { return fmt::format("{:.17g}", value); }

void add_terms(Lines& lines, const LinearModel& model, const std::vector<Term>& terms) {
  for (const Term& term : terms) {
    const std::string& name = model.columns[static_cast<std::size_t>(term.column)].name;
    lines.word(fmt::format("{} {} {}", term.factor < 0 ? '-' : '+', number(std::fabs(term.factor)), name));
  }
}

void add_row(Lines& lines, const LinearModel& model, const LinearModel::Row& row) {
  const auto line = [&](const std::string& name, const char* sense, double bound) {
    lines.word(name + ':');
    add_terms(lines, model, row.terms);
    lines.word(fmt::format("{} {}", sense, number(bound)));
    lines.end();
  };
  if (row.lower == row.upper) return line(row.name, "=", row.lower);
  const bool both = std::isfinite(row.lower) && std::isfinite(row.upper);
  if (std::isfinite(row.lower)) line(row.name, ">=", row.lower);
  if (std::isfinite(row.upper)) line(both ? row.name + "_upper" : row.name, "<=", row.upper);
}

void add_bounds(Lines& lines, const LinearModel::Column& column) {
  if (column.lower == column.upper) {
    lines.word(fmt::format("{} = {}", column.name, number(column.lower)));
  } else if (!std::isfinite(column.lower) && !std::isfinite(column.upper)) {
    lines.word(column.name + " free");
  } else {
    const std::string lower = std::isfinite(column.lower) ? number(column.lower) : "-inf";
    const std::string upper = std::isfinite(column.upper) ? number(column.upper) : "+inf";
    lines.word(fmt::format("{} <= {} <= {}", lower, column.name, upper));
  }
  lines.end();
}

}  // namespace

int LinearModel::add_column(Column column) {
  columns.push_back(std::move(column));
  return static_cast<int>(columns.size()) - 1;
}

void LinearModel::add_row(std::string name, double lower, double upper, std::vector<Term> terms) {
  std::stable_sort(terms.begin(), terms.end(), [](const Term& a, const Term& b) { return a.column < b.column; });
  std::vector<Term> sums;
  for (const Term& term : terms) {
    LANCET_CHECK(term.column >= 0 && term.column < static_cast<int>(columns.size()), "row {}: column {} of {}", name,
                 term.column, columns.size());
    if (!sums.empty() && sums.back().column == term.column)
      sums.back().factor += term.factor;
    else
      sums.push_back(term);
  }
  std::erase_if(sums, [](const Term& term) { return term.factor == 0; });
  if (!sums.empty()) rows.push_back({std::move(name), lower, upper, std::move(sums)});
}

int LinearModel::integer_count() const {
  return static_cast<int>(std::count_if(columns.begin(), columns.end(), [](const Column& c) { return c.integer; }));
}

std::string LinearModel::text() const {
  std::string text = "Minimize\n";
  Lines lines(text);
  std::vector<Term> costs;
  for (std::size_t i = 0; i < columns.size(); ++i)
    if (columns[i].cost != 0) costs.push_back({static_cast<int>(i), columns[i].cost});
  lines.word("cost:");
  add_terms(lines, *this, costs);
  lines.end();
  text += "Subject To\n";
  for (const Row& row : rows) placement::add_row(lines, *this, row);
  text += "Bounds\n";
  for (const Column& column : columns) add_bounds(lines, column);
  if (integer_count() > 0) {
    text += "Generals\n";
    for (const Column& column : columns)
      if (column.integer) lines.word(column.name), lines.end();
  }
  return text + "End\n";
}

}  // namespace lancet::placement
