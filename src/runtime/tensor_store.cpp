// A store on the host copies with memcpy. A store on a device copies through one piece of page-locked memory, allocated
// with the first block: device to staging to caller on a read, the opposite way on a write, in pieces of 16 MiB, each
// of which ends before the next begins.
#include "lancet/runtime/tensor_store.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace lancet::runtime {
namespace {

constexpr std::size_t alignment = 64;
constexpr std::size_t staging_bytes = 16 << 20;  // a few milliseconds of transfer over the bus
std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

bool is_stored(const ir::Tensor& tensor) {
  return tensor.kind == ir::TensorKind::parameter || tensor.kind == ir::TensorKind::state;
}

void check_same(const NamedTensor& stored, const ir::Tensor& named) {
  LANCET_CHECK(stored.type == named.type, "@{} is {} in the store and {} in the program", named.name,
               ir::to_string(stored.type), ir::to_string(named.type));
  LANCET_CHECK(stored.kind == named.kind, "@{} is a {} in the store and a {} in the program", named.name,
               ir::name(stored.kind), ir::name(named.kind));
  LANCET_CHECK(stored.sharding == named.sharding && stored.flat_shard == named.flat_shard,
               "@{} is split otherwise in the store than in the program", named.name);
}

// The parameter that a flat shard is of; empty for any other tensor.
std::string shard_of(const ir::Program& program, const ir::Tensor& tensor) {
  if (tensor.flat_shard.empty()) return {};
  const auto owner = std::ranges::find_if(program.tensors, [&](const ir::Tensor& p) {
    return p.kind == ir::TensorKind::parameter && ir::state_name(p.name, tensor.state) == tensor.name;
  });
  LANCET_CHECK(owner != program.tensors.end(), "@{} is a flat shard of no parameter", tensor.name);
  return owner->name;
}

// The tensor as the store lists it, without memory.
NamedTensor listed(const ir::Program& program, const ir::Tensor& tensor) {
  return {.kind = tensor.kind,
          .type = tensor.type,
          .sharding = tensor.sharding,
          .flat_shard = tensor.flat_shard,
          .state = tensor.state,
          .shard_of = shard_of(program, tensor),
          .memory = {}};
}

void check_range(const NamedTensor& tensor, std::size_t offset, std::size_t bytes) {
  LANCET_CHECK(offset <= tensor.memory.bytes && bytes <= tensor.memory.bytes - offset,
               "a tensor has {} bytes, not {} from {} on", tensor.memory.bytes, bytes, offset);
}

}  // namespace

void TensorStore::place_on(backend::Device& device) {
  LANCET_CHECK(tensors_.empty(), "a store is placed before it holds tensors");
  staging_ = std::make_unique<Staging>(Staging{&device, nullptr, {}});
}

void TensorStore::add(const ir::Program& program) {
  std::vector<const ir::Tensor*> fresh;
  std::size_t bytes = 0;
  for (const ir::Tensor& tensor : program.tensors) {
    if (!is_stored(tensor)) continue;
    if (const NamedTensor* known = find(tensor.name)) {
      check_same(*known, tensor);
    } else {
      fresh.push_back(&tensor);
      bytes += aligned(static_cast<std::size_t>(ir::bytes(tensor.type)));
    }
  }
  if (fresh.empty()) return;
  if (staging_) {
    auto block = Block::on_device(*staging_->device, bytes);
    if (!block.ok()) throw std::bad_alloc();
    blocks_.push_back(std::move(block).value());
  } else {
    blocks_.push_back(reserve_only_ ? Block::reserved(bytes) : Block::on_host(bytes));
  }
  const Status zeroed = reserve_only_ ? Status() : zero(blocks_.back());
  LANCET_CHECK(zeroed.ok(), "{}", zeroed.error().message);
  std::byte* next = blocks_.back().start();
  for (const ir::Tensor* tensor : fresh) {
    const auto size = static_cast<std::size_t>(ir::bytes(tensor->type));
    tensors_.emplace(tensor->name, listed(program, *tensor)).first->second.memory = {next, size};
    next += aligned(size);
  }
}

void TensorStore::add_stage(const ir::Program& program, int stage) {
  const bool own = mesh_.coordinate(rank_, ir::Axis::stage) == stage;
  for (const ir::Tensor& tensor : program.tensors) {
    if (!is_stored(tensor) || staged_.contains(tensor.name)) continue;
    staged_.insert(tensor.name);
    if (NamedTensor* known = find(tensor.name)) {
      check_same(*known, tensor);
      known->stage = stage;
      continue;
    }
    LANCET_CHECK(!own, "stage {} lacks its own @{}", stage, tensor.name);
    NamedTensor& added = tensors_.emplace(tensor.name, listed(program, tensor)).first->second;
    added.stage = stage;
    added.elsewhere = true;
  }
}

