// Small checkpoints for tests.
#pragma once
#include <cstring>
#include <random>

#include "lancet/checkpoint/background_writer.h"
#include "lancet/checkpoint/checkpoint.h"
#include "temporary_folder.h"

namespace lancet::test {

// Checks the content of all tensors.
inline Status verify(const checkpoint::Checkpoint& opened) {
  std::map<std::string, checkpoint::Checkpoint::Target> all;
  for (const std::string& name : opened.names()) all[name];
  return opened.load(all, 1);
}

// Two shards of a few tensors; the contents follow from the step.
struct SmallCheckpoint {
  std::vector<checkpoint::Shard> shards{
      {"model-00001-of-00002.safetensors", {{"a", "F32", {70, 10}}, {"b", "F32", {3}}}, {{"step", "1"}}},
      {"model-00002-of-00002.safetensors", {{"c", "F32", {2, 2}}, {"d.m", "F32", {100}}}, {}}};

  static std::vector<std::byte> content(const std::string& name, std::uint64_t bytes, std::int64_t step) {
    std::mt19937 random(unsigned(step * 31 + name[0]));
    std::vector<std::byte> data(bytes);
    for (auto& byte : data) byte = std::byte(random());
    return data;
  }

  Status save(checkpoint::FileSystem& files, const std::filesystem::path& checkpoints, std::int64_t step) const {
    checkpoint::BackgroundWriter writer(files, 1);
    writer.write(checkpoint::temporary_folder(checkpoints, step), shards);
    for (const auto& shard : shards)
      for (const auto& tensor : shard.tensors) {
        const auto data = content(tensor.name, tensor.bytes(), step);
        const auto block = writer.take(1, std::chrono::minutes(1)).front();
        std::memcpy(block.data(), data.data(), data.size());
        const std::size_t filled = data.size();
        writer.give(std::span(&filled, 1));
      }
    while (!writer.wait_finished(std::chrono::seconds(1))) {
    }
    LANCET_TRY(writer.collect());
    checkpoint::Manifest manifest;
    manifest.step = step;
    manifest.optimizer = "sgd";
    manifest.config = R"({"train": {"lr": 0.001}})";
    manifest.files = writer.shard_files();
    return checkpoint::commit(files, checkpoints, manifest);
  }

  // True if its whole content is what save() wrote for the step.
  Status check(const std::filesystem::path& folder, std::int64_t step) const {
    LANCET_ASSIGN(const auto opened, checkpoint::Checkpoint::open(folder));
    std::map<std::string, std::vector<std::byte>> found;
    std::map<std::string, checkpoint::Checkpoint::Target> targets;
    for (const auto& shard : shards)
      for (const auto& tensor : shard.tensors)
        targets[tensor.name].sink = [&found, name = tensor.name](std::uint64_t at,
                                                                 std::span<const std::byte> bytes) -> Status {
          auto& data = found[name];
          if (data.size() != at) return internal_error("bytes out of order");
          data.insert(data.end(), bytes.begin(), bytes.end());
          return {};
        };
    LANCET_TRY(opened.load(targets, 1));
    for (const auto& shard : shards)
      for (const auto& tensor : shard.tensors)
        if (found[tensor.name] != content(tensor.name, tensor.bytes(), step))
          return internal_error(tensor.name + " differs");
    if (opened.manifest().step != step) return internal_error("another step");
    return {};
  }
};

}  // namespace lancet::test
