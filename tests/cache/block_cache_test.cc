#include "cache/block_cache.h"

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fcntl.h>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/stat.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

#include "base/units.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using Bytes = std::vector<std::byte>;

/// The bytes of an object: others in each cell, for each seed.
Bytes content(std::uint64_t size, unsigned seed) {
  std::mt19937_64 random(seed);
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

/// Bytes of disk that the files below a directory have, but those of no source.
std::uint64_t disk_of(const stdfs::path& directory) {
  std::uint64_t sum = 0;
  std::error_code gone;  // others remove files at the same time
  for (stdfs::recursive_directory_iterator at(directory, gone), end; !gone && at != end;
       at.increment(gone)) {
    struct stat status{};
    if (::lstat(at->path().c_str(), &status) != 0 || !S_ISREG(status.st_mode)) continue;
    if (at->path().filename().native().size() > 16) {
      sum += static_cast<std::uint64_t>(status.st_blocks) * 512;
    }
  }
  return sum;
}

std::vector<stdfs::path> blocks_in(const stdfs::path& directory) {
  std::vector<stdfs::path> blocks;
  for (const auto& entry : stdfs::recursive_directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.size() > 17 && name[16] == '-') blocks.push_back(entry.path());
  }
  return blocks;
}

class BlockCacheTest : public testing::Test {
 protected:
  stdfs::path directory() const { return parent_ / "cache"; }

  std::unique_ptr<BlockCache> open(CacheOptions options = {}) {
    if (!options.keep_free) options.keep_free = 0;
    auto opened = BlockCache::open(directory(), std::move(options));
    if (!opened) ADD_FAILURE() << opened.error().message();
    return opened ? std::move(*opened) : nullptr;
  }

  static BlockCache::Source source(BlockCache& cache, std::string_view name = "hf://o/r") {
    auto made = cache.source(name);
    if (!made) ADD_FAILURE() << made.error().message();
    return made ? std::move(*made) : BlockCache::Source{};
  }

  TemporaryDirectory parent_;
};

/// All of an object that is there is right; returns the ranges that are not there.
std::vector<ByteRange> check(BlockCache& cache, const BlockCache::Source& source,
                             const CacheObject& object, const Bytes& bytes, ByteRange range) {
  Bytes out(range.size(), std::byte{0xEE});
  std::vector<ByteRange> missing = cache.get(source, object, range.begin, out);
  std::uint64_t at = range.begin;
  const auto compare = [&](std::uint64_t end) {
    EXPECT_TRUE(std::equal(out.begin() + static_cast<std::ptrdiff_t>(at - range.begin),
                           out.begin() + static_cast<std::ptrdiff_t>(end - range.begin),
                           bytes.begin() + static_cast<std::ptrdiff_t>(at)))
        << object.name << ": wrong bytes in " << fmt::format("{}", ByteRange{at, end});
  };
  for (const ByteRange each : missing) {
    EXPECT_LT(each.begin, each.end);
    compare(each.begin);
    at = each.end;
  }
  compare(range.end);
  return missing;
}

TEST_F(BlockCacheTest, GivesTheBytesThatWerePut) {
  const CacheObject object{"model.safetensors", "v1", 2 * kCacheBlock + 3 * kCacheCell + 77};
  const Bytes bytes = content(object.size, 1);
  {
    const auto cache = open();
    const auto place = source(*cache);
    EXPECT_THAT(check(*cache, place, object, bytes, {0, object.size}),
                ElementsAre(ByteRange{0, object.size}));
    cache->put(place, object, 0, bytes);
    EXPECT_EQ(cache->statistics().kept, object.size);
    EXPECT_EQ(cache->statistics().missed, object.size);
  }
  // Another mount.
  const auto cache = open();
  const auto place = source(*cache);
  for (const ByteRange range :
       {ByteRange{0, object.size}, ByteRange{5, 6}, ByteRange{kCacheCell - 1, kCacheCell + 1},
        ByteRange{kCacheBlock - 1, kCacheBlock + 1},
        ByteRange{kCacheBlock + 3, 2 * kCacheBlock + 9}, ByteRange{object.size - 1, object.size},
        ByteRange{object.size, object.size}}) {
    EXPECT_THAT(check(*cache, place, object, bytes, range), IsEmpty()) << fmt::format("{}", range);
  }
  EXPECT_EQ(cache->statistics().missed, 0u);
}

