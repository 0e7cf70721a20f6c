// What `lancet place --experts` prints.
#pragma once
#include <string>

#include "lancet/placement/expert_shares.h"

namespace lancet::cli {

std::string text_of_experts(const placement::ExpertAnswer& answer, const placement::Cluster& cluster, double seconds);
std::string json_of_experts(const placement::ExpertAnswer& answer, const placement::Cluster& cluster, double seconds);

}  // namespace lancet::cli
