#include "cache/block_file.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/load_le.h"
#include "format/crc32c.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kBlockMagic = 0x314B4C4253464B43;  // "CKFSBLK1"
constexpr std::size_t kSumFrom = 12;
constexpr std::size_t kSlotsBegin = 64;
constexpr std::size_t kTextBegin = 576;
constexpr std::size_t kUsedBegin = 4088;
static_assert(kTextBegin + kLongestBlockText == kUsedBegin);

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string BlockName::file_name() const {
  return fmt::format(
      "{}-{:x}", cache_name_of(stable_hash(text, stable_hash(fmt::format("{}:", size)))), number);
}

ByteRange BlockName::range() const {
  const std::uint64_t begin = number * kCacheBlock;
  return {begin, std::min(begin + kCacheBlock, size)};
}

ByteRange BlockName::cell(std::size_t cell) const {
  const std::uint64_t begin = cell * kCacheCell;
  return {begin, std::min(begin + kCacheCell, range().size())};
}

UniqueFd BlockFile::open(const CacheDirectory::Source& source, const BlockName& name) {
  return UniqueFd(::openat(source.directory.get(), name.file_name().c_str(),
                           O_RDWR | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
}

BlockFile::Head BlockFile::head_of(const BlockName& name) {
  Head head{.magic = kBlockMagic,
            .text_size = static_cast<std::uint32_t>(name.text.size()),
            .size = name.size,
            .number = name.number};
  const auto bytes = std::as_bytes(std::span(&head, 1));
  head.sum = crc32c(name.text, crc32c(text_of(bytes.subspan(kSumFrom))));
  return head;
}

BlockFile::BlockFile(UniqueFd file, const BlockName& name) : file_(std::move(file)) {
  std::array<std::byte, kCellsBegin> page;
  if (!file_ || !read_cached(file_.get(), 0, page)) return;
  Head head;
  std::memcpy(&head, page.data(), sizeof head);
  const Head expected = head_of(name);
  head_sum_ = expected.sum;
  if (std::memcmp(&head, &expected, sizeof head) != 0 ||
      text_of(std::span(page).subspan(kTextBegin, name.text.size())) != name.text) {
    const bool is_whole =
        head.magic == kBlockMagic && head.text_size <= kLongestBlockText &&
        head.sum ==
            crc32c(text_of(std::span(page).subspan(kTextBegin, head.text_size)),
                   crc32c(text_of(std::span(page).subspan(kSumFrom, sizeof head - kSumFrom))));
    if (is_whole) state_ = State::Other;
    return;
  }
  std::memcpy(slots_.data(), page.data() + kSlotsBegin, sizeof slots_);
  state_ = State::Valid;
}

BlockFile BlockFile::create(const CacheDirectory& directory, const CacheDirectory::Source& source,
                            const BlockName& name) {
  const int fault = directory.next_fault();
  UniqueFd file(fault != 0 ? -1
                           : ::openat(source.directory.get(), name.file_name().c_str(),
                                      O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  std::array<std::byte, kCellsBegin> page{};
  const Head head = head_of(name);
  std::memcpy(page.data(), &head, sizeof head);
  std::memcpy(page.data() + kTextBegin, name.text.data(), name.text.size());
  if (file && write_cached(directory, file.get(), 0, page) != 0) file.reset();
  return {std::move(file), name};
}

std::uint32_t BlockFile::sum_of(std::size_t cell, std::span<const std::byte> bytes) const {
  const auto number = static_cast<std::uint32_t>(cell);
  return crc32c(text_of(bytes), crc32c(text_of(std::as_bytes(std::span(&number, 1))), head_sum_));
}

bool BlockFile::is_right(std::size_t cell, std::span<const std::byte> bytes) const {
  return has(cell) && slots_[cell].sum == sum_of(cell, bytes);
}

bool BlockFile::read(ByteRange range, std::span<std::byte> out) const {
  return read_cached(file_.get(), kCellsBegin + range.begin, out);
}

int BlockFile::reserve(const CacheDirectory& directory, ByteRange range) const {
  if (const int fault = directory.next_fault()) return fault;
  int done = 0;
  do {
    done =
        ::fallocate(file_.get(), FALLOC_FL_KEEP_SIZE, static_cast<off_t>(kCellsBegin + range.begin),
                    static_cast<off_t>(range.size()));
  } while (done != 0 && errno == EINTR);
  return done == 0 ? 0 : errno;
}

void BlockFile::release(const CacheDirectory& directory, ByteRange range) const {
  if (directory.next_fault() != 0) return;
  (void)::fallocate(file_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                    static_cast<off_t>(kCellsBegin + range.begin),
                    static_cast<off_t>(range.size()));
}

int BlockFile::write(const CacheDirectory& directory, std::size_t cell,
                     std::span<const std::byte> bytes) {
  const std::uint64_t begin = kCellsBegin + cell * kCacheCell;
  if (const int error = write_cached(directory, file_.get(), begin, bytes)) return error;
  const Slot slot{sum_of(cell, bytes), kMark};
  const int error = write_cached(directory, file_.get(), kSlotsBegin + cell * sizeof slot,
                                 std::as_bytes(std::span(&slot, 1)));
  if (error == 0) slots_[cell] = slot;
  return error;
}

void BlockFile::forget(const CacheDirectory& directory, std::size_t cell) {
  slots_[cell] = {};
  (void)write_cached(directory, file_.get(), kSlotsBegin + cell * sizeof(Slot),
                     std::as_bytes(std::span(&slots_[cell], 1)));
}

void BlockFile::touch(const CacheDirectory& directory) const {
  struct stat status{};
  if (::fstat(file_.get(), &status) != 0) return;
  const std::int64_t now = std::chrono::duration_cast<std::chrono::seconds>(
                               std::chrono::system_clock::now().time_since_epoch())
                               .count();
  if (now - status.st_mtim.tv_sec < directory.options().touch_after.count()) return;
  (void)write_cached(directory, file_.get(), kUsedBegin, std::as_bytes(std::span(&now, 1)));
}

}  // namespace ckfs
