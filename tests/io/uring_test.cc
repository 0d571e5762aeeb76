// What a ring carries out is asked of no filter of system calls. Here one is used as a program
// would that has taken the process over: by its descriptor, with entries of its own.
#include "io/uring.h"

#include <cerrno>
#include <fcntl.h>
#include <filesystem>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/unique_fd.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

constexpr unsigned kDepth = 4;

/// The descriptor of the only ring that this process has.
int descriptor_of_ring() {
  int found = -1;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's own
    if (std::filesystem::read_symlink(entry.path(), gone) == "anon_inode:[io_uring]") {
      EXPECT_EQ(found, -1) << "two rings";
      found = std::stoi(entry.path().filename());
    }
  }
  EXPECT_GE(found, 0) << "no ring";
  return found;
}

class UringTest : public testing::Test {
 protected:
  UringTest() {
    // Where things lie in a ring follows from its size.
    io_uring_params params{};
    {
      io_uring like{};
      EXPECT_EQ(::io_uring_queue_init_params(kDepth, &like, &params), 0);
      ::io_uring_queue_exit(&like);
    }
    auto made = Uring::create(kDepth);
    // A machine without io_uring cannot say anything about it: the suite fails there on purpose.
    CKFS_CHECK(made.has_value());
    made_ = *std::move(made);
    EXPECT_EQ(::io_uring_queue_mmap(descriptor_of_ring(), &params, &ring_), 0);
    file_ = UniqueFd(
        ::open(directory_.write("file", std::vector<std::byte>(4096)).c_str(), O_RDWR | O_CLOEXEC));
  }

  /// A negative errno, or what the operation gave.
  int submit(const io_uring_sqe& wanted) {
    io_uring_sqe* const sqe = ::io_uring_get_sqe(&ring_);
    CKFS_CHECK(sqe != nullptr);
    *sqe = wanted;
    (void)::io_uring_submit(&ring_);
    io_uring_cqe* cqe = nullptr;
    EXPECT_EQ(::io_uring_wait_cqe(&ring_, &cqe), 0);
    const int result = cqe->res;
    ::io_uring_cqe_seen(&ring_, cqe);
    return result;
  }

  io_uring_sqe reading() {
    io_uring_sqe sqe{};
    ::io_uring_prep_read(&sqe, file_.get(), bytes_.data(), 16, 0);
    return sqe;
  }

  TemporaryDirectory directory_;
  std::array<char, 16> bytes_{};
  std::unique_ptr<Uring> made_;
  io_uring ring_{};
  UniqueFd file_;
};

TEST_F(UringTest, ReadsAndCanDoNothingElse) {
  EXPECT_EQ(submit(reading()), 16);
  for (unsigned operation = 0; operation < 256; ++operation) {
    if (operation == IORING_OP_READ || operation == IORING_OP_READV) continue;
    io_uring_sqe sqe{};
    sqe.opcode = static_cast<__u8>(operation);
    sqe.fd = file_.get();
    const int result = submit(sqe);
    // This kernel may not know those that are younger than the header.
    EXPECT_TRUE(result == -EACCES || (operation >= IORING_OP_SOCKET && result == -EINVAL))
        << operation << ": " << result;
  }
  EXPECT_EQ(submit(reading()), 16);
}

TEST_F(UringTest, SetsNoAttributeOfAFileThatIsOpen) {
  io_uring_sqe sqe{};
  ::io_uring_prep_fsetxattr(&sqe, file_.get(), "user.set", "1", 0, 1);
  EXPECT_EQ(submit(sqe), -EACCES);
  EXPECT_EQ(::fgetxattr(file_.get(), "user.set", nullptr, 0), -1);
}

TEST_F(UringTest, TakesNoFlagButThatOfRegisteredFiles) {
  for (const unsigned flag : {IOSQE_IO_DRAIN, IOSQE_IO_LINK, IOSQE_IO_HARDLINK, IOSQE_ASYNC,
                              IOSQE_BUFFER_SELECT, IOSQE_CQE_SKIP_SUCCESS}) {
    io_uring_sqe sqe = reading();
    sqe.flags = static_cast<__u8>(flag);
    EXPECT_EQ(submit(sqe), -EACCES) << flag;
  }
}

TEST_F(UringTest, RegistersNothingButFiles) {
  for (unsigned operation = 0; operation < 64; ++operation) {
    if (operation == IORING_REGISTER_FILES_UPDATE) continue;
    const long result = ::syscall(SYS_io_uring_register, ring_.ring_fd, operation, nullptr, 0);
    EXPECT_EQ(result, -1) << operation;
    EXPECT_TRUE(errno == EACCES || (operation >= IORING_REGISTER_LAST && errno == EINVAL))
        << operation << ": " << errno;
  }
}

}  // namespace
}  // namespace ckfs
