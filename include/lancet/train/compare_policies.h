// Runs every policy in turn on the same ranks, to say which is faster by more than noise.
#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lancet/base/result.h"
#include "lancet/comm/communicator.h"
#include "lancet/config/config.h"
#include "lancet/schedule/schedule_report.h"

namespace lancet::train {

// A policy and a number of parts that it is to have, as overlap.parts; none: as the config says.
struct PolicyParts {
  std::string policy;
  std::optional<int> parts = {};
  std::string name() const;  // "lancet", "expert_pipeline-4"
  friend bool operator==(const PolicyParts&, const PolicyParts&) = default;
};

struct ComparePoliciesOptions {
  int local_ranks = 1;
  std::string profile_folder = {};    // run::RunPlanOptions::profile_folder
  std::vector<PolicyParts> policies;  // each once
  // A round runs each policy once: `warmup` steps, then `steps` measured ones.
  int rounds = 5, warmup = 1, steps = 5;
  std::filesystem::path folder = {};  // each policy's run folder is in it; empty: no folders
};

// One policy. A round's time is the median of its measured steps, in milliseconds.
struct PolicyTimes {
  std::string policy, ran;  // PolicyParts::name; whose plan ran: sequential, where no other is predicted to be faster
  std::string plan;         // a hash of its instructions and their order: equal for equal schedules
  std::optional<double> predicted_ms, predicted_exposed_ms;
  std::vector<double> step_ms, exposed_ms;  // by round
  std::vector<double> late_pct;             // by round, on an emulated device; else empty
  // Those of the last round's last step, as measured on rank 0. A message's time holds its wait for other ranks.
  std::vector<schedule::CommunicationSite> communications;
};

// The rounds in which a is faster than b.
int rounds_won(const PolicyTimes& a, const PolicyTimes& b);

// Collective; times are rank 0's. Errors: those of training; of a run folder; on a signal, `saved`.
Result<std::vector<PolicyTimes>> compare_policies(const config::Config& config, comm::Communicator& world,
                                                  const ComparePoliciesOptions& options);

}  // namespace lancet::train