TEST_F(BlockCacheTest, KeepsWholeCellsAndSaysWhatIsMissing) {
  const CacheObject object{"a", "v", 10 * kCacheCell + 5};
  const Bytes bytes = content(object.size, 2);
  const auto cache = open();
  const auto place = source(*cache);
  const auto put = [&](std::uint64_t begin, std::uint64_t end) {
    cache->put(place, object, begin, std::span(bytes).subspan(begin, end - begin));
  };
  put(kCacheCell - 1, 3 * kCacheCell + 1);      // cells 1 and 2
  put(2 * kCacheCell, 4 * kCacheCell);          // 3, and 2 again
  put(10 * kCacheCell, object.size);            // the last, which is short
  put(6 * kCacheCell + 1, 8 * kCacheCell - 1);  // none
  EXPECT_THAT(check(*cache, place, object, bytes, {0, object.size}),
              ElementsAre(ByteRange{0, kCacheCell}, ByteRange{4 * kCacheCell, 10 * kCacheCell}));
  EXPECT_THAT(check(*cache, place, object, bytes, {100, kCacheCell + 5}),
              ElementsAre(ByteRange{100, kCacheCell}));
}

TEST_F(BlockCacheTest, WidensRangesToCells) {
  EXPECT_EQ(BlockCache::widened({0, 0}, 100), (ByteRange{0, 0}));
  EXPECT_EQ(BlockCache::widened({5, 6}, 100), (ByteRange{0, 100}));
  EXPECT_EQ(BlockCache::widened({kCacheCell, 2 * kCacheCell}, 3 * kCacheCell),
            (ByteRange{kCacheCell, 2 * kCacheCell}));
  EXPECT_EQ(BlockCache::widened({kCacheCell - 1, kCacheCell + 1}, 3 * kCacheCell),
            (ByteRange{0, 2 * kCacheCell}));
  const std::uint64_t most = ~std::uint64_t{0};
  EXPECT_EQ(BlockCache::widened({most - 1, most}, most),
            (ByteRange{most / kCacheCell * kCacheCell, most}));
}

TEST_F(BlockCacheTest, AnotherVersionIsAnotherObject) {
  const Bytes bytes = content(100, 3);
  const auto cache = open();
  const auto place = source(*cache);
  const auto other_place = source(*cache, "hf://o/other");
  const CacheObject object{"a", "1", 100};
  cache->put(place, object, 0, bytes);
  for (const CacheObject& other :
       {CacheObject{"a", "2", 100}, CacheObject{"b", "1", 100}, CacheObject{"a", "1", 101},
        CacheObject{"a1", "", 100}, CacheObject{"", "a1", 100}}) {
    EXPECT_THAT(check(*cache, place, other, bytes, {0, 100}), ElementsAre(ByteRange{0, 100}));
  }
  EXPECT_THAT(check(*cache, other_place, object, bytes, {0, 100}), ElementsAre(ByteRange{0, 100}));
  EXPECT_THAT(check(*cache, place, object, bytes, {0, 100}), IsEmpty());
}

TEST_F(BlockCacheTest, ANameThatIsTooLongIsNotKept) {
  const CacheObject object{std::string(kLongestBlockText, 'x'), "1", 100};
  const Bytes bytes = content(100, 3);
  const auto cache = open();
  const auto place = source(*cache);
  cache->put(place, object, 0, bytes);
  EXPECT_THAT(check(*cache, place, object, bytes, {0, 100}), ElementsAre(ByteRange{0, 100}));
}

TEST_F(BlockCacheTest, DamagedBytesAreMissingAndFetchedAgain) {
  const CacheObject object{"a", "v", 3 * kCacheCell};
  const Bytes bytes = content(object.size, 4);
  const auto cache = open();
  const auto place = source(*cache);
  std::vector<std::uint64_t> offsets;
  for (std::uint64_t at = 0; at < 72; ++at) offsets.push_back(at);  // the head and a slot
  for (std::uint64_t at = 72; at < 600; at += 61) offsets.push_back(at);
  for (const std::uint64_t at : {0, 1, 65535, 65536, 150000}) offsets.push_back(kCellsBegin + at);
  for (const std::uint64_t at : offsets) {
    cache->put(place, object, 0, bytes);
    ASSERT_THAT(check(*cache, place, object, bytes, {0, object.size}), IsEmpty()) << at;
    ASSERT_EQ(blocks_in(directory()).size(), 1u);
    std::fstream file(blocks_in(directory())[0], std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(at));
    const auto byte = static_cast<char>(file.get() ^ 0x10);
    file.seekp(static_cast<std::streamoff>(at));
    file.put(byte);
    file.close();
    const auto missing = check(*cache, place, object, bytes, {0, object.size});
    if (at >= kCellsBegin) {
      const std::uint64_t cell = (at - kCellsBegin) / kCacheCell * kCacheCell;
      EXPECT_THAT(missing, ElementsAre(ByteRange{cell, cell + kCacheCell}));
    }
  }
}

