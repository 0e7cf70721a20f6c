// A rank's store holds its experts as one tensor [local experts, ...]; a checkpoint holds each expert as a tensor of
// its own under its global number, so that any number of ranks can load it. entries_of() translates one to the other.
// share_of() deals the tensors that several ranks hold among them (those that all hold among all, an expert's among its
// replicas): in order of decreasing size, each to the rank that has the fewest bytes. Every rank computes the same
// distribution. load_tensors() first compares
// all names and shapes with the model, then reads the rank's tensors: f32 values on the host straight into the store's
// memory, others block by block through a sink that copies them to the device or rounds them to bf16.
#include "lancet/run/checkpoint_tensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

namespace lancet::run {
namespace {

using checkpoint::TensorInfo;

constexpr std::string_view experts = ".experts.";

std::string master_of(std::string_view name) { return ir::state_name(name, ir::StateKind::master); }

// Checkpoints hold parameters and moments. They leave out gradient sums, which are zero between steps, masters, which
// are saved under their weights' names, and the KV cache of generation, which belongs to one sequence.
bool is_saved(const runtime::NamedTensor& tensor) {
  return tensor.kind == ir::TensorKind::parameter || ir::is_moment(tensor.state);
}

bool is_loaded(const runtime::NamedTensor& tensor, LoadScope scope) {
  return tensor.kind == ir::TensorKind::parameter || (scope != LoadScope::weights && is_saved(tensor));
}

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

// A tensor of the store under its names in a checkpoint: one entry, or one for each expert of the ranks that have this
// coordinate on the axis `expert`.
std::vector<Entry> entries_of(const runtime::TensorStore& store, const std::string& name,
                              const runtime::NamedTensor& tensor, int expert_coordinate) {
  const std::string master = master_of(name);
  const bool has_master = store.all().contains(master);
  const Shape& whole = store.whole_shape(name);
  Entry entry{{name, "F32", whole}, {has_master ? master : name}, tensor.kind == ir::TensorKind::state};
  if (!holds_experts(name)) {
    entry.source.bytes = entry.tensor.bytes();
    return {entry};
  }
  const std::int64_t here = whole[0];
  entry.tensor.shape = without_first_axis(whole);
  entry.source.bytes = entry.tensor.bytes();
  std::vector<Entry> all;
  for (std::int64_t e = 0; e < here; ++e) {
    entry.tensor.name = expert_name(name, expert_coordinate * here + e);
    entry.source.at = std::uint64_t(e) * entry.source.bytes;
    all.push_back(entry);
  }
  return all;
}

// The share of the tensors that a group of `ranks` ranks holds, of the rank with the given place in it.
std::vector<Entry> spread(std::vector<Entry> shared, int place, int ranks) {
  std::stable_sort(shared.begin(), shared.end(),
                   [](const Entry& a, const Entry& b) { return a.source.bytes > b.source.bytes; });
  std::vector<std::uint64_t> load(static_cast<std::size_t>(ranks));
  std::vector<Entry> mine;
  for (Entry& entry : shared) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += entry.source.bytes;
    if (least - load.begin() == place) mine.push_back(std::move(entry));
  }
  return mine;
}

// Checks that the checkpoint holds the model's tensors in their shapes, and no others.
Status check_tensors(const runtime::TensorStore& store, const checkpoint::Checkpoint& checkpoint,
                     int expert_coordinates, LoadScope scope) {
  const std::string where = checkpoint.path().string();
  std::set<std::string> known;
  for (const auto& [name, tensor] : store.all()) {
    if (!is_loaded(tensor, scope)) continue;
    for (int coordinate = 0; coordinate < (holds_experts(name) ? expert_coordinates : 1); ++coordinate)
      for (const Entry& entry : entries_of(store, name, tensor, coordinate)) {
        const TensorInfo* found = checkpoint.find(entry.tensor.name);
        if (!found)
          return config_error(
              fmt::format("{}: expected the model's tensor '{}', found none", where, entry.tensor.name));
        if (to_string(*found) != to_string(entry.tensor))
          return config_error(fmt::format("{}: {}: expected {}, as the model has it, found {}", where,
                                          entry.tensor.name, to_string(entry.tensor), to_string(*found)));
        known.insert(entry.tensor.name);
        for (const ir::StateKind moment : {ir::StateKind::first_moment, ir::StateKind::second_moment})
          if (scope == LoadScope::weights) known.insert(ir::state_name(entry.tensor.name, moment));
      }
  }
  for (const std::string& name : checkpoint.names())
    if (!known.contains(name))
      return config_error(fmt::format("{}: expected what the model has, found the tensor '{}'", where, name));
  return {};
}

using checkpoint::Checkpoint;

// Writes those of the f32 values from byte `offset` of the whole tensor on that the store holds of it.
Status write_held(runtime::TensorStore& store, const std::string& name, std::uint64_t offset,
                  std::span<const std::byte> bytes) {
  const FlatRange held = store.range_of(name);
  const std::uint64_t first = 4 * std::uint64_t(held.begin);
  const std::uint64_t begin = std::max(offset, first),
                      end = std::min(offset + bytes.size(), 4 * std::uint64_t(held.end));
  if (begin >= end) return {};
  return store.write(store[name], begin - first, bytes.subspan(begin - offset, end - begin));
}

// Where f32 values of a checkpoint go: a tensor of the store from byte `offset` (counted in f32) on, and its master. On
// the host f32 tensors and masters are read in place, without a copy, unless they are flat shards.
Checkpoint::Target target_in(runtime::TensorStore& store, const std::string& name, std::uint64_t offset) {
  const runtime::NamedTensor* tensor = &store[name];
  const runtime::NamedTensor* master = store.find(master_of(name));
  const runtime::NamedTensor* exact = tensor->type.dtype == DType::f32 ? tensor : master;  // of f32; may be null
  const bool in_place = exact && !exact->is_shard() && !store.on_device();
  Checkpoint::Target target{in_place ? exact->memory.as<std::byte>() + offset : nullptr};
  if (in_place && exact == tensor) return target;
  target.sink = [&store, tensor, exact, in_place, offset, exact_name = exact == tensor ? name : master_of(name)](
                    std::uint64_t at, std::span<const std::byte> bytes) -> Status {
    if (exact && !in_place) LANCET_TRY(write_held(store, exact_name, offset + at, bytes));
    if (exact == tensor) return {};
    std::vector<bf16> rounded(bytes.size() / sizeof(float));
    const auto* values = reinterpret_cast<const float*>(bytes.data());
    for (std::size_t i = 0; i < rounded.size(); ++i) rounded[i] = from_f32<bf16>(values[i]);
    return store.write(*tensor, (offset + at) / 2, std::as_bytes(std::span(rounded)));
  };
  return target;
}

// Enough threads to keep a disk and the checksums busy at once. A device's staging memory serves one thread at a time.
constexpr int reading_threads = 4;

}  // namespace

