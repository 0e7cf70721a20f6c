// TensorBoard event files on a full disk, and their checksum. tests/run/event_file_test.py decodes them.
#include "lancet/run/metrics.h"

#include <catch2/catch.hpp>

#include "temporary_folder.h"

namespace lancet::run {

TEST_CASE("CRC-32C of known texts") {  // RFC 3720, B.4
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
}

TEST_CASE("event files of the same second do not replace each other") {
  const test::TemporaryFolder folder;
  const auto a = EventFile::create(folder / ""), b = EventFile::create(folder / "");
  REQUIRE((a.ok() && b.ok()));
  CHECK(folder.names().size() == 2);
}

TEST_CASE("an event file that cannot be made is an error") {
  const test::TemporaryFolder folder;
  const auto file = EventFile::create(folder / "none");
  REQUIRE_FALSE(file.ok());
  CHECK(file.error().code == ExitCode::data);
  CHECK(file.error().message.find("cannot create ") != std::string::npos);
}

TEST_CASE("unknown scalars are left out") {
  StepRecord record;
  const auto dense = scalars(record, {});
  record.mfu = 40;
  record.router_entropy = 1;
  const std::vector<LayerLoad> layers{
      {.max_over_mean = 1.5, .drop_pct = 2, .router_entropy = 0.5, .dead_experts = 1, .experts_per_token = 2}};
  const auto moe = scalars(record, layers);
  CHECK(moe.size() == dense.size() + 7);
  for (const Scalar& scalar : dense) CHECK(scalar.tag.find("mfu") == std::string::npos);
  CHECK(moe.back().tag == "layers/experts_per_token/0");
  CHECK(moe.back().value == 2);
}

}  // namespace lancet::run
