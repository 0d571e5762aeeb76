// Requests of the kernel, made by hand and answered over a socket in the place of /dev/fuse.
#include "fuse/operations.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/fuse.h>
#include <new>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>
#include <sstream>
#include <sys/socket.h>
#include <sys/uio.h>

#include "base/load_le.h"
#include "base/unique_fd.h"
#include "base/units.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::HasSubstr;

/// What came back for one request.
struct Reply {
  int count = 0;  // of answers
  int error = 0;
  std::string body;

  template <typename T>
  T as() const {
    T value{};
    std::memcpy(&value, body.data(), std::min(sizeof value, body.size()));
    return value;
  }
};

class Operations : public testing::Test {
 protected:
  void SetUp() override {
    std::string header = R"({"w":{"dtype":"BF16","shape":[8],"data_offsets":[0,16]}})";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string file(8, '\0');
    store_le(std::as_writable_bytes(std::span(file)), std::uint64_t{header.size()});
    directory_.write("model.safetensors", file + header + std::string(16, 'b'));
    directory_.write("config.json", R"({"torch_dtype":"bfloat16"})");
    Result<Checkpoint> opened = Checkpoint::open(directory_.path(), {.use = {.memory = 64_MiB}});
    ASSERT_TRUE(opened.has_value()) << opened.error().message();
    filesystem_ = std::make_unique<Filesystem>(std::move(*opened), FilesystemOptions{});
    served_ = std::make_unique<Served>(
        Served{.filesystem = *filesystem_, .forget_name = [this](std::string name) {
                 forgotten_.push_back(std::move(name));
                 if (no_memory_) throw std::bad_alloc();
               }});

    std::array<int, 2> ends{};
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    kernel_ = UniqueFd(ends[0]);
    std::string program = "ckfs";
    std::array<char*, 2> arguments = {program.data(), nullptr};
    fuse_args args = FUSE_ARGS_INIT(1, arguments.data());
    const fuse_lowlevel_ops operations = make_operations();
    session_.reset(::fuse_session_new(&args, &operations, sizeof operations, served_.get()));
    ::fuse_opt_free_args(&args);
    ASSERT_TRUE(session_);
    fuse_custom_io io{};
    io.writev = [](int fd, iovec* parts, int count, void*) { return ::writev(fd, parts, count); };
    io.read = [](int fd, void* buffer, std::size_t size, void*) {
      return ::read(fd, buffer, size);
    };
    ASSERT_EQ(::fuse_session_custom_io(session_.get(), &io, ends[1]), 0);
    fuse_init_in init{};
    init.major = FUSE_KERNEL_VERSION;
    init.minor = FUSE_KERNEL_MINOR_VERSION;
    init.max_readahead = 1_MiB;
    ASSERT_EQ(send(FUSE_INIT, 0, bytes_of(init)).count, 1);
  }

  template <typename T>
  static std::string bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }

  Reply send(fuse_opcode opcode, std::uint64_t inode, const std::string& body) {
    fuse_in_header header{};
    header.len = static_cast<std::uint32_t>(sizeof header + body.size());
    header.opcode = opcode;
    header.unique = ++unique_;
    header.nodeid = inode;
    const std::string message = bytes_of(header) + body;
    EXPECT_EQ(::write(kernel_.get(), message.data(), message.size()),
              static_cast<ssize_t>(message.size()));
    fuse_buf buffer{};
    EXPECT_GT(::fuse_session_receive_buf(session_.get(), &buffer), 0);
    ::fuse_session_process_buf(session_.get(), &buffer);
    std::free(buffer.mem);

    Reply reply;
    std::vector<char> answer(64_KiB);
    for (;;) {
      const ssize_t got = ::recv(kernel_.get(), answer.data(), answer.size(), MSG_DONTWAIT);
      if (got < 0) break;
      ++reply.count;
      fuse_out_header out{};
      std::memcpy(&out, answer.data(), sizeof out);
      EXPECT_EQ(out.unique, unique_);
      reply.error = -out.error;
      reply.body.assign(answer.data() + sizeof out, static_cast<std::size_t>(got) - sizeof out);
    }
    return reply;
  }

  Reply lookup(std::uint64_t parent, const std::string& name) {
    return send(FUSE_LOOKUP, parent, name + '\0');
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Filesystem> filesystem_;
  std::vector<std::string> forgotten_;
  bool no_memory_ = false;
  std::unique_ptr<Served> served_;
  UniqueFd kernel_;
  std::unique_ptr<fuse_session, decltype([](fuse_session* it) { ::fuse_session_destroy(it); })>
      session_;
  std::uint64_t unique_ = 0;
};

