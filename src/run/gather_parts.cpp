// Every rank knows the shares of all ranks (shares_of), so it knows which elements of its parts each rank will write.
// One send_receive moves all of them. The elements of a part that are in one tensor of a checkpoint are contiguous in
// the store, so a rank sends them as they are, in the order of the writer's sources; on a device they pass through host
// memory. If they are one run in the tensor, too, they arrive in place; else the writer scatters them to their runs.
// Ranks that hold copies do not all send: those do that have the writer's coordinates along all other axes.
#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <new>

#include "lancet/comm/collect.h"
#include "lancet/run/checkpoint_tensors.h"

namespace lancet::run {
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
