// A checkpoint may have hundreds of shards, and each costs two dependent reads (length, then text)
// and some milliseconds of parsing; on a network filesystem the waiting is what counts. So a few
// threads work ahead of the one that builds the catalog. They stay a few files ahead and no more:
// texts that wait would otherwise be the largest thing in memory at mount.
//
// The text is read at exactly its length. Reading a generous first block would save one access a
// file, but a mount must not touch tensor data.
#include "source/header_loader.h"

#include <algorithm>
#include <array>
#include <new>

namespace ckfs {
namespace {

constexpr std::size_t kThreads = 4;
constexpr std::size_t kAhead = 2 * kThreads;  // files

std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span(text.data(), text.size()));
}

}  // namespace

Result<std::string> read_text(ByteSource& source, FileId file, std::uint64_t limit) {
  const std::uint64_t size = source.size(file);
  if (size > limit) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes (limit {})", source.name(file), size, limit);
  }
  std::string text(size, '\0');
  CKFS_TRY_VOID(source.read_at(file, 0, bytes_of(text)));
  return text;
}

Result<std::unique_ptr<LoadedHeader>> load_header(ByteSource& source, FileId file) {
  const std::uint64_t size = source.size(file);
  std::array<std::byte, safetensors::kLengthBytes> start{};
  const std::span prefix(start.data(), std::min<std::uint64_t>(size, start.size()));
  CKFS_TRY_VOID(source.read_at(file, 0, prefix));
  CKFS_TRY(const std::uint64_t length, safetensors::header_length(prefix, size, source.name(file)));

  auto loaded = std::make_unique<LoadedHeader>();
  loaded->text.resize(length);
  if (length > 0) {
    CKFS_TRY_VOID(source.read_at(file, safetensors::kLengthBytes, bytes_of(loaded->text)));
  }
  CKFS_TRY(loaded->header, safetensors::parse_header(loaded->text, size, source.name(file)));
  return loaded;
}

HeaderLoader::HeaderLoader(ByteSource& source, std::span<const FileId> files)
    : source_(source), files_(files), slots_(files.size()) {
  const std::size_t count = std::min(kThreads, files.size());
  for (std::size_t i = 0; i < count; ++i) workers_.emplace_back([this] { work(); });
}

HeaderLoader::~HeaderLoader() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void HeaderLoader::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] {
      return stopping_ || claimed_ == files_.size() || claimed_ < consumed_ + kAhead;
    });
    if (stopping_ || claimed_ == files_.size()) return;
    const std::size_t mine = claimed_++;
    lock.unlock();
    Slot slot;
    try {
      slot = load_header(source_, files_[mine]);
    } catch (const std::bad_alloc&) {
      slot =
          fail(ErrorCode::OutOfMemory, "{}: no memory for its header", source_.name(files_[mine]));
    }
    lock.lock();
    slots_[mine] = std::move(slot);
    changed_.notify_all();
  }
}

Result<std::unique_ptr<LoadedHeader>> HeaderLoader::next() {
  std::unique_lock lock(mutex_);
  CKFS_CHECK(consumed_ < files_.size());
  changed_.wait(lock, [&] { return slots_[consumed_].has_value(); });
  Slot slot = std::move(slots_[consumed_]);
  slots_[consumed_].reset();
  ++consumed_;
  changed_.notify_all();
  return std::move(*slot);
}

}  // namespace ckfs
