#include "lancet/train/metrics.h"

#include <fmt/format.h>

#include <cmath>

namespace lancet::train {
namespace {

std::string number(double value) { return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null"; }
template <class T>
std::string number(const std::optional<T>& value) {
  return value ? number(double(*value)) : "null";
}

}  // namespace

std::string to_json(const StepRecord& r) {
  return fmt::format(
      R"({{"step": {}, "loss": {}, "aux_loss": {}, "grad_norm": {}, "lr": {}, "step_ms": {}, "tokens_per_s": {}, "mfu": {}, )"
      R"("compute_ms": {}, "a2a_ms": {}, "allreduce_ms": {}, "exposed_ms": {}, "hidden_pct": {}, "predicted_ms": {}, )"
      R"("load_max_over_mean": {}, "drop_pct": {}, "dead_experts": {}}})",
      r.step, number(r.loss), number(r.aux_loss), number(r.grad_norm), number(r.lr), number(r.step_ms), number(r.tokens_per_s),
      number(r.mfu), number(r.compute_ms), number(r.a2a_ms), number(r.allreduce_ms), number(r.exposed_ms), number(r.hidden_pct),
      number(r.predicted_ms), number(r.load_max_over_mean), number(r.drop_pct), number(r.dead_experts));
}

std::string duration(double seconds) {
  const auto s = static_cast<long>(std::lround(std::max(seconds, 0.0)));
  if (s >= 3600) return fmt::format("{}h {:02}m", s / 3600, s % 3600 / 60);
  if (s >= 60) return fmt::format("{}m {:02}s", s / 60, s % 60);
  return fmt::format("{}s", s);
}

std::string step_line(const StepRecord& r, std::int64_t steps, double seconds_left) {
  std::string line = fmt::format("step {:>{}}/{} | loss {:.4f} | grad norm {:.3f} | lr {:.2e} | {:.0f} ms | {:.0f} tok/s", r.step,
                                 std::to_string(steps).size(), steps, r.loss, r.grad_norm, r.lr, r.step_ms, r.tokens_per_s);
  line += r.mfu ? fmt::format(" | MFU {:.1f}%", *r.mfu) : " | MFU n/a";
  line += r.hidden_pct ? fmt::format(" | exposed {:.1f} ms (hidden {:.0f}%)", r.exposed_ms, *r.hidden_pct)
                       : fmt::format(" | exposed {:.1f} ms", r.exposed_ms);
  if (r.load_max_over_mean)
    line += fmt::format(" | load max/mean {:.2f} | drop {:.1f}%", *r.load_max_over_mean, r.drop_pct.value_or(0));
  if (r.dead_experts.value_or(0) > 0) line += fmt::format(" | dead experts {}", *r.dead_experts);
  return line + " | ETA " + duration(seconds_left);
}

Result<MetricsFile> MetricsFile::create(const std::filesystem::path& path) {
  MetricsFile file;
  file.path_ = path;
  file.out_.open(path, std::ios::trunc);
  if (!file.out_) return data_error(fmt::format("{}: expected a file that can be written", path.string()));
  return file;
}

Status MetricsFile::write(const StepRecord& record) {
  out_ << to_json(record) << '\n' << std::flush;
  if (!out_) return data_error(fmt::format("{}: writing failed (is the disk full?)", path_.string()));
  return {};
}

}  // namespace lancet::train
