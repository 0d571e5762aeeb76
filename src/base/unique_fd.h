// An open file descriptor that closes itself.
#pragma once

#include <unistd.h>
#include <utility>

namespace ckfs {

class UniqueFd {
 public:
  UniqueFd() = default;
  /// Takes over `fd`; a negative one (what open() gives on failure) means none.
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    reset(other.release());
    return *this;
  }
  UniqueFd(const UniqueFd&) = delete;
  UniqueFd& operator=(const UniqueFd&) = delete;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  /// Gives the descriptor away, unclosed.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

  void reset(int fd = -1) {
    // close() is not repeated on EINTR: Linux has freed the number by then, and another thread may
    // own it. Its other errors matter only for bytes that were written and not synced.
    if (fd_ >= 0) ::close(fd_);
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace ckfs
