// Every rank knows the shares of all ranks (share_of), so it knows which elements of its flat shards each rank will
// write. One send_receive moves all of them: the segments to a rank stand in the order of that rank's sources. On a
// device the shards pass through host memory.
#include <algorithm>
#include <list>
#include <new>

#include "lancet/run/checkpoint_tensors.h"
#include "lancet/world/agree.h"

namespace lancet::run {
namespace {

using runtime::NamedTensor;
using runtime::TensorStore;

// The elements that both ranges hold.
FlatRange common(const FlatRange& a, const FlatRange& b) {
  const std::int64_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

class Gather {
 public:
  Gather(const TensorStore& store, const mesh::Mesh& mesh, comm::Communicator& world)
      : store_(store), mesh_(mesh), world_(world) {}

  Result<std::vector<std::byte>> run() {
    Status collected;
    try {
      collected = collect();
    } catch (const std::bad_alloc&) {
      collected = config_error("train.zero: expected memory for the optimizer's state that a rank saves, found less");
    }
    LANCET_TRY(world::agree(world_, collected));
    LANCET_TRY(world_.send_receive(sends_, receives_));
    return std::move(whole_);
  }

 private:
  Status collect() {
    whole_.resize(share_of(store_, mesh_, world_.rank()).gathered_bytes);
    for (int writer = 0; writer < world_.size(); ++writer)
      for (const Source& source : share_of(store_, mesh_, writer).sources)
        if (source.gathered) LANCET_TRY(add(source, writer));
    return {};
  }

  // The messages of one source, which `writer` writes.
  Status add(const Source& source, int writer) {
    const NamedTensor& tensor = store_[source.name];
    const std::vector<int> holders = mesh_.group(writer, tensor.flat_shard);
    if (!std::ranges::binary_search(holders, world_.rank())) return {};
    const FlatRange wanted{std::int64_t(source.at / 4), std::int64_t((source.at + source.bytes) / 4)};
    const FlatRange mine = store_.range_of(source.name);
    if (const FlatRange part = common(wanted, mine); part.size() > 0) LANCET_TRY(send(tensor, part, mine, writer));
    if (writer != world_.rank()) return {};
    const std::int64_t elements = store_.whole_shape(source.name).elements();
    for (std::size_t place = 0; place < holders.size(); ++place) {
      const FlatRange part = common(wanted, flat_range(elements, std::int64_t(holders.size()), std::int64_t(place)));
      std::byte* to = whole_.data() + *source.gathered + 4 * (part.begin - wanted.begin);
      if (part.size() > 0) receives_.push_back({holders[place], to, std::size_t(4 * part.size())});
    }
    return {};
  }

  Status send(const NamedTensor& tensor, const FlatRange& part, const FlatRange& mine, int writer) {
    const auto at = std::size_t(4 * (part.begin - mine.begin)), bytes = std::size_t(4 * part.size());
    std::byte* from = tensor.memory.as<std::byte>() + at;
    if (store_.on_device()) {
      from = staged_.emplace_back(bytes).data();
      LANCET_TRY(store_.read(tensor, at, {from, bytes}));
    }
    sends_.push_back({writer, from, bytes});
    return {};
  }

  const TensorStore& store_;
  const mesh::Mesh& mesh_;
  comm::Communicator& world_;
  std::vector<std::byte> whole_;
  std::list<std::vector<std::byte>> staged_;  // shards of a device on their way
  std::vector<comm::Segment> sends_, receives_;
};

}  // namespace

Result<std::vector<std::byte>> gather_shards(const TensorStore& store, const mesh::Mesh& mesh,
                                             comm::Communicator& world) {
  const auto is_shard = [](const auto& named) { return named.second.is_shard(); };
  if (std::ranges::none_of(store.all(), is_shard)) return std::vector<std::byte>();
  return Gather(store, mesh, world).run();
}

}  // namespace lancet::run
