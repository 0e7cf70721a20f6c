#include "lancet/run/checkpoint_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace lancet::run {
namespace {

using checkpoint::TensorInfo;

constexpr std::string_view experts = ".experts.";

bool is_state(std::string_view name) { return name.ends_with(".m") || name.ends_with(".v"); }

struct Entry {
  TensorInfo tensor;
  Source source;
  bool state = false;
};

Shape without_first_axis(const Shape& shape) {
  Shape rest;
  for (int axis = 1; axis < shape.rank(); ++axis) rest.push_back(shape[axis]);
  return rest;
}

// A tensor of the store as checkpoints name it: an entry, or one for each of the rank's experts.
std::vector<Entry> entries_of(const runtime::TensorStore& store, const std::string& name,
                              const runtime::NamedTensor& tensor, int rank) {
  const std::string master = name + ".master";
  const bool has_master = store.all().contains(master);
  Entry entry{{name, "F32", tensor.type.shape}, {has_master ? master : name}, tensor.kind == ir::TensorKind::state};
  if (!tensor.local) {
    entry.source.bytes = entry.tensor.bytes();
    return {entry};
  }
  const std::int64_t here = tensor.type.shape[0];
  entry.tensor.shape = without_first_axis(tensor.type.shape);
  entry.source.bytes = entry.tensor.bytes();
  std::vector<Entry> all;
  for (std::int64_t e = 0; e < here; ++e) {
    entry.tensor.name = expert_name(name, rank * here + e);
    entry.source.at = std::uint64_t(e) * entry.source.bytes;
    all.push_back(entry);
  }
  return all;
}

// This rank's part of what all ranks hold: the largest first, each to the rank with the least so far.
std::vector<Entry> spread(std::vector<Entry> shared, int rank, int ranks) {
  std::stable_sort(shared.begin(), shared.end(),
                   [](const Entry& a, const Entry& b) { return a.source.bytes > b.source.bytes; });
  std::vector<std::uint64_t> load(static_cast<std::size_t>(ranks));
  std::vector<Entry> mine;
  for (Entry& entry : shared) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += entry.source.bytes;
    if (least - load.begin() == rank) mine.push_back(std::move(entry));
  }
  return mine;
}

// The checkpoint holds what the model has, in its shapes, and nothing else.
Status check_tensors(const runtime::TensorStore& store, const checkpoint::Checkpoint& checkpoint, int ranks,
                     LoadScope take) {
  const std::string where = checkpoint.path().string();
  std::set<std::string> known;
  for (const auto& [name, tensor] : store.all()) {
    if (!is_saved(name) || (take == LoadScope::weights && is_state(name))) continue;
    for (int rank = 0; rank < (tensor.local ? ranks : 1); ++rank)
      for (const Entry& entry : entries_of(store, name, tensor, rank)) {
        const TensorInfo* found = checkpoint.find(entry.tensor.name);
        if (!found)
          return config_error(
              fmt::format("{}: expected the model's tensor '{}', found none", where, entry.tensor.name));
        if (to_string(*found) != to_string(entry.tensor))
          return config_error(fmt::format("{}: {}: expected {}, as the model has it, found {}", where,
                                          entry.tensor.name, to_string(entry.tensor), to_string(*found)));
        known.insert(entry.tensor.name);
      }
  }
  for (const std::string& name : checkpoint.names())
    if (!known.contains(name) && !(take == LoadScope::weights && is_state(name)))
      return config_error(fmt::format("{}: expected what the model has, found the tensor '{}'", where, name));
  return {};
}

using checkpoint::Checkpoint;

