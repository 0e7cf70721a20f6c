// Spreading the shardings of annotated tensors: text in, text out.
#include <random>

#include "good.h"
#include "steps/models.h"
#include "steps/random_model.h"
#include "steps/support.h"

using namespace lancet;
using namespace lancet::test;

namespace {

constexpr ir::Mesh data2_tensor2{{1, 2, 1, 2}};
constexpr ir::Mesh data2_expert2_tensor2{{1, 2, 2, 2}};

std::string sharded(std::string_view text, const ir::Mesh& mesh = data2_tensor2) {
  auto result = test::good(passes::shard(program(text), mesh));
  const std::string once = text_of(*result);
  CHECK(ir::print(passes::shard(*result, mesh).value()) == once);  // it is a fixed point
  return once;
}

std::string shard_error(std::string_view text) {
  const auto result = passes::shard(program(text), data2_tensor2);
  return result.ok() ? "none" : result.error().message;
}

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const auto at = text.find(from);
  REQUIRE(at != std::string::npos);
  return text.replace(at, from.size(), to);
}

// The sharding of a named tensor, of a parameter's gradient "grad.w", or of a value by its label and op "fc linear".
std::string sharding_of(const ir::Program& p, std::string_view name) {
  ir::TensorId id = p.find(name);
  if (!id.valid()) id = p.output(name);
  for (const ir::Instruction& at : p.instructions)
    if (!id.valid() && at.label + " " + at.op == name) id = at.results[0];
  if (!id.valid()) FAIL("no tensor " << name);
  return ir::to_string(p.type(id).shape, *p[id].sharding);
}

// A dense block of GPT-2. {} in the text stands for annotations of c_attn, c_proj, fc and proj.
std::string block(std::string_view input, std::string_view attn, std::string_view attn_proj, std::string_view fc,
                  std::string_view proj) {
  return fmt::format(R"(program block
input @tokens : i32[{}]
input @targets : i32[4,6]
parameter @wte : bf16[32,16]
parameter @wpe : bf16[6,16]
parameter @g1 : f32[16]
parameter @b1 : f32[16]
parameter @attn.w : bf16[{}]
parameter @attn.b : f32[48]
parameter @attn_proj.w : bf16[{}]
parameter @attn_proj.b : f32[16]
parameter @g2 : f32[16]
parameter @b2 : f32[16]
parameter @fc.w : bf16[{}]
parameter @fc.b : f32[64]
parameter @proj.w : bf16[{}]
parameter @proj.b : f32[16]
parameter @g3 : f32[16]
parameter @b3 : f32[16]
%0 : bf16[4,6,16] = embedding(@tokens, @wte, @wpe)  # compute forward wte
%1 : bf16[4,6,16], %2 : f32[4,6,2] = layer_norm(%0, @g1, @b1) {{eps=1e-05}}  # compute forward ln_1
%3 : bf16[4,6,48] = linear(%1, @attn.w, @attn.b)  # compute forward attn
%4 : bf16[4,6,16], %5 : f32[4,4,6] = attention(%3) {{heads=4}}  # compute forward heads
%6 : bf16[4,6,16] = linear(%4, @attn_proj.w, @attn_proj.b)  # compute forward attn_proj
%7 : bf16[4,6,16], %8 : bf16[4,6,16], %9 : f32[4,6,2] = add_layer_norm(%0, %6, @g2, @b2) {{eps=1e-05}}  # compute forward ln_2
%10 : bf16[4,6,64] = linear(%8, @fc.w, @fc.b)  # compute forward fc
%11 : bf16[4,6,64] = gelu(%10)  # compute forward gelu
%12 : bf16[4,6,16] = linear(%11, @proj.w, @proj.b)  # compute forward proj
%13 : bf16[4,6,16], %14 : bf16[4,6,16], %15 : f32[4,6,2] = add_layer_norm(%7, %12, @g3, @b3) {{eps=1e-05}}  # compute forward ln_f
%16 : bf16[4,6,32] = linear(%14, @wte)  # compute forward head
%17 : f32[1], %18 : bf16[4,6,32] in %16 = cross_entropy_train(%16, @targets) {{vocabulary=32, total_tokens=24}}  # compute forward loss
output loss = %17
)",
                     input, attn, attn_proj, fc, proj);
}

