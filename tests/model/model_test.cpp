// GPT-2 MoE as a Program: documented shapes and names, and published parameter counts.
#include <map>

#include "golden/golden.h"
#include "lancet/ir/plan.h"
#include "lancet/model/transformer.h"
#include "lancet/ops/catalogue.h"
#include "routers.h"
#include "small_model.h"

using namespace lancet;

namespace {

// The batch of that many ranks, of which each counts capacity for itself.
model::BuildOptions options(int ranks) { return {.batch = 2 * ranks, .sequence = 8, .groups = ranks, .loads = ranks}; }
config::Model model_on(int ranks) { return test::small_model().on(ir::of_experts(ranks)); }

void require_sound(const ir::Program& program) {
  if (const Status status = ops::verify(program); !status.ok()) FAIL(status.error().message);
}

using Types = std::map<std::string, std::string>;
Types parameters_of(const ir::Program& program, const std::string& prefix) {
  Types result;
  for (const ir::Tensor& tensor : program.tensors)
    if (tensor.kind == ir::TensorKind::parameter && tensor.name.starts_with(prefix))
      result[tensor.name] =
          fmt::format("{}[{}]", name(tensor.type.dtype), ir::to_string(tensor.type.shape, *tensor.sharding));
  return result;
}

std::string type_of_output(const ir::Program& program, const char* name) {
  const ir::TensorId id = program.output(name);
  return id.valid() ? ir::to_string(program.type(id)) : "none";
}

}  // namespace

TEST_CASE("the small model's forward pass equals its golden text") {
  test::require_golden("gpt2_moe_2_ranks.ir", ir::print(model::build_forward(model_on(2), options(2))));
  test::require_golden("gpt2_moe_1_rank.ir", ir::print(model::build_forward(model_on(1), options(1))));
}

TEST_CASE("every mode, type and size of the model verifies") {
  for (model::Mode mode : {model::Mode::train, model::Mode::evaluate, model::Mode::generate, model::Mode::decode})
    for (int ranks : {1, 2, 4})
      for (DType dtype : {DType::f32, DType::bf16})
        for (const test::Route& route : test::routes)
          for (config::AuxLossScope scope :
               {config::AuxLossScope::rank, config::AuxLossScope::global, config::AuxLossScope::group})
            for (std::int64_t freq : {0, 1, 2, 3}) {
              config::Model m = test::small_model();
              route.set(m);
              m.router_aux_loss_scope = scope;
              m.moe_layer_freq = freq;
              m.first_k_dense_replace = ranks == 2;
              m.n_shared_experts = ranks == 4 ? 2 : 0;
              model::BuildOptions o = options(ranks);
              o.mode = mode;
              o.dtype = dtype;
              o.inspect = ranks == 2;
              require_sound(model::build_forward(m.on(ir::of_experts(ranks)), o));
            }
}

TEST_CASE("parameters have the documented names and shapes") {
  config::Model m = test::small_model();
  m.n_inner = 96;
  model::BuildOptions o = options(2);
  o.dtype = DType::bf16;
  const ir::Program program = model::build_forward(m.on(ir::of_experts(2)), o);
  REQUIRE(parameters_of(program, "w") == Types{{"wte.weight", "bf16[128{tensor},32]"},  // 67 padded to 128
                                               {"wpe.weight", "bf16[16,32 whole]"}});
  REQUIRE(parameters_of(program, "ln_f") == Types{{"ln_f.weight", "f32[32 whole]"}, {"ln_f.bias", "f32[32 whole]"}});
  REQUIRE(parameters_of(program, "h.0.") == Types{{"h.0.ln_1.weight", "f32[32 whole]"},
                                                  {"h.0.ln_1.bias", "f32[32 whole]"},
                                                  {"h.0.attn.c_attn.weight", "bf16[3x32{tensor},32]"},
                                                  {"h.0.attn.c_attn.bias", "f32[3x32{tensor}]"},
                                                  {"h.0.attn.c_proj.weight", "bf16[32,32{tensor}]"},
                                                  {"h.0.attn.c_proj.bias", "f32[32 whole]"},
                                                  {"h.0.ln_2.weight", "f32[32 whole]"},
                                                  {"h.0.ln_2.bias", "f32[32 whole]"},
                                                  {"h.0.moe.gate.weight", "f32[4,32 whole]"},
                                                  {"h.0.moe.experts.c_fc.weight", "bf16[4{expert},96{tensor},32]"},
                                                  {"h.0.moe.experts.c_fc.bias", "f32[4{expert},96{tensor}]"},
                                                  {"h.0.moe.experts.c_proj.weight", "bf16[4{expert},32,96{tensor}]"},
                                                  {"h.0.moe.experts.c_proj.bias", "f32[4{expert},32]"}});
  REQUIRE(parameters_of(program, "h.1.mlp") == Types{{"h.1.mlp.c_fc.weight", "bf16[96{tensor},32]"},
                                                     {"h.1.mlp.c_fc.bias", "f32[96{tensor}]"},
                                                     {"h.1.mlp.c_proj.weight", "bf16[32,96{tensor}]"},
                                                     {"h.1.mlp.c_proj.bias", "f32[32 whole]"}});
  REQUIRE(parameters_of(program, "").size() == 2 + 2 + 2 * 13 + 2 * 12);
}

