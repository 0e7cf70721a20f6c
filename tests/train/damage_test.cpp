// Checkpoints of four ranks, damaged, and loaded on one, two and four: all are refused in one line, none crashes.
#include <sys/stat.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>

#include "in_memory.h"
#include "lancet/base/hash.h"
#include "lancet/base/json.h"
#include "lancet/checkpoint/checkpoint.h"
#include "temporary_folder.h"
#include "train/support.h"

namespace lancet {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

constexpr int saved_on = 4, files_per_rank = 2;  // model and optimizer
constexpr const char* manifest = "manifest.json";

std::string slurp(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
void spit(const fs::path& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

config::Config damage_config(int ranks) {
  auto config = test::small_config();
  config.model.n_layer = 2;
  config.model.num_local_experts = 4;
  config.model.n_embd = 16;
  config.train.steps = 4;
  config.train.micro_batch_size = 4 / ranks;
  config.train.save_interval = 2;
  config.train.save_buffer_mb = 1;
  return config;
}

// The error of a run on these ranks; all must return the same one.
Error end_of(const config::Config& config, int ranks, const std::string& resume = "") {
  std::vector<Error> ends(std::size_t(ranks), Error{ExitCode::done, "", true});
  const Status status = comm::run_inproc(ranks, [&](comm::Communicator& world) -> Status {
    const Status mine = train::train(config, world, {.local_ranks = ranks, .resume = resume});
    if (!mine.ok()) ends[std::size_t(world.rank())] = mine.error();
    return {};
  });
  REQUIRE(status.ok());
  for (const Error& end : ends) {
    CHECK(end.code == ends[0].code);
    CHECK(end.message == ends[0].message);
    CHECK(end.agreed);
  }
  return ends[0];
}

// Two runs with different seeds: the same names, shapes and sizes, other values.
struct Runs {
  Runs() {
    for (const char* name : {"a", "b"}) {
      auto config = damage_config(saved_on);
      config.log.run_dir = folder / name;
      config.train.seed = 1 + (name[0] == 'b');
      REQUIRE(end_of(config, saved_on).code == ExitCode::done);
    }
    sound = fs::path(folder / "a") / "checkpoints/step-000002";
    later = fs::path(folder / "a") / "checkpoints/step-000004";
    other = fs::path(folder / "b") / "checkpoints/step-000002";
    for (const auto& entry : fs::directory_iterator(sound))
      if (entry.path().filename() != manifest) shards.push_back(entry.path().filename());
    std::sort(shards.begin(), shards.end());
    REQUIRE(shards.size() == std::size_t(saved_on * files_per_rank));
  }

  TemporaryFolder folder;
  fs::path sound, later, other;
  std::vector<std::string> shards;
};

// Damage to a checkpoint in transport, on a disk or by hand.
class Damage {
 public:
  Damage(const Runs& runs, fs::path at, unsigned seed) : runs_(runs), at_(std::move(at)), random_(seed) {}

  // A description of the damage; empty if nothing was changed.
  std::string one() {
    fs::remove_all(at_);
    fs::copy(runs_.sound, at_, fs::copy_options::recursive);
    const std::string shard = pick(runs_.shards), second = pick(runs_.shards);
    const std::string name = random_() % 4 == 0 ? manifest : shard;
    switch (random_() % 11) {
      case 0:
      case 1: {
        std::string text = slurp(at_ / name);
        text[random_() % text.size()] ^= char(1 << random_() % 8);
        spit(at_ / name, text);
        return "a bit flipped in " + name;
      }
      case 2:
        fs::resize_file(at_ / name, random_() % fs::file_size(at_ / name));
        return name + " cut short";
      case 3:
        fs::resize_file(at_ / name, fs::file_size(at_ / name) + 1 + random_() % 10000);
        return name + " grown";
      case 4:
        fs::remove(at_ / name);
        return name + " removed";
      case 5:
        if (shard == second) return "";
        fs::rename(at_ / shard, at_ / "x");
        fs::rename(at_ / second, at_ / shard);
        fs::rename(at_ / "x", at_ / second);
        return shard + " and " + second + " swapped";
      case 6:
        replace(name, runs_.other);
        return name + " of another run";
      case 7:
        replace(name, runs_.later);
        return name + " of another step";
      case 8:
        return wrong_header(shard);
      case 9:
        return wrong_manifest();
      default:
        return no_file(name);
    }
  }

 private:
  const std::string& pick(const std::vector<std::string>& from) { return from[random_() % from.size()]; }
  void replace(const std::string& name, const fs::path& from) {
    fs::copy_file(from / name, at_ / name, fs::copy_options::overwrite_existing);
  }

  // Another length of the header, or other offsets in it, with a matching manifest: a faulty program could write it.
  std::string wrong_header(const std::string& name) {
    std::string text = slurp(at_ / name), said;
    std::uint64_t header = 0;
    std::memcpy(&header, text.data(), sizeof header);
    if (random_() % 2 == 0) {
      const std::uint64_t sizes[] = {0, 1, text.size(), std::uint64_t{1} << 32, std::uint64_t{1} << 63, ~0ull};
      header = sizes[random_() % std::size(sizes)];
      said = "a header of " + std::to_string(header);
    } else {
      const char* offsets[] = {"-1", "18446744073709551615", "9223372036854775807", "1e3", "4"};
      const std::string to = offsets[random_() % std::size(offsets)];
      const auto at = text.find("\"data_offsets\":[") + 16, before = text.size();
      text.replace(at, text.find(',', at) - at, to);
      header += text.size() - before;
      said = "offsets from " + to;
    }
    std::memcpy(text.data(), &header, sizeof header);
    spit(at_ / name, text);
    auto root = json_of<nlohmann::ordered_json>(slurp(at_ / manifest));
    for (auto& file : root["files"]) {
      if (file["name"] != name) continue;
      file["bytes"] = text.size();
      file["header_xxh3"] = hex(hash64(std::string_view(text).substr(0, 8 + header)));
    }
    sign(json_text(root, {.indent = 2}) + "\n");
    return name + " with " + said;
  }

  void sign(std::string text) const {
    constexpr std::string_view key = "\"manifest_xxh3\": \"", none = "0000000000000000";
    const auto at = text.rfind(key) + key.size();
    text.replace(at, none.size(), none);
    text.replace(at, none.size(), hex(hash64(text)));
    spit(at_ / manifest, text);
  }

  // Signed again, as a program would do.
  std::string wrong_manifest() {
    static const std::pair<const char*, const char*> changes[] = {
        {"\"model-00001", "\"../model-00001"},
        {"\"model-00001", "\"/model-00001"},
        {"\"model-00002-of", "\"model-00001-of"},
        {"\"ranks\": 4", "\"ranks\": 99999999999999999999"},
        {"\"step\": 2", "\"step\": 3"},
        {"\"step\": 2", "\"step\": -2"},
        {"\"optimizer\": \"adamw\"", "\"optimizer\": \"sgd\""},
        {"\"experts\": 4", "\"experts\": -4"},
        {"\"experts\": 4", "\"experts\": 8"},
        {"\"bytes\": ", "\"bytes\": 9"}};
    const auto& [from, to] = changes[random_() % std::size(changes)];
    std::string text = slurp(at_ / manifest);
    const auto at = text.find(from);
    REQUIRE(at != std::string::npos);
    text.replace(at, std::strlen(from), to);
    sign(std::move(text));
    return std::string(manifest) + " with " + to;
  }

  std::string no_file(const std::string& name) {
    fs::remove(at_ / name);
    switch (random_() % 3) {
      case 0:
        fs::create_directory(at_ / name);
        return name + " a folder";
      case 1:
        REQUIRE(::mkfifo((at_ / name).c_str(), 0600) == 0);
        return name + " a pipe";
      default:
        fs::create_symlink("/dev/zero", at_ / name);
        return name + " a link to a device";
    }
  }

  const Runs& runs_;
  const fs::path at_;
  std::mt19937 random_;
};

}  // namespace

TEST_CASE("500 damaged checkpoints of four ranks on one, two and four: refused in one line, none crashes") {
  const test::InMemory place;
  const Runs runs;
  const fs::path at = fs::path(runs.folder / "damaged");
  Damage damage(runs, at, 1);
  const int counts[] = {1, 2, 4};
  for (int i = 0, tried = 0; tried < 500; ++i) {
    const std::string what = damage.one();
    if (what.empty()) continue;
    const int ranks = counts[tried++ % 3];
    auto config = damage_config(ranks);
    config.log.run_dir = runs.folder / "none";
    const Error end = end_of(config, ranks, at);
    INFO(what << ", on " << ranks << " ranks: " << end.message);
    CHECK((end.code == ExitCode::data || end.code == ExitCode::config));
    CHECK(end.message.find(at.string()) != std::string::npos);
    CHECK(end.message.find('\n') == std::string::npos);
    CHECK(end.message.size() < 600);
  }
  CHECK_FALSE(fs::exists(runs.folder / "none"));  // no run has begun
  // It can be loaded.
  auto config = damage_config(2);
  config.log.run_dir = runs.folder / "c";
  CHECK(end_of(config, 2, runs.sound).code == ExitCode::done);
}

TEST_CASE("a checkpoint under another step's name is refused") {
  const test::InMemory place;
  const Runs runs;
  fs::rename(runs.sound, fs::path(runs.folder / "a") / "checkpoints/step-000003");
  auto config = damage_config(2);
  config.log.run_dir = runs.folder / "a";
  const Error end = end_of(config, 2, "step-000003");
  INFO(end.message);
  CHECK(end.code == ExitCode::data);
  CHECK(end.message.find("expected the checkpoint of step 3, as its folder is called, found one of step 2") !=
        std::string::npos);
}

}  // namespace lancet
