// The changes to a hardware file's numbers that follow its name: "fast,device=slow,network.hop_us=50" (read_hardware).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "lancet/base/result.h"

namespace lancet::cost {

// Which end of a number's band makes steps longer.
enum class Slow { low, high };

class HardwareChanges {
 public:
  // Config error: a change of another form, which it names.
  static Result<HardwareChanges> parse(std::string_view text);

  // Which of a field's three numbers is taken: 0 low, 1 nominal, 2 high.
  std::size_t index(std::string_view section, std::string_view field, Slow slow);
  // The number that the changes make of the one that was taken.
  double applied(std::string_view section, std::string_view field, double number);
  // Config error: a change that concerns no field that was asked for.
  Status all_used() const;
  // As behind the file's name: ":CHANGE,..."; empty without changes.
  std::string suffix() const;

 private:
  struct Change {
    std::string text, section, field;  // an empty field: the whole section; an empty section: the whole file
    enum class Kind { slow, fast, value, factor } kind = Kind::slow;
    double number = 0;
    bool used = false;

    bool concerns(std::string_view in, std::string_view name) const {
      return section.empty() || (section == in && (field.empty() || field == name));
    }
    bool takes_an_end() const { return kind == Kind::slow || kind == Kind::fast; }
  };
  static Result<Change> parse_change(const std::string& text);

  std::vector<Change> changes_;
};

}  // namespace lancet::cost
