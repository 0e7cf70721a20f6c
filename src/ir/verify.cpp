#include "lancet/ir/verify.h"

#include <fmt/format.h>

#include "lancet/ir/print.h"

namespace lancet::ir {
namespace {

class Verifier {
 public:
  explicit Verifier(const Program& program)
      : program_(program), made_(program.tensors.size()), stale_(program.tensors.size()) {}

  Status run() {
    for (const Tensor& tensor : program_.tensors)
      if (tensor.storage.valid() && tensor.storage.index() >= program_.tensors.size())
        return internal_error(fmt::format("tensor %{} lives in a tensor that does not exist", tensor.number));
    for (const Instruction& instruction : program_.instructions) LANCET_TRY(check(instruction));
    for (const Output& output : program_.outputs)
      if (Status status = readable(output.tensor); !status.ok())
        return internal_error(fmt::format("output {}: {}", output.name, status.error().message));
    return {};
  }

 private:
  Status readable(TensorId id) const {
    if (!id.valid() || id.index() >= program_.tensors.size()) return internal_error("an operand does not exist");
    if (program_[id].kind == TensorKind::value && !made_[id.index()])
      return internal_error(program_.display(id) + " is read before it is made");
    if (stale_[id.index()]) return internal_error(program_.display(id) + " is read after its memory was overwritten");
    return {};
  }

  Status check(const Instruction& instruction) {
    auto at = [&](const std::string& what) { return internal_error(what + ", in: " + print(program_, instruction)); };
    for (TensorId id : instruction.operands)
      if (Status status = readable(id); !status.ok()) return at(status.error().message);
    for (TensorId id : instruction.writes) {
      bool operand = false;
      for (TensorId other : instruction.operands) operand = operand || other == id;
      if (!operand) return at("an instruction updates a tensor that is not an operand");
      if (program_[program_.root(id)].kind == TensorKind::input) return at("an input is updated");
      overwrite(id, id);
    }
    for (TensorId id : instruction.results) {
      if (!id.valid() || id.index() >= program_.tensors.size()) return internal_error("a result does not exist");
      const Tensor& tensor = program_[id];
      if (tensor.kind != TensorKind::value) return at(program_.display(id) + " is a result but not a value");
      if (made_[id.index()]) return at(program_.display(id) + " is made twice");
      made_[id.index()] = true;
      if (!tensor.storage.valid()) continue;
      if (bytes(tensor.type) > bytes(program_.type(tensor.storage)))
        return at(program_.display(id) + " does not fit where it lives");
      if (Status status = readable(tensor.storage); !status.ok()) return at(status.error().message);
      if (program_[program_.root(id)].kind == TensorKind::input) return at("an input is updated");
      overwrite(tensor.storage, id);
    }
    return {};
  }

  // What shared the memory before `by` was written there must not be read again, except parameters and state (they
  // are that memory).
  void overwrite(TensorId storage, TensorId by) {
    const TensorId root = program_.root(storage);
    for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
      const TensorId id{static_cast<std::int32_t>(i)};
      if (id != by && made_[i] && program_[id].kind == TensorKind::value && program_.root(id) == root) stale_[i] = true;
    }
  }

  const Program& program_;
  std::vector<bool> made_, stale_;
};

}  // namespace

Status verify(const Program& program) { return Verifier(program).run(); }

}  // namespace lancet::ir
