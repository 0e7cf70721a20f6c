// Walks the instructions in order and keeps, per tensor, whether it was made and whether it is stale (its memory was
// overwritten since). An operand must be made and not stale. A result or an in-place update overwrites a region: every
// live tensor whose bytes overlap it becomes stale, except the tensors that the written one is a part of and slices of
// it (they show the new bytes), and parameters and state (they are that memory). A view that is filled part by part is
// made when its parts cover it; Filled records the byte ranges, or the parts of slots, that were made. A slice of
// such a view can be read as soon as the parts inside it were made. Of a program that lists instructions of the step
// before, the list of one whole step is walked, and then what crosses the border is checked.
#include <fmt/format.h>
#include <algorithm>
#include <bit>
#include <map>
#include <unordered_map>
#include <vector>

#include "lancet/ir/dependencies.h"
#include "lancet/ir/groups.h"
#include "lancet/ir/plan.h"
#include "lancet/ir/program.h"

namespace lancet::ir {
namespace {

class Verifier {
 public:
  explicit Verifier(const Program& program)
      : program_(program),
        made_(program.tensors.size()),
        stale_(program.tensors.size()),
        live_(program.tensors.size()),
        views_(program.tensors.size()) {}

  Status run() {
    for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
      const Tensor& tensor = program_.tensors[i];
      if (tensor.storage.valid() && tensor.storage.index() >= program_.tensors.size())
        return internal_error(fmt::format("tensor %{} lives in a tensor that does not exist", tensor.number));
      if (!tensor.sharding) continue;
      if (Status fits = ir::check(tensor.type.shape, *tensor.sharding); !fits.ok())
        return internal_error(
            fmt::format("{}: {}", program_.display({static_cast<std::int32_t>(i)}), fits.error().message));
    }
    for (std::size_t i = 0; i < program_.tensors.size(); ++i) {
      const Tensor& tensor = program_.tensors[i];
      if (tensor.kind != TensorKind::view) continue;
      const TensorId view{static_cast<std::int32_t>(i)};
      LANCET_TRY(fits(view));
      if (tensor.slice) views_[program_.root(view).index()].push_back(view);
    }
    for (const Instruction& instruction : program_.instructions) LANCET_TRY(check(instruction));
    for (const Output& output : program_.outputs)
      if (Status status = readable(output.tensor); !status.ok())
        return internal_error(fmt::format("output {}: {}", output.name, status.error().message));
    return {};
  }

 private:
  // Records how much of a view that is filled part by part has been made.
  struct Filled {
    std::map<std::int64_t, std::int64_t> ranges;  // in bytes: begin and end
    std::uint64_t parts = 0;                      // bit i: part i was made
    int of = 0;                                   // the number of parts; 0: byte ranges
    std::vector<Region> regions;
    bool covers(std::int64_t from, std::int64_t size) const {
      std::int64_t at = from;
      for (const auto& [begin, end] : ranges)
        if (begin <= at) at = std::max(at, end);
      return at >= from + size;
    }
    bool all_parts() const { return of > 0 && std::popcount(parts) == of; }
    bool has(const Slice& slice) const { return all_parts() || (slice.parts == of && (parts >> slice.part & 1) != 0); }
  };

  bool made(TensorId id) const {
    const Tensor& tensor = program_[id];
    if (tensor.kind == TensorKind::value) return made_[id.index()];
    if (tensor.kind != TensorKind::view) return true;
    if (tensor.slice) return slice_made(tensor);
    const auto it = filled_.find(id.value);
    if (it == filled_.end()) return false;
    return it->second.all_parts() || it->second.covers(0, bytes(tensor.type));
  }

  // True if the parts of the whole that are inside the slice were made.
  bool slice_made(const Tensor& slice) const {
    const auto it = filled_.find(slice.storage.value);
    if (it == filled_.end()) return made(slice.storage);
    const Filled& filled = it->second;
    if (filled.of > 0) return slice.slice->parts > 0 ? filled.has(*slice.slice) : filled.all_parts();
    if (slice.slice->parts > 0) return filled.covers(0, bytes(program_.type(slice.storage)));
    return filled.covers(slice.slice->offset, bytes(slice.type));
  }

  Status readable(TensorId id) const {
    if (!id.valid() || id.index() >= program_.tensors.size()) return internal_error("an operand does not exist");
    if (stale_[id.index()]) return internal_error(program_.display(id) + " is read after its memory was overwritten");
    if (!made(id)) return internal_error(program_.display(id) + " is read before it is made");
    return {};
  }

  Status check(const Instruction& instruction) {
    auto at = [&](const std::string& what) { return internal_error(what + ", in: " + print(program_, instruction)); };
    for (TensorId id : instruction.operands) {
      if (Status status = readable(id); !status.ok()) return at(status.error().message);
      if (program_[id].kind == TensorKind::view) live(id);
    }
    for (TensorId id : instruction.writes) {
      if (std::ranges::find(instruction.operands, id) == instruction.operands.end())
        return at("an instruction updates a tensor that is not an operand");
      if (program_[program_.root(id)].kind == TensorKind::input) return at("an input is updated");
      overwrite(id);
    }
    for (TensorId id : instruction.results) {
      if (!id.valid() || id.index() >= program_.tensors.size()) return internal_error("a result does not exist");
      if (Status status = make(id); !status.ok()) return at(status.error().message);
    }
    if (!has_sound_axes(instruction)) return at("expected axes of the mesh, outermost first, such as data,expert");
    return verify_body(program_, instruction);
  }

