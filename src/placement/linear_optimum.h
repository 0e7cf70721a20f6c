// The optimum of a linear program that has one.
#pragma once
#include <vector>

#include "lancet/placement/linear_solver.h"

namespace lancet::placement {

// The values of its columns. Config errors: this build has no solver, or it found no optimum in a minute.
inline Result<std::vector<double>> linear_optimum(const LinearModel& model) {
  LANCET_ASSIGN(LinearAnswer answer, solve_linear(model));
  if (answer.status != LinearAnswer::Status::optimal)
    return config_error("expected an optimum of its linear program within 60 s, found none");
  return std::move(answer.values);
}

}  // namespace lancet::placement
