// Sequences of tokens and of positions.
#include <map>

#include "ops/references/reference_ops.h"

namespace lancet::test {
namespace {

using Index = std::int64_t;

// Fills result r, whose sequences have `to` rows along dimension `axis` where operand r has `from`: row i of a sequence
// is that of the operand, and what is beyond its last row is `padding`.
void resize(ReferenceCall& c, std::size_t r, int axis, Index from, Index to, double padding) {
  const Shape& shape = c.operands[r].shape();
  Index run = 1;
  for (int i = axis + 1; i < shape.rank(); ++i) run *= shape[i];
  const Index sequences = shape.elements() / run / from;
  for (Index s = 0; s < sequences; ++s)
    for (Index i = 0; i < to; ++i)
      for (Index e = 0; e < run; ++e)
        c.results[r][(s * to + i) * run + e] = i < from ? c.operands[r][(s * from + i) * run + e] : padding;
}

void pad(ReferenceCall& c, std::size_t r, int axis, double padding) {
  resize(c, r, axis, c.attributes.integer("sequence"), c.attributes.integer("positions"), padding);
}

void pad_positions(ReferenceCall& c) { pad(c, 0, int(c.attributes.integer("axis", 1)), 0); }
void cut_positions(ReferenceCall& c) {
  resize(c, 0, int(c.attributes.integer("axis", 1)), c.attributes.integer("positions"),
         c.attributes.integer("sequence"), 0);
}
void pad_targets(ReferenceCall& c) { pad(c, 0, 1, -1); }
void pad_choices(ReferenceCall& c) {  // weight, expert, slot
  pad(c, 0, 0, 0);
  pad(c, 1, 0, 0);
  pad(c, 2, 0, -1);
}

}  // namespace

void add_position_references(std::map<std::string_view, Reference>& table) {
  table.insert({{"cut_positions", cut_positions},
                {"pad_choices", pad_choices},
                {"pad_positions", pad_positions},
                {"pad_targets", pad_targets}});
}

}  // namespace lancet::test
