#include "lancet/ir/program.h"

#include <algorithm>

namespace lancet::ir {
namespace {

const TensorType one_number{DType::i32, {1}};

bool contains_id(const std::vector<TensorId>& list, TensorId id) { return std::ranges::find(list, id) != list.end(); }

// Walks the body once, as its first execution does. `live_` are the tensors in the scratch that can be read.
class BodyVerifier {
 public:
  BodyVerifier(const Program& program, const Instruction& repeat) : program_(program), repeat_(repeat) {}

  Status run() {
    const auto& results = repeat_.results;
    if (repeat_.operands.empty() || program_.type(repeat_.operands[repeat_count]) != one_number || results.size() < 2 ||
        program_.type(results[repeat_round]) != one_number)
      return internal_error("expected a repeat of a count i32[1] with a round i32[1] and a scratch, found " +
                            print(program_, repeat_));
    for (std::size_t i = 2; i < results.size(); ++i)
      if (!program_[results[i]].storage.valid())
        return wrong(repeat_, results[i], "is not in the memory of an operand");
    for (const Instruction& part : repeat_.body) LANCET_TRY(check(part));
    for (std::size_t i = 2; i < results.size(); ++i)
      if (!contains_id(updated_, results[i])) return wrong(repeat_, results[i], "is not made by its body");
    return {};
  }

 private:
  Status wrong(const Instruction& at, TensorId id, std::string_view what) const {
    return internal_error(fmt::format("{} {}, in the body of {} at {}: {}", program_.display(id), what, repeat_.op,
                                      repeat_.label, print(program_, at)));
  }

  Status check(const Instruction& part) {
    if (is_repeat(part) || !part.writes.empty())
      return internal_error(
          fmt::format("expected a body that updates its repeat's results alone, found {}", print(program_, part)));
    for (const TensorId id : part.operands)
      if (!readable(id)) return wrong(part, id, "is read, and was neither made there nor is an operand of the repeat");
    for (const TensorId id : part.results) LANCET_TRY(make(part, id));
    return {};
  }

  bool readable(TensorId id) const {
    return id.valid() && id.index() < program_.tensors.size() &&
           (contains_id(live_, id) || contains_id(updated_, id) || contains_id(repeat_.operands, id) ||
            id == repeat_.results[repeat_round]);
  }

  Status make(const Instruction& part, TensorId id) {
    if (!id.valid() || id.index() >= program_.tensors.size()) return internal_error("a result does not exist");
    if (contains_id(live_, id) || contains_id(updated_, id)) return wrong(part, id, "is made twice");
    if (std::ranges::find(repeat_.results.begin() + 2, repeat_.results.end(), id) != repeat_.results.end()) {
      updated_.push_back(id);
      return {};
    }
    const TensorId scratch = repeat_.results[repeat_scratch];
    const Region region = program_.region(id);
    if (region.root != scratch || region.begin < 0 || region.end > bytes(program_.type(scratch)))
      return wrong(part, id, "is neither in the scratch nor a result of the repeat");
    std::erase_if(live_, [&](TensorId other) { return overlap(program_.region(other), region); });
    live_.push_back(id);
    return {};
  }

  const Program& program_;
  const Instruction& repeat_;
  std::vector<TensorId> live_, updated_;
};

}  // namespace

Status verify_body(const Program& program, const Instruction& instruction) {
  return is_repeat(instruction) ? BodyVerifier(program, instruction).run() : Status();
}

}  // namespace lancet::ir
