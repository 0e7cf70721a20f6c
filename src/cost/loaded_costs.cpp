// The costs of a machine whose times were measured on evenly spread tokens, under another load. The rank of the fullest
// experts decides: its rows are multiplied, and the others wait for the messages that it receives.
#include <fmt/format.h>

#include "lancet/base/hash.h"
#include "lancet/cost/costs.h"
#include "lancet/ops/catalogue.h"

namespace lancet::cost {
namespace {

class LoadedCosts final : public Costs {
 public:
  LoadedCosts(const Costs& even, const RankLoad& load) : even_(even), load_(load) {}

  std::optional<double> compute_ms(std::string_view op_key) const override { return even_.compute_ms(op_key); }
  std::optional<double> op_ms(const ir::Program& program, const ir::Instruction& instruction) const override {
    auto ms = even_.op_ms(program, instruction);
    if (ms && ops::is_of_experts(instruction)) *ms *= load_.fullest;
    return ms;
  }
  double all_to_all_ms(double bytes, ir::Axes group) const override { return even_.all_to_all_ms(bytes, group); }
  double all_reduce_ms(double bytes, ir::Axes group) const override { return even_.all_reduce_ms(bytes, group); }
  std::int64_t ranks_on_host(ir::Axes group) const override { return even_.ranks_on_host(group); }
  std::optional<std::int64_t> free_bytes() const override { return even_.free_bytes(); }
  bool knows(ir::Axes group) const override { return even_.knows(group); }
  std::optional<std::string> unknown_messages(const ir::Instruction& instruction) const override {
    return even_.unknown_messages(instruction);
  }
  double message_ms(double bytes, const ir::Instruction& instruction) const override {
    return even_.message_ms(bytes, instruction);
  }
  OpCost all_to_all(const ir::Program& program, const ir::Instruction& instruction) const override {
    if (const ops::Kind kind = ops::kind(instruction); kind == ops::Kind::counts || kind == ops::Kind::collective)
      return even_.all_to_all(program, instruction);
    const double bytes = load_.fullest * bytes_sent(program, instruction);
    const double ms = message_ms(bytes, instruction);
    return {ms, std::min(ms, all_to_all_core().ms(bytes))};
  }
  CoreCost all_to_all_core() const override { return even_.all_to_all_core(); }
  CoreCost all_reduce_core() const override { return even_.all_reduce_core(); }
  double launch_ms() const override { return even_.launch_ms(); }
  Interference interference() const override { return even_.interference(); }
  std::string identity() const override {
    return hex(hash64(fmt::format("{} {} {}", even_.identity(), load_.fullest, load_.kept)));
  }

 private:
  const Costs& even_;
  const RankLoad load_;
};

}  // namespace

std::unique_ptr<const Costs> Costs::under(const RankLoad& load) const {
  return std::make_unique<LoadedCosts>(*this, load);
}

}  // namespace lancet::cost