TEST_CASE("inputs and outputs follow the mode") {
  model::BuildOptions o = options(2);
  const ir::Program train = model::build_forward(model_on(2), o);
  REQUIRE(ir::to_string(train.type(train.find("tokens"))) == "i32[4,8]");
  REQUIRE(ir::to_string(train.type(train.find("targets"))) == "i32[4,8]");
  REQUIRE(type_of_output(train, "loss") == "f32[1]");
  REQUIRE(type_of_output(train, "aux.h.0") == "f32[2]");
  REQUIRE(type_of_output(train, "load.h.2") == "f32[4,4]");  // of two loads
  REQUIRE(type_of_output(train, "aux.h.1") == "none");
  REQUIRE(type_of_output(train, "expert.h.0") == "none");
  REQUIRE(train.outputs.size() == 5);

  o.mode = model::Mode::evaluate;
  REQUIRE(model::build_forward(model_on(2), o).outputs.size() == 1);

  o.mode = model::Mode::generate;
  const ir::Program generate = model::build_forward(model_on(2), o);
  REQUIRE_FALSE(generate.find("targets").valid());
  REQUIRE(generate.outputs.size() == 1);
  REQUIRE(type_of_output(generate, "logits") == "f32[4,8,128]");
  for (const ir::Instruction& instruction : generate.instructions)  // 2 groups of 16 tokens: no token is dropped
    if (instruction.op == "slots") REQUIRE(instruction.attributes.integer("capacity") == 16);

  o = options(1);
  o.inspect = true;
  const ir::Program inspected = model::build_forward(model_on(1), o);
  REQUIRE(type_of_output(inspected, "expert.h.2") == "i32[16,1]");
  REQUIRE(type_of_output(inspected, "score.h.2") == "f32[2,8,4]");
  REQUIRE(type_of_output(inspected, "probability.h.2") == "f32[16,1]");
}

TEST_CASE("the loss and the auxiliary loss count the tokens of the whole batch") {
  model::BuildOptions o = options(2);
  o.accumulation = 3;
  config::Model m = test::small_model();
  m.router_aux_loss_coef = 0.25;
  for (config::AuxLossScope scope : {config::AuxLossScope::rank, config::AuxLossScope::global}) {
    m.router_aux_loss_scope = scope;
    int losses = 0, means = 0;
    for (const ir::Instruction& instruction : model::build_forward(m.on(ir::of_experts(2)), o).instructions) {
      if (instruction.op == "cross_entropy_train") {
        REQUIRE(instruction.attributes.integer("total_tokens") == 2 * 8 * 2 * 3);
        REQUIRE(instruction.attributes.integer("vocabulary") == 67);
      }
      if (instruction.op == "mean_load") ++means;
      if (instruction.op != "aux_loss") continue;
      ++losses;
      REQUIRE(instruction.attributes.integer("total_tokens") == 2 * 8 * 2 * 3);
      REQUIRE(instruction.attributes.integer("load_tokens") == (scope == config::AuxLossScope::global ? 32 : 16));
      REQUIRE(instruction.attributes.real("coefficient") == 0.25);
    }
    REQUIRE(losses == 2);
    REQUIRE(means == (scope == config::AuxLossScope::global ? 2 : 0));
  }
}

TEST_CASE("where ranks split the vocabulary, they divide its rows, and the loss is that of blocks of columns") {
  config::Model m = test::small_model();
  m.vocab_size = 8191;
  for (const model::Mode mode : {model::Mode::train, model::Mode::evaluate}) {
    model::BuildOptions o = options(1);
    o.mode = mode;
    o.tensor_ranks = 3;
    const ir::Program program = model::build_forward(m, o);
    REQUIRE(program.type(program.find("wte.weight")).shape == Shape{8256, m.n_embd});  // 3 * 43 * 64
    const std::size_t count = program.instructions.size();
    const ir::Instruction &stats = program.instructions[count - 2], &loss = program.instructions[count - 1];
    REQUIRE(stats.op == "logit_stats");
    REQUIRE(stats.attributes == ops::Attributes{{"vocabulary", 8191}, {"blocks", 3}});
    REQUIRE(program.type(stats.results[0]).shape == Shape{3, 2, 8, 2});
    REQUIRE(loss.op == "loss_of_stats");
    REQUIRE(loss.attributes == ops::Attributes{{"total_tokens", 16}});
    REQUIRE(program.output("loss") == loss.results[0]);
  }
  for (const model::Parameter& parameter : model::parameters(m, 3)) {
    REQUIRE(parameter.unused == (parameter.name == "wte.weight" ? (8256 - 8191) * m.n_embd : 0));
    REQUIRE(parameter.extra_rows == (parameter.name == "wte.weight" ? 8256 - m.padded_vocab() : 0));
  }
}

