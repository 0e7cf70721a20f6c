// Checkpoints hold whole tensors: what ranks of one mesh save, ranks of any other mesh load bit for bit.
#include "lancet/run/checkpoint_tensors.h"
#include "doubles/inproc.h"

#include <fmt/format.h>

#include <atomic>
#include <bit>
#include <catch2/catch.hpp>
#include <set>

#include "good.h"
#include "lancet/base/random.h"
#include "lancet/ir/plan.h"
#include "lancet/run/saver.h"
#include "temporary_folder.h"

namespace lancet {
namespace {

using ir::Axis;
using ir::Mesh;

// The whole tensors, with the split that a mesh's axes of more than one rank cause.
constexpr const char* whole_tensors = R"(program whole
parameter @wte.weight : bf16[16{tensor},6]
parameter @h.0.ln_1.weight : f32[6]
parameter @h.0.attn.c_attn.weight : bf16[3x8{tensor},6]
parameter @h.0.attn.c_attn.bias : f32[3x8{tensor}]
parameter @h.0.attn.c_proj.weight : bf16[6,8{tensor}]
parameter @h.0.moe.experts.c_fc.weight : bf16[4{expert},8{tensor},6]
parameter @h.0.moe.experts.c_fc.bias : f32[4{expert},8{tensor}]
parameter @h.0.moe.experts.c_proj.weight : bf16[4{expert},6,8{tensor}]
parameter @h.0.moe.experts.c_proj.bias : f32[4{expert},6]
)";

struct Layout {
  Mesh mesh;
  bool zero = false, masters = true;
  std::string tensors = whole_tensors;
  std::int64_t padding_rows = 0;  // of wte.weight

  // A store of that rank, zeroed.
  runtime::TensorStore store(int rank) const;
};

std::string text_of(const Layout& layout) {
  return fmt::format("{}{}{}", to_string(layout.mesh), layout.zero ? ", ZeRO-1" : "",
                     layout.masters ? "" : ", no masters");
}

std::optional<ir::Sharding> restricted(const ir::Tensor& tensor, const Mesh& mesh) {
  if (!tensor.sharding) return {};
  ir::Sharding sharding = *tensor.sharding;
  for (ir::Split& split : sharding.dimensions) {
    std::erase_if(split.axes, [&](Axis axis) { return mesh[axis] == 1; });
    if (split.axes.empty()) split.blocks = 1;
  }
  return sharding.is_whole() ? std::nullopt : std::optional(sharding);
}

// The parameters and states of a rank of the mesh.
ir::Program program_of(const Layout& layout) {
  const ir::Program whole = ir::parse(layout.tensors).value();
  ir::Program rank;
  for (const ir::Tensor& tensor : whole.tensors) {
    const auto sharding = restricted(tensor, layout.mesh);
    const Shape shape =
        sharding ? ir::shard_shape(tensor.type.shape, *sharding, layout.mesh).value() : tensor.type.shape;
    rank.add_named(tensor.kind, tensor.name, {tensor.type.dtype, shape}, sharding);
    std::vector<ir::StateKind> kinds{ir::StateKind::first_moment, ir::StateKind::second_moment};
    if (layout.masters && tensor.type.dtype == DType::bf16) kinds.push_back(ir::StateKind::master);
    const ir::Axes group = ir::holders(sharding) & layout.mesh.wide();
    const int ranks = layout.mesh.size(group);
    for (const ir::StateKind kind : kinds) {
      const bool shard = layout.zero && ranks > 1;
      const Shape of_state = shard ? Shape{flat_shard_elements(shape.elements(), ranks)} : shape;
      const ir::TensorId id =
          rank.add_state(kind, tensor.name, {DType::f32, of_state}, shard ? std::nullopt : sharding);
      if (shard) rank[id].flat_shard = group;
    }
  }
  return ir::parse(ir::print(rank)).value();
}

runtime::TensorStore Layout::store(int rank) const {
  runtime::TensorStore store;
  store.set_rank(mesh, rank);
  store.add(program_of(*this));
  store.set_padding("wte.weight", padding_rows);
  return store;
}

// A value of the whole tensor. Weights without masters are numbers of bf16.
float value_of(const std::string& name, std::int64_t element, bool rounded) {
  const float value = Philox(3, stream_of(name)).normal(std::uint64_t(element));
  return rounded ? to_f32(from_f32<bf16>(value)) : value;
}

// The name under which the value of a tensor's element is drawn: a master has that of its weight.
std::string values_name(const runtime::TensorStore& store, const std::string& name) {
  for (const auto& [other, tensor] : store.all())
    if (tensor.kind == ir::TensorKind::parameter && ir::state_name(other, ir::StateKind::master) == name) return other;
  return name;
}

// Calls f(tensor, element held, its value) for each tensor's elements, without the padding of flat shards. The rows of
// padding are zero.
template <class F>
void for_each_element(runtime::TensorStore& store, bool masters, F f) {
  for (const auto& [name, tensor] : store.all()) {
    const std::string values = values_name(store, name);
    const bool rounded = !masters && tensor.type.dtype == DType::bf16;
    for (const ir::HeldRun& run : store.held(name))
      for (std::int64_t i = 0; i < run.count; ++i)
        f(tensor, std::size_t(run.held + i),
          run.whole + i < store.saved_shape(name).elements() ? value_of(values, run.whole + i, rounded) : 0);
  }
}

Status save(const Layout& layout, const std::string& folder) {
  config::Config config;
  config.log.run_dir = folder;
  config.data.synthetic = true;
  return comm::run_inproc(layout.mesh.ranks(), [&](comm::Communicator& world) -> Status {
    runtime::TensorStore store = layout.store(world.rank());
    for_each_element(store, layout.masters, [](const runtime::NamedTensor& tensor, std::size_t at, float value) {
      if (tensor.type.dtype == DType::f32)
        tensor.memory.as<float>()[at] = value;
      else
        tensor.memory.as<bf16>()[at] = from_f32<bf16>(value);
    });
    run::Saver saver(config, world, store);
    checkpoint::Manifest manifest;
    manifest.step = 1;
    manifest.ranks = layout.mesh.ranks();
    manifest.optimizer = "adamw";
    LANCET_ASSIGN(const bool begun, saver.begin(manifest, true));
    if (!begun) return internal_error("expected a save that is begun");
    LANCET_TRY(saver.finish());
    return saver.last_failure() ? Status(*saver.last_failure()) : Status();
  });
}

// The elements that differ from those that were saved.
std::int64_t differences(const Layout& layout, const std::string& folder) {
  std::atomic<std::int64_t> wrong{0};
  test::good(comm::run_inproc(layout.mesh.ranks(), [&](comm::Communicator& world) -> Status {
    runtime::TensorStore store = layout.store(world.rank());
    LANCET_ASSIGN(const auto opened, checkpoint::Checkpoint::open(folder + "/checkpoints/step-000001"));
    LANCET_TRY(run::load_tensors(store, opened, run::LoadScope::all));
    for_each_element(store, layout.masters, [&](const runtime::NamedTensor& tensor, std::size_t at, float value) {
      wrong += tensor.type.dtype == DType::f32
                   ? std::bit_cast<std::uint32_t>(tensor.memory.as<float>()[at]) != std::bit_cast<std::uint32_t>(value)
                   : to_f32(tensor.memory.as<bf16>()[at]) != to_f32(from_f32<bf16>(value));
    });
    return {};
  }));
  return wrong;
}

std::vector<Layout> layouts(bool masters) {
  std::vector<Layout> all{{{}, false, masters}};
  for (const Mesh& mesh : {Mesh{{1, 2, 1, 2}}, Mesh{{1, 1, 1, 4}}, Mesh{{1, 1, 2, 2}}, Mesh{{1, 2, 2, 1}},
                           Mesh{{1, 2, 2, 2}}, Mesh{{1, 4, 1, 1}}})
    for (const bool zero : {false, true}) all.push_back({mesh, zero, masters});
  return all;
}

}  // namespace