  Status make(TensorId id) {
    const Tensor& tensor = program_[id];
    if (tensor.kind != TensorKind::value) return internal_error(program_.display(id) + " is a result but not a value");
    if (made_[id.index()]) return internal_error(program_.display(id) + " is made twice");
    LANCET_TRY(fits(id));
    if (program_[program_.root(id)].kind == TensorKind::input) return internal_error("an input is updated");
    if (tensor.storage.valid() && !tensor.slice) LANCET_TRY(readable(tensor.storage));
    made_[id.index()] = true;
    overwrite(id);
    return fill(id);
  }

  Status fits(TensorId id) const {
    const Tensor& tensor = program_[id];
    if (!tensor.storage.valid()) return {};
    const Slice slice = tensor.slice.value_or(Slice{});
    if (slice.parts < 0 || slice.parts > max_parts || slice.part < 0 || (slice.parts > 0 && slice.part >= slice.parts))
      return internal_error(
          fmt::format("{} is part {} of {}, which does not exist", program_.display(id), slice.part, slice.parts));
    const std::int64_t from = slice.offset;
    if (from < 0 || from + bytes(tensor.type) > bytes(program_.type(tensor.storage)))
      return internal_error(program_.display(id) + " does not fit where it lives");
    return {};
  }

  Status fill(TensorId id) {
    const Tensor& tensor = program_[id];
    if (!tensor.slice) return {};
    if (program_[tensor.storage].kind != TensorKind::view)
      return internal_error(program_.display(id) + " is made as a slice of a tensor that is not a view");
    Filled& filled = filled_[tensor.storage.value];
    filled.regions.push_back(program_.region(id));
    if (tensor.slice->parts > 0) {
      if (filled.of > 0 && filled.of != tensor.slice->parts)
        return internal_error(fmt::format("{} is one of {} parts, others of the same tensor are of {}",
                                          program_.display(id), tensor.slice->parts, filled.of));
      filled.of = tensor.slice->parts;
      filled.parts |= std::uint64_t{1} << tensor.slice->part;
    } else {
      std::int64_t& end = filled.ranges[tensor.slice->offset];
      end = std::max(end, tensor.slice->offset + bytes(tensor.type));
    }
    live(tensor.storage);
    return {};
  }

  void live(TensorId id) {
    std::vector<TensorId>& list = live_[program_.root(id).index()];
    if (std::find(list.begin(), list.end(), id) == list.end()) list.push_back(id);
  }

  // True if `view` is a slice of `whole`, directly or through other slices.
  bool is_slice_of(TensorId view, TensorId whole) const {
    while (program_[view].kind == TensorKind::view && program_[view].slice)
      if ((view = program_[view].storage) == whole) return true;
    return false;
  }

  void overwrite(TensorId by) {
    const Region region = program_.region(by);
    std::vector<TensorId> wholes{by};
    for (TensorId at = by; program_[at].slice; at = program_[at].storage) wholes.push_back(program_[at].storage);
    auto overwritten = [&](TensorId id) {
      const bool part = std::find(wholes.begin(), wholes.end(), id) != wholes.end();
      return !part && !is_slice_of(id, by) && holds(id, region);
    };
    for (TensorId view : views_[region.root.index()])  // whether read before or not
      if (made(view) && overwritten(view)) stale_[view.index()] = true;
    std::erase_if(live_[region.root.index()], [&](TensorId id) {
      if (!overwritten(id)) return false;
      stale_[id.index()] = true;
      return true;
    });
    if (program_[by].number >= 0) live(by);
  }

  // True if bytes of `id` were made in the region. For a view that is being filled, only its finished parts count.
  bool holds(TensorId id, const Region& region) const {
    const auto it = filled_.find(id.value);
    if (it == filled_.end()) return overlap(program_.region(id), region);
    return std::any_of(it->second.regions.begin(), it->second.regions.end(),
                       [&](const Region& part) { return overlap(part, region); });
  }

  const Program& program_;
  std::vector<bool> made_, stale_;
  std::vector<std::vector<TensorId>> live_;   // per root: values and views that can be read
  std::vector<std::vector<TensorId>> views_;  // per root: all slices, whether their whole is made at once or in parts
  std::unordered_map<std::int32_t, Filled> filled_;  // per view
};

}  // namespace

Status verify(const Program& program) {
  if (!crosses_steps(program)) return Verifier(program).run();
  Program step = program.without_instructions();
  for (InstructionId id : in_step_order(program)) step.instructions.push_back(program.instructions[id.index()]);
  LANCET_TRY(Verifier(step).run());
  return verify_border(program);
}

}  // namespace lancet::ir