/// The log of a scope, at level debug.
class Log {
 public:
  Log() {
    auto logger = std::make_shared<spdlog::logger>(
        "test", std::make_shared<spdlog::sinks::ostream_sink_mt>(text_));
    logger->set_level(spdlog::level::debug);
    spdlog::set_default_logger(std::move(logger));
  }
  ~Log() { spdlog::set_default_logger(before_); }
  std::string text() const { return text_.str(); }

 private:
  std::ostringstream text_;
  std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(Operations, LogEachRequestAtLevelDebug) {
  const Log log;
  const auto view = lookup(FUSE_ROOT_ID, "fp32-safetensors").as<fuse_entry_out>();
  const auto file = lookup(view.nodeid, "model.safetensors").as<fuse_entry_out>();
  ASSERT_GT(file.nodeid, 1U);
  EXPECT_EQ(send(FUSE_GETATTR, file.nodeid, bytes_of(fuse_getattr_in{})).error, 0);
  const Reply opened = send(FUSE_OPEN, file.nodeid, bytes_of(fuse_open_in{}));
  ASSERT_EQ(opened.error, 0);
  fuse_read_in read{};
  read.fh = opened.as<fuse_open_out>().fh;
  read.offset = 4;
  read.size = 12;
  EXPECT_EQ(send(FUSE_READ, file.nodeid, bytes_of(read)).body.size(), 12U);
  fuse_release_in release{};
  release.fh = read.fh;
  EXPECT_EQ(send(FUSE_RELEASE, file.nodeid, bytes_of(release)).error, 0);
  EXPECT_EQ(send(FUSE_OPENDIR, view.nodeid, bytes_of(fuse_open_in{})).error, 0);
  read.offset = 0;
  read.size = 4096;
  EXPECT_EQ(send(FUSE_READDIR, view.nodeid, bytes_of(read)).error, 0);
  EXPECT_EQ(send(FUSE_READDIRPLUS, view.nodeid, bytes_of(read)).error, 0);
  EXPECT_EQ(send(FUSE_RELEASEDIR, view.nodeid, bytes_of(release)).error, 0);
  EXPECT_EQ(send(FUSE_STATFS, view.nodeid, "").error, 0);
  EXPECT_EQ(send(FUSE_UNLINK, view.nodeid, std::string("config.json") + char{}).error, EROFS);
  for (const char* const line :
       {"lookup inode 1: \"fp32-safetensors\"", "getattr inode", "open inode", ": 12 bytes at 4",
        "release inode", "opendir inode", "readdir inode", "readdirplus inode", "releasedir inode",
        "statfs inode", "unlink: refused"}) {
    EXPECT_THAT(log.text(), HasSubstr(line));
  }
}

TEST_F(Operations, AnswerOnceAlsoWhereMemoryIsShort) {
  no_memory_ = true;
  // More parameterised views than are held: the kernel is asked to forget some, in vain.
  for (int size = 1; size <= 80; ++size) {
    const Reply reply = lookup(FUSE_ROOT_ID, fmt::format("bf16-safetensors@max_shard={}MB", size));
    ASSERT_EQ(reply.count, 1) << size;
    ASSERT_EQ(reply.error, 0) << size;
  }
  EXPECT_FALSE(forgotten_.empty());
}

TEST_F(Operations, AnswerErrorsByTheirNumber) {
  EXPECT_EQ(lookup(FUSE_ROOT_ID, "no-such-view").as<fuse_entry_out>().nodeid, 0U);
  const auto view = lookup(FUSE_ROOT_ID, "source").as<fuse_entry_out>();
  EXPECT_EQ(send(FUSE_OPEN, view.nodeid, bytes_of(fuse_open_in{})).error, EISDIR);
  fuse_open_in writing{};
  writing.flags = O_WRONLY;
  EXPECT_EQ(send(FUSE_OPEN, view.nodeid, bytes_of(writing)).error, EROFS);
  EXPECT_EQ(send(FUSE_READ, view.nodeid, bytes_of(fuse_read_in{})).error, EBADF);
}

}  // namespace
}  // namespace ckfs
