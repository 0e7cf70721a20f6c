// Two NCCL ranks on one GPU: NCCL refuses that unless the ranks believe that they are on different hosts, so they are
// processes with different NCCL_HOSTID that use the loopback device. NVIDIA does not promise that it works: if they do
// not connect, the test is skipped with a message. It may also hang until its limit, so it is listed, and run, last:
// cases are in the order of their files' names.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>

#include "all_to_all_values.h"
#include "module.h"

namespace lancet {
namespace {

// Two processes and a socket between them, as the host's communicator.
class Pair final : public comm::Communicator {
 public:
  Pair(int rank, int socket) : rank_(rank), socket_(socket) {}
  int rank() const override { return rank_; }
  int size() const override { return 2; }
  std::string transport() const override { return "pair"; }
  // Small messages: they fit the socket's buffer.
  Status send_receive(std::span<const comm::Segment> sends, std::span<const comm::Segment> receives) override {
    std::vector<std::byte> own;
    for (const comm::Segment& segment : sends)
      if (segment.peer == rank_)
        own.insert(own.end(), segment.data, segment.data + segment.bytes);
      else
        LANCET_TRY(move(::write, segment.data, segment.bytes));
    std::size_t taken = 0;
    for (const comm::Segment& segment : receives)
      if (segment.peer == rank_) {
        std::memcpy(segment.data, own.data() + taken, segment.bytes);
        taken += segment.bytes;
      } else {
        LANCET_TRY(move(::read, segment.data, segment.bytes));
      }
    return {};
  }
  Status all_reduce_sum(std::span<float>) override { return internal_error("not on this pair"); }
  Status broadcast(std::span<std::byte> bytes, int root) override {
    return root == rank_ ? move(::write, bytes.data(), bytes.size()) : move(::read, bytes.data(), bytes.size());
  }
  Status barrier() override {
    std::byte mine{}, theirs{};
    const comm::Segment send{1 - rank_, &mine, 1}, receive{1 - rank_, &theirs, 1};
    return send_receive({&send, 1}, {&receive, 1});
  }
  Result<std::unique_ptr<comm::Communicator>> split(std::span<const int>) override {
    return internal_error("not on this pair");
  }
  void abort(const std::string&) override {}
  void set_timeout(std::chrono::milliseconds) override {}

 private:
  template <class Call>
  Status move(Call call, std::byte* data, std::size_t bytes) {
    while (bytes > 0) {
      const auto moved = call(socket_, data, bytes);
      if (moved <= 0) return communication_error("the other process is gone");
      data += moved, bytes -= static_cast<std::size_t>(moved);
    }
    return {};
  }
  const int rank_, socket_;
};

enum Ending { right = 0, skipped = 77, wrong = 1 };

int tell(const char* what, const Error& error, Ending ending) {
  std::fprintf(stderr, "%s: %s\n", what, error.message.c_str());
  return ending;
}

int run_rank(int rank, int socket) {
  ::setenv("NCCL_HOSTID", rank == 0 ? "test-host-0" : "test-host-1", 1);  // before NCCL's first call
  ::setenv("NCCL_SOCKET_IFNAME", "lo", 1);
  for (const char* name : {"NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_IB_DISABLE"}) ::setenv(name, "1", 1);
  const auto module = runtime::load_module(test::module_path());
  if (!module.ok()) return tell("module", module.error(), wrong);
  const auto found = (*module)->count();
  if (!found.ok()) return tell("no GPU", found.error(), skipped);
  auto gpu = runtime::open_device(**module, 0);
  if (!gpu.ok()) return tell("open", gpu.error(), wrong);
  auto stream = (*gpu)->device().make_stream(true);
  if (!stream.ok()) return tell("stream", stream.error(), wrong);
  Pair pair(rank, socket);
  const auto nccl = (*gpu)->make_communicator(
      {.device = &(*gpu)->device(), .host = &pair, .max_ctas = 2, .timeout = std::chrono::seconds(10)});
  if (!nccl.ok()) return tell("two ranks on one GPU", nccl.error(), skipped);
  const Status status = test::check_values((*gpu)->device(), **stream, **nccl);
  return status.ok() ? right : tell("values", status.error(), wrong);
}

}  // namespace

TEST_CASE("two NCCL ranks on one GPU exchange and sum") {
  if (test::driver_started) {  // CUDA does not survive a fork; ctest runs each case in its own process
    std::cout << "SKIPPED: other cases of this process have used the GPU: run this one alone" << std::endl;
    return;
  }
  std::array<int, 2> sockets{};
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, sockets.data()) == 0);
  std::array<pid_t, 2> ranks{};
  for (int rank = 0; rank < 2; ++rank) {
    ranks[std::size_t(rank)] = ::fork();
    if (ranks[std::size_t(rank)] != 0) continue;
    ::close(sockets[std::size_t(1 - rank)]);
    ::alarm(20);  // a hang ends the test as a failure
    ::_exit(run_rank(rank, sockets[std::size_t(rank)]));
  }
  for (int socket : sockets) ::close(socket);
  std::array<int, 2> endings{};
  for (std::size_t rank = 0; rank < 2; ++rank) {
    int status = 0;
    REQUIRE(::waitpid(ranks[rank], &status, 0) == ranks[rank]);
    endings[rank] = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  if (endings[0] == skipped || endings[1] == skipped) {
    std::cout << "SKIPPED: no GPU, or NCCL does not connect two ranks on one" << std::endl;
    return;
  }
  CHECK(endings[0] == right);
  CHECK(endings[1] == right);
}

}  // namespace lancet