TEST_CASE("capacity is rounded up, at least 1 and at most the number of tokens") {
  REQUIRE(model::capacity(1.25, 1024, 4) == 320);
  REQUIRE(model::capacity(1.0, 1024, 4) == 256);
  REQUIRE(model::capacity(1.0, 10, 3) == 4);
  REQUIRE(model::capacity(1.0, 9, 3) == 3);
  REQUIRE(model::capacity(1.25, 10, 4) == 4);    // 3.125
  REQUIRE(model::capacity(1.1, 100, 10) == 11);  // 11.000000000000002 in double
  REQUIRE(model::capacity(1.2, 1000, 3) == 400);
  REQUIRE(model::capacity(0.1, 4, 8) == 1);
  REQUIRE(model::capacity(8.0, 16, 4) == 16);
  REQUIRE(model::capacity(1.0, 1, 64) == 1);
  REQUIRE(model::capacity(1.25, 1024, 4, 2) == 640);
  REQUIRE(model::capacity(1.25, 1024, 4, 4) == 1024);           // no token chooses an expert twice
  for (std::int64_t percent = 1; percent <= 400; percent += 7)  // compared with integer arithmetic
    for (std::int64_t tokens : {1, 7, 64, 1000, 4096})
      for (std::int64_t experts : {1, 3, 8, 64}) {
        const std::int64_t exact = (percent * tokens + 100 * experts - 1) / (100 * experts);
        REQUIRE(model::capacity(double(percent) / 100, tokens, experts) == std::clamp<std::int64_t>(exact, 1, tokens));
      }
}

TEST_CASE("GPT-2 small has 124,439,808 parameters") {
  config::Model m;  // the defaults are GPT-2 small's
  m.moe_layer_freq = 0;
  for (int ranks : {1, 4}) {
    const model::ParameterCount count = model::count_parameters(m.on(ir::of_experts(ranks)));
    REQUIRE(count.total == 124'439'808);
    REQUIRE(count.active == 124'439'808);
  }
}

TEST_CASE("narrow experts, shared experts and dense first blocks have the documented names and shapes") {
  config::Model m = test::small_model();
  m.n_inner = 96;
  m.moe_intermediate_size = 24;
  m.n_shared_experts = 3;
  m.first_k_dense_replace = 1;  // of blocks 0 and 2, the latter is left
  const ir::Program program = model::build_forward(m.on(ir::of_experts(2)), options(2));
  REQUIRE(parameters_of(program, "h.0.moe").empty());
  REQUIRE(parameters_of(program, "h.0.mlp.c_fc.w") == Types{{"h.0.mlp.c_fc.weight", "f32[96{tensor},32]"}});
  REQUIRE(parameters_of(program, "h.2.moe") == Types{{"h.2.moe.gate.weight", "f32[4,32 whole]"},
                                                     {"h.2.moe.experts.c_fc.weight", "f32[4{expert},24{tensor},32]"},
                                                     {"h.2.moe.experts.c_fc.bias", "f32[4{expert},24{tensor}]"},
                                                     {"h.2.moe.experts.c_proj.weight", "f32[4{expert},32,24{tensor}]"},
                                                     {"h.2.moe.experts.c_proj.bias", "f32[4{expert},32]"},
                                                     {"h.2.moe.shared_experts.c_fc.weight", "f32[72{tensor},32]"},
                                                     {"h.2.moe.shared_experts.c_fc.bias", "f32[72{tensor}]"},
                                                     {"h.2.moe.shared_experts.c_proj.weight", "f32[32,72{tensor}]"},
                                                     {"h.2.moe.shared_experts.c_proj.bias", "f32[32 whole]"}});
  REQUIRE(type_of_output(program, "aux.h.0") == "none");
  REQUIRE(type_of_output(program, "aux.h.2") == "f32[2]");
}

TEST_CASE("a token passes all shared experts and those of its route") {
  config::Model m;  // GPT-2 small, with experts in blocks 2, 4, ..., 10
  m.num_local_experts = 64;
  m.num_experts_per_tok = 6;
  m.router = config::Router::top_k;
  m.moe_intermediate_size = 512;
  m.n_shared_experts = 2;
  m.first_k_dense_replace = 1;
  const auto ffn = [](std::int64_t width) { return 768 * width + width + width * 768 + 768; };
  const model::ParameterCount count = model::count_parameters(m.on(ir::of_experts(8)));
  const std::int64_t others = 124'439'808 - 5 * ffn(3072) + 5 * (64 * 768 + ffn(1024));
  REQUIRE(count.total == others + 5 * 64 * ffn(512));
  REQUIRE(count.active == others + 5 * 6 * ffn(512));
}

TEST_CASE("all experts count, and one of them is active") {
  config::Model m;
  m.num_local_experts = 8;  // in 6 of 12 blocks
  const std::int64_t expert = 768 * 3072 + 3072 + 3072 * 768 + 768;
  for (int ranks : {1, 2, 8}) {
    const model::ParameterCount count = model::count_parameters(m.on(ir::of_experts(ranks)));
    REQUIRE(count.total == 124'439'808 + 6 * (7 * expert + 8 * 768));  // and the gate's weight
    REQUIRE(count.active == 124'439'808 + 6 * 8 * 768);
  }
}
