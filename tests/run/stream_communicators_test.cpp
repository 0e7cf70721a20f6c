// The groups of ranks that a plan names, on ranks that are threads.
#include "lancet/run/stream_communicators.h"
#include "doubles/host_queue.h"
#include "doubles/inproc.h"

#include <fmt/ranges.h>
#include <catch2/catch.hpp>

#include "good.h"
#include "lancet/ir/plan.h"

using namespace lancet;
using ir::Axis;

namespace {

constexpr std::string_view two_groups = R"(program groups
input @x : f32[4]
%0 : f32[4] in @x = all_reduce(@x) {axes=data}  # reduce sync a
%1 : f32[4] in %0 = all_reduce(%0) {axes=expert}  # reduce sync b
%2 : f32[4] in %1 = all_reduce(%1) {axes="data,expert"}  # expert sync c
%3 : f32[4] in %2 = all_reduce(%2) {axes=tensor}  # expert sync d
%4 : f32[4] = one_summand(%3) {axes=data}  # compute sync e
output y = %4
)";

ir::Program parsed(std::string_view text) {
  auto program = test::good(ir::parse(text));
  return *program;
}

}  // namespace

TEST_CASE("groups are opened by stream and axes, once; all ranks and single ranks need no new communicator") {
  ir::Mesh mesh;
  mesh[Axis::data] = 2, mesh[Axis::expert] = 3;
  const ir::Program program = parsed(two_groups);
  test::good(comm::run_inproc(6, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(run::Streams streams, run::Streams::make({}, world, nullptr, "test."));
    LANCET_TRY(streams.open_groups(mesh, program));
    const runtime::ExecutorOptions options = streams.executor_options(1);
    const auto &compute = options.groups[0], &expert = options.groups[1], &reduce = options.groups[2];
    const int rank = world.rank(), data = rank / 3, place = rank % 3;
    const auto is = [](const comm::Group& group, int at, int size, bool talks) {
      const bool fits = !group.comm || (group.comm->rank() == at && group.comm->size() == size);
      return group.place == at && group.size == size && (group.comm != nullptr) == talks && fits;
    };
    if (compute.size() != 2 || expert.size() != 3 || reduce.size() != 3) return internal_error("the number of groups");
    if (!is(compute.at(""), rank, 6, false) || !is(compute.at("data"), data, 2, false))
      return internal_error("the compute stream");
    if (!is(expert.at(""), rank, 6, true) || expert.at("data,expert").comm != expert.at("").comm ||
        !is(expert.at("data,expert"), rank, 6, true) || !is(expert.at("tensor"), 0, 1, false))
      return internal_error("the expert stream");
    if (!is(reduce.at("data"), data, 2, true) || !is(reduce.at("expert"), place, 3, true))
      return internal_error("the reduce stream");
    LANCET_TRY(streams.open_groups(mesh, program));
    if (streams.executor_options(1).groups[2].at("data").comm != reduce.at("data").comm)
      return internal_error("a group was opened twice");
    std::vector<float> of_data(3, float(rank)), of_expert(3, float(rank));
    LANCET_TRY(reduce.at("data").comm->all_reduce_sum(of_data));
    LANCET_TRY(reduce.at("expert").comm->all_reduce_sum(of_expert));
    if (of_data[0] != float(2 * place + 3) || of_expert[0] != float(9 * data + 3)) return internal_error("the sums");
    reduce.at("data").comm->set_timeout(std::chrono::milliseconds(50));
    if (rank != 0) return world.barrier();
    const Status late = reduce.at("data").comm->barrier();
    LANCET_TRY(world.barrier());
    if (late.ok() || late.error().message !=
                         "barrier of 0 bytes on rank 0 of ranks 0, 3: timed out after 0.05 s, waiting for rank 3")
      return late;
    return {};
  }));
}

namespace {

// As NCCL's, it ends when the other ranks end theirs.
class EndsTogether final : public comm::DeviceCommunicator {
 public:
  EndsTogether(comm::Communicator& host, int& met) : host_(host), met_(met) {}
  ~EndsTogether() override { met_ += host_.barrier().ok(); }
  int rank() const override { return host_.rank(); }
  int size() const override { return host_.size(); }
  std::string transport() const override { return "test"; }
  Status send_receive(backend::Stream&, std::span<const comm::Segment>, std::span<const comm::Segment>) override {
    return internal_error("a call that the test does not expect");
  }
  Status all_reduce_sum(backend::Stream&, std::span<float>) override {
    return internal_error("a call that the test does not expect");
  }
  Status check() override { return {}; }
  void abort(const std::string& why) override { host_.abort(why); }

