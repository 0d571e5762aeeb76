// Memory that ends in the middle: no read is in flight any more, and no mapping is left.
#include <algorithm>
#include <fcntl.h>
#include <fstream>
#include <gtest/gtest.h>

#include "base/unique_fd.h"
#include "io/file_mappings.h"
#include "io/reader.h"
#include "support/failing_heap.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

constexpr std::uint64_t kSourceBytes = 1 << 20;

class OutOfMemoryTest : public testing::Test {
 protected:
  const TemporaryDirectory directory_{std::filesystem::current_path()};
  const std::filesystem::path path_ =
      directory_.write("a.bin", std::vector<std::byte>(kSourceBytes, std::byte{3}));
  const UniqueFd fd_{::open(path_.c_str(), O_RDONLY | O_CLOEXEC)};

  int mappings() const {
    std::ifstream maps("/proc/self/maps");
    int found = 0;
    for (std::string line; std::getline(maps, line);) found += line.ends_with("/a.bin") ? 1 : 0;
    return found;
  }
};

TEST_F(OutOfMemoryTest, NoMappingIsLeft) {
  CKFS_NEEDS_FAILING_HEAP();
  const long failed = failing_heap::fail_each([&] { FileMapping::make(fd_.get(), kSourceBytes); },
                                              [&] { EXPECT_EQ(mappings(), 0); });
  EXPECT_GE(failed, 2);
}

TEST_F(OutOfMemoryTest, AFileThatCannotBeMappedTakesNone) {
  CKFS_NEEDS_FAILING_HEAP();
  failing_heap::failed = false;
  failing_heap::left = 0;
  // A table of its regions would be 16 GiB.
  const bool made = FileMapping::make(fd_.get(), std::uint64_t{1} << 56) != nullptr;
  failing_heap::left = -1;
  EXPECT_FALSE(made);
  EXPECT_FALSE(failing_heap::failed);
}

TEST_F(OutOfMemoryTest, NoReadOfAFailedBatchIsInFlight) {
  CKFS_NEEDS_FAILING_HEAP();
  // Each answer is short, so all of them are asked again for the rest.
  const auto reader =
      make_uring_reader(4, [](std::int64_t result) { return std::min<std::int64_t>(result, 100); });
  ASSERT_TRUE(reader) << reader.error().message();
  std::vector<std::byte> out(8 * 300);
  std::vector<iovec> parts;
  std::vector<Access> accesses;
  for (std::size_t i = 0; i < 8; ++i) parts.push_back({&out[i * 300], 300});
  for (std::size_t i = 0; i < 8; ++i) {
    accesses.push_back({.fd = fd_.get(),
                        .offset = i * 1000,
                        .size = 300,
                        .parts = std::span(parts).subspan(i, 1)});
  }
  const long failed = failing_heap::fail_each(
      [&] {
        if (const auto done = (*reader)->read(accesses); !done) {
          EXPECT_EQ(done.error().error, ENOMEM);
        }
      },
      [&] {
        // What a read wrote afterwards would be seen here.
        std::ranges::fill(out, std::byte{0});
        EXPECT_EQ(std::ranges::count(out, std::byte{0}), std::ssize(out));
        EXPECT_TRUE((*reader)->read(accesses));
        EXPECT_EQ(std::ranges::count(out, std::byte{3}), std::ssize(out));
      });
  EXPECT_GE(failed, 2);
}

TEST_F(OutOfMemoryTest, NoReadIsLeftBehindWhereAnOpeningCannotBeRemembered) {
  CKFS_NEEDS_FAILING_HEAP();
  const auto reader = make_uring_reader(4);
  ASSERT_TRUE(reader) << reader.error().message();
  std::vector<std::byte> out(8 * 300);
  std::vector<iovec> parts;
  for (std::size_t i = 0; i < 8; ++i) parts.push_back({&out[i * 300], 300});
  std::vector<Access> accesses(8);
  std::uint64_t serial = 0;
  const auto read = [&] {
    // As of files that were all opened anew.
    for (std::size_t i = 0; i < 8; ++i) {
      accesses[i] = {.fd = fd_.get(),
                     .serial = ++serial,
                     .offset = i * 1000,
                     .size = 300,
                     .parts = std::span(parts).subspan(i, 1)};
    }
    return (*reader)->read(accesses);
  };
  ASSERT_TRUE(read());
  const long failed =
      failing_heap::fail_each([&] { EXPECT_TRUE(read()); },
                              [&] {
                                std::ranges::fill(out, std::byte{0});
                                EXPECT_TRUE(read());
                                EXPECT_EQ(std::ranges::count(out, std::byte{3}), std::ssize(out));
                              });
  EXPECT_GE(failed, 8);
}

}  // namespace
}  // namespace ckfs
