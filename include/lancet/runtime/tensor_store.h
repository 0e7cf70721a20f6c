// TensorStore: owns the named tensors of a rank, its parameters and state, shared by all plans that name them.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lancet/base/flat_shard.h"
#include "lancet/base/result.h"
#include "lancet/ir/mesh.h"
#include "lancet/ir/program.h"
#include "lancet/ir/sharding.h"
#include "lancet/runtime/block.h"

namespace lancet::runtime {

struct NamedTensor {
  ir::TensorKind kind;
  ir::TensorType type;
  std::optional<ir::Sharding> sharding = {};  // as in ir::Tensor
  ir::Axes flat_shard = {};                   // likewise
  ir::StateKind state = ir::StateKind::other;
  std::string shard_of = {};      // a flat shard: the parameter of whose elements it has those that this rank owns
  std::int64_t padding_rows = 0;  // at the end of the whole tensor, see set_padding()
  // The pipeline stage that writes it in checkpoints: the first that has it. Without memory if this rank's has it not.
  int stage = 0;
  bool elsewhere = false;
  bool is_shard() const { return !shard_of.empty(); }
  Memory memory;  // in one of the store's blocks; zero at first. On a device: the host must not dereference it
};

class TensorStore {
 public:
  // Puts the store's tensors on the device, which outlives the store. InternalError: the store already holds tensors.
  void place_on(backend::Device& device);
  // The store's tensors get addresses, but no memory that is used (Block::reserved).
  void reserve_only() { reserve_only_ = true; }
  // Says which rank of the mesh the store is of, and thus which shards of split tensors it has. The default is one rank
  // alone.
  void set_rank(const ir::Mesh& mesh, int rank) { mesh_ = mesh, rank_ = rank; }
  const ir::Mesh& mesh() const { return mesh_; }
  int rank() const { return rank_; }
  bool on_device() const { return staging_ != nullptr; }
  // Makes the parameters and states that the program names and the store lacks. Inputs belong to an Executor, since
  // plans of one model differ in their batches. One call allocates one block, in the program's order, each tensor at a
  // multiple of 64 bytes, so that the gradients that accumulate over micro batches are adjacent, as their buckets need.
  // InternalError: a name is known with another type or kind. Throws std::bad_alloc if there is no memory.
  void add(const ir::Program& program);
  // Says what pipeline stage `stage` has, this rank's or another one, for each stage in order and after add(). The
  // store lists the tensors of other stages, too, without memory, since all ranks know what each one writes in a
  // checkpoint.
  void add_stage(const ir::Program& program, int stage);
  // Copy bytes of a tensor, from `offset` on, to or from host memory. One thread at a time; not while a step runs.
  Status read(const NamedTensor& tensor, std::size_t offset, std::span<std::byte> to) const;
  Status write(const NamedTensor& tensor, std::size_t offset, std::span<const std::byte> from);
  // The whole tensor; T is its element type.
  template <class T>
  Result<std::vector<T>> read(std::string_view name) {
    const NamedTensor& tensor = (*this)[name];
    std::vector<T> values(tensor.memory.bytes / sizeof(T));
    LANCET_TRY(read(tensor, 0, std::as_writable_bytes(std::span(values))));
    return values;
  }
  // The shape of the whole tensor of which the ranks have shards. For a flat shard: of the parameter that it is of.
  Shape whole_shape(std::string_view name) const;
  // The elements of whole_shape() that a rank has of the tensor, this rank or another one of the mesh.
  std::vector<ir::HeldRun> held_by(std::string_view name, int rank) const;
  std::vector<ir::HeldRun> held(std::string_view name) const { return held_by(name, rank_); }
  // Says how many rows at the end of the whole parameter, and of its states, are zeros that only this mesh adds.
  void set_padding(std::string_view parameter, std::int64_t rows);
  // The shape of the whole tensor without padding rows, in which a checkpoint holds it.
  Shape saved_shape(std::string_view name) const;
  // How the shards are split off the whole tensor, those of the parameter for a flat shard.
  const std::optional<ir::Sharding>& sharding_of(std::string_view name) const { return owner_of(name).sharding; }
  // The axes along which ranks have different shards of a tensor.
  ir::Axes divided_over(std::string_view name) const;
  // The elements that a tensor has of its parameter's shard on this rank: all, or those of a flat shard.
  FlatRange range_of(std::string_view name) const { return range_of(name, rank_); }
  NamedTensor& operator[](std::string_view name);
  const NamedTensor& operator[](std::string_view name) const;
  NamedTensor* find(std::string_view name);
  const NamedTensor* find(std::string_view name) const;
  std::int64_t bytes(ir::TensorKind kind) const;
  const std::map<std::string, NamedTensor, std::less<>>& all() const { return tensors_; }

 private:
  // The tensor itself, or the parameter that a flat shard is of.
  const NamedTensor& owner_of(std::string_view name) const;
  FlatRange range_of(std::string_view name, int rank) const;

  std::map<std::string, NamedTensor, std::less<>> tensors_;
  std::set<std::string, std::less<>> staged_;  // those whose stage is known
  // Only for a store on a device: the device stream and the page-locked memory that reads and writes go through.
  struct Staging {
    backend::Device* device;
    std::unique_ptr<backend::Stream> stream;
    Block memory;
  };
  Status zero(const Block& block);
  // Calls copy(address in the tensor, offset from the first byte, bytes) for each piece that fits the staging memory.
  template <class Copy>
  Status stage(const NamedTensor& tensor, std::size_t offset, std::size_t bytes, const Copy& copy) const;

  ir::Mesh mesh_;
  int rank_ = 0;
  std::unique_ptr<Staging> staging_;
  bool reserve_only_ = false;
  std::vector<Block> blocks_;
};

}  // namespace lancet::runtime
