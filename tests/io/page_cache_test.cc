// On a real file of the disk that the build lies on (not tmpfs, which is nothing but page cache):
// what is in the page cache is asked of the kernel.
#include "io/page_cache.h"

#include <chrono>
#include <fcntl.h>
#include <filesystem>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <thread>
#include <unistd.h>
#include <vector>

#include "base/error.h"
#include "base/unique_fd.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using ::testing::IsEmpty;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kCachedBytes = 1024 * kPage + 100;

class PageCacheTest : public testing::Test {
 protected:
  PageCacheTest()
      : path_(directory_.write("a.bin", std::vector<std::byte>(kCachedBytes, std::byte{7}))),
        fd_(::open(path_.c_str(), O_RDONLY | O_CLOEXEC)) {
    CKFS_CHECK(::fsync(fd_.get()) == 0);
    empty();
  }

  void empty() const { page_cache::drop(fd_.get(), {0, kCachedBytes}, kCachedBytes); }
  std::uint64_t cached(ByteRange range) const {
    return page_cache::cached_pages(fd_.get(), range).value();
  }
  /// What is left to ask for behind a hint that names these pages, once they are there: it returns
  /// earlier, and is given again where some were taken away meanwhile.
  std::vector<ByteRange> hint_and_wait(ByteRange range, std::uint64_t pages) const {
    std::vector<ByteRange> left;
    for (int attempt = 0; attempt < 10; ++attempt) {
      page_cache::will_need(fd_.get(), range, 128 << 10);
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(2);
      while (cached(range) < pages && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::yield();
      }
      left = page_cache::will_need(fd_.get(), range, 128 << 10);
      if (left.empty()) break;
    }
    return left;
  }

  const TemporaryDirectory directory_{std::filesystem::current_path()};
  const std::filesystem::path path_;
  const UniqueFd fd_;
};

TEST_F(PageCacheTest, GrowsRangesToPagesAndNoFurtherThanTheFile) {
  EXPECT_EQ(page_cache::whole_pages({1, 2}, kCachedBytes), (ByteRange{0, kPage}));
  EXPECT_EQ(page_cache::whole_pages({kPage, 2 * kPage}, kCachedBytes),
            (ByteRange{kPage, 2 * kPage}));
  EXPECT_EQ(page_cache::whole_pages({kCachedBytes - 1, kCachedBytes}, kCachedBytes),
            (ByteRange{1024 * kPage, kCachedBytes}));
  EXPECT_TRUE(page_cache::whole_pages({5, 5}, kCachedBytes).empty());
}

TEST_F(PageCacheTest, AHintBringsInWhatItNamesAndNoMore) {
  page_cache::expect_exact_reads(fd_.get());
  const ByteRange range{100 * kPage, 600 * kPage};
  EXPECT_THAT(hint_and_wait(range, 500), IsEmpty());
  EXPECT_EQ(cached({0, kCachedBytes}), 500u);
}

TEST(HintedRanges, KnowWhatWasAddedUntilItIsTaken) {
  page_cache::HintedRanges hinted;
  hinted.add({{100, 200}, {200, 300}});
  EXPECT_TRUE(hinted.has({299, 400}));
  EXPECT_FALSE(hinted.has({300, 400}));
  EXPECT_FALSE(hinted.take({150, 250}).empty());
  EXPECT_FALSE(hinted.has({150, 250}));
  EXPECT_TRUE(hinted.has({100, 250}));
  EXPECT_TRUE(hinted.take({150, 250}).empty());
}

TEST_F(PageCacheTest, HintsAreCutToWhatTheKernelTakes) {
  const auto pieces = page_cache::will_need(fd_.get(), {kPage, 100 * kPage}, 128 << 10);
  ASSERT_EQ(pieces.size(), 4u);
  EXPECT_EQ(pieces.front(), (ByteRange{kPage, 32 * kPage}));
  EXPECT_EQ(pieces.back(), (ByteRange{96 * kPage, 100 * kPage}));
}

TEST_F(PageCacheTest, WhatIsCachedIsNotAskedForAgain) {
  EXPECT_THAT(hint_and_wait({0, 64 * kPage}, 64), IsEmpty());
}

TEST_F(PageCacheTest, AHintOnWhatIsNoFileIsNoMatter) {
  page_cache::will_need(-1, {0, kCachedBytes}, 128 << 10);
  page_cache::expect_exact_reads(-1);
  page_cache::drop(-1, {0, kCachedBytes}, kCachedBytes);
  EXPECT_FALSE(page_cache::cached_pages(-1, {0, kCachedBytes}));
  EXPECT_FALSE(page_cache::has_cached_page(-1, {0, kCachedBytes}));
}

TEST_F(PageCacheTest, ExactReadsBringInTheirPagesOnly) {
  page_cache::expect_exact_reads(fd_.get());
  std::vector<std::byte> out(3 * kPage);
  ASSERT_EQ(::pread(fd_.get(), out.data(), out.size(), 500 * kPage), std::ssize(out));
  EXPECT_EQ(cached({0, kCachedBytes}), 3u);
}

TEST_F(PageCacheTest, ARangeIsCachedOnlyAsAWhole) {
  std::vector<std::byte> out(3 * kPage);
  page_cache::expect_exact_reads(fd_.get());
  ASSERT_EQ(::pread(fd_.get(), out.data(), out.size(), 500 * kPage), std::ssize(out));
  EXPECT_TRUE(page_cache::is_cached(fd_.get(), {500 * kPage + 1, 503 * kPage - 1}, false));
  EXPECT_FALSE(page_cache::is_cached(fd_.get(), {500 * kPage, 503 * kPage + 1}, true));
  EXPECT_TRUE(page_cache::is_cached(-1, {0, kCachedBytes}, true));
  EXPECT_FALSE(page_cache::is_cached(-1, {0, kCachedBytes}, false));
  page_cache::expect_reads_in_order(fd_.get());
}

TEST_F(PageCacheTest, DroppingLeavesThePageThatTheNextReaderFinishes) {
  std::vector<std::byte> out(kCachedBytes);
  ASSERT_EQ(::pread(fd_.get(), out.data(), kCachedBytes, 0), std::ssize(out));
  page_cache::drop(fd_.get(), {kPage / 2, 1000 * kPage + 1}, kCachedBytes);
  EXPECT_EQ(cached({0, kCachedBytes}), 25u);
  page_cache::drop(fd_.get(), {1000 * kPage + 1, kCachedBytes}, kCachedBytes);
  EXPECT_EQ(cached({0, kCachedBytes}), 0u);
}

TEST(HintedRanges, AreTakenOnce) {
  page_cache::HintedRanges hinted;
  hinted.add({{0, 100}, {100, 200}, {300, 400}});
  EXPECT_TRUE(hinted.take({200, 300}).empty());
  EXPECT_FALSE(hinted.take({50, 150}).empty());
  EXPECT_TRUE(hinted.take({50, 150}).empty());
  EXPECT_FALSE(hinted.take({0, 1000}).empty());
  EXPECT_TRUE(hinted.take({0, 1000}).empty());
}

TEST(HintedRanges, TheOldestAreForgotten) {
  page_cache::HintedRanges hinted;
  for (std::uint64_t k = 0; k < 1000; ++k) hinted.add({{k * 10, k * 10 + 5}});
  EXPECT_TRUE(hinted.take({0, 5}).empty());
  EXPECT_FALSE(hinted.take({9990, 9995}).empty());
}

}  // namespace
}  // namespace ckfs
