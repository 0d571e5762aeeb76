#include "chunks/spilled_tiles.h"

#include <algorithm>

#include "catalog/chunk_table.h"

namespace ckfs {

void SpilledTiles::make_room() {
  if (kept_.size() < kMostKept) return;
  std::erase_if(kept_, [this](const auto& each) { return !spill_->has({each.second.number, 0}); });
  if (kept_.size() < kMostKept) return;
  std::vector<std::uint32_t> numbers;
  for (const auto& [key, kept] : kept_) numbers.push_back(kept.number);
  const auto middle = numbers.begin() + kMostKept / 2;
  std::ranges::nth_element(numbers, middle);
  std::erase_if(kept_, [&](const auto& each) {
    const bool old = each.second.number < *middle;
    if (old) spill_->forget(each.second.number);
    return old;
  });
}

bool SpilledTiles::put(const TileKey& key, std::span<const std::byte> bytes,
                       std::span<const FileId> files) {
  if (bytes.empty() || bytes.size() > spill_->limit() / 2) return false;
  std::uint32_t number = 0;
  {
    const MutexLock lock(mutex_);
    if (next_ == kFirstChunkFile) return false;  // numbers are not used again
    number = next_++;
  }
  const std::uint64_t block = spill_->block();
  for (std::uint64_t at = 0; at < bytes.size(); at += block) {
    const std::size_t size = std::min<std::size_t>(block, bytes.size() - at);
    if (spill_->put({number, at / block}, bytes.subspan(at, size))) continue;
    spill_->forget(number);
    return false;
  }
  Kept made{number, bytes.size(), {files.begin(), files.end()}};
  const MutexLock lock(mutex_);
  make_room();
  Kept& kept = kept_[key];
  if (kept.size > 0) spill_->forget(kept.number);
  kept = std::move(made);
  return true;
}

std::optional<std::size_t> SpilledTiles::size(const TileKey& key) const {
  const MutexLock lock(mutex_);
  const auto found = kept_.find(key);
  // The oldest of its blocks is overwritten first.
  if (found == kept_.end() || !spill_->has({found->second.number, 0})) return std::nullopt;
  return found->second.size;
}

std::optional<std::vector<FileId>> SpilledTiles::get(const TileKey& key, std::span<std::byte> out) {
  Kept kept;
  {
    const MutexLock lock(mutex_);
    const auto found = kept_.find(key);
    if (found == kept_.end() || found->second.size != out.size()) return std::nullopt;
    kept = found->second;
  }
  const std::uint64_t block = spill_->block();
  for (std::uint64_t at = 0; at < out.size(); at += block) {
    const std::size_t size = std::min<std::size_t>(block, out.size() - at);
    if (spill_->get({kept.number, at / block}, 0, out.subspan(at, size))) continue;
    spill_->forget(kept.number);
    const MutexLock lock(mutex_);
    const auto found = kept_.find(key);
    if (found != kept_.end() && found->second.number == kept.number) kept_.erase(found);
    return std::nullopt;
  }
  return kept.files;
}

}  // namespace ckfs
