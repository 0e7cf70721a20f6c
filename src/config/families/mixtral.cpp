// Mixtral: Llama's blocks, each of whose FFNs is an MoE layer. Jiang et al., Mixtral of Experts.
#include "names.h"

namespace lancet::config::families {
namespace {

constexpr std::string_view mixtral_names[] = {"num_local_experts"};

}  // namespace

extern const Family mixtral{.name = "mixtral",
                            .fields = {common_names, rotary_names, router_names, mixtral_names},
                            .set_defaults = [](Model& model) {
                              set_experts(model, 8, 2);
                              model.norm_topk_prob = true;  // it has no field for it
                              model.rope_theta = 1e6;
                            }};

}  // namespace lancet::config::families