TEST_F(BlockCacheTest, AFileThatWasCutIsMissingFromThere) {
  const CacheObject object{"a", "v", 3 * kCacheCell};
  const Bytes bytes = content(object.size, 5);
  const auto cache = open();
  const auto place = source(*cache);
  for (const std::uint64_t size : {0, 1, 63, 64, 600, 4095, 4096, 4097, 4096 + 65536, 100'000}) {
    cache->put(place, object, 0, bytes);
    ASSERT_THAT(check(*cache, place, object, bytes, {0, object.size}), IsEmpty());
    const stdfs::path file = blocks_in(directory()).at(0);
    const auto whole = stdfs::file_size(file);
    stdfs::resize_file(file, size);
    EXPECT_FALSE(check(*cache, place, object, bytes, {0, object.size}).empty());
    cache->put(place, object, 0, bytes);
    // A hole in the place of the bytes.
    stdfs::resize_file(file, size);
    if (stdfs::exists(file)) stdfs::resize_file(file, whole);
    EXPECT_FALSE(check(*cache, place, object, bytes, {0, object.size}).empty());
  }
}

// ---- Limits

TEST_F(BlockCacheTest, TheSizeIsKeptBeforeBytesAreWritten) {
  constexpr std::uint64_t kLimit = 4_MiB;
  std::uint64_t most = 0;
  CacheOptions options{.size = kLimit, .touch_after = std::chrono::seconds(0)};
  options.system.fault = [&] {  // at each change
    most = std::max(most, disk_of(directory()));
    return 0;
  };
  const auto cache = open(options);
  const auto place = source(*cache);
  const Bytes bytes = content(1_MiB, 6);
  for (int i = 0; i < 20; ++i) {
    const CacheObject object{fmt::format("object {}", i), "v", bytes.size()};
    cache->put(place, object, 0, bytes);
    EXPECT_THAT(check(*cache, place, object, bytes, {0, bytes.size()}), IsEmpty()) << i;
  }
  EXPECT_GT(most, kLimit / 2);
  EXPECT_LE(most, kLimit);
  EXPECT_GT(cache->statistics().evicted, 10_MiB);
  EXPECT_EQ(cache->statistics().refused, 0u);
}

TEST_F(BlockCacheTest, TheOnesUsedLongestAgoMakeRoom) {
  const auto cache = open({.size = 4_MiB, .touch_after = std::chrono::seconds(100)});
  const auto place = source(*cache);
  const Bytes bytes = content(900_KiB, 7);
  const auto object = [&](int i) { return CacheObject{std::to_string(i), "v", bytes.size()}; };
  std::vector<stdfs::path> files;
  for (int i = 0; i < 4; ++i) {
    cache->put(place, object(i), 0, bytes);
    for (const stdfs::path& file : blocks_in(directory())) {
      if (std::ranges::find(files, file) == files.end()) files.push_back(file);
    }
    ASSERT_EQ(files.size(), static_cast<std::size_t>(i + 1));
  }
  for (std::size_t i = 0; i < 4; ++i) {
    stdfs::last_write_time(
        files[i], stdfs::file_time_type::clock::now() - std::chrono::seconds(1000 - 100 * i));
  }
  check(*cache, place, object(0), bytes, {0, 1});  // used again
  cache->put(place, object(4), 0, bytes);
  EXPECT_TRUE(stdfs::exists(files[0]));
  EXPECT_FALSE(stdfs::exists(files[1]));
  EXPECT_TRUE(stdfs::exists(files[3]));
  EXPECT_THAT(check(*cache, place, object(4), bytes, {0, bytes.size()}), IsEmpty());
}

TEST_F(BlockCacheTest, ABlockLargerThanAllIsNotKept) {
  const auto cache = open({.size = 1_MiB});
  const auto place = source(*cache);
  const Bytes bytes = content(2_MiB, 8);
  const CacheObject object{"a", "v", bytes.size()};
  cache->put(place, object, 0, bytes);
  EXPECT_EQ(cache->statistics().refused, bytes.size());
  EXPECT_EQ(disk_of(directory()), 0u);
}

TEST_F(BlockCacheTest, TheDiskKeepsItsFreeSpace) {
  std::uint64_t of_others = 0;
  CacheOptions options{.keep_free = 10_MiB};
  options.system.free_bytes = [&] {
    const std::uint64_t used = of_others + disk_of(directory());
    return used > 20_MiB ? 0 : 20_MiB - used;
  };
  const auto cache = open(options);
  const auto place = source(*cache);
  const Bytes bytes = content(1_MiB, 9);
  for (int i = 0; i < 30; ++i) {
    const CacheObject object{std::to_string(i), "v", bytes.size()};
    cache->put(place, object, 0, bytes);
    EXPECT_THAT(check(*cache, place, object, bytes, {0, bytes.size()}), IsEmpty()) << i;
    EXPECT_LE(disk_of(directory()), 10_MiB);
  }
  EXPECT_GT(disk_of(directory()), 5_MiB);
  // Others fill the disk: the cache gives way, and what cannot be kept is no error.
  of_others = 19_MiB;
  cache->put(place, {"more", "v", bytes.size()}, 0, bytes);
  EXPECT_EQ(disk_of(directory()), 0u);
  EXPECT_EQ(cache->statistics().refused, bytes.size());
}

TEST_F(BlockCacheTest, ATwentiethOfTheDiskStaysFree) {
  CacheOptions options;
  options.system.free_bytes = [] { return 5_MiB + 1; };
  options.system.disk_bytes = [] { return 100_MiB; };
  auto cache = *BlockCache::open(directory(), options);
  const auto place = source(*cache);
  const Bytes bytes = content(1_MiB, 10);
  cache->put(place, {"a", "v", bytes.size()}, 0, bytes);
  EXPECT_EQ(cache->statistics().refused, bytes.size());
}

TEST_F(BlockCacheTest, ACountThatCannotBeReadIsMadeAgain) {
  const Bytes bytes = content(1_MiB, 11);
  for (int i = 0; i < 12; ++i) {
    const auto cache = open({.size = 4_MiB});
    const auto place = source(*cache);
    if (i % 3 == 0) stdfs::resize_file(directory() / "v1/lock", 0);
    if (i % 3 == 1) std::ofstream(directory() / "v1/lock") << std::string(32, 'x');
    cache->put(place, {std::to_string(i), "v", bytes.size()}, 0, bytes);
    EXPECT_LE(disk_of(directory()), 4_MiB);
  }
  EXPECT_GT(disk_of(directory()), 2_MiB);
}

// ---- Faults

/// A session of a mount, in which room must be made.
void use(BlockCache& cache, const BlockCache::Source& place, const std::vector<Bytes>& contents) {
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const CacheObject object{std::to_string(i), "v", contents[i].size()};
    check(cache, place, object, contents[i], {0, contents[i].size()});
    cache.put(place, object, 0, contents[i]);
    check(cache, place, object, contents[i], {1, contents[i].size()});
    cache.put_text(place, "listing", std::to_string(i) + std::string(1000, 'x'));
  }
}

