// How a thread waits for a stream: when it sleeps, and when it polls at once.
#include "lancet/runtime/watched_stream.h"

#include <catch2/catch.hpp>

#include "doubles/host_queue.h"
#include "good.h"
#include "lancet/backend/device.h"

using namespace std::chrono_literals;

namespace lancet::runtime {
namespace {

// A stream that runs nothing.
struct NoStream : public backend::Stream {
  Status done() { return {}; }
  Status copy(void*, const void*, std::size_t) override { return done(); }
  Status zero(void*, std::size_t) override { return done(); }
  Status signal(backend::Flag*) override { return done(); }
  Status wait(backend::Flag*) override { return done(); }
  Status record(backend::Event&) override { return done(); }
  Status scale(float*, std::size_t, float) override { return done(); }
  Status delay(double) override { return done(); }
  Status mark() override { return done(); }
  Status delay_from_mark(double) override { return done(); }
  Status begin_capture() override { return done(); }
  Result<std::unique_ptr<backend::Graph>> end_capture() override { return internal_error("none"); }
  Status launch(backend::Graph&) override { return done(); }
  Status synchronize() override { return done(); }
  Result<bool> idle() override { return true; }
  void* native() override { return nullptr; }
};

}  // namespace

TEST_CASE("waits of unknown length spin at first, then pause for 1/200 of the time so far") {
  CHECK(pause_of(0ns, {}) == 0ns);
  CHECK(pause_of(3999us, {}) == 0ns);
  CHECK(pause_of(10ms, {}) == 50us);
  CHECK(pause_of(1s, {}) == 500us);
}

TEST_CASE("waits near their usual end spin, and earlier pauses end before that time") {
  const UsualWait usual{100ms};  // near: 2 ms
  CHECK(pause_of(50ms, usual) == 250us);
  CHECK(pause_of(97900us, usual) == 100us);
  CHECK(pause_of(98001us, usual) == 0ns);
  CHECK(pause_of(100ms, usual) == 0ns);
  CHECK(pause_of(101999us, usual) == 0ns);
  CHECK(pause_of(110ms, usual) == 500us);  // later than usual: the end is unknown
  CHECK(pause_of(9900us, {10ms}) == 0ns);  // near: at least 200 us
  CHECK(pause_of(9700us, {10ms}) == 48500ns);
}

TEST_CASE("a wait returns its duration") {
  const auto device = test::make_host_queue();
  auto stream = test::good(device->make_stream(false));
  UsualWait usual;
  REQUIRE((*stream)->delay(3).ok());
  REQUIRE(wait_until_idle(
              **stream, [] { return Status(); }, &usual)
              .ok());
  CHECK(usual.took > 0ns);
}

TEST_CASE("a wait for a flag ends with the error of the kernel that faulted before the flag") {
  const auto device = test::make_host_queue();
  const bool watched = GENERATE(false, true);
  auto made = test::good(device->make_stream(false));
  WatchedStream over(**made, [] { return Status(); });
  backend::Stream& stream = watched ? over : **made;
  auto memory = test::good(device->allocate_host(sizeof(backend::Flag)));
  auto* flag = reinterpret_cast<backend::Flag*>(*memory);
  REQUIRE(stream.signal(flag).ok());
  CHECK(backend::wait_for_flag(flag, stream).ok());
  REQUIRE(stream.synchronize().ok());
  *flag = 0;
  REQUIRE(static_cast<test::HostQueueStream*>(stream.native())
              ->enqueue([]() -> Status {
                std::this_thread::sleep_for(5ms);
                return internal_error("an illegal memory access");
              })
              .ok());
  REQUIRE(stream.signal(flag).ok());
  const Error status = test::refused(backend::wait_for_flag(flag, stream));
  CHECK(status.message == "an illegal memory access");
}

TEST_CASE("a watched stream's own check ends a wait for a flag") {
  const auto device = test::make_host_queue();
  auto made = test::good(device->make_stream(false));
  WatchedStream stream(**made, [] { return Status(communication_error("another stream failed")); });
  backend::Flag flag = 0;
  CHECK(backend::wait_for_flag(&flag, stream).error().message == "another stream failed");
}

TEST_CASE("a watched stream counts its commands, and each launch on the stream below it") {
  const auto device = test::make_host_queue();
  auto made = test::good(device->make_stream(false));
  WatchedStream stream(**made, [] { return Status(); });
  backend::Flag flag = 0;
  std::uint32_t from = 1, to = 0;
  const auto event = test::good(device->make_event());
  CHECK(stream.commands() == 0);
  REQUIRE(stream.copy(&to, &from, sizeof to).ok());
  REQUIRE(stream.zero(&from, sizeof from).ok());
  REQUIRE(stream.signal(&flag).ok());
  REQUIRE(stream.wait(&flag).ok());
  REQUIRE(stream.record(**event).ok());
  REQUIRE(stream.delay(0).ok());
  CHECK(stream.commands() == 6);
  REQUIRE(stream.begin_capture().ok());
  const auto graph = test::good(stream.end_capture());
  REQUIRE(stream.launch(**graph).ok());
  stream.native();
  REQUIRE(stream.synchronize().ok());
  CHECK(stream.idle().ok());
  CHECK(stream.watch().ok());
  CHECK(stream.commands() == 8);
}

TEST_CASE("a watched stream counts as many commands for a list of copies as the stream below it makes of them") {
  struct Joining final : public NoStream {
    Status copy_all(std::span<const backend::Copy>) override { return {}; }
    std::size_t copy_commands(std::size_t copies) const override { return (copies + 1) / 2; }
  };
  const auto nothing = [] { return Status(); };
  const std::vector<backend::Copy> copies(5);
  NoStream one_by_one;
  WatchedStream each(one_by_one, nothing);
  REQUIRE(each.copy_all(copies).ok());
  CHECK(each.commands() == 5);
  Joining joining;
  WatchedStream joined(joining, nothing);
  REQUIRE(joined.copy_all(copies).ok());
  CHECK(joined.commands() == 3);
}

TEST_CASE("a watched stream delays from a mark of the stream below it") {
  const auto device = test::make_host_queue();
  auto below = test::good(device->make_stream(false));
  WatchedStream stream(**below, [] { return Status(); });
  const auto start = std::chrono::steady_clock::now();
  REQUIRE(stream.mark().ok());
  REQUIRE(stream.delay(4).ok());
  REQUIRE(stream.delay_from_mark(9).ok());
  REQUIRE(stream.synchronize().ok());
  CHECK(std::chrono::steady_clock::now() - start >= 9ms);
}

}  // namespace lancet::runtime