 private:
  comm::Communicator& host_;
  int& met_;
};

// Notes the thread blocks that each communicator may use, in the order in which they are made.
class NotingAccelerator final : public runtime::Accelerator {
 public:
  backend::Device& device() override { return *device_; }
  const ops::DeviceKernel* find_kernel(std::string_view) const override { return nullptr; }
  Result<std::unique_ptr<comm::DeviceCommunicator>> make_communicator(const comm::DeviceStream& stream) override {
    max_ctas.push_back(stream.max_ctas);
    return std::unique_ptr<comm::DeviceCommunicator>(std::make_unique<EndsTogether>(*stream.host, met));
  }
  std::string build() const override { return "noting"; }
  std::vector<int> max_ctas;
  int met = 0;  // at their ends

 private:
  std::unique_ptr<backend::Device> device_ = test::make_host_queue();
};

}  // namespace

TEST_CASE("links between stages take few thread blocks and end together, and a mesh without stages has none") {
  const ir::Program program = parsed("program empty\ninput @x : f32[4]\noutput y = @x\n");
  for (const int max_ctas : {0, 2, 16})
    for (const int stages : {1, 2, 4})
      test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
        config::Config config;
        config.comm.max_ctas = max_ctas;
        config.comm.timeout_s = 10;
        NotingAccelerator accelerator;
        {
          LANCET_ASSIGN(const run::Streams streams, [&]() -> Result<run::Streams> {
            LANCET_ASSIGN(run::Streams made, run::Streams::make(config, world, &accelerator));
            LANCET_TRY(made.open_groups({{stages, 4 / stages, 1, 1}}, program));
            return made;
          }());
        }
        std::vector<int> expected(2, max_ctas);  // of all-to-alls and all-reduces
        if (stages > 1) expected.insert(expected.end(), 4, max_ctas == 2 ? 2 : 4);
        if (accelerator.max_ctas == expected && accelerator.met == int(expected.size())) return {};
        return internal_error(
            fmt::format("{} stages: found {}, {} met", stages, fmt::join(accelerator.max_ctas, ", "), accelerator.met));
      }));
}

TEST_CASE("shards over all ranks fit every mesh of as many ranks") {
  const ir::Program program = parsed(R"(program shards
state @x : f32[8]
%0 : f32[2] = take_shard(@x) {shards=4, axis=0}  # compute forward a
output y = %0
)");
  test::good(comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(run::Streams streams, run::Streams::make({}, world, nullptr));
    return streams.open_groups({{1, 2, 2, 1}}, program);
  }));
}

TEST_CASE("a plan for another mesh of as many ranks is a config error") {
  const ir::Program program = parsed(R"(program shards
input @x : f32[4]
%0 : f32[2] = take_shard(@x) {axes=data, shards=2, axis=0}  # compute forward a
output y = %0
)");
  const auto opened = [&](const ir::Mesh& mesh) {
    return comm::run_inproc(4, [&](comm::Communicator& world) -> Status {
      LANCET_ASSIGN(run::Streams streams, run::Streams::make({}, world, nullptr));
      return streams.open_groups(mesh, program);
    });
  };
  CHECK(opened({{1, 2, 1, 2}}).ok());
  const Error status = test::refused(opened({{1, 4, 1, 1}}));
  CHECK(status.code == ExitCode::config);
  CHECK(status.message ==
        "take_shard at a: expected as many shards as ranks along data of the mesh data 4, 4, found 2");
}

TEST_CASE("a mesh of another number of ranks is a config error") {
  const ir::Program program = parsed(two_groups);
  const Error status = test::refused(comm::run_inproc(2, [&](comm::Communicator& world) -> Status {
    LANCET_ASSIGN(run::Streams streams, run::Streams::make({}, world, nullptr));
    ir::Mesh mesh;
    mesh[Axis::expert] = 4;
    return streams.open_groups(mesh, program);
  }));
  CHECK(status.code == ExitCode::config);
  CHECK(status.message == "mesh: expected 2 ranks, found expert 4");
}
