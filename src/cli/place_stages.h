// What `lancet place --stages` prints.
#pragma once
#include <string>

#include "lancet/placement/stages.h"

namespace lancet::cli {

std::string text_of_stages(const placement::StageAnswer& answer, const placement::Cluster& cluster, double seconds);
std::string json_of_stages(const placement::StageAnswer& answer, const placement::Cluster& cluster, double seconds);

}  // namespace lancet::cli