TEST_CASE("checkpoint tensors: what one mesh saves, every other mesh loads bit for bit") {
  const bool masters = GENERATE(true, false);
  for (const Layout& from : layouts(masters)) {
    INFO("saved on " << text_of(from));
    const test::TemporaryFolder folder;
    test::good(save(from, folder / "run"));
    for (const Layout& to : layouts(masters)) {
      INFO("loaded on " << text_of(to));
      CHECK(differences(to, folder / "run") == 0);
    }
  }
}

TEST_CASE("checkpoint tensors: rows that only one mesh pads the vocabulary with are not saved") {
  const Layout alone{{}, false, true, "program p\nparameter @wte.weight : bf16[8,5]\n", 0};
  std::vector<Layout> all{alone};
  for (const bool zero : {false, true}) {
    all.push_back({Mesh{{1, 1, 1, 3}}, zero, true, "program p\nparameter @wte.weight : bf16[9{tensor},5]\n", 1});
    all.push_back({Mesh{{1, 2, 1, 2}}, zero, true, "program p\nparameter @wte.weight : bf16[8{tensor},5]\n", 0});
    all.push_back({Mesh{{1, 2, 1, 5}}, zero, true, "program p\nparameter @wte.weight : bf16[10{tensor},5]\n", 2});
  }
  for (const Layout& from : all) {
    INFO("saved on " << text_of(from));
    const test::TemporaryFolder folder;
    test::good(save(from, folder / "run"));
    for (const Layout& to : all) {
      INFO("loaded on " << text_of(to));
      CHECK(differences(to, folder / "run") == 0);
    }
  }
}

TEST_CASE("checkpoint tensors: every tensor is in one share, and only parts travel") {
  for (const Layout& layout : layouts(true)) {
    INFO(text_of(layout));
    const runtime::TensorStore store = layout.store(0);
    std::map<std::string, int> seen;
    std::set<std::string> gathered;
    std::vector<std::uint64_t> bytes;
    const std::vector<run::RankShare> shares = run::shares_of(store);
    REQUIRE(std::ssize(shares) == layout.mesh.ranks());
    for (const run::RankShare& share : shares) {
      bytes.push_back(share.bytes);
      std::size_t at = 0;
      for (const auto& shard : share.shards)
        for (const auto& tensor : shard.tensors) {
          ++seen[tensor.name];
          if (share.sources[at++].gathered) gathered.insert(tensor.name);
        }
    }
    CHECK(seen.size() == 3 * (5 + 4 * 4));
    for (const auto& [name, times] : seen) CHECK(times == 1);
    const bool tensor = layout.mesh[Axis::tensor] > 1, data = layout.mesh[Axis::data] > 1;
    CHECK(gathered.contains("h.0.attn.c_proj.weight") == (tensor || layout.zero));
    CHECK(gathered.contains("h.0.ln_1.weight") == false);
    CHECK(gathered.contains("h.0.ln_1.weight.m") == layout.zero);
    CHECK(gathered.contains("h.0.moe.experts.3.c_fc.weight") == (tensor || (layout.zero && data)));
    CHECK(gathered.contains("h.0.moe.experts.3.c_proj.bias.v") == (layout.zero && (tensor || data)));
    CHECK(*std::ranges::max_element(bytes) < 1.3 * double(*std::ranges::min_element(bytes)));
  }
}

}  // namespace lancet
