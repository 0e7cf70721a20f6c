#include "lancet/train/plan.h"

#include "lancet/cost/profile.h"
#include "lancet/runtime/profiler.h"
#include "lancet/train/profile.h"
#include "setup.h"

namespace lancet::train {

Result<PlannedStep> plan_offline(const config::Config& config, const PlanPlace& place) {
  LANCET_TRY(config::check(config, place.ranks));
  const int local_ranks = (place.ranks + place.hosts - 1) / place.hosts;
  const std::string path = config.overlap.profile.empty() ? place.default_profile : config.overlap.profile;
  const cost::Place where{runtime::this_device(threads_of(config, local_ranks), local_ranks),
                          {place.ranks > 1 ? "mpi" : "self", place.ranks, place.hosts}};
  LANCET_ASSIGN(const cost::Profile profile, cost::read_profile(path, where));
  PlannedStep result;
  LANCET_ASSIGN(result.plan, plan_step(config, place.ranks, true, false, &profile, &result.report));
  return result;
}

}  // namespace lancet::train
