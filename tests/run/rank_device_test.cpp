// Free memory: the minimum of the limits of the host and the control groups.
#include <catch2/catch.hpp>

#include "doubles/inproc.h"
#include "lancet/backend/cpu/parallel.h"
#include "lancet/run/rank_device.h"
#include "program.h"

namespace lancet {
namespace {

// A folder that looks like "/" of a machine.
class Machine {
 public:
  void file(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(folder_ / name).parent_path());
    folder_.write(name, text);
  }
  std::optional<std::int64_t> available() const { return run::available_bytes(folder_ / ""); }

 private:
  test::TemporaryFolder folder_;
};

constexpr std::int64_t MB = 1'000'000;
const std::string free_memory = "MemTotal: 9 kB\nMemFree: 5 kB\nMemAvailable:    1000000 kB\n";

}  // namespace

TEST_CASE("without limits the host's free memory counts") {
  const Machine machine;
  CHECK_FALSE(machine.available().has_value());  // nothing is logged
  machine.file("proc/meminfo", free_memory);
  CHECK(machine.available() == 1024 * MB);
  machine.file("proc/self/cgroup", "0::/job\n");
  machine.file("sys/fs/cgroup/job/memory.max", "max\n");
  machine.file("sys/fs/cgroup/job/memory.current", "500000000\n");
  CHECK(machine.available() == 1024 * MB);
}

TEST_CASE("limits of a control group and its parents count, less the used memory without cached files") {
  const Machine machine;
  machine.file("proc/meminfo", free_memory);
  machine.file("proc/self/cgroup", "0::/outer/inner\n");
  machine.file("sys/fs/cgroup/outer/inner/memory.max", "700000000\n");
  machine.file("sys/fs/cgroup/outer/inner/memory.current", "300000000\n");
  CHECK(machine.available() == 400 * MB);
  machine.file("sys/fs/cgroup/outer/inner/memory.stat", "anon 7\ninactive_file 50000000\nactive_file 9\n");
  CHECK(machine.available() == 450 * MB);
  machine.file("sys/fs/cgroup/outer/memory.max", "600000000\n");
  machine.file("sys/fs/cgroup/outer/memory.current", "590000000\n");
  CHECK(machine.available() == 10 * MB);
  machine.file("sys/fs/cgroup/memory.max", "5000000\n");  // a container's own group, whatever its path
  machine.file("sys/fs/cgroup/memory.current", "9000000\n");
  CHECK(machine.available() == 0);
}

TEST_CASE("control groups of version 1") {
  const Machine machine;
  machine.file("proc/meminfo", free_memory);
  machine.file("proc/self/cgroup", "12:pids:/a\n9:cpu,memory:/docker/1f3\n0::/\n");
  machine.file("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  machine.file("sys/fs/cgroup/memory/memory.usage_in_bytes", "800000000\n");
  CHECK(machine.available() == 1024 * MB);
  machine.file("sys/fs/cgroup/memory/docker/1f3/memory.limit_in_bytes", "300000000\n");
  machine.file("sys/fs/cgroup/memory/docker/1f3/memory.usage_in_bytes", "100000000\n");
  machine.file("sys/fs/cgroup/memory/docker/1f3/memory.stat", "inactive_file 3\ntotal_inactive_file 1000000\n");
  CHECK(machine.available() == 201 * MB);
}

TEST_CASE("ranks with the same cores add up their threads") {
  const int cores = backend::cpu::cores();
  for (const int ranks : {1, 3})
    for (const int threads : {1, cores, cores + 1}) {
      const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
        LANCET_ASSIGN(const run::SharedCores shared, run::shared_cores(world, threads));
        CHECK(shared.cores == cores);
        CHECK(shared.threads == ranks * threads);
        CHECK(shared.crowded() == (ranks * threads > cores));
        return {};
      });
      CHECK(status.ok());
    }
}

}  // namespace lancet
