// A view is declared just before the first line that names it, after the view that it is a slice of.
#include "text.h"

namespace lancet::ir {

void ViewPrinter::need(TensorId id, std::vector<TensorId>& list) {
  if (!id.valid() || id.index() >= program_.tensors.size()) return;
  if (program_[id].storage.valid()) need(program_[id].storage, list);
  if (program_[id].kind != TensorKind::view || printed_[id.index()]) return;
  printed_[id.index()] = true;
  list.push_back(id);
}

std::vector<TensorId> ViewPrinter::before(const Instruction& instruction) {
  std::vector<TensorId> list;
  for (TensorId id : instruction.operands) need(id, list);
  for (TensorId id : instruction.results) need(id, list);
  return list;
}

std::vector<TensorId> ViewPrinter::before_outputs() {
  std::vector<TensorId> list;
  for (const Output& output : program_.outputs) need(output.tensor, list);
  return list;
}

}  // namespace lancet::ir