ir::Program sharded_step(const std::string& forward, const ir::Mesh& mesh = data2_tensor2) {
  const ir::Program step = passes::autodiff(program(forward));
  auto result = test::good(passes::shard(step, mesh));
  require_sound(ops::verify(*result));
  return *result;
}

const std::string annotated = block("4{data},6", "3x16{tensor},16", "16,16{tensor}", "64{tensor},16", "16,64{tensor}");

}  // namespace

TEST_CASE("shard: elementwise ops and products pass a split batch on, forward and backward") {
  const std::string expected = R"(program p
input @x : f32[4{data},6,8]
parameter @w : f32[8,8] whole
%0 : f32[4{data},6,8] = linear(@x, @w)  # compute forward a
%1 : f32[4{data},6,8] = gelu(%0)  # compute forward b
%2 : f32[4{data},6,8] = add(%1, @x)  # compute forward c
output y = %2
)";
  const std::string plain = R"(program p
input @x : f32[4,6,8]
parameter @w : f32[8,8]
%0 : f32[4,6,8] = linear(@x, @w)  # compute forward a
%1 : f32[4,6,8] = gelu(%0)  # compute forward b
%2 : f32[4,6,8] = add(%1, @x)  # compute forward c
output y = %2
)";
  for (const char* name : {"@x", "%0", "%1", "%2"}) {
    INFO(name);
    const std::string tensor = std::string(name) + " : f32[4";
    CHECK(sharded(replaced(plain, tensor, tensor + "{data}")) == expected);
  }
}

TEST_CASE("shard: without annotations, and on one rank, every tensor is whole") {
  const std::string text = "input @x : f32[4{},6]\n%0 : f32[4,6] = gelu(@x)  # compute forward\noutput y = %0\n";
  const std::string whole =
      "program \ninput @x : f32[4,6] whole\n%0 : f32[4,6] whole = gelu(@x)  # compute forward\noutput y = %0\n";
  CHECK(sharded(replaced(text, "{}", "")) == whole);
  CHECK(sharded(replaced(text, "{}", "{data}"), ir::Mesh{}) == whole);
  CHECK(sharded(replaced(text, "4{},6]", "2x2{expert},6] partial{stage}")) == whole);
}

TEST_CASE("shard: columns, then a contraction whose result is partial") {
  const std::string expected = R"(program p
input @x : f32[4,6,8] whole
parameter @w : f32[16{tensor},8]
parameter @b : f32[16{tensor}]
parameter @v : f32[8,16{tensor}]
parameter @c : f32[8] whole
%0 : f32[4,6,16{tensor}] = linear(@x, @w, @b)  # compute forward a
%1 : f32[4,6,16{tensor}] = gelu(%0)  # compute forward b
%2 : f32[4,6,8] partial{tensor} = linear(%1, @v, @c)  # compute forward c
%3 : f32[4,6,8] whole = gelu(%2)  # compute forward d
output y = %3
)";
  const std::string plain = R"(program p
input @x : f32[4,6,8]
parameter @w : f32[16,8]
parameter @b : f32[16]
parameter @v : f32[8,16]
parameter @c : f32[8]
%0 : f32[4,6,16] = linear(@x, @w, @b)  # compute forward a
%1 : f32[4,6,16] = gelu(%0)  # compute forward b
%2 : f32[4,6,8] = linear(%1, @v, @c)  # compute forward c
%3 : f32[4,6,8] = gelu(%2)  # compute forward d
output y = %3
)";
  for (const auto& [from, to] : {std::pair{"@w : f32[16", "@w : f32[16{tensor}"},
                                 {"@b : f32[16", "@b : f32[16{tensor}"},
                                 {"@v : f32[8,16", "@v : f32[8,16{tensor}"},
                                 {"%0 : f32[4,6,16", "%0 : f32[4,6,16{tensor}"},
                                 {"%1 : f32[4,6,16", "%1 : f32[4,6,16{tensor}"}}) {
    INFO(from);
    CHECK(sharded(replaced(plain, from, to)) == expected);
  }
}