std::vector<Bytes> some_contents() {
  std::vector<Bytes> contents;
  for (unsigned i = 0; i < 4; ++i) contents.push_back(content(2 * kCacheCell + i, 20 + i));
  return contents;
}
constexpr std::uint64_t kSmallLimit = 6 * kCacheCell;

/// Whatever has happened: bytes are right or missing, the limit is kept, and all works.
void check_after_faults(const stdfs::path& directory, const std::vector<Bytes>& contents) {
  auto cache = BlockCache::open(directory, {.size = kSmallLimit, .keep_free = 0});
  ASSERT_TRUE(cache) << cache.error().message();
  auto place = (*cache)->source("hf://o/r");
  ASSERT_TRUE(place) << place.error().message();
  for (std::size_t i = 0; i < contents.size(); ++i) {
    check(**cache, *place, {std::to_string(i), "v", contents[i].size()}, contents[i],
          {0, contents[i].size()});
  }
  const auto text = (*cache)->get_text(*place, "listing");
  if (text) {
    EXPECT_EQ(text->substr(1), std::string(1000, 'x'));
  }
  EXPECT_LE(disk_of(directory), kSmallLimit);
  for (std::size_t i = 0; i < contents.size(); ++i) {
    const CacheObject object{std::to_string(i), "v", contents[i].size()};
    (*cache)->put(*place, object, 0, contents[i]);
    EXPECT_THAT(check(**cache, *place, object, contents[i], {0, contents[i].size()}), IsEmpty());
    EXPECT_LE(disk_of(directory), kSmallLimit);
  }
}

