// Mixtures of experts on meshes: the rank's Program that partition_spmd makes of the logical one, on ranks that are
// threads, against the logical Program on one rank, both with the CPU's kernels.

#include "good.h"
#include "lancet/model/transformer.h"
#include "lancet/planner/planner.h"
#include "passes/partitioned.h"
#include "passes/rank_threads.h"
#include "planner/planned_ranks.h"
#include "routers.h"
#include "small_model.h"

using namespace lancet;
using namespace lancet::test;

namespace {

using ir::Axis;
using ir::Mesh;
using ir::Sharding;
using ir::Split;

constexpr std::int64_t moe_batch = 8, moe_sequence = 8;

struct MoeCase {
  Mesh mesh;
  std::int64_t groups = 8;
  bool sequence_parallel = false;
  Route route = {config::Router::switch_top1};
  config::AuxLossScope scope = config::AuxLossScope::rank;
  bool split_tokens = true;  // over data and expert; otherwise all ranks have the same tokens
};

config::Model moe_model(const MoeCase& c) {
  config::Model m = small_model();
  m.n_layer = 3;  // the first and the last have experts
  m.n_head = 4;
  m.capacity_factor = 0.75;
  c.route.set(m);
  m.router_aux_loss_scope = c.scope;
  return m;
}

// The ranks that the batch is split over.
int batch_ranks(const MoeCase& c) { return c.split_tokens ? c.mesh.size({Axis::data, Axis::expert}) : 1; }

void annotate(ir::Program& program, const std::string& name, int dimension, std::vector<Axis> axes,
              const ir::Blocks& blocks = 1) {
  ir::Tensor& tensor = program[program.find(name)];
  if (!tensor.sharding) tensor.sharding = Sharding::whole(std::size_t(tensor.type.shape.rank()));
  tensor.sharding->dimensions[std::size_t(dimension)] = Split{std::move(axes), blocks};
}

void annotate_experts(ir::Program& program, const std::vector<Axis>& axes) {
  for (std::size_t i = 0; i < program.tensors.size(); ++i)
    if (const std::string name = program.tensors[i].name; name.find(".experts.") != name.npos)
      annotate(program, name, 0, axes);
}

// The forward pass of the whole batch.
ir::Program logical_forward(const MoeCase& c, bool inspect) {
  return model::build_forward(moe_model(c), {.batch = moe_batch,
                                             .sequence = moe_sequence,
                                             .groups = c.groups,
                                             .loads = c.groups == 8 ? batch_ranks(c) : 1,
                                             .inspect = inspect,
                                             .tensor_ranks = c.mesh[Axis::tensor],
                                             .sequence_parallel = c.sequence_parallel});
}

ir::Program logical_step(const MoeCase& c, bool inspect) {
  ir::Program forward = logical_forward(c, inspect);
  if (!c.split_tokens)
    for (const char* name : {"tokens", "targets"}) forward[forward.find(name)].sharding = Sharding::whole(2);
  const auto step = test::good(passes::shard(passes::autodiff(forward), c.mesh));
  return *step;
}

// The pass that gives the logits of one sequence, or of its next `positions` positions. All ranks have its tokens.
ir::Program logical_logits(const MoeCase& c, model::Mode mode, std::int64_t positions) {
  const auto logical = test::good(passes::shard(
      model::build_forward(moe_model(c),
                           {.mode = mode, .batch = 1, .sequence = positions, .tensor_ranks = c.mesh[Axis::tensor]}),
      c.mesh));
  return *logical;
}

// random_values() of a pass, at a position with room for the `positions` next ones.
Values values_of_pass(const ir::Program& logical, std::int64_t positions) {
  Values values = random_values(logical, 67, 7);
  if (const auto cursor = values.find("cursor"); cursor != values.end())
    cursor->second.values = {5, double(positions - 1)};
  return values;
}

using RankOutputs = std::map<std::string, std::vector<DoubleTensor>>;

std::map<std::string, Sharding> shardings_of(const ir::Program& logical, const Mesh& mesh, const Values& values) {
  std::map<std::string, Sharding> shardings;
  for (const auto& [name, value] : values)
    shardings[name] = passes::restrict(*logical[logical.find(name)].sharding, mesh.wide());
  return shardings;
}

// What the ranks' loads add up to, and the loads of the whole.
DoubleTensor sum_of_loads(const std::vector<DoubleTensor>& shares) {
  const std::int64_t experts = shares[0].shape()[1];
  DoubleTensor sum{{DType::f32, {2, experts}}, std::vector<double>(std::size_t(2 * experts))};
  for (const DoubleTensor& share : shares)
    for (std::size_t i = 0; i < share.values.size(); ++i) sum.values[i % sum.values.size()] += share.values[i];
  return sum;
}

// Slots of a rank begin after those that the ranks before it fill: their number on one rank.
std::vector<double> slots_on_one_rank(const RankOutputs& outputs, const std::string& layer,
                                      const std::vector<int>& ranks) {
  std::vector<double> result;
  std::map<double, double> before;  // filled slots of the ranks before, by expert
  for (const int r : ranks) {
    const auto rank = std::size_t(r);
    const auto &slots = outputs.at("slot." + layer)[rank].values, &experts = outputs.at("expert." + layer)[rank].values;
    for (std::size_t t = 0; t < slots.size(); ++t)
      result.push_back(slots[t] < 0 ? slots[t] : slots[t] + before[experts[t]]);
    const auto& filled = outputs.at("filled." + layer)[rank].values;
    for (std::size_t e = 0; 2 * e < filled.size(); ++e) before[double(e)] += filled[2 * e + 1] - filled[2 * e];
  }
  return result;
}

// One rank of each group that has the same tokens, in the order of the tokens.
std::vector<int> token_ranks(const Mesh& mesh) { return mesh.group(0, {Axis::data, Axis::expert}); }

int dropped_tokens(const DoubleTensor& slots) { return int(std::ranges::count(slots.values, -1.0)); }

void check_route(const RankOutputs& whole, const RankOutputs& ranks, const MoeCase& c, const std::string& layer) {
  const Mesh& mesh = c.mesh;
  const auto slots = slots_on_one_rank(ranks, layer, token_ranks(mesh));
  CHECK(slots == whole.at("slot." + layer)[0].values);
  const bool is_even = c.route.router == config::Router::random;
  CHECK((dropped_tokens(whole.at("slot." + layer)[0]) > 0) == !is_even);
  std::vector<double> experts;
  for (const int rank : token_ranks(mesh)) {
    const auto& values = ranks.at("expert." + layer)[std::size_t(rank)].values;
    experts.insert(experts.end(), values.begin(), values.end());
  }
  CHECK(experts == whole.at("expert." + layer)[0].values);
}

void check_case(const MoeCase& c, bool route = true) {
  const ir::Program logical = logical_step(c, true), local = partitioned(logical, c.mesh);
  INFO(to_string(c.mesh) << "\n" << ir::print(logical) << ir::print(local));
  const Values values = random_values(logical, 67, 3);
  const RankOutputs whole = run_as_threads(logical, {}, values, shardings_of(logical, {}, values));
  const RankOutputs ranks = run_as_threads(local, c.mesh, values, shardings_of(logical, c.mesh, values));
  for (const ir::Output& output : logical.outputs) {
    INFO(output.name);
    if (output.kind == ir::OutputKind::other) continue;
    if (output.kind == ir::OutputKind::load) {
      std::vector<DoubleTensor> shares;
      const auto& left = local[local.output(output.name)].sharding;
      for (const int rank : c.mesh.group(0, left ? left->partial : ir::Axes{}))
        shares.push_back(ranks.at(output.name)[std::size_t(rank)]);
      CHECK(sum_of_loads(shares).values == sum_of_loads(whole.at(output.name)).values);
      continue;
    }
    const double tolerance = output.kind == ir::OutputKind::gradient ? 1e-4 : 1e-5;
    CHECK(wrong_elements(ranks.at(output.name), whole.at(output.name)[0],
                         output_sharding(logical, output, local, c.mesh), c.mesh, tolerance) == 0);
  }
  for (const char* layer : {"h.0", "h.2"})
    if (route) check_route(whole, ranks, c, layer);
}

int ops_named(const ir::Program& program, std::string_view op) {
  return int(std::ranges::count(program.instructions, op, &ir::Instruction::op));
}

// The ops that send something over `expert`, in order.
std::vector<std::string> sent_over_experts(const ir::Program& program, const Mesh& mesh) {
  std::vector<std::string> ops;
  for (const ir::Instruction& at : program.instructions) {
    if (at.stream != ir::Stream::compute && ir::group_of(at, mesh).has(Axis::expert)) ops.push_back(at.op);
  }
  return ops;
}

// One rank's logits on all ranks, with one sum over `expert` in each of the two MoE layers.
void check_logits(const MoeCase& c, model::Mode mode, std::int64_t positions) {
  const ir::Program logical = logical_logits(c, mode, positions), local = partitioned(logical, c.mesh);
  INFO(to_string(c.mesh) << "\n" << ir::print(logical) << ir::print(local));
  CHECK(sent_over_experts(local, c.mesh) == std::vector<std::string>(c.mesh[Axis::expert] > 1 ? 2 : 0, "sum_shards"));
  CHECK(ops_named(local, "all_to_all") + ops_named(local, "all_to_all_counts") == 0);
  const Values values = values_of_pass(logical, positions);
  const RankOutputs whole = run_as_threads(logical, {}, values, shardings_of(logical, {}, values));
  const RankOutputs ranks = run_as_threads(local, c.mesh, values, shardings_of(logical, c.mesh, values));
  for (const DoubleTensor& logits : ranks.at("logits"))
    CHECK(wrong_elements({logits}, whole.at("logits")[0], Sharding::whole(3), {}, 1e-5) == 0);
}

// The plan of the rank's Program against its instructions one by one.
void check_planned(const ir::Program& logical, const Mesh& mesh, const Values& values) {
  const ir::Program local = partitioned(logical, mesh);
  const ir::Plan plan = planner::make_forward_plans(local, ir::Mesh{}).value()[0];
  require_sound(ir::verify(plan));
  const auto shardings = shardings_of(logical, mesh, values);
  std::vector<RankValues> of_ranks(std::size_t(mesh.ranks()));
  for (const auto& [name, value] : values) {
    const auto shards = spread(value, shardings.at(name), mesh);
    for (std::size_t rank = 0; rank < shards.size(); ++rank)
      of_ranks[rank].insert_or_assign(name, from_double(shards[rank]));
  }
  std::vector<std::map<std::string, DoubleTensor>> planned(of_ranks.size());
  require_sound(comm::run_inproc(mesh.ranks(), [&](comm::Communicator& world) -> Status {
    const auto rank = std::size_t(world.rank());
    return run_rank(plan, mesh, world, of_ranks[rank], planned[rank]);
  }));
  const RankOutputs expected = run_as_threads(local, mesh, values, shardings);
  for (const auto& [name, ranks] : expected)
    for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
      INFO(to_string(mesh) << ", " << name << " on rank " << rank);
      CHECK(planned[rank].at(name).values == ranks[rank].values);
    }
}

