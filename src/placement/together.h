#pragma once
#include <algorithm>
#include <numeric>
#include <vector>

namespace lancet::placement {

// Sets of indices that grow together. A set's root is its least index.
class Together {
 public:
  explicit Together(std::size_t count) : parent_(count) { std::iota(parent_.begin(), parent_.end(), std::size_t(0)); }
  std::size_t root(std::size_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::size_t a, std::size_t b) { parent_[std::max(root(a), root(b))] = std::min(root(a), root(b)); }
  // The sets in the order of their roots, each ascending.
  std::vector<std::vector<int>> sets() {
    std::vector<std::vector<int>> by_root(parent_.size());
    for (std::size_t i = 0; i < parent_.size(); ++i) by_root[root(i)].push_back(int(i));
    std::erase_if(by_root, [](const std::vector<int>& set) { return set.empty(); });
    return by_root;
  }

 private:
  std::vector<std::size_t> parent_;
};

}  // namespace lancet::placement