TEST_CASE("shard: annotated tensors stay as they are, also whole ones") {
  const std::string text = R"(program p
input @x : f32[4{data},6,8]
parameter @w : f32[16{tensor},8]
parameter @v : f32[8,16] whole
%0 : f32[4{data},6,16{tensor}] = linear(@x, @w)  # compute forward a
%1 : f32[4,6,16] whole = gelu(%0)  # compute forward b
%2 : f32[4,6,8] whole = linear(%1, @v)  # compute forward c
output y = %2
)";
  CHECK(sharded(text) == text);
  // The contraction is not split, since one of its operands is whole.
  const std::string open =
      replaced(replaced(text, "%1 : f32[4,6,16] whole", "%1 : f32[4,6,16]"), "8] whole = linear", "8] = linear");
  CHECK(sharded(open) == replaced(replaced(text, "%1 : f32[4,6,16] whole", "%1 : f32[4{data},6,16{tensor}]"),
                                  "%2 : f32[4,6,8] whole", "%2 : f32[4{data},6,8]"));
}

TEST_CASE("shard: a batch has an axis before columns, and these before contractions") {
  CHECK(sharded(R"(program p
input @x : f32[4{tensor},6,8]
parameter @w : f32[16{tensor},8]
%0 : f32[4,6,16] = linear(@x, @w)  # compute forward a
output y = %0
)") == R"(program p
input @x : f32[4{tensor},6,8]
parameter @w : f32[16{tensor},8]
%0 : f32[4{tensor},6,16] = linear(@x, @w)  # compute forward a
output y = %0
)");
  CHECK(sharded(R"(program p
input @x : f32[4,6,8{tensor}]
parameter @w : f32[16,8]
parameter @v : f32[16{tensor},8]
%0 : f32[4,6,16] = linear(@x, @w)  # compute forward a
%1 : f32[4,6,16] = linear(@x, @v)  # compute forward b
%2 : f32[4,6,16] = add(%0, %1)  # compute forward c
output y = %2
)") == R"(program p
input @x : f32[4,6,8{tensor}]
parameter @w : f32[16{tensor},8]
parameter @v : f32[16{tensor},8]
%0 : f32[4,6,16{tensor}] = linear(@x, @w)  # compute forward a
%1 : f32[4,6,16{tensor}] = linear(@x, @v)  # compute forward b
%2 : f32[4,6,16{tensor}] = add(%0, %1)  # compute forward c
output y = %2
)");
}

TEST_CASE("shard: a dimension gains inner axes only, and only those that divide it") {
  const ir::Mesh& mesh = data2_expert2_tensor2;
  const auto text = [](const char* x, const char* y, const char* z) {
    return fmt::format(
        "program \ninput @x : f32[{}]\ninput @y : f32[{}]\n%0 : f32[{}] = add(@x, @y)  # compute forward\n"
        "output y = %0\n",
        x, y, z);
  };
  CHECK(sharded(text("8{data}", "8{data,expert}", "8"), mesh) == text("8{data}", "8{data,expert}", "8{data,expert}"));
  CHECK(sharded(text("8", "8", "8{data,expert}"), mesh) == text("8{data,expert}", "8{data,expert}", "8{data,expert}"));
  CHECK(sharded(text("8{expert}", "8{expert}", "8{data}"), mesh) == text("8{expert}", "8{expert}", "8{data}"));
  CHECK(sharded(text("6,4", "6{data},4{tensor}", "6,4"), mesh) ==
        text("6{data},4{tensor}", "6{data},4{tensor}", "6{data},4{tensor}"));
}

TEST_CASE("shard: heads of attention are split in blocks, if the axes divide them") {
  const auto text = [](const char* qkv, const char* out, const char* lse, int heads) {
    return fmt::format(
        "program \ninput @qkv : f32[2,4,{}]\n%0 : f32[2,4,{}], %1 : f32[2,{},4] = attention(@qkv) {{heads={}}}  "
        "# compute forward a\noutput y = %0\n",
        qkv, out, lse, heads);
  };
  for (const auto& open :
       {text("3x8{tensor}", "8", "2", 2), text("24", "8{tensor}", "2", 2), text("24", "8", "2{tensor}", 2)})
    CHECK(sharded(open).find("@qkv : f32[2,4,3x8{tensor}]\n%0 : f32[2,4,8{tensor}], %1 : f32[2,2{tensor},4] =") !=
          std::string::npos);
  // Heads of queries go with the head of keys that they read.
  for (const char* qkv : {"2+1+1x8{tensor}", "32"})
    CHECK(sharded(replaced(text(qkv, qkv[1] == '+' ? "16" : "16{tensor}", "4", 2), "heads=2", "heads=2, group=2"))
              .find("@qkv : f32[2,4,2+1+1x8{tensor}]\n%0 : f32[2,4,16{tensor}], %1 : f32[2,4{tensor},4] =") !=
          std::string::npos);
  // 24{tensor} would part queries from keys, and 6x4{tensor} the features of a head.
  for (const char* qkv : {"24{tensor}", "6x4{tensor}"})
    CHECK(sharded(text(qkv, "8", "2", 2)).find("%0 : f32[2,4,8] whole, %1 : f32[2,2,4] whole") != std::string::npos);
  // Two heads have two shards, not four; one head has no two.
  auto error = [](const std::string& program_text) {
    return passes::shard(program(program_text), data2_expert2_tensor2).error().message;
  };
  CHECK(error(text("3x8{expert,tensor}", "8", "2", 2)) ==
        "attention at a: expected a multiple of 4 heads, since @qkv is 2,4,3x8{expert,tensor}, found 2");
  CHECK(error(text("24", "8{tensor}", "1", 1)) ==
        "attention at a: expected a multiple of 2 heads, since %0 is 2,4,8{tensor}, found 1");
}

TEST_CASE("shard: a tensor of two axes has no sequence") {
  CHECK(sharded(R"(program p
input @x : f32[6,8{tensor}]
parameter @w : f32[4,8] whole
%0 : f32[6,4] = linear(@x, @w)  # compute forward a
output y = %0
)")
            .find("%0 : f32[6,4] whole") != std::string::npos);
}

TEST_CASE("shard: the dense block gets Megatron's layout") {
  const ir::Program p = sharded_step(annotated);
  for (const auto& [name, sharding] :
       std::map<std::string, std::string>{{"targets", "4{data},6"},
                                          {"wte", "32,16 whole"},
                                          {"wpe", "6,16 whole"},
                                          {"g1", "16 whole"},
                                          {"attn.b", "3x16{tensor}"},
                                          {"attn_proj.b", "16 whole"},
                                          {"fc.b", "64{tensor}"},
                                          {"proj.b", "16 whole"},
                                          {"wte embedding", "4{data},6,16"},
                                          {"ln_1 layer_norm", "4{data},6,16"},
                                          {"attn linear", "4{data},6,3x16{tensor}"},
                                          {"heads attention", "4{data},6,16{tensor}"},
                                          {"attn_proj linear", "4{data},6,16 partial{tensor}"},
                                          {"ln_2 add_layer_norm", "4{data},6,16"},
                                          {"fc linear", "4{data},6,64{tensor}"},
                                          {"gelu gelu", "4{data},6,64{tensor}"},
                                          {"proj linear", "4{data},6,16 partial{tensor}"},
                                          {"head linear", "4{data},6,32"},
                                          {"loss", "1 partial{data}"},
                                          {"head linear_dx", "4{data},6,16"},
                                          {"proj linear_dx", "4{data},6,64{tensor}"},
                                          {"gelu gelu_dx", "4{data},6,64{tensor}"},
                                          {"fc linear_dx", "4{data},6,16 partial{tensor}"},
                                          {"ln_2 layer_norm_dx", "4{data},6,16"},
                                          {"attn_proj linear_dx", "4{data},6,16{tensor}"},
                                          {"heads attention_dx", "4{data},6,3x16{tensor}"},
                                          {"attn linear_dx", "4{data},6,16 partial{tensor}"},
                                          {"grad.attn.w", "3x16{tensor},16 partial{data}"},
                                          {"grad.attn.b", "3x16{tensor} partial{data}"},
                                          {"grad.attn_proj.w", "16,16{tensor} partial{data}"},
                                          {"grad.attn_proj.b", "16 partial{data}"},
                                          {"grad.fc.w", "64{tensor},16 partial{data}"},
                                          {"grad.fc.b", "64{tensor} partial{data}"},
                                          {"grad.proj.w", "16,64{tensor} partial{data}"},
                                          {"grad.proj.b", "16 partial{data}"},
                                          {"grad.g1", "16 partial{data}"},
                                          {"grad.b3", "16 partial{data}"},
                                          {"grad.wte", "32,16 partial{data}"},
                                          {"grad.wpe", "6,16 partial{data}"}}) {
    INFO(name);
    CHECK(sharding_of(p, name) == sharding);
  }
}

TEST_CASE("shard: fewer annotations imply the same layout") {
  const std::string whole = ir::print(sharded_step(annotated));
  CHECK(ir::print(sharded_step(block("4{data},6", "3x16{tensor},16", "16,16", "64{tensor},16", "16,64"))) == whole);
  CHECK(ir::print(sharded_step(block("4{data},6", "48,16", "16,16{tensor}", "64,16", "16,64{tensor}"))) == whole);
  const std::string by_results = replaced(replaced(block("4,6", "48,16", "16,16", "64,16", "16,64"),
                                                   "%3 : bf16[4,6,48]", "%3 : bf16[4{data},6,3x16{tensor}]"),
                                          "%11 : bf16[4,6,64]", "%11 : bf16[4{data},6,64{tensor}]");
  CHECK(ir::print(sharded_step(by_results)) == whole);
}

TEST_CASE("shard: sequence parallelism, by annotations of the residual stream and of what products widen") {
  std::string text = annotated;
  for (const char* residual : {"%0 : bf16[4,6,16]", "%7 : bf16[4,6,16]", "%13 : bf16[4,6,16]"})
    text = replaced(text, residual, replaced(residual, "4,6,", "4{data},6{tensor},"));
  const ir::Program by_sequence = sharded_step(text);
  CHECK(sharding_of(by_sequence, "fc linear") == "4{data},6{tensor},64");  // the sequence comes before columns

  text = replaced(text, "%3 : bf16[4,6,48]", "%3 : bf16[4{data},6,3x16{tensor}]");
  text = replaced(text, "%10 : bf16[4,6,64]", "%10 : bf16[4{data},6,64{tensor}]");
  const ir::Program p = sharded_step(text);
  for (const char* op : {"ln_1 layer_norm", "attn_proj linear", "ln_2 add_layer_norm", "proj linear",
                         "ln_f add_layer_norm", "head linear_dx", "fc linear_dx", "attn linear_dx"}) {
    INFO(op);
    CHECK(sharding_of(p, op) == "4{data},6{tensor},16");
  }
  for (const char* op : {"fc linear", "gelu gelu", "proj linear_dx", "gelu gelu_dx"}) {
    INFO(op);
    CHECK(sharding_of(p, op) == "4{data},6,64{tensor}");
  }
  CHECK(sharding_of(p, "heads attention") == "4{data},6,16{tensor}");
  CHECK(sharding_of(p, "grad.fc.w") == "64{tensor},16 partial{data}");
  CHECK(sharding_of(p, "grad.proj.w") == "16,64{tensor} partial{data}");
  CHECK(sharding_of(p, "grad.g2") == "16 partial{data,tensor}");
}

TEST_CASE("shard: experts are split over their axis, and their features over tensor") {
  const std::string text = R"(program experts
input @x : f32[4{expert},6,8]
input @rows : i32[4,2]
parameter @w1 : f32[4,16{tensor},8]
parameter @b1 : f32[4,16]
parameter @w2 : f32[4,8,16]
parameter @b2 : f32[4,8]
%0 : f32[4,6,16] = expert_linear(@x, @w1, @b1, @rows) {tokens=12}  # compute forward a
%1 : f32[4,6,16] = gelu(%0, @rows) {tokens=12}  # compute forward b
%2 : f32[4,6,8] = expert_linear(%1, @w2, @b2, @rows) {tokens=12}  # compute forward c
output y = %2
)";
  CHECK(sharded(text, data2_expert2_tensor2) == R"(program experts
input @x : f32[4{expert},6,8]
input @rows : i32[4{expert},2]
parameter @w1 : f32[4,16{tensor},8]
parameter @b1 : f32[4{expert},16{tensor}]
parameter @w2 : f32[4{expert},8,16{tensor}]
parameter @b2 : f32[4{expert},8]
%0 : f32[4{expert},6,16{tensor}] = expert_linear(@x, @w1, @b1, @rows) {tokens=12}  # compute forward a
%1 : f32[4{expert},6,16{tensor}] = gelu(%0, @rows) {tokens=12}  # compute forward b
%2 : f32[4{expert},6,8] partial{tensor} = expert_linear(%1, @w2, @b2, @rows) {tokens=12}  # compute forward c
output y = %2
)");
}

TEST_CASE("shard: accumulated gradients keep each rank's share") {
  const ir::Program step = passes::autodiff(program(annotated), true);
  const ir::Program p = passes::shard(step, data2_tensor2).value();
  CHECK(sharding_of(p, "fc.w.grad") == "64{tensor},16 partial{data}");
  CHECK(sharding_of(p, "wte.grad") == "32,16 partial{data}");
  CHECK(sharding_of(p, "g1.grad") == "16 partial{data}");
}

TEST_CASE("shard: errors name the tensor, the dimension, the axes and the numbers") {
  const auto text = [](const std::string& type) {
    return "input @x : " + type + "\n%0 : f32[7,6] = gelu(@x)  # compute forward\n";
  };
  CHECK(shard_error(text("f32[7{data},6]")) ==
        "@x: dimension 0: expected a multiple of 2, the ranks along data, found 7");
  CHECK(shard_error(text("f32[7,2x3{tensor}]")) ==
        "@x: dimension 1: expected a multiple of 2, the ranks along tensor, found 3 in each of 2 blocks");
  ir::Program twice = program(text("f32[7,6{data}]"));
  twice.tensors[0].sharding->partial.add(ir::Axis::data);
  CHECK(passes::shard(twice, data2_tensor2).error().message ==
        "@x: dimension 1: expected each axis once in a sharding, found data again");
  const ir::Mesh stages{{2, 1, 1, 1}};
  CHECK(passes::shard(program("input @x : f32[8{stage}]\n%0 : f32[8] = gelu(@x)  # compute forward\n"), stages)
            .error()
            .message == "@x: expected a sharding over data, expert or tensor, found one over stage");
  CHECK(shard_error("input @t : i32[4,6] partial{data}\ninput @x : f32[4,6]\n%0 : f32[4,6] = gelu(@x)  # compute "
                    "forward\n") == "@t: expected a tensor of f32 or bf16 where it is partial over data, found i32");
}

TEST_CASE("shard: random annotations of random models spread and stay") {
  std::mt19937 random(7);
  int spread = 0, refused = 0;
  for (std::uint32_t seed = 0; seed < 60; ++seed) {
    ir::Program step = passes::autodiff(RandomModel(seed).make(), seed % 2 == 0);
    const ir::Mesh mesh{{1, 1 + int(random() % 2), 1 + int(random() % 4), 1 + int(random() % 2)}};
    for (ir::Tensor& tensor : step.tensors) {
      tensor.sharding.reset();  // the step of a rank is taken as a logical one
      if (random() % 8 != 0) continue;
      ir::Sharding sharding = ir::Sharding::whole(std::size_t(tensor.type.shape.rank()));
      for (const ir::Axis axis : ir::all_axes) {
        ir::Sharding finer = sharding;
        if (random() % 8 == 0 && tensor.type.dtype != DType::i32)
          finer.partial.add(axis);
        else if (random() % 2 == 0)
          finer.dimensions[random() % finer.dimensions.size()].axes.push_back(axis);
        if (ir::shard_shape(tensor.type.shape, finer, mesh).ok()) sharding = finer;
      }
      tensor.sharding = sharding;
    }
    const auto result = passes::shard(step, mesh);
    if (!result.ok()) {
      REQUIRE(result.error().message.find("heads, since") != std::string::npos);
      ++refused;
      continue;
    }
    REQUIRE(ir::print(passes::shard(*result, mesh).value()) == text_of(*result));
    for (std::size_t i = 0; i < step.tensors.size(); ++i) {
      const ir::Tensor &before = step.tensors[i], &after = result->tensors[i];
      REQUIRE(after.sharding.has_value());
      REQUIRE(ir::shard_shape(after.type.shape, *after.sharding, mesh).ok());
      if (before.sharding && mesh.wide() == ir::Axes{ir::Axis::data, ir::Axis::expert, ir::Axis::tensor})
        for (std::size_t d = 0; d < before.sharding->dimensions.size(); ++d) {
          auto axes = before.sharding->dimensions[d].axes;
          std::erase(axes, ir::Axis::stage);
          REQUIRE(after.sharding->dimensions[d].axes == axes);
        }
      spread += !before.sharding && !after.sharding->is_whole();
    }
  }
  CHECK(spread > 1000);
  CHECK(refused < 10);
}