std::string refused_with(const Result<ir::Program>& result) { return result.ok() ? "none" : result.error().message; }

}  // namespace

TEST_CASE("mixtures of experts on meshes are the mixture on one rank") {
  check_case({mesh_with(1, 2, 1)});
  check_case({mesh_with(1, 4, 1)});
  check_case({mesh_with(2, 2, 1)});
  check_case({mesh_with(4, 1, 1)});
  check_case({mesh_with(2, 4, 1)});
}

TEST_CASE("mixtures of experts beside tensor parallelism, which splits each expert, too") {
  check_case({mesh_with(1, 1, 4)});
  check_case({mesh_with(2, 1, 2)});
  check_case({mesh_with(1, 2, 2)});
  check_case({mesh_with(2, 2, 2)});
}

TEST_CASE("mixtures of experts between norms whose sequences tensor splits") {
  check_case({.mesh = mesh_with(1, 1, 4), .sequence_parallel = true});
  check_case({.mesh = mesh_with(2, 1, 2), .sequence_parallel = true});
  check_case({.mesh = mesh_with(1, 2, 2), .sequence_parallel = true});
  check_case({.mesh = mesh_with(1, 2, 2), .sequence_parallel = true, .route = {config::Router::top_k, 2, true, 0.1}});
}

TEST_CASE("mixtures of experts on meshes with other routers and losses") {
  for (const Route& route : routes) check_case({.mesh = mesh_with(2, 2, 1), .route = route});
  check_case({.mesh = mesh_with(1, 2, 2), .route = {config::Router::top_k, 2}});
  for (const config::AuxLossScope scope :
       {config::AuxLossScope::rank, config::AuxLossScope::group, config::AuxLossScope::global})
    check_case({.mesh = mesh_with(1, 2, 2), .route = {config::Router::gshard, 2}, .scope = scope});
  check_case({.mesh = mesh_with(2, 2, 1), .scope = config::AuxLossScope::global});
}

