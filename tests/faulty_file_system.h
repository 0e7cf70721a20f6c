// The real file system with faults: the call with a given number fails in a chosen way; a simulated crash of the
// machine afterwards loses everything that was not synced.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <map>
#include <set>

#include "lancet/checkpoint/file_system.h"

namespace lancet::test {

enum class Fault { none, short_write, no_space, io_error, failed_rename, crash };

class FaultyFileSystem final : public checkpoint::FileSystem {
 public:
  // The fault hits call number `at` (from 0) of those that can have it, and all later ones except for short writes.
  explicit FaultyFileSystem(Fault fault = Fault::none, int at = 0) : fault_(fault), at_(at) {}

  Result<std::unique_ptr<checkpoint::OutputFile>> create(const std::filesystem::path& path) override {
    if (crashed()) return lost();
    if (hits({Fault::no_space})) return full(path);
    LANCET_ASSIGN(auto file, disk_.create(path));
    names_.insert(path);
    synced_bytes_[path] = 0;
    return std::unique_ptr<checkpoint::OutputFile>(std::make_unique<File>(*this, path, std::move(file)));
  }
  Status make_folder(const std::filesystem::path& path) override {
    if (crashed()) return lost();
    if (!std::filesystem::exists(path)) names_.insert(path);
    return disk_.make_folder(path);
  }
  Status sync_folder(const std::filesystem::path& path) override {
    if (crashed()) return lost();
    if (hits({Fault::io_error})) return data_error(path.string() + ": injected: Input/output error");
    std::erase_if(names_, [&](const auto& name) { return name.parent_path() == path; });
    std::erase_if(renames_, [&](const auto& rename) { return rename.second.parent_path() == path; });
    return {};
  }
  Status rename(const std::filesystem::path& from, const std::filesystem::path& to) override {
    if (crashed()) return lost();
    if (hits({Fault::failed_rename, Fault::io_error})) return data_error(from.string() + ": injected: cannot rename");
    LANCET_TRY(disk_.rename(from, to));
    renames_.emplace_back(from, to);
    return {};
  }
  Status remove(const std::filesystem::path& path) override {
    if (crashed()) return lost();
    return disk_.remove(path);
  }

  // Simulates a crash of the machine: unsynced bytes and names are lost, unsynced renames are undone.
  void lose_unsynced() {
    for (auto rename = renames_.rbegin(); rename != renames_.rend(); ++rename)
      if (std::filesystem::exists(rename->second)) std::filesystem::rename(rename->second, rename->first);
    for (const auto& [path, bytes] : synced_bytes_)
      if (std::filesystem::exists(path) && std::filesystem::file_size(path) > bytes)
        std::filesystem::resize_file(path, bytes);
    for (const auto& name : names_) std::filesystem::remove_all(name);
  }

  int calls = 0;  // calls that could have had the fault

 private:
  class File final : public checkpoint::OutputFile {
   public:
    File(FaultyFileSystem& owner, std::filesystem::path path, std::unique_ptr<checkpoint::OutputFile> file)
        : owner_(owner), path_(std::move(path)), file_(std::move(file)) {}
    Result<std::size_t> write_some(std::span<const std::byte> bytes) override {
      if (owner_.crashed()) return owner_.lost();
      if (owner_.hits({Fault::no_space})) return owner_.full(path_);
      if (owner_.hits({Fault::io_error})) return data_error(path_.string() + ": injected: Input/output error");
      if (owner_.hits({Fault::short_write})) bytes = bytes.first((bytes.size() + 1) / 2);
      LANCET_ASSIGN(const std::size_t written, file_->write_some(bytes));
      written_ += written;
      return written;
    }
    Status sync() override {
      if (owner_.crashed()) return owner_.lost();
      if (owner_.hits({Fault::io_error})) return data_error(path_.string() + ": injected: Input/output error");
      owner_.synced_bytes_[path_] = written_;
      return file_->sync();
    }
    Status close() override { return owner_.crashed() ? Status(owner_.lost()) : file_->close(); }

   private:
    FaultyFileSystem& owner_;
    const std::filesystem::path path_;
    std::unique_ptr<checkpoint::OutputFile> file_;
    std::uint64_t written_ = 0;
  };

  bool hits(std::initializer_list<Fault> here) {
    bool mine = false;
    for (const Fault fault : here) mine |= fault == fault_;
    if (!mine) return false;
    const int call = calls++;
    return fault_ == Fault::short_write ? call % 2 == at_ % 2 : call >= at_;
  }
  // Every call counts: the machine is down from call number `at` on.
  bool crashed() { return fault_ == Fault::crash && calls++ >= at_; }
  Error lost() const { return data_error("injected: the machine is down"); }
  Error full(const std::filesystem::path& path) const {
    return data_error(path.string() + ": injected: No space left on device");
  }

  checkpoint::FileSystem& disk_ = checkpoint::disk();
  const Fault fault_;
  const int at_;
  std::set<std::filesystem::path> names_;                                         // not synced
  std::vector<std::pair<std::filesystem::path, std::filesystem::path>> renames_;  // not synced
  std::map<std::filesystem::path, std::uint64_t> synced_bytes_;
};

}  // namespace lancet::test
