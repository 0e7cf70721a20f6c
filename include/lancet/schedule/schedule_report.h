// Facts about a schedule for people, read off a Program and its predicted times; the same for every policy.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/ir/plan.h"

namespace lancet::schedule {

// A communication at one place of the model and in one pass, all its parts and micro batches together, and the
// computation beside it. Where several communication streams are busy, the same computation is beside all.
// Milliseconds.
struct CommunicationSite {
  // site_of(). What a value crosses from stage to stage by has the label of its maker, so the op is added there:
  // "h.2.mlp.c_proj.send_next".
  std::string site;
  std::string_view pass;  // pass_of()
  ir::Stream stream = ir::Stream::expert;
  int parts = 0;  // messages of a micro batch
  double ms = 0, covered_ms = 0;
  // The sites and roles ("h.2.attn.c_attn dw") of the compute stream's instructions beside it, the longest first.
  std::vector<std::pair<std::string, double>> under;

  void add_under(const std::string& work, double under_ms);
  void sort_under();
};
// Every communication that takes time, in launch order, without what copies on the rank itself. when: per instruction,
// as predicted or as measured.
std::vector<CommunicationSite> communication_sites(const ir::Program& program, std::span<const ir::Interval> when);

// What the step recomputes at one kind of place of the model, "h.*.mlp.gelu", for all layers and micro batches.
// Milliseconds.
struct RecomputedSite {
  std::string op, place;
  int count = 0;
  double ms = 0;
  double beside_ms = 0;  // while a communication was under way
};
// Ordered by the first instruction of each. when: per instruction.
std::vector<RecomputedSite> recomputed_sites(const ir::Program& program, std::span<const ir::Interval> when);

// Bytes of the arena that a micro batch keeps from its forward pass for its backward pass: what instructions of both
// touch.
std::int64_t kept_bytes(const ir::Program& program);

// CommunicationSite::under in words, its first few items by name: "h.2.attn.c_attn dw 1.20, 3 more 0.40"; "-" for none.
std::string longest_first(std::span<const std::pair<std::string, double>> under);

// "forward", "backward" or the name of another role.
std::string_view pass_of(ir::Role role);

// The label without the number of the part, which is the same for all parts of an instruction.
std::string site_of(const ir::Instruction& instruction);

// A range of the forward pass (or, with role dx, of the backward pass) whose instructions run in `parts` parts, each
// reading the results of the same part. first, last: the sites of its first and last instruction in program order.
struct SplitRange {
  ir::Role role = ir::Role::forward;
  int parts = 1;
  std::string first, last;
};
std::vector<SplitRange> split_ranges(const ir::Program& program);

}  // namespace lancet::schedule
