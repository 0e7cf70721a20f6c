// The mesh of a config, and meshes that do not fit.
#include "config/parsed.h"

using namespace lancet;
using namespace lancet::config;

TEST_CASE("the mesh gives expert what the experts can be split among, and data the rest") {
  const auto mesh = [](std::vector<std::string> overrides, int ranks) {
    const auto made = make_mesh(good("{}", overrides), ranks);
    REQUIRE(made.ok());
    return to_string(*made);
  };
  CHECK(mesh({}, 1) == "1 rank");
  CHECK(mesh({}, 4) == "expert 4");  // two experts a rank
  CHECK(mesh({"model.num_local_experts=8"}, 4) == "expert 4");
  CHECK(mesh({"model.num_local_experts=6"}, 4) == "data 2 x expert 2");
  CHECK(mesh({"model.num_local_experts=2"}, 4) == "data 2 x expert 2");
  CHECK(mesh({"model.num_local_experts=4"}, 3) == "data 3");
  CHECK(mesh({"model.num_local_experts=6"}, 12) == "data 2 x expert 6");
  CHECK(mesh({"model.moe_layer_freq=0"}, 4) == "data 4");
  CHECK(mesh({"mesh.data=2"}, 4) == "data 2 x expert 2");
  CHECK(mesh({"mesh.expert=2"}, 4) == "data 2 x expert 2");
  CHECK(mesh({"mesh.expert=1"}, 4) == "data 4");
  CHECK(mesh({"mesh.data=4", "mesh.expert=2"}, 8) == "data 4 x expert 2");
  CHECK(mesh({"mesh.data=4", "model.moe_layer_freq=0"}, 4) == "data 4");
  CHECK(good("{}", {"mesh.expert=2"}).model.experts(2) == 4);  // experts_per_rank: of each coordinate
}

TEST_CASE("a mesh that does not fit is refused in one line") {
  const auto error = [](std::vector<std::string> overrides, int ranks) {
    return fault(check(good("{}", overrides), ranks));
  };
  const std::string product = "config: mesh: expected axes whose product is the 4 ranks, found data ";
  CHECK(error({"mesh.data=3"}, 4) == product + "3, expert null, tensor 1, stage 1");
  CHECK(error({"mesh.data=2", "mesh.expert=1"}, 4) == product + "2, expert 1, tensor 1, stage 1");
  CHECK(error({"mesh.data=8", "mesh.expert=4"}, 4) == product + "8, expert 4, tensor 1, stage 1");
  CHECK(error({"mesh.data=2", "model.moe_layer_freq=0"}, 4) == product + "2, expert null, tensor 1, stage 1");
  CHECK(error({"mesh.expert=4", "model.num_local_experts=6"}, 4) ==
        "config: mesh.expert: expected a divisor of the 6 experts (model.num_local_experts) of the tensors "
        "h.*.moe.experts, found 4");
  CHECK(error({"mesh.data=1", "model.num_local_experts=2"}, 4).ends_with("h.*.moe.experts, found 4"));
  CHECK(error({"mesh.expert=2", "model.moe_layer_freq=0"}, 4) ==
        "config: mesh.expert: expected 1 for a dense model (model.moe_layer_freq = 0), found 2");
  CHECK(error({"mesh.tensor=5"}, 5) ==
        "config: mesh.tensor: expected a divisor of the 12 heads (model.n_head) of h.*.attn.c_attn, found 5");
  CHECK(error({"mesh.tensor=3", "model.n_inner=32"}, 3) ==
        "config: mesh.tensor: expected a divisor of the 32 features (model.n_inner) of h.*.mlp.c_fc and "
        "h.*.moe.experts.c_fc, found 3");
  CHECK(error({"mesh.tensor=3", "model.moe_intermediate_size=32"}, 3) ==
        "config: mesh.tensor: expected a divisor of the 32 features (model.moe_intermediate_size) of "
        "h.*.moe.experts.c_fc, found 3");
  CHECK(check(good("{}",
                   {"mesh.tensor=3", "model.n_inner=32", "model.moe_intermediate_size=33", "model.moe_layer_freq=1"}),
              3)
            .ok());  // no block has an FFN of n_inner features
  CHECK(error({"mesh.tensor=3", "train.sequence_parallel=true", "train.seq_len=32"}, 3) ==
        "config: train.seq_len: expected a multiple of mesh.tensor = 3 with train.sequence_parallel, found 32");
  CHECK(check(good("{}", {"mesh.tensor=3", "train.sequence_parallel=false", "train.seq_len=32"}), 3).ok());
  const auto cut = [](const std::string& blocks) {
    return std::vector<std::string>{"mesh.stage=2", "model.n_layer=4", "mesh.stage_blocks=" + blocks};
  };
  for (const char* sound : {"[]", "[1,3]", "[4,0]"}) CHECK(check(good("{}", cut(sound)), 2).ok());
  for (const auto& [given, found] :
       {std::pair("[4]", "[4]"), {"[1,2]", "[1, 2]"}, {"[0,4]", "[0, 4]"}, {"[2,1,1]", "[2, 1, 1]"}})
    CHECK(
        error(cut(given), 2) ==
        std::string("config: mesh.stage_blocks: expected 2 numbers for mesh.stage = 2, whose sum is model.n_layer = 4, "
                    "none of them 0 but the last, found ") +
            found);
  CHECK(error({"mesh.stage=3", "model.n_layer=2"}, 3) ==
        "config: mesh.stage: expected at most 2, the number of blocks of the model (model.n_layer), found 3");
}