bool holds_experts(std::string_view name) { return name.find(experts) != name.npos; }

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

RankShare share_of(const runtime::TensorStore& store, const mesh::Mesh& mesh, int rank) {
  const int ranks = mesh.ranks();
  const mesh::Axes replicas{mesh::Axis::stage, mesh::Axis::data, mesh::Axis::tensor};
  std::vector<Entry> local, shared;
  for (const auto& [name, tensor] : store.all())
    if (is_saved(tensor))
      for (Entry& entry : entries_of(store, name, tensor, mesh.coordinate(rank, mesh::Axis::expert)))
        (holds_experts(name) ? local : shared).push_back(std::move(entry));
  std::vector<Entry> mine = spread(std::move(local), mesh.place(rank, replicas), mesh.size(replicas));
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
      if (store[entry.source.name].is_shard()) {
        share.sources.back().gathered = share.gathered_bytes;
        share.gathered_bytes += entry.source.bytes;
      }
      share.bytes += entry.source.bytes;
    }
  }
  return share;
}

Status load_tensors(runtime::TensorStore& store, const checkpoint::Checkpoint& checkpoint, const mesh::Mesh& mesh,
                    int rank, LoadScope scope) {
  LANCET_TRY(check_tensors(store, checkpoint, mesh[mesh::Axis::expert], scope));
  std::map<std::string, Checkpoint::Target> targets;
  for (const auto& [name, tensor] : store.all())
    if (is_loaded(tensor, scope))
      for (const Entry& entry : entries_of(store, name, tensor, mesh.coordinate(rank, mesh::Axis::expert)))
        targets[entry.tensor.name] = target_in(store, name, entry.source.at);
  return checkpoint.load(targets, store.on_device() ? 1 : reading_threads);
}

}  // namespace lancet::run
