// A checkpoint holds whole tensors, and each expert as a tensor of its own under its global number, so that ranks of
// any mesh can load it. entries_of() says which elements of the store's tensors a checkpoint's tensor is. shares_of()
// deals the tensors among the ranks that hold them, or parts of them (all ranks; of an expert those that are not
// others' experts): in order of decreasing size, each to the rank that has the fewest bytes. Every rank computes the
// same distribution.
// load_tensors() first compares all names and shapes with the model, then reads the tensors of which the rank holds
// elements: f32 values on the host straight into the store's memory if it holds all, others block by block through a
// sink that picks the rank's elements, rounds them to bf16 or copies them to the device.
#include "lancet/run/checkpoint_tensors.h"

#include <fmt/format.h>
#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <new>
#include <queue>
#include <set>
#include <utility>

#include "lancet/comm/collect.h"

namespace lancet::run {
namespace {

using checkpoint::TensorInfo;

constexpr std::string_view experts = ".experts.";

std::string master_of(std::string_view name) { return ir::state_name(name, ir::StateKind::master); }

// Checkpoints hold parameters and moments. They leave out sums over micro batches, which are zero between steps,
// masters, which are saved under their weights' names, and the KV cache of generation, which belongs to one sequence.
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

// How the first dimension of a tensor of experts is split.
ir::Sharding of_experts(const runtime::TensorStore& store, const std::string& name) {
  ir::Sharding sharding = ir::Sharding::whole(1);
  if (const auto& all = store.sharding_of(name)) sharding.dimensions[0] = all->dimensions[0];
  return sharding;
}

// The experts of which a rank holds elements, of a tensor of experts; all of them without a rank.
std::vector<ir::HeldRun> experts_on(const runtime::TensorStore& store, const std::string& name,
                                    std::optional<int> rank) {
  const std::int64_t all = store.whole_shape(name)[0];
  if (!rank) return {{0, 0, all}};
  return ir::held_elements({all}, of_experts(store, name), store.mesh(), *rank);
}

// A tensor of the store under its names in a checkpoint: one entry, or one for each expert of the rank, or of all.
std::vector<Entry> entries_of(const runtime::TensorStore& store, const std::string& name,
                              const runtime::NamedTensor& tensor, std::optional<int> rank) {
  const std::string master = master_of(name);
  const bool has_master = store.all().contains(master);
  const Shape whole = store.saved_shape(name);
  Entry entry{{name, "F32", whole}, {has_master ? master : name}, tensor.kind == ir::TensorKind::state};
  if (!holds_experts(name)) {
    entry.source.elements = {0, whole.elements()};
    entry.source.bytes = entry.tensor.bytes();
    return {entry};
  }
  entry.tensor.shape = without_first_axis(whole);
  entry.source.bytes = entry.tensor.bytes();
  const std::int64_t each = entry.tensor.shape.elements();
  std::vector<Entry> all;
  for (const ir::HeldRun& run : experts_on(store, name, rank))
    for (std::int64_t i = 0; i < run.count; ++i) {
      const std::int64_t expert = run.whole + i;
      entry.tensor.name = expert_name(name, expert);
      entry.source.elements = {expert * each, (expert + 1) * each};
      entry.source.at = std::uint64_t(run.held + i) * entry.source.bytes;
      all.push_back(entry);
    }
  return all;
}

// One of the ranks along these axes, of the tensor's pipeline stage, writes it, or each of its experts that they hold.
ir::Axes writers_of(const runtime::TensorStore& store, const std::string& name) {
  return ir::holders(holds_experts(name) ? std::optional(of_experts(store, name)) : std::nullopt) -
         ir::Axes{ir::Axis::stage};
}

// True if the ranks that may write the tensor have different parts of it.
bool is_divided(const runtime::TensorStore& store, const std::string& name) {
  return store.mesh().size(store.divided_over(name) & writers_of(store, name)) > 1;
}

// Deals the tensors that these ranks hold among them. shares: by rank of the world.
void deal(std::vector<Entry> entries, const std::vector<int>& ranks, std::vector<std::vector<Entry>>& shares) {
  std::ranges::stable_sort(entries, std::ranges::greater(), [](const Entry& entry) { return entry.source.bytes; });
  using Load = std::pair<std::uint64_t, int>;  // bytes, rank
  std::priority_queue<Load, std::vector<Load>, std::greater<>> loads;
  for (const int rank : ranks) loads.emplace(0, rank);
  for (Entry& entry : entries) {
    const auto [bytes, rank] = loads.top();
    loads.pop();
    loads.emplace(bytes + entry.source.bytes, rank);
    shares[std::size_t(rank)].push_back(std::move(entry));
  }
}

// By rank: the tensors that it writes, by name.
std::vector<std::vector<Entry>> dealt_entries(const runtime::TensorStore& store) {
  const ir::Mesh& mesh = store.mesh();
  std::map<std::pair<ir::Axes, int>, std::vector<Entry>> groups;  // by axes and first rank of the writers
  for (const auto& [name, tensor] : store.all()) {
    if (!is_saved(tensor)) continue;
    const ir::Axes writers = writers_of(store, name);
    for (int rank = 0; rank < mesh.ranks(); ++rank)
      if (mesh.place(rank, writers) == 0 && mesh.coordinate(rank, ir::Axis::stage) == tensor.stage)
        std::ranges::move(entries_of(store, name, tensor, rank), std::back_inserter(groups[{writers, rank}]));
  }
  std::vector<std::vector<Entry>> shares(std::size_t(mesh.ranks()));
  for (auto& [group, entries] : groups) deal(std::move(entries), mesh.group(group.second, group.first), shares);
  for (std::vector<Entry>& share : shares)
    std::ranges::sort(share, {}, [](const Entry& entry) -> const std::string& { return entry.tensor.name; });
  return shares;
}

// Checks that the checkpoint holds the model's tensors in their shapes, and no others.
Status check_tensors(const runtime::TensorStore& store, const checkpoint::Checkpoint& checkpoint, LoadScope scope) {
  const std::string where = checkpoint.path().string();
  std::set<std::string> known;
  for (const auto& [name, tensor] : store.all()) {
    if (!is_loaded(tensor, scope)) continue;
    for (const Entry& entry : entries_of(store, name, tensor, std::nullopt)) {
      const TensorInfo* found = checkpoint.find(entry.tensor.name);
      if (!found)
        return config_error(fmt::format("{}: expected the model's tensor '{}', found none", where, entry.tensor.name));
      if (to_string(*found) != to_string(entry.tensor))
        return config_error(fmt::format("{}: {}: expected {}, as the model has it, found {}", where, entry.tensor.name,
                                        to_string(entry.tensor), to_string(*found)));
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

// A tensor of the store, and the elements of the whole that it holds.
struct Holder {
  const runtime::NamedTensor* tensor;
  std::vector<ir::HeldRun> runs;
};

Holder holder_of(const runtime::TensorStore& store, const std::string& name) {
  return {&store[name], store.held(name)};
}

// Writes values from element `at` of a tensor of f32 or bf16 on.
Status write_f32(runtime::TensorStore& store, const runtime::NamedTensor& tensor, std::int64_t at,
                 std::span<const float> values) {
  if (tensor.type.dtype == DType::f32) return store.write(tensor, 4 * std::size_t(at), std::as_bytes(values));
  std::vector<bf16> rounded;
  rounded.reserve(values.size());
  for (const float value : values) rounded.push_back(from_f32<bf16>(value));
  return store.write(tensor, 2 * std::size_t(at), std::as_bytes(std::span(rounded)));
}

// Writes those of the values, which are the elements of the whole tensor from `first` on, that the holder has.
Status write_held(runtime::TensorStore& store, const Holder& holder, std::int64_t first,
                  std::span<const float> values) {
  const auto runs = ir::of_whole(holder.runs, {first, first + std::int64_t(values.size())});
  if (runs.empty()) return {};
  const auto of_run = [&](const ir::HeldRun& run) {
    return values.subspan(std::size_t(run.whole - first), std::size_t(run.count));
  };
  const std::int64_t at = runs.front().held;
  if (runs.size() == 1) return write_f32(store, *holder.tensor, at, of_run(runs[0]));
  std::vector<float> packed;
  packed.reserve(std::size_t(elements_of(runs)));
  for (const ir::HeldRun& run : runs) packed.insert(packed.end(), of_run(run).begin(), of_run(run).end());
  return write_f32(store, *holder.tensor, at, packed);
}

// The tensors of the store that a checkpoint's tensor fills: the tensor itself, and a bf16 weight's master.
struct Holders {
  Holder tensor;
  std::optional<Holder> master;
};

// Where the f32 values of a checkpoint's tensor go. On the host an f32 tensor or a master that holds all of them is
// read in place, without a copy.
Checkpoint::Target target_in(runtime::TensorStore& store, const std::shared_ptr<const Holders>& holders,
                             const FlatRange& elements) {
  Checkpoint::Target target;
  std::vector<const Holder*> rest;
  for (const Holder* holder : {&holders->tensor, holders->master ? &*holders->master : nullptr}) {
    if (!holder) continue;
    const auto runs = ir::of_whole(holder->runs, elements);
    const bool all = runs.size() == 1 && runs[0].count == elements.size();
    if (all && holder->tensor->type.dtype == DType::f32 && !store.on_device())
      target.memory = holder->tensor->memory.as<std::byte>() + 4 * runs[0].held;
    else if (!runs.empty())
      rest.push_back(holder);
  }
  if (rest.empty()) return target;
  target.sink = [&store, holders, rest, first = elements.begin](std::uint64_t at,
                                                                std::span<const std::byte> bytes) -> Status {
    const std::span values(reinterpret_cast<const float*>(bytes.data()), bytes.size() / sizeof(float));
    for (const Holder* holder : rest)
      LANCET_TRY(write_held(store, *holder, first + std::int64_t(at / sizeof(float)), values));
    return {};
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

std::vector<RankShare> shares_of(const runtime::TensorStore& store) {
  std::vector<RankShare> shares;
  for (const std::vector<Entry>& entries : dealt_entries(store)) {
    RankShare& share = shares.emplace_back();
    for (const bool state : {false, true}) {
      checkpoint::Shard& shard = share.shards.emplace_back();
      shard.finite = true;
      shard.name = fmt::format("{}-{:05}-of-{:05}.safetensors", state ? "optimizer" : "model", shares.size(),
                               store.mesh().ranks());
      for (const Entry& entry : entries) {
        if (entry.state != state) continue;
        shard.tensors.push_back(entry.tensor);
        share.sources.push_back(entry.source);
        share.bytes += entry.source.bytes;
        if (!is_divided(store, entry.source.name)) continue;
        share.sources.back().gathered = share.gathered_bytes;
        share.gathered_bytes += entry.source.bytes;
      }
    }
  }
  return shares;
}

Status fill_parameter(runtime::TensorStore& store, const std::string& name, const ReadParameter& read) {
  const runtime::NamedTensor* tensor = store.find(name);
  if (!tensor || tensor->elsewhere) return {};
  std::vector<std::string> holders{name};
  if (store.find(master_of(name))) holders.push_back(master_of(name));
  constexpr std::int64_t most = 1 << 20;
  std::vector<float> values;
  const std::vector<ir::HeldRun> runs = store.held(name);
  const std::int64_t all = ir::elements_of(runs);
  for (std::int64_t at = 0; at < all; at += most) {
    const std::vector<ir::HeldRun> block = ir::of_held(runs, {at, std::min(all, at + most)});
    values.resize(std::size_t(ir::elements_of(block)));
    for (const ir::HeldRun& run : block)
      LANCET_TRY(read(name, {run.whole, run.whole + run.count},
                      std::span(values).subspan(std::size_t(run.held), std::size_t(run.count)), 1));
    for (const std::string& each : holders) {
      const FlatRange range = store.range_of(each);  // a master may be a part
      const std::int64_t begin = std::max(at, range.begin), end = std::min(at + std::ssize(values), range.end);
      if (begin < end)
        LANCET_TRY(write_f32(store, store[each], begin - range.begin,
                             std::span(values).subspan(std::size_t(begin - at), std::size_t(end - begin))));
    }
  }
  return {};
}

Status ParameterReader::check(const runtime::TensorStore& store) const {
  const Status fits = check_tensors(store, checkpoint_, LoadScope::weights);
  return fits.ok() ? fits : data_error(fits.error().message);
}

Status ParameterReader::read(const std::string& parameter, const FlatRange& elements, std::span<float> to) {
  const bool of_experts = holds_experts(parameter);
  const std::int64_t each = checkpoint_.find(of_experts ? expert_name(parameter, 0) : parameter)->shape.elements();
  const std::string name = of_experts ? expert_name(parameter, elements.begin / each) : parameter;
  if (name != kept_) {
    kept_.clear();
    values_.resize(std::size_t(each));
    LANCET_TRY(checkpoint_.load({{name, {.memory = std::as_writable_bytes(std::span(values_)).data()}}}, 1));
    kept_ = name;
  }
  std::ranges::copy(std::span(values_).subspan(std::size_t(elements.begin % each), to.size()), to.begin());
  return {};
}

Status load_tensors(runtime::TensorStore& store, const checkpoint::Checkpoint& checkpoint, LoadScope scope) {
  LANCET_TRY(check_tensors(store, checkpoint, scope));
  std::map<std::string, Checkpoint::Target> targets;
  for (const auto& [name, tensor] : store.all()) {
    if (!is_loaded(tensor, scope) || tensor.elsewhere) continue;
    Holders holders{holder_of(store, name), {}};
    if (store.find(master_of(name))) holders.master = holder_of(store, master_of(name));
    const auto shared = std::make_shared<const Holders>(std::move(holders));
    for (const Entry& entry : entries_of(store, name, tensor, store.rank()))
      targets[entry.tensor.name] = target_in(store, shared, entry.source.elements);
  }
  return checkpoint.load(targets, store.on_device() ? 1 : reading_threads);
}

// Every rank knows the shares of all ranks (shares_of), so it knows which elements of its parts each rank will write.
// One send_receive moves all of them. The elements of a part that are in one tensor of a checkpoint are contiguous in
// the store, so a rank sends them as they are, in the order of the writer's sources; on a device they pass through host
// memory. If they are one run in the tensor, too, they arrive in place; else the writer scatters them to their runs.
// Ranks that hold copies do not all send: those do that have the writer's coordinates along all other axes.
namespace {

using ir::HeldRun;
using runtime::NamedTensor;
using runtime::TensorStore;

class Gather {
 public:
  Gather(const TensorStore& store, std::span<const RankShare> shares, comm::Communicator& world)
      : store_(store), shares_(shares), world_(world) {}

  Result<std::vector<std::byte>> run() {
    Status collected;
    try {
      collected = collect();
    } catch (const std::bad_alloc&) {
      collected = config_error("expected memory for the tensors that a rank gathers to save them, found less");
    }
    LANCET_TRY(comm::agree(world_, collected));
    LANCET_TRY(world_.send_receive(sends_, receives_));
    for (const Arrival& arrival : arrivals_) scatter(arrival);
    return std::move(whole_);
  }

 private:
  // Elements that arrive packed; run.whole counts from `to` on.
  struct Arrival {
    std::vector<std::byte> packed;
    std::vector<HeldRun> runs;
    std::byte* to;
  };

  Status collect() {
    whole_.resize(shares_[std::size_t(world_.rank())].gathered_bytes);
    for (int writer = 0; writer < world_.size(); ++writer) {
      std::vector<const Source*> sources;
      for (const Source& source : shares_[std::size_t(writer)].sources)
        if (source.gathered) sources.push_back(&source);
      std::ranges::stable_sort(sources, {}, &Source::name);  // one after the other from the same tensor
      for (const Source* source : sources) LANCET_TRY(add(*source, writer));
    }
    return {};
  }

  // The messages of one source, which `writer` writes.
  Status add(const Source& source, int writer) {
    const std::vector<int> senders = store_.mesh().group(writer, store_.divided_over(source.name));
    if (std::ranges::binary_search(senders, world_.rank()))
      LANCET_TRY(send(store_[source.name], part(source, world_.rank()), writer));
    if (writer != world_.rank()) return {};
    for (const int sender : senders) receive(source, part(source, sender), sender);
    return {};
  }

  // What a rank holds of a source. The rank's runs are kept while sources of one tensor follow each other.
  std::vector<HeldRun> part(const Source& source, int rank) {
    if (source.name != known_) held_.clear();
    known_ = source.name;
    const auto [at, is_new] = held_.try_emplace(rank);
    if (is_new) at->second = store_.held_by(source.name, rank);
    return ir::of_whole(at->second, source.elements);
  }

  Status send(const NamedTensor& tensor, const std::vector<HeldRun>& runs, int writer) {
    if (runs.empty()) return {};
    const auto at = std::size_t(4 * runs.front().held), bytes = std::size_t(4 * elements_of(runs));
    std::byte* from = tensor.memory.as<std::byte>() + at;
    if (store_.on_device() || tensor.type.dtype != DType::f32) {
      from = staged_.emplace_back(bytes).data();
      LANCET_TRY(read_f32(store_, tensor, at, {from, bytes}));
    }
    sends_.push_back({writer, from, bytes});
    return {};
  }

  void receive(const Source& source, std::vector<HeldRun> runs, int sender) {
    if (runs.empty()) return;
    const auto bytes = std::size_t(4 * elements_of(runs));
    std::byte* to = whole_.data() + *source.gathered;
    if (runs.size() == 1) {
      to += 4 * (runs[0].whole - source.elements.begin);
    } else {
      for (HeldRun& run : runs) run.whole -= source.elements.begin;
      Arrival& arrival = arrivals_.emplace_back(std::vector<std::byte>(bytes), std::move(runs), to);
      to = arrival.packed.data();
    }
    receives_.push_back({sender, to, bytes});
  }

  static void scatter(const Arrival& arrival) {
    const std::int64_t first = arrival.runs.front().held;
    for (const HeldRun& run : arrival.runs)
      std::memcpy(arrival.to + 4 * run.whole, arrival.packed.data() + 4 * (run.held - first),
                  std::size_t(4 * run.count));
  }

  const TensorStore& store_;
  const std::span<const RankShare> shares_;  // by rank
  comm::Communicator& world_;
  std::vector<std::byte> whole_;
  std::string known_;
  std::map<int, std::vector<HeldRun>> held_;  // of known_, by rank
  std::list<std::vector<std::byte>> staged_;  // parts on their way that are on a device, or of bf16
  std::list<Arrival> arrivals_;
  std::vector<comm::Segment> sends_, receives_;
};

}  // namespace

Result<std::vector<std::byte>> gather_parts(const TensorStore& store, std::span<const RankShare> shares,
                                            comm::Communicator& world) {
  const bool any = std::ranges::any_of(shares, [](const RankShare& share) { return share.gathered_bytes > 0; });
  return any ? Gather(store, shares, world).run() : Result(std::vector<std::byte>());
}

}  // namespace lancet::run