TEST_F(BlockCacheTest, AFaultAtAnyCallMeansFewerBlocks) {
  const auto contents = some_contents();
  for (int fails_at = 0;; ++fails_at) {
    SCOPED_TRACE(fails_at);
    stdfs::remove_all(directory());
    int calls = 0;
    CacheOptions options{.size = kSmallLimit, .touch_after = std::chrono::seconds(0)};
    options.system.fault = [&] { return calls++ == fails_at ? EIO : 0; };
    const auto cache = open(options);
    auto place = cache->source("hf://o/r");
    if (!place) place = cache->source("hf://o/r");
    ASSERT_TRUE(place) << place.error().message();
    use(*cache, *place, contents);
    check_after_faults(directory(), contents);
    if (HasFailure()) return;
    if (calls <= fails_at) {
      EXPECT_GT(fails_at, 60);
      break;
    }
  }
}

TEST_F(BlockCacheTest, ADiskThatIsFullFromACallOnMeansFewerBlocks) {
  const auto contents = some_contents();
  for (int full_from = 0; full_from < 60; full_from += 3) {
    SCOPED_TRACE(full_from);
    stdfs::remove_all(directory());
    int calls = 0;
    bool is_full = false;
    CacheOptions options{.size = kSmallLimit};
    options.system.fault = [&] { return is_full && calls++ >= full_from ? ENOSPC : 0; };
    const auto cache = open(options);
    const auto place = source(*cache);
    is_full = true;
    use(*cache, place, contents);
    check_after_faults(directory(), contents);
  }
}

/// Runs `work` in a process of its own, and says how that ended.
template <typename Work>
pid_t start_process(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(testing::Test::HasFailure() ? 1 : 0);
  }
  return child;
}

int wait_for(pid_t child) {
  int status = 0;
  ::waitpid(child, &status, 0);
  return status;
}

TEST_F(BlockCacheTest, AKillAtAnyCallLeavesNoWrongByte) {
  const auto contents = some_contents();
  // Before the call, and after half of it.
  for (const bool half : {false, true}) {
    for (int killed_at = 0;; ++killed_at) {
      SCOPED_TRACE(fmt::format("killed at call {}, half of it done: {}", killed_at, half));
      stdfs::remove_all(directory());
      const int status = wait_for(start_process([&] {
        int calls = 0;
        CacheOptions options{.size = kSmallLimit, .keep_free = 0};
        options.touch_after = std::chrono::seconds(0);
        options.system.fault = [&] {
          if (calls > killed_at || (calls == killed_at && !half)) ::raise(SIGKILL);
          return calls++ == killed_at ? EIO : 0;
        };
        auto cache = BlockCache::open(directory(), options);
        auto place = (*cache)->source("hf://o/r");
        if (!place) place = (*cache)->source("hf://o/r");
        use(**cache, *place, contents);
      }));
      check_after_faults(directory(), contents);
      if (HasFailure()) return;
      if (!WIFSIGNALED(status)) {
        ASSERT_EQ(status, 0);
        EXPECT_GT(killed_at, 60);
        break;
      }
    }
  }
}

TEST_F(BlockCacheTest, ProcessesShareADirectoryAndAreKilledAtRandom) {
  const auto contents = some_contents();
  const auto work = [&](unsigned seed, int rounds) {
    auto cache = BlockCache::open(directory(), {.size = kSmallLimit, .keep_free = 0});
    auto place = (*cache)->source("hf://o/r");
    std::minstd_rand random(seed);
    for (int round = 0; round < rounds; ++round) {
      const std::size_t i = random() % contents.size();
      const CacheObject object{std::to_string(i), "v", contents[i].size()};
      check(**cache, *place, object, contents[i], {0, contents[i].size()});
      (*cache)->put(*place, object, 0, contents[i]);
    }
  };
  for (unsigned round = 0; round < 15; ++round) {
    std::vector<pid_t> children;
    // The last one ends by itself; the others are killed then, wherever they are.
    for (unsigned i = 0; i < 3; ++i) {
      children.push_back(start_process([&] { work(100 * round + i, i == 2 ? 40 : 1'000'000); }));
    }
    EXPECT_EQ(wait_for(children[2]), 0);
    EXPECT_LE(disk_of(directory()), kSmallLimit);
    for (const unsigned i : {0U, 1U}) {
      ::kill(children[i], SIGKILL);
      const int status = wait_for(children[i]);
      EXPECT_TRUE(WIFSIGNALED(status)) << status;
    }
    check_after_faults(directory(), contents);
  }
}

