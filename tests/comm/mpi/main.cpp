// The contract over MPI, by real processes: mpirun -np N test_comm_mpi CASE. A case that breaks communication cannot
// exit normally: it ends the job with exit code 42 if all checks passed, else 3.
#include <fmt/format.h>
#include <mpi.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <future>
#include <map>
#include <string>

#include "comm/contract.h"
#include "lancet/comm/mpi.h"

using namespace lancet;
using namespace lancet::comm;
using namespace std::chrono_literals;

namespace {

// A rank that stays away; the time limit of the test comes first.
constexpr auto forever = 5min;
// Far more than any call without a timeout needs, even on a busy machine; the timeouts are a minute or more.
constexpr double at_once = 30;

std::atomic<bool> mpi_gets_stuck{false}, mpi_is_stuck{false};
std::atomic<int> ends_in_split{0};  // the signal that this rank gets when it calls MPI_Comm_split; 0: none
bool hangs_once_started = false;

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

Status expect_error(const Status& status, std::initializer_list<std::string> parts) {
  EXPECT_THAT(!status, "expected an error, the call succeeded");
  EXPECT_THAT(status.error().code == ExitCode::communication, "{}", status.error().message);
  for (const std::string& part : parts)
    EXPECT_THAT(status.error().message.find(part) != std::string::npos, "'{}' is not in '{}'", part,
                status.error().message);
  return {};
}

// Overlapping groups: an error on all ranks.
Status overlapping_groups(Communicator& c) {
  const std::vector<int> members = c.rank() == 2 ? std::vector<int>{1, 2} : std::vector<int>{0, 1};
  const auto group = c.split(c.rank() > 2 ? contract::line_of(c.rank(), c.size(), 1, false) : members);
  EXPECT_THAT(!group.ok() && group.error().message.find("split: expected equal or disjoint groups, found ranks 1, 2 "
                                                        "on rank 2 and ranks 0, 1 on rank 1") != std::string::npos,
              "{}", group.ok() ? "no error" : group.error().message);
  LANCET_ASSIGN(const auto again, c.split(contract::line_of(c.rank(), c.size(), 2, true)));
  return again->barrier();
}

Status keeps_contract(Communicator& c) {
  const Launch launch = detect_launch();
  EXPECT_THAT(launch.rank == c.rank() && launch.size == c.size(), "detect_launch: {} of {}", launch.rank, launch.size);
  EXPECT_THAT(launch.local_rank == c.rank() && launch.local_size == c.size(), "detect_launch: {} of {}",
              launch.local_rank, launch.local_size);
  EXPECT_THAT(!MpiSession::start(), "a second session started");
  for (const auto& test : contract::cases) {
    if (c.size() == 1 && std::string(test.name) == "network") continue;  // nothing to measure
    if (Status s = test.run(c); !s) return internal_error(fmt::format("{}: {}", test.name, s.error().message));
  }
  if (c.size() > 2) LANCET_TRY(overlapping_groups(c));
  const auto start = Clock::now();
  LANCET_ASSIGN(NetworkReport report, measure_network(c));
  if (c.rank() == 0) fmt::print(stderr, "{}; measured in {:.3f} s\n", to_string(report), since(start));
  EXPECT_THAT(since(start) < at_once, "the network check took {} s", since(start));
  return {};
}

// The last rank skips one operation of each stream.
Status timeouts(Communicator& c) {
  std::vector<std::unique_ptr<Communicator>> streams;
  for (int i = 0; i < 4; ++i) {
    LANCET_ASSIGN(auto stream, c.duplicate());
    stream->set_name(fmt::format("stream {}", i));
    stream->set_timeout(2s);
    streams.push_back(std::move(stream));
  }
  LANCET_TRY(c.barrier());  // the other ranks start together
  const int last = c.size() - 1;
  if (c.rank() == last) {
    std::this_thread::sleep_for(forever);
    return internal_error("no rank ended the job");
  }
  const std::string missing = fmt::format("timed out after 2 s: nothing came from rank {}", last);
  std::vector<float> values(300'000);
  std::vector<std::byte> data(1 << 20), sent(1 << 20);
  const Segment out{last, sent.data(), sent.size()};
  const auto start = Clock::now();
  auto barrier = std::async(std::launch::async, [&] { return streams[0]->barrier(); });
  auto sum = std::async(std::launch::async, [&] { return streams[1]->all_reduce_sum(values); });
  auto broadcast = std::async(std::launch::async, [&] { return streams[2]->broadcast(data, last); });
  auto send_receive = std::async(std::launch::async, [&] { return streams[3]->send_receive({&out, 1}, {}); });
  LANCET_TRY(expect_error(barrier.get(), {"barrier #1 of 0 bytes on \"stream 0\"", missing}));
  EXPECT_THAT(since(start) > 1.99 && since(start) < at_once, "{} s", since(start));
  LANCET_TRY(expect_error(sum.get(), {"all_reduce_sum #1 of 1200000 bytes on \"stream 1\"", missing}));
  LANCET_TRY(expect_error(broadcast.get(), {"broadcast #1 of 1048576 bytes on \"stream 2\"", missing}));
  LANCET_TRY(
      expect_error(send_receive.get(), {"send_receive #1", fmt::format("rank {} did not take what was sent", last)}));
  streams[0]->set_timeout(60s);
  const auto again = Clock::now();
  LANCET_TRY(expect_error(streams[0]->barrier(), {"barrier #1 of 0 bytes on \"stream 0\"", missing}));
  EXPECT_THAT(since(again) < at_once, "a broken stream took {} s to say so", since(again));
  // The other ranks' stream still works.
  if (c.size() > 2) return {};
  c.set_timeout(2s);
  return expect_error(c.barrier(), {"on \"world\"", missing});
}

// The last rank stays away from its group; the others' group works on.
Status group_timeouts(Communicator& c) {
  LANCET_ASSIGN(const auto group, c.split(contract::line_of(c.rank(), c.size(), 2, true)));
  group->set_name("expert[data]");
  group->set_timeout(2s);
  LANCET_TRY(c.barrier());
  const int last = c.size() - 1;
  if (c.rank() == last) {
    std::this_thread::sleep_for(forever);
    return internal_error("no rank ended the job");
  }
  if (c.rank() % 2 != last % 2) {
    for (int i = 0; i < 10; ++i) LANCET_TRY(group->barrier());
    return {};
  }
  return expect_error(group->barrier(), {fmt::format("on \"expert[data]\" (rank {} of ranks ", c.rank()),
                                         fmt::format("timed out after 2 s: nothing came from rank {}", last)});
}

Status mismatches(Communicator& c) {
  std::vector<std::unique_ptr<Communicator>> streams;
  for (int i = 0; i < 4; ++i) {
    LANCET_ASSIGN(auto stream, c.duplicate());
    stream->set_timeout(60s);
    streams.push_back(std::move(stream));
  }
  streams[3]->set_timeout(3s);
  std::vector<std::byte> data(200'000);
  for (int i = 0; i < 4200; ++i) LANCET_TRY(c.barrier());  // sequence numbers that no longer fit a tag
  const auto start = Clock::now();
  const auto send_receive = [&](Communicator& stream, std::size_t send, std::size_t receive) {
    std::vector<std::byte> in(receive);
    const Segment out{1 - c.rank(), data.data(), send}, into{1 - c.rank(), in.data(), receive};
    return stream.send_receive({&out, 1}, {&into, 1});
  };
  if (c.rank() == 0) {
    LANCET_TRY(
        expect_error(streams[0]->barrier(), {"barrier #1 of 0 bytes on \"world.1\"", "rank 1 is at broadcast #1;"}));
    LANCET_TRY(expect_error(send_receive(*streams[1], 8, 800),
                            {"send_receive #1", "expected 800 bytes from rank 1, which sent 400;"}));
    LANCET_TRY(expect_error(send_receive(*streams[2], 8, 800), {"expected 800 bytes from rank 1, which sent 1200;"}));
    LANCET_TRY(
        expect_error(send_receive(*streams[3], 8, 90'000), {"expected 90000 bytes from rank 1, which sent 120000;"}));
  } else {
    LANCET_TRY(streams[0]->broadcast(std::span(data).first(16), 1));
    LANCET_TRY(streams[0]->barrier().ok() ? internal_error("the second call saw no mismatch") : Status{});
    LANCET_TRY(send_receive(*streams[1], 400, 8));
    LANCET_TRY(send_receive(*streams[2], 1200, 8));
    LANCET_TRY(expect_error(send_receive(*streams[3], 120'000, 8),
                            {"timed out after 3 s: rank 0 did not take what was sent"}));
  }
  std::byte byte{};
  if (c.rank() == 0) LANCET_TRY(expect_error(c.barrier(), {"barrier #4209 ", "rank 1 is at broadcast #4209;"}));
  if (c.rank() == 1) LANCET_TRY(c.broadcast({&byte, 1}, 1));
  EXPECT_THAT(since(start) < at_once, "found after {} s, not at once", since(start));
  return {};
}

Status aborts(Communicator& c) {
  LANCET_ASSIGN(auto stream, c.duplicate());
  if (c.rank() != 0) {
    std::this_thread::sleep_for(forever);
    return internal_error("no rank ended the job");
  }
  Status of_stream, of_world;
  const auto start = Clock::now();
  {
    std::jthread a([&] { of_stream = stream->barrier(); });
    std::jthread b([&] { of_world = c.barrier(); });
    std::this_thread::sleep_for(100ms);
    c.abort("a signal came");
  }
  EXPECT_THAT(since(start) < at_once, "woken after {} s", since(start));
  LANCET_TRY(expect_error(of_stream, {"communication was aborted: a signal came"}));
  LANCET_TRY(expect_error(of_world, {"communication was aborted: a signal came"}));
  return expect_error(stream->barrier(), {"a signal came"});
}

// The calls below must end the job by themselves; the test checks mpirun's exit code.
Status killed(Communicator& c) {
  if (c.rank() == 1) raise(SIGKILL);
  return c.barrier();
}
// The other rank ends while MPI does not return from a call on this one, as Open MPI does over TCP.
Status stuck(Communicator& c) {
  pid_t other = getpid();
  LANCET_TRY(c.broadcast(std::as_writable_bytes(std::span(&other, 1)), 1));
  if (c.rank() == 1) {
    std::this_thread::sleep_for(forever);
    return internal_error("no signal ended this rank");
  }
  signal(SIGTERM, SIG_IGN);  // the launcher sends it a second later
  mpi_gets_stuck = true;
  std::jthread killer([&] {
    while (!mpi_is_stuck) std::this_thread::sleep_for(1ms);
    kill(other, SIGKILL);
  });
  const std::string missed = "(rank 0 of 2): waited for rank 1, which ended without it";
  LANCET_TRY(expect_error(c.barrier(), {"barrier #2 of 0 bytes", missed}));
  // The progress thread still holds the barrier, so that every later call returns its error.
  std::byte from{1}, to{0};
  const Segment out{0, &from, 1}, in{0, &to, 1};
  LANCET_TRY(expect_error(c.send_receive({&out, 1}, {&in, 1}), {"barrier #2 of 0 bytes", missed}));
  EXPECT_THAT(to == std::byte{0}, "a broken communicator copied");
  fmt::print("stuck: reported the missing rank\n");
  return {};
}
// The last rank gets this signal after it has agreed on the groups, when the others are in MPI_Comm_split already.
Status lost_in_split(Communicator& c, int signal_number, const std::string& error) {
  c.set_timeout(2s);
  LANCET_TRY(c.barrier());
  const int last = c.size() - 1;
  if (c.rank() == last) ends_in_split = signal_number;
  signal(SIGTERM, SIG_IGN);  // the launcher sends it a second after a rank has ended
  const auto start = Clock::now();
  const auto group = c.split(contract::line_of(c.rank(), c.size(), 2, true));
  EXPECT_THAT(!group.ok(), "the split of a lost rank succeeded");
  EXPECT_THAT(since(start) < at_once, "it took {} s", since(start));
  LANCET_TRY(expect_error(group.error(), {"split #3 of 0 bytes", error}));
  LANCET_TRY(expect_error(c.barrier(), {"split #3 of 0 bytes", error}));
  fmt::print(stderr, "rank {} reported the lost rank\n", c.rank());
  return group.error();
}
Status absent(Communicator& c) {
  if (c.rank() == 1) std::this_thread::sleep_for(forever);
  c.set_timeout(1s);
  return c.barrier();
}

int run(const std::string& name) {
  if (name == "late" && detect_launch().rank == 1) std::this_thread::sleep_for(forever);
  hangs_once_started = name == "halted" && detect_launch().rank == 1;
  auto session = name == "late"     ? MpiSession::start(1s)
                 : name == "halted" ? MpiSession::start(300s, 5s)
                                    : MpiSession::start();
  if (!session) {
    fmt::print(stderr, "{}\n", session.error().message);
    return static_cast<int>(session.error().code);
  }
  auto world = (*session)->world();
  const auto report = [&](const Status& s) {
    if (!s) fmt::print(stderr, "[rank {}] {}: {}\n", world->rank(), name, s.error().message);
  };
  if (name == "contract") {
    const Status s = keeps_contract(*world);
    report(s);
    if (!s) (*session)->abort_job(3);
    return 0;
  }
  const std::map<std::string, Status (*)(Communicator&)> breaking = {
      {"timeouts", timeouts}, {"group_timeouts", group_timeouts}, {"mismatches", mismatches}, {"aborts", aborts}};
  if (const auto found = breaking.find(name); found != breaking.end()) {
    const Status s = found->second(*world);
    report(s);
    if (!s) (*session)->abort_job(3);
    if (world->rank() == 0) (*session)->abort_job(42);
    std::this_thread::sleep_for(forever);
    return 3;
  }
  if (name == "absent") {  // as the program does on an error: its exit code ends the job
    const Status s = absent(*world);
    report(s);
    (*session)->abort_job(static_cast<int>(s.error().code));
  }
  if (name == "stuck") {
    const Status s = stuck(*world);
    report(s);
    (*session)->abort_job(3);
  }
  if (name == "split_killed") {
    const Status s = lost_in_split(*world, SIGKILL, fmt::format("waited for rank {}, which", world->size() - 1));
    report(s);
    (*session)->abort_job(static_cast<int>(s.error().code));
  }
  if (name == "split_halted") {  // no abort_job: the session ends the process
    report(lost_in_split(*world, SIGSTOP, "MPI itself has not returned for 7 s"));
    return 3;
  }
  if (name == "killed" || name == "returned") {  // no abort_job: the launcher must notice
    const Status s = name == "killed" ? killed(*world) : absent(*world);
    report(s);
    return s ? 0 : static_cast<int>(s.error().code);
  }
  fmt::print(stderr, "no case '{}'\n", name);
  return 1;
}

}  // namespace

// Replaces the library's function.
extern "C" int MPI_Improbe(int source, int tag, MPI_Comm comm, int* found, MPI_Message* message, MPI_Status* status) {
  while (mpi_gets_stuck) {
    mpi_is_stuck = true;
    std::this_thread::sleep_for(10ms);
  }
  return PMPI_Improbe(source, tag, comm, found, message, status);
}

extern "C" int MPI_Comm_split(MPI_Comm comm, int color, int key, MPI_Comm* made) {
  if (const int signal_number = ends_in_split; signal_number != 0) {
    std::this_thread::sleep_for(100ms);  // the others wait inside by now
    raise(signal_number);
  }
  return PMPI_Comm_split(comm, color, key, made);
}

extern "C" int MPI_Iallgather(const void* send, int send_count, MPI_Datatype send_type, void* receive,
                              int receive_count, MPI_Datatype receive_type, MPI_Comm comm, MPI_Request* request) {
  if (hangs_once_started) std::this_thread::sleep_for(forever);
  return PMPI_Iallgather(send, send_count, send_type, receive, receive_count, receive_type, comm, request);
}

int main(int argc, char** argv) { return run(argc > 1 ? argv[1] : "contract"); }