TEST_CASE("a gate whose groups cannot be shared decides on all ranks alike") {
  check_case({.mesh = mesh_with(1, 2, 1), .groups = 1}, false);
  check_case({.mesh = mesh_with(2, 2, 1), .groups = 2}, false);
}

TEST_CASE("ranks that have the same tokens train the experts that they split without an all-to-all") {
  for (const Mesh& mesh : {mesh_with(1, 4, 1), mesh_with(1, 2, 2)}) {
    const MoeCase c{.mesh = mesh, .split_tokens = false};
    check_case(c, false);
    const auto sent = sent_over_experts(partitioned(logical_step(c, false), mesh), mesh);
    CHECK(std::ranges::count(sent, "sum_shards") == std::ssize(sent));
  }
}

TEST_CASE("generation repeats its tokens on all ranks and sums what each rank's experts make of them") {
  for (const Mesh& mesh : {mesh_with(1, 2, 1), mesh_with(1, 4, 1), mesh_with(2, 2, 1), mesh_with(1, 2, 2)}) {
    check_logits({mesh}, model::Mode::generate, moe_sequence);
    for (const std::int64_t positions : {1, 4}) check_logits({mesh}, model::Mode::decode, positions);
  }
  check_logits({mesh_with(1, 1, 2)}, model::Mode::decode, 4);
  for (const Route& route : routes) check_logits({.mesh = mesh_with(1, 2, 1), .route = route}, model::Mode::decode, 4);
}

