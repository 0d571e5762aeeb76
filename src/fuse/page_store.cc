// libfuse sends a notification with writev, by which the kernel looks up the page of every 4 KiB it
// copies. Pages that come by a pipe are looked up many at a time: a tenth of the cost of a page.
#include "fuse/page_store.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/uio.h>

#include "base/units.h"

namespace ckfs {
namespace {

/// What a pipe may have without privileges, by default (pipe(7)).
constexpr int kPipeBytes = 1 << 20;
/// Fewer than this, and messages are too short to gain anything.
constexpr std::size_t kLeastPages = 64;
/// Slots of a pipe that do not hold whole pages: the message's head, and a page that begins before
/// the bytes.
constexpr std::size_t kOtherPages = 2;

}  // namespace

std::optional<PageStore::Pipe> PageStore::take_pipe() {
  {
    const MutexLock lock(mutex_);
    if (!pipes_.empty()) {
      Pipe pipe = std::move(pipes_.back());
      pipes_.pop_back();
      return pipe;
    }
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return std::nullopt;
  Pipe pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
  ::fcntl(pipe.in.get(), F_SETPIPE_SZ, kPipeBytes);
  const int size = ::fcntl(pipe.in.get(), F_GETPIPE_SZ);
  pipe.pages = size < 0 ? 0 : static_cast<std::size_t>(size) / kPage;
  if (pipe.pages < kLeastPages) return std::nullopt;
  return pipe;
}

/// Sends one message, without a copy in this process. Requires: the pipe is empty and large enough.
/// If it is not sent, throw the pipe away.
PageStore::Sent PageStore::send(const Pipe& pipe, fuse_ino_t inode, std::uint64_t offset,
                                std::span<const std::byte> bytes) const {
  struct {
    fuse_out_header header;
    fuse_notify_store_out store;
  } head{};
  const std::size_t size = sizeof head + bytes.size();
  head.header.error = FUSE_NOTIFY_STORE;
  head.header.len = static_cast<std::uint32_t>(size);
  head.store.nodeid = inode;
  head.store.offset = offset;
  head.store.size = static_cast<std::uint32_t>(bytes.size());
  // The kernel only reads from them.
  const std::array<iovec, 2> parts{
      iovec{&head, sizeof head},
      iovec{const_cast<std::byte*>(bytes.data()), bytes.size()},
  };
  const ssize_t filled = ::vmsplice(pipe.in.get(), parts.data(), parts.size(), SPLICE_F_NONBLOCK);
  if (filled < 0 || static_cast<std::size_t>(filled) != size) return Sent::No;
  const ssize_t sent =
      ::splice(pipe.out.get(), nullptr, ::fuse_session_fd(session_), nullptr, size, 0);
  return sent >= 0 && static_cast<std::size_t>(sent) == size ? Sent::Yes : Sent::Refused;
}

bool PageStore::send_copied(fuse_ino_t inode, std::uint64_t offset,
                            std::span<const std::byte> bytes) const {
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): libfuse has no name for none
  fuse_bufvec data = FUSE_BUFVEC_INIT(bytes.size());
  // libfuse only reads from it.
  data.buf[0].mem = const_cast<std::byte*>(bytes.data());
  // NOLINTNEXTLINE(clang-analyzer-optin.core.EnumCastOutOfRange): the same
  constexpr auto kNoFlags = static_cast<fuse_buf_copy_flags>(0);
  return ::fuse_lowlevel_notify_store(session_, inode, static_cast<off_t>(offset), &data,
                                      kNoFlags) == 0;
}

bool PageStore::send_all(fuse_ino_t inode, std::uint64_t offset, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    auto pipe = take_pipe();
    if (!pipe) return send_copied(inode, offset, bytes);
    const std::size_t size =
        std::min<std::size_t>(bytes.size(), (pipe->pages - kOtherPages) * kPage);
    const Sent sent = send(*pipe, inode, offset, bytes.first(size));
    if (sent == Sent::Refused) return false;
    if (sent == Sent::No) return send_copied(inode, offset, bytes);
    bytes = bytes.subspan(size);
    offset += size;
    const MutexLock lock(mutex_);
    pipes_.push_back(*std::move(pipe));
  }
  return true;
}

bool PageStore::put(fuse_ino_t inode, std::uint64_t offset, std::span<const std::byte> bytes) {
  {
    const MutexLock lock(mutex_);
    if (stopping_) return false;
    ++inside_;
  }
  struct Leaving {
    PageStore& store;
    ~Leaving() {
      const MutexLock lock(store.mutex_);
      --store.inside_;
      store.left_.notify_all();
    }
  };
  const Leaving leaving{*this};  // also where there is no memory for a pipe's place
  return send_all(inode, offset, bytes);
}

bool PageStore::stop(std::chrono::steady_clock::time_point last) {
  MutexLock lock(mutex_);
  stopping_ = true;
  while (inside_ > 0 && left_.wait_until(lock, last)) {
  }
  return inside_ == 0;
}

}  // namespace ckfs