Status TensorStore::zero(const Block& block) {
  if (!staging_) {
    if (block.bytes() > 0) std::memset(block.start(), 0, block.bytes());
    return {};
  }
  LANCET_TRY(staging_->device->bind_thread());
  if (!staging_->stream) {
    LANCET_ASSIGN(staging_->stream, staging_->device->make_stream(false));
    LANCET_ASSIGN(staging_->memory, Block::page_locked(*staging_->device, staging_bytes));
  }
  LANCET_TRY(staging_->stream->zero(block.start(), block.bytes()));
  return staging_->stream->synchronize();
}

template <class Copy>
Status TensorStore::stage(const NamedTensor& tensor, std::size_t offset, std::size_t bytes, const Copy& copy) const {
  check_range(tensor, offset, bytes);
  if (staging_) LANCET_TRY(staging_->device->bind_thread());
  const std::size_t piece = staging_ ? staging_bytes : bytes;
  for (std::size_t done = 0; done < bytes; done += piece)
    LANCET_TRY(copy(tensor.memory.start + offset + done, done, std::min(piece, bytes - done)));
  return {};
}

Status TensorStore::read(const NamedTensor& tensor, std::size_t offset, std::span<std::byte> to) const {
  return stage(tensor, offset, to.size(), [&](const std::byte* from, std::size_t at, std::size_t bytes) -> Status {
    if (!staging_) {
      std::memcpy(to.data() + at, from, bytes);
      return {};
    }
    LANCET_TRY(staging_->stream->copy(staging_->memory.start(), from, bytes));
    LANCET_TRY(staging_->stream->synchronize());
    std::memcpy(to.data() + at, staging_->memory.start(), bytes);
    return {};
  });
}

Status TensorStore::write(const NamedTensor& tensor, std::size_t offset, std::span<const std::byte> from) {
  return stage(tensor, offset, from.size(), [&](std::byte* to, std::size_t at, std::size_t bytes) -> Status {
    if (!staging_) {
      std::memcpy(to, from.data() + at, bytes);
      return {};
    }
    std::memcpy(staging_->memory.start(), from.data() + at, bytes);
    LANCET_TRY(staging_->stream->copy(to, staging_->memory.start(), bytes));
    return staging_->stream->synchronize();
  });
}

const NamedTensor& TensorStore::owner_of(std::string_view name) const {
  const NamedTensor& tensor = (*this)[name];
  return tensor.is_shard() ? (*this)[tensor.shard_of] : tensor;
}

Shape TensorStore::whole_shape(std::string_view name) const {
  const NamedTensor& owner = owner_of(name);
  return owner.sharding ? ir::whole_shape(owner.type.shape, *owner.sharding, mesh_) : owner.type.shape;
}

void TensorStore::set_padding(std::string_view parameter, std::int64_t rows) {
  (*this)[parameter].padding_rows = rows;
  using Kind = ir::StateKind;
  for (const Kind kind : {Kind::first_moment, Kind::second_moment, Kind::master, Kind::gradient_sum})
    if (NamedTensor* state = find(ir::state_name(parameter, kind))) state->padding_rows = rows;
}

Shape TensorStore::saved_shape(std::string_view name) const {
  Shape shape = whole_shape(name);
  if (const std::int64_t padding = (*this)[name].padding_rows; padding > 0) shape.set(0, shape[0] - padding);
  return shape;
}

std::vector<ir::HeldRun> TensorStore::held_by(std::string_view name, int rank) const {
  const auto runs = ir::held_elements(whole_shape(name), owner_of(name).sharding, mesh_, rank);
  return (*this)[name].is_shard() ? ir::of_held(runs, range_of(name, rank)) : runs;
}

ir::Axes TensorStore::divided_over(std::string_view name) const {
  ir::Axes axes = (*this)[name].flat_shard;
  if (const auto& sharding = owner_of(name).sharding) axes = axes | sharding->used();
  return axes;
}

FlatRange TensorStore::range_of(std::string_view name, int rank) const {
  const NamedTensor& tensor = (*this)[name];
  const std::int64_t n = owner_of(name).type.shape.elements();
  if (!tensor.is_shard()) return {0, n};
  const int ranks = mesh_.size(tensor.flat_shard);
  LANCET_CHECK(tensor.type.shape.elements() == flat_shard_elements(n, ranks),
               "@{} is {}, which is no shard of {} elements among {} ranks", name, ir::to_string(tensor.type), n,
               ranks);
  return flat_range(n, ranks, mesh_.place(rank, tensor.flat_shard));
}

const NamedTensor& TensorStore::operator[](std::string_view name) const {
  const NamedTensor* tensor = find(name);
  LANCET_CHECK(tensor, "no tensor is called @{}", name);
  return *tensor;
}
NamedTensor& TensorStore::operator[](std::string_view name) {
  return const_cast<NamedTensor&>(std::as_const(*this)[name]);
}

const NamedTensor* TensorStore::find(std::string_view name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}
NamedTensor* TensorStore::find(std::string_view name) {
  return const_cast<NamedTensor*>(std::as_const(*this).find(name));
}

std::int64_t TensorStore::bytes(ir::TensorKind kind) const {
  std::int64_t total = 0;
  for (const auto& [name, tensor] : tensors_)
    if (tensor.kind == kind) total += ir::bytes(tensor.type);
  return total;
}

}  // namespace lancet::runtime