// Takes f32 values into a tensor of the store, from its byte `offset` (counted in f32) on, and its master. On the host
// they are read to where they belong, without a copy.
Checkpoint::Target target_in(runtime::TensorStore& store, const std::string& name, std::uint64_t offset) {
  const runtime::NamedTensor* tensor = &store[name];
  const runtime::NamedTensor* master = store.find(name + ".master");
  const runtime::NamedTensor* whole = tensor->type.dtype == DType::f32 ? tensor : master;  // of f32; may be null
  const bool placed = whole && !store.on_device();
  Checkpoint::Target target{placed ? whole->memory.as<std::byte>() + offset : nullptr};
  if (placed && whole == tensor) return target;
  target.sink = [&store, tensor, whole, placed, offset](std::uint64_t at, std::span<const std::byte> bytes) -> Status {
    if (whole && !placed) LANCET_TRY(store.write(*whole, offset + at, bytes));
    if (whole == tensor) return {};
    std::vector<bf16> rounded(bytes.size() / sizeof(float));
    const auto* values = reinterpret_cast<const float*>(bytes.data());
    for (std::size_t i = 0; i < rounded.size(); ++i) rounded[i] = from_f32<bf16>(values[i]);
    return store.write(*tensor, (offset + at) / 2, std::as_bytes(std::span(rounded)));
  };
  return target;
}

// Enough to keep a disk and the checksums busy at once; a device's staging memory takes one at a time.
constexpr int reading_threads = 4;

}  // namespace

// Sums of a step's gradients are zero between steps, masters stand for their weights, and what generation keeps of the
// tokens it has read is nobody else's.
bool is_saved(std::string_view name) {
  for (const std::string_view end : {".grad", ".master", ".attn.keys", ".attn.values"})
    if (name.ends_with(end)) return false;
  return true;
}

std::string expert_name(std::string_view name, std::int64_t expert) {
  const std::size_t at = name.find(experts) + experts.size();
  return fmt::format("{}{}.{}", name.substr(0, at), expert, name.substr(at));
}

Status read_f32(const runtime::TensorStore& store, const runtime::NamedTensor& tensor, std::uint64_t at,
                std::span<std::byte> to) {
  if (tensor.type.dtype == DType::f32) return store.read(tensor, at, to);
  LANCET_CHECK(tensor.type.dtype == DType::bf16 && at % 4 == 0 && to.size() % 4 == 0,
               "a tensor of {} is read as f32, from byte {}", name(tensor.type.dtype), at);
  std::vector<bf16> rounded(to.size() / 4);
  LANCET_TRY(store.read(tensor, at / 2, std::as_writable_bytes(std::span(rounded))));
  auto* values = reinterpret_cast<float*>(to.data());
  for (std::size_t i = 0; i < rounded.size(); ++i) values[i] = to_f32(rounded[i]);
  return {};
}

RankShare share_of(const runtime::TensorStore& store, int rank, int ranks) {
  std::vector<Entry> mine, shared;
  for (const auto& [name, tensor] : store.all())
    if (is_saved(name))
      for (Entry& entry : entries_of(store, name, tensor, rank))
        (tensor.local ? mine : shared).push_back(std::move(entry));
  for (Entry& entry : spread(std::move(shared), rank, ranks)) mine.push_back(std::move(entry));
  std::sort(mine.begin(), mine.end(), [](const Entry& a, const Entry& b) { return a.tensor.name < b.tensor.name; });
  RankShare share;
  for (const bool state : {false, true}) {
    checkpoint::Shard& shard = share.shards.emplace_back();
    shard.finite = true;
    shard.name = fmt::format("{}-{:05}-of-{:05}.safetensors", state ? "optimizer" : "model", rank + 1, ranks);
    for (const Entry& entry : mine) {
      if (entry.state != state) continue;
      shard.tensors.push_back(entry.tensor);
      share.sources.push_back(entry.source);
      share.bytes += entry.source.bytes;
    }
  }
  return share;
}

Status load_tensors(runtime::TensorStore& store, const checkpoint::Checkpoint& checkpoint, int rank, int ranks,
                    LoadScope take) {
  LANCET_TRY(check_tensors(store, checkpoint, ranks, take));
  std::map<std::string, Checkpoint::Target> targets;
  for (const auto& [name, tensor] : store.all())
    if (is_saved(name) && !(take == LoadScope::weights && is_state(name)))
      for (const Entry& entry : entries_of(store, name, tensor, rank))
        targets[entry.tensor.name] = target_in(store, name, entry.source.at);
  return checkpoint.load(targets, store.on_device() ? 1 : reading_threads);
}

}  // namespace lancet::run
