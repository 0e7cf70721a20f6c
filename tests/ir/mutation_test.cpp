// Texts with random damage give an error or a Program that prints and reads back the same, never a crash or an
// exception.
#include <random>

#include "lancet/ir/plan.h"
#include "support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  std::string damage(std::string text) {
    for (std::size_t n = 1 + below(3); n > 0; --n) mutate(text);
    return text;
  }

 private:
  std::size_t below(std::size_t bound) { return bound ? random_() % bound : 0; }

  void mutate(std::string& text) {
    // Mostly tokens of the grammar, so that damage passes the first check.
    static constexpr std::string_view alphabet = "0123456789%@&,:()[]{}=#|-.\" \nabefinx";
    const std::size_t at = below(text.size() + 1), length = below(12);
    const char letter = below(8) ? alphabet[below(alphabet.size())] : static_cast<char>(below(256));
    switch (below(6)) {
      case 0:
        text.insert(at, 1, letter);
        break;
      case 1:
        text.erase(at, 1 + below(4));
        break;
      case 2:
        if (at < text.size()) text[at] = letter;
        break;
      case 3:
        text.insert(below(text.size() + 1), std::string(text, at, length));
        break;  // move a fragment
      case 4:
        move_line(text);
        break;
      default:
        text.insert(at, std::to_string(std::int64_t(random_()) >> below(64)));
        break;
    }
  }

  void move_line(std::string& text) {
    const std::size_t begin = text.rfind('\n', below(text.size() + 1));
    if (begin == std::string::npos) return;
    const std::size_t end = std::min(text.find('\n', begin + 1), text.size());
    const std::string line = text.substr(begin, end - begin);
    if (below(2)) text.erase(begin, end - begin);
    const std::size_t to = text.find('\n', below(text.size() + 1));
    text.insert(to == std::string::npos ? text.size() : to, line);
  }

  std::mt19937_64 random_;
};

}  // namespace

TEST_CASE("damaged programs are refused or read back the same") {
  int accepted = 0;
  const std::string* const texts[] = {&every_feature, &every_view, &every_sharding};
  for (std::uint64_t seed = 0; seed < 12000; ++seed) {
    const std::string text = Mutator(seed).damage(*texts[seed % 3]);
    INFO("seed " << seed << "\n" << text);
    const auto program = ir::parse(text);
    if (!program.ok()) {
      REQUIRE(program.error().message.starts_with("line "));
      continue;
    }
    ++accepted;
    const std::string printed = ir::print(*program);
    REQUIRE(ir::print(parsed(printed)) == printed);
    (void)ir::verify(*program).ok();
  }
  REQUIRE(accepted > 200);  // else the damage does not test accepted texts
  REQUIRE(accepted < 11700);
}

TEST_CASE("damaged plans are refused or read back the same, and verified without a crash") {
  int accepted = 0, sound = 0;
  for (std::uint64_t seed = 0; seed < 12000; ++seed) {
    const std::string text = Mutator(seed).damage(seed % 2 ? plan_views : plan_features);
    INFO("seed " << seed << "\n" << text);
    const auto plan = ir::parse_plan(text);
    if (!plan.ok()) {
      REQUIRE(plan.error().message.starts_with("line "));
      continue;
    }
    ++accepted;
    const std::string printed = ir::print(*plan);
    REQUIRE(ir::print(parsed_plan(printed)) == printed);
    sound += ir::verify(*plan).ok();
  }
  REQUIRE(accepted > 200);
  REQUIRE(sound > 40);
  REQUIRE(sound < accepted);
}