TEST_CASE("partial counts of slots are a sharding that the pass shard keeps, though they are integers") {
  const MoeCase c{.mesh = mesh_with(2, 2, 1)};
  const ir::Program step = logical_step(c, true);
  CHECK(std::ranges::any_of(step.tensors, [](const ir::Tensor& tensor) {
    return tensor.type.dtype == DType::i32 && !tensor.sharding->partial.empty();
  }));
  const auto again = test::good(passes::shard(step, c.mesh));
  CHECK(ir::print(*again) == ir::print(step));
}

TEST_CASE("counts travel once a layer, and rows twice in each direction of the step") {
  for (const Mesh& mesh : {mesh_with(1, 4, 1), mesh_with(2, 2, 1), mesh_with(2, 2, 2)}) {
    const ir::Program local = partitioned(logical_step({mesh}, false), mesh);
    CHECK(ops_named(local, "all_to_all_counts") == 2);
    CHECK(ops_named(local, "all_to_all") == 4);
    CHECK(ops_named(local, "all_to_all_back") == 4);
    CHECK(ops_named(local, "swap_shards") == 0);
    // Where tensor splits the experts' products, their sums are scattered along the features: half a row travels back.
    CHECK(ops_named(local, "reduce_scatter") == (mesh[Axis::tensor] > 1 ? 4 : 0));
  }
  const ir::Program local = partitioned(logical_step({mesh_with(4, 1, 1)}, false), mesh_with(4, 1, 1));
  for (const ir::Instruction& at : local.instructions) CHECK(at.stream == ir::Stream::compute);
}

TEST_CASE("experts over two axes and gates split over tensor are refused") {
  const Mesh mesh = mesh_with(2, 2, 2);
  ir::Program forward = logical_forward({mesh}, false);
  annotate_experts(forward, {Axis::data, Axis::expert});
  CHECK(refused_with(passes::partition_spmd(*passes::shard(forward, mesh), mesh)) ==
        "h.0.moe.experts.c_fc: expected experts over one axis of the mesh, found %20 4{data,expert},16,128{tensor}");
  forward = logical_forward({mesh}, false);
  for (const char* name : {"tokens", "targets"}) annotate(forward, name, 0, {Axis::data, Axis::tensor});
  forward[forward.find("wte.weight")].sharding = Sharding::whole(2);
  CHECK(refused_with(passes::partition_spmd(*passes::shard(forward, mesh), mesh)) ==
        "h.0.moe.gate: expected a gate whose tokens are not split over tensor, found %14 64{data,tensor},1");
}

TEST_CASE("a partitioned mixture of experts is planned and executed, to the bit of its instructions one by one") {
  for (const Mesh& mesh : {mesh_with(1, 4, 1), mesh_with(2, 2, 1), mesh_with(1, 2, 2)}) {
    const ir::Program step = logical_step({mesh}, false), decode = logical_logits({mesh}, model::Mode::decode, 4);
    check_planned(step, mesh, random_values(step, 67, 5));
    check_planned(decode, mesh, values_of_pass(decode, 4));
  }
}

TEST_CASE("evaluation on a mesh is partitioned like training") {
  for (const Mesh& mesh : {mesh_with(1, 2, 2), mesh_with(2, 2, 2), mesh_with(1, 4, 1)}) {
    const MoeCase c{mesh};
    const auto logical =
        test::good(passes::shard(model::build_forward(moe_model(c), {.mode = model::Mode::evaluate,
                                                                     .batch = moe_batch,
                                                                     .sequence = moe_sequence,
                                                                     .groups = c.groups,
                                                                     .tensor_ranks = mesh[Axis::tensor]}),
                                 mesh));
    INFO(to_string(mesh) << "\n" << ir::print(*logical));
    const ir::Program local = partitioned(*logical, mesh);
    CHECK(ops_named(local, "all_to_all_counts") == 2);
    CHECK(ops_named(local, "all_to_all") == 2);
    CHECK(ops_named(local, "all_to_all_back") == 2);
  }
}