TEST_F(BlockCacheTest, ThreadsShareIt) {
  const auto contents = some_contents();
  const auto cache = open({.size = kSmallLimit, .touch_after = std::chrono::seconds(0)});
  const auto place = source(*cache);
  std::vector<std::thread> threads;
  for (unsigned number = 0; number < 4; ++number) {
    threads.emplace_back([&, number] {
      for (std::size_t round = 0; round < 30; ++round) {
        const std::size_t i = (round * (number + 1)) % contents.size();
        const CacheObject object{std::to_string(i), "v", contents[i].size()};
        check(*cache, place, object, contents[i], {0, contents[i].size()});
        cache->put(place, object, 0, contents[i]);
        cache->put_text(place, "listing", std::to_string(i));
        cache->get_text(place, "listing");
        if (round % 10 == 9) (void)cache->clear("hf://o/r");
        cache->list();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(disk_of(directory()), kSmallLimit);
  EXPECT_GT(cache->statistics().kept, 0u);
}

TEST_F(BlockCacheTest, AHolderOfTheLockDelaysNoReader) {
  const Bytes bytes = content(kCacheCell, 12);
  const auto cache = open();
  const auto place = source(*cache);
  const CacheObject here{"a", "v", bytes.size()};
  cache->put(place, here, 0, bytes);
  const UniqueFd lock(::open((directory() / "v1/lock").c_str(), O_RDWR | O_CLOEXEC));
  struct flock hold{};
  hold.l_type = F_WRLCK;
  ASSERT_EQ(::fcntl(lock.get(), F_OFD_SETLK, &hold), 0);  // and stops
  EXPECT_THAT(check(*cache, place, here, bytes, {0, bytes.size()}), IsEmpty());
  for (int i = 0; i < 100; ++i) {  // a second for the first, none for the others
    cache->put(place, {std::to_string(i), "v", bytes.size()}, 0, bytes);
  }
  EXPECT_EQ(cache->statistics().refused, 100 * bytes.size());
  EXPECT_FALSE(cache->source("hf://o/other"));
}

// ---- The directory

TEST_F(BlockCacheTest, ADirectoryWhereOthersHaveRightsIsRefused) {
  for (const unsigned mode : {0750U, 0707U, 0701U, 0777U}) {
    stdfs::create_directory(directory());
    ::chmod(directory().c_str(), mode);
    const auto opened = BlockCache::open(directory());
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(opened.error().message(), HasSubstr("chmod 700"));
    EXPECT_THAT(opened.error().message(), HasSubstr(fmt::format("mode {:04o}", mode)));
  }
  ::chmod(directory().c_str(), 0700);
  EXPECT_TRUE(BlockCache::open(directory()));
  ::chmod((directory() / "v1").c_str(), 0755);
  EXPECT_FALSE(BlockCache::open(directory()));
}

TEST_F(BlockCacheTest, ADirectoryOfAnotherUserIsRefused) {
  stdfs::path theirs = "/";
  if (::geteuid() == 0) {
    theirs = directory();
    stdfs::create_directory(theirs);
    ::chmod(theirs.c_str(), 0700);
    ASSERT_EQ(::chown(theirs.c_str(), 12345, 12345), 0);
  }
  const auto opened = BlockCache::open(theirs);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::InvalidArgument);
  EXPECT_THAT(opened.error().message(), HasSubstr("belongs to user"));
}

TEST_F(BlockCacheTest, IsMadeForTheCallerAloneWhateverTheUmask) {
  const mode_t before = ::umask(0);
  const auto cache = *BlockCache::open(parent_ / "a/b/cache", {.keep_free = 0});
  const auto place = source(*cache);
  const Bytes bytes = content(100, 13);
  cache->put(place, {"a", "v", 100}, 0, bytes);
  cache->put_text(place, "key", "text");
  ::umask(before);
  for (const auto& entry : stdfs::recursive_directory_iterator(parent_ / "a")) {
    EXPECT_EQ(entry.status().permissions() & stdfs::perms(077), stdfs::perms::none) << entry.path();
  }
  EXPECT_TRUE(stdfs::exists(parent_ / "a/b/cache/CACHEDIR.TAG"));
}

TEST_F(BlockCacheTest, IsNotMadeToBeLookedAt) {
  const auto opened = BlockCache::open(directory(), {.missing = CacheOptions::Missing::Fail});
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), ErrorCode::NotFound);
  EXPECT_FALSE(stdfs::exists(directory()));
}

TEST_F(BlockCacheTest, ListsAndClearsSources) {
  const auto cache = open();
  const Bytes bytes = content(kCacheCell, 14);
  const CacheObject object{"a", "v", bytes.size()};
  {
    const auto first = source(*cache, "hf://o/first");
    const auto second = source(*cache, "hf://o/second");
    const auto empty = source(*cache, "hf://o/empty");
    cache->put(first, object, 0, bytes);
    cache->put(second, object, 0, bytes);
    cache->put(second, {"b", "v", bytes.size()}, 0, bytes);
    auto listed = cache->list();
    ASSERT_EQ(listed.size(), 2u);
    EXPECT_EQ(listed[0].name, "hf://o/first");
    EXPECT_EQ(listed[1].name, "hf://o/second");
    EXPECT_GE(listed[0].bytes, kCacheCell);
    EXPECT_LE(listed[0].bytes, kCacheCell + 8192);
    EXPECT_EQ(listed[1].bytes, 2 * listed[0].bytes);

    // In use: what is put from now on is kept.
    EXPECT_EQ(*cache->clear("hf://o/second"), listed[1].bytes);
    EXPECT_EQ(cache->list().size(), 1u);
    EXPECT_THAT(check(*cache, second, object, bytes, {0, 1}), ElementsAre(ByteRange{0, 1}));
    cache->put(second, object, 0, bytes);
    EXPECT_EQ(cache->list().size(), 2u);
    EXPECT_THAT(check(*cache, second, object, bytes, {0, 1}), IsEmpty());
  }
  EXPECT_TRUE(cache->clear("hf://o/first"));
  EXPECT_TRUE(cache->clear("hf://o/second"));
  EXPECT_TRUE(cache->clear("hf://o/empty"));
  const auto left = stdfs::directory_iterator(directory() / "v1");
  EXPECT_EQ(std::distance(begin(left), end(left)), 1);  // the lock
  const auto again = cache->clear("hf://o/first");
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().code(), ErrorCode::NotFound);
  EXPECT_TRUE(cache->source("hf://o/first"));
}

TEST_F(BlockCacheTest, KeepsTexts) {
  const auto cache = open();
  const auto place = source(*cache);
  EXPECT_EQ(cache->get_text(place, "a"), std::nullopt);
  cache->put_text(place, "a", "first");
  cache->put_text(place, "b", "");
  cache->put_text(place, "a", "second");
  EXPECT_EQ(cache->get_text(place, "a"), "second");
  EXPECT_EQ(cache->get_text(place, "b"), "");
  const std::string large(3_MiB, 'x');
  cache->put_text(place, "a", large);
  EXPECT_EQ(cache->get_text(place, "a"), large);
  for (const auto& entry : stdfs::recursive_directory_iterator(directory())) {
    if (!entry.path().filename().native().starts_with("text-")) continue;
    stdfs::resize_file(entry.path(), entry.file_size() - 1);
  }
  EXPECT_EQ(cache->get_text(place, "a"), std::nullopt);
}

TEST(DefaultCacheDirectory, IsThatOfXdg) {
  ::setenv("HOME", "/home/user", 1);
  ::setenv("XDG_CACHE_HOME", "/caches", 1);
  EXPECT_EQ(*default_cache_directory(), "/caches/ckfs");
  ::setenv("XDG_CACHE_HOME", "relative", 1);
  EXPECT_EQ(*default_cache_directory(), "/home/user/.cache/ckfs");
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(*default_cache_directory(), "/home/user/.cache/ckfs");
  ::unsetenv("HOME");
  EXPECT_FALSE(default_cache_directory());
}

}  // namespace
}  // namespace ckfs
