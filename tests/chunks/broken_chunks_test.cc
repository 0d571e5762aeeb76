// Frames that lie: each is an error with the array's name, at no more memory than a right one
// costs.
#include <blosc.h>
#include <bzlib.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "base/load_le.h"
#include "base/units.h"
#include "chunks/chunk_source.h"
#include "chunks/encoded.h"
#include "format/crc32c.h"
#include "support/cost_limit.h"
#include "support/heap_meter.h"
#include "support/memory_source.h"

namespace ckfs {
namespace {

using Blob = std::vector<std::byte>;

Blob sample(std::size_t size) {
  Blob bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i % 7 == 0 ? i : 0) + i / 300);
  return bytes;
}

Blob bz2(const Blob& bytes) {
  Blob out(bytes.size() + bytes.size() / 100 + 600);
  auto size = static_cast<unsigned>(out.size());
  BZ2_bzBuffToBuffCompress(reinterpret_cast<char*>(out.data()), &size,
                           reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data())),
                           static_cast<unsigned>(bytes.size()), 9, 0, 0);
  out.resize(size);
  return out;
}

Blob zlib(const Blob& bytes) {
  uLongf size = compressBound(bytes.size());
  Blob out(size);
  compress(reinterpret_cast<Bytef*>(out.data()), &size,
           reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
  out.resize(size);
  return out;
}

Blob blosc(const Blob& bytes) {
  Blob out(bytes.size() + BLOSC_MAX_OVERHEAD);
  out.resize(static_cast<std::size_t>(blosc_compress_ctx(5, 1, 2, bytes.size(), bytes.data(),
                                                         out.data(), out.size(), "lz4", 4096, 1)));
  return out;
}

Blob with(Blob bytes, std::size_t at, std::uint32_t value) {
  store_le(std::span(bytes).subspan(at), value);
  return bytes;
}

Blob first(Blob bytes, std::size_t size) {
  bytes.resize(size);
  return bytes;
}

Blob then(Blob bytes, const Blob& more) {
  bytes.insert(bytes.end(), more.begin(), more.end());
  return bytes;
}

struct Case {
  std::string name;
  std::vector<Codec> codecs;
  Blob stored;
  std::string message;  // a part of it
};

constexpr std::size_t kSize = 20'000;

std::vector<Case> cases() {
  const Blob bytes = sample(kSize);
  const Blob frame = zstd_frame(bytes), deflated = zlib(bytes), blocks = blosc(bytes);
  const Blob sorted = bz2(bytes);
  // Magic, one-byte descriptor (window and content size follow), window 2^31, raw last block.
  Blob window(9);
  store_le(std::span(window), std::uint32_t{0xfd2fb528});
  window[4] = std::byte{0x00};
  window[5] = std::byte{21 << 3};
  window[6] = std::byte{0x01};
  // A content size of 2^62.
  Blob content(17);
  store_le(std::span(content), std::uint32_t{0xfd2fb528});
  content[4] = std::byte{0xe0};
  store_le(std::span(content).subspan(5), std::uint64_t{1} << 62);
  // One segment, whose window is its content.
  Blob claim(9);
  store_le(std::span(claim), std::uint32_t{0xfd2fb528});
  claim[4] = std::byte{0xa0};
  store_le(std::span(claim).subspan(5), std::uint32_t{100} << 20);
  std::vector<Case> list = {
      {"no frame", {Codec::Zstd}, {}, "decodes to 0 bytes, expected 20000"},
      {"no magic", {Codec::Zstd}, with(frame, 0, 0x11223344), "zstd: "},
      {"a part of a header", {Codec::Zstd}, first(frame, 3), "zstd: "},
      {"a window of 2 GiB", {Codec::Zstd}, window, "zstd: a frame's window of 2147483648 bytes"},
      {"a content of 2^62", {Codec::Zstd}, content, "zstd: "},
      {"a frame of fewer bytes",
       {Codec::Zstd},
       zstd_frame(first(bytes, 19'999)),
       "decodes to 19999 bytes"},
      {"a frame of more bytes",
       {Codec::Zstd},
       zstd_frame(then(bytes, Blob(1))),
       "zstd: a frame of 20001 bytes (limit 20000)"},
      {"a claim of 100 MiB", {Codec::Zstd}, claim, "zstd: a frame of 104857600 bytes"},
      {"a second frame", {Codec::Zstd}, then(frame, frame), "decodes to more than 20000 bytes"},
      {"garbage behind the frame", {Codec::Zstd}, then(frame, Blob(7, std::byte{3})), "zstd: "},
      {"no zlib stream", {Codec::Zlib}, {}, "zlib: no data"},
      {"another header", {Codec::Zlib}, with(deflated, 0, 0), "zlib: "},
      {"bytes behind", {Codec::Zlib}, then(deflated, Blob(1)), "zlib: bytes behind"},
      {"a wrong sum",
       {Codec::Zlib},
       with(deflated, deflated.size() - 4, 0),
       "zlib: incorrect data check"},
      {"no bz2 stream", {Codec::Bz2}, {}, "bz2: no data"},
      {"zlib as bz2", {Codec::Bz2}, deflated, "bz2: not a bz2 stream"},
      {"half a bz2 stream",
       {Codec::Bz2},
       first(sorted, sorted.size() / 2),
       "bz2: the stream ends early"},
      {"a bz2 block that is not its sum's",
       {Codec::Bz2},
       with(sorted, 10, 0x12345678),
       "bz2: a broken stream"},
      {"a second bz2 stream",
       {Codec::Bz2},
       then(sorted, sorted),
       "decodes to more than 20000 bytes"},
      {"garbage behind a bz2 stream",
       {Codec::Bz2},
       then(sorted, Blob(7, std::byte{3})),
       "bz2: not a bz2 stream"},
      {"zlib as gzip", {Codec::Gzip}, deflated, "gzip: incorrect header check"},
      {"no header", {Codec::Blosc}, first(blocks, 15), "blosc: the data ends early"},
      {"another version", {Codec::Blosc}, with(blocks, 0, 0x02130109), "blosc: version 9"},
      {"blocks of 0 bytes", {Codec::Blosc}, with(blocks, 8, 0), "blosc: blocks of 0 bytes"},
      {"blocks of 4 GiB", {Codec::Blosc}, with(blocks, 8, ~0U), "blosc: blocks of 4294967295"},
      {"2^32 blocks of a byte",
       {Codec::Blosc},
       with(with(blocks, 8, 1), 4, ~0U),
       "blosc: 4294967295 blocks in a chunk (limit 1048576)"},
      {"more blocks than bytes",
       {Codec::Blosc},
       with(with(blocks, 8, 4096), 4, 1U << 31),
       "bytes of data for 524288 blocks"},
      {"a block of 4 GiB",
       {Codec::Blosc},
       with(with(blocks, 8, ~0U), 4, ~0U),
       "blosc: a chunk of 4294967295 bytes (not 20000)"},
      {"a block before the data", {Codec::Blosc}, with(blocks, 16, 3), "blosc: a block begins at"},
      {"a block behind the data",
       {Codec::Blosc},
       with(blocks, 16, ~0U),
       "blosc: a block begins at byte"},
      {"less than a sum", {Codec::Crc32c}, Blob(3), "crc32c: 3 bytes hold no checksum"},
      {"another sum",
       {Codec::Crc32c},
       with(with_sum(bytes), kSize, 1),
       "crc32c: 00000001 is stored"},
      {"a sum of too few bytes",
       {Codec::Crc32c},
       with_sum(first(bytes, 19'000)),
       "decodes to 19000 bytes, expected 20000"},
      {"a sum behind a frame",
       {Codec::Zstd, Codec::Crc32c},
       with(with_sum(frame), 20, 77),
       "crc32c: "},
  };
  list.push_back({"blosc of 2 GiB, summed",
                  {Codec::Crc32c, Codec::Blosc},
                  with(with(blocks, 8, 1U << 30), 4, 1U << 31),
                  "blosc: a chunk of 2147483648 bytes (limit 1208576)"});
  list.push_back({"blosc between two sums",
                  {Codec::Crc32c, Codec::Blosc, Codec::Crc32c},
                  with_sum(blosc(with_sum(bytes))),
                  "blosc between two checksums"});
  // Cut anywhere, each form ends early.
  for (std::size_t cut = 1; cut < 16; ++cut) {
    const auto part = [&](const Blob& whole) { return first(whole, whole.size() * cut / 16); };
    list.push_back({"zstd cut", {Codec::Zstd}, part(frame), ""});
    list.push_back({"zlib cut", {Codec::Zlib}, part(deflated), "zlib: the stream ends early"});
    list.push_back({"blosc cut", {Codec::Blosc}, part(blocks), "blosc: "});
    list.push_back({"sum cut", {Codec::Crc32c}, part(with_sum(bytes)), "crc32c: "});
  }
  return list;
}

TEST(BrokenChunks, AreErrorsThatNameTheArrayAndCostNoMemory) {
  for (const Case& broken : cases()) {
    SCOPED_TRACE(broken.name);
    const CostLimit limit(broken.stored.size());
    MemorySource files;
    ChunkTable table;
    const ChunkArrayId array =
        table.add_array({.name = "params.w",
                         .nbytes = kSize,
                         .codecs = std::make_shared<const CodecChain>(broken.codecs),
                         .grid = {3, 3}});
    const FileId chunk =
        table.add_stored(array, 5, {files.add("d/0", broken.stored), 0, broken.stored.size()})
            .value();
    const auto pool = BufferPool::create(64_MiB);
    ChunkSource source(files, table, pool);
    Blob out(kSize);
    const auto read = source.read_at(chunk, 0, out);
    ASSERT_FALSE(read);
    EXPECT_TRUE(read.error().code() == ErrorCode::Corrupt ||
                read.error().code() == ErrorCode::Unsupported);
    EXPECT_THAT(read.error().message(), testing::StartsWith("params.w: chunk 1.2: "));
    EXPECT_THAT(read.error().message(), testing::HasSubstr(broken.message));
    EXPECT_LE(pool->peak(), 10_MiB);
  }
}

/// A frame whose window is of 128 MiB: more than any decoder here may have.
Blob frame_of_a_large_window() {
  Blob frame(9);
  store_le(std::span(frame), std::uint32_t{0xfd2fb528});
  frame[5] = std::byte{17 << 3};
  frame[6] = std::byte{0x01};
  return frame;
}

TEST(BrokenChunks, WhatOneAsksForIsNotAskedForTheOthersOfItsArray) {
  const Blob bytes = sample(kSize);
  const Blob frame = zstd_frame(bytes), blocks = blosc(bytes);
  const Blob large = frame_of_a_large_window();
  struct Lie {
    std::vector<Codec> codecs;
    Blob broken, whole;
  };
  for (const Lie& lie :
       {Lie{{Codec::Zstd}, large, frame}, Lie{{Codec::Zstd}, then(frame, large), frame},
        Lie{{Codec::Crc32c, Codec::Zstd}, large, zstd_frame(with_sum(bytes))},
        Lie{{Codec::Crc32c, Codec::Zstd}, then(frame, large), zstd_frame(with_sum(bytes))},
        Lie{{Codec::Blosc, Codec::Zstd},
            zstd_frame(with(with(blocks, 8, ~0U), 4, ~0U)),
            zstd_frame(blocks)},
        Lie{{Codec::Crc32c, Codec::Blosc},
            with(with(blosc(with_sum(bytes)), 8, ~0U), 4, ~0U),
            blosc(with_sum(bytes))}}) {
    MemorySource files;
    ChunkTable table;
    const ChunkArrayId array =
        table.add_array({.name = "w",
                         .nbytes = kSize,
                         .codecs = std::make_shared<const CodecChain>(lie.codecs),
                         .grid = {2}});
    const auto add = [&](std::uint64_t cell, const Blob& stored) {
      return table.add_stored(array, cell, {files.add("d", stored), 0, stored.size()}).value();
    };
    const FileId broken = add(0, lie.broken), whole = add(1, lie.whole);
    ChunkSource source(files, table, BufferPool::create(64_MiB));
    Blob out(kSize);
    EXPECT_FALSE(source.read_at(broken, 0, out));
    const auto read = source.read_at(whole, 0, out);
    EXPECT_TRUE(read) << read.error().message();
    EXPECT_EQ(out, bytes);
  }
}

TEST(BrokenChunks, ACodecMakesNoMoreForTheNextThanTheChunkCanBe) {
  // Frames of nothing, and nothing behind them: 40 MB of them in a few KB.
  const Blob nothing = zstd_frame({});
  Blob frames;
  while (frames.size() < 40'000'000) frames.insert(frames.end(), nothing.begin(), nothing.end());
  const Blob bytes = sample(kSize);
  const auto read = [](std::vector<Codec> codecs, const Blob& stored) {
    MemorySource files;
    ChunkTable table;
    const ChunkArrayId array =
        table.add_array({.name = "w",
                         .nbytes = kSize,
                         .codecs = std::make_shared<const CodecChain>(std::move(codecs)),
                         .grid = {1}});
    const FileId chunk =
        table.add_stored(array, 0, {files.add("d", stored), 0, stored.size()}).value();
    ChunkSource source(files, table, BufferPool::create(64_MiB));
    Blob out(kSize);
    return source.read_at(chunk, 0, out);
  };
  const auto twice = read({Codec::Zstd, Codec::Zlib}, zlib(frames));
  ASSERT_FALSE(twice);
  EXPECT_THAT(twice.error().message(),
              testing::HasSubstr("more than 1208576 bytes between two codecs"));
  const auto says = read({Codec::Zstd, Codec::Zstd}, zstd_frame(frames));
  ASSERT_FALSE(says);
  EXPECT_THAT(says.error().message(), testing::HasSubstr("bytes (limit 1208576)"));
  // Some of them, before what is there, are as good as none.
  const Blob some = then(first(frames, nothing.size() * 1000), zstd_frame(bytes));
  EXPECT_TRUE(read({Codec::Zstd, Codec::Zstd}, zstd_frame(some)));
  // Three codecs: what lies between the first two may be as much larger once more.
  EXPECT_TRUE(read({Codec::Zstd, Codec::Crc32c, Codec::Zlib}, zlib(with_sum(some))));
  EXPECT_FALSE(read({Codec::Zstd, Codec::Crc32c, Codec::Zlib}, zlib(with_sum(frames))));
}

TEST(BrokenChunks, BlocksInNoOrderDoNotMakeTheNextCodecBeginAnewForEver) {
  constexpr std::uint32_t kBlocks = 4096, kBlock = 256, kTable = 16;
  constexpr std::uint32_t kBegin = kTable + 4 * kBlocks, kEnd = kBegin + 4 + kBlock;
  const auto read = [&](std::uint32_t far, std::uint32_t jumps, bool all_there = false) {
    Blob stored(far + 4 + kBlock);
    // Versions 2 and 1, lz4 without parts, elements of a byte.
    store_le(std::span(stored), std::uint32_t{0x01'30'01'02});
    store_le(std::span(stored).subspan(4), kBlocks * kBlock);
    store_le(std::span(stored).subspan(8), kBlock);
    store_le(std::span(stored).subspan(12), static_cast<std::uint32_t>(stored.size()));
    // Every other block lies far behind; and the last ends the first.
    for (std::uint32_t k = 0; k < kBlocks; ++k) {
      const std::uint32_t start = all_there                 ? far
                                  : k + 1 == kBlocks        ? kEnd
                                  : k % 2 == 0 || k > jumps ? kBegin
                                                            : far;
      store_le(std::span(stored).subspan(kTable + 4 * k), start);
    }
    // A block that could not be compressed.
    for (const std::uint32_t start : {kBegin, kEnd, far}) {
      store_le(std::span(stored).subspan(start), kBlock);
    }
    MemorySource files;
    ChunkTable table;
    const ChunkArrayId array = table.add_array(
        {.name = "w",
         .nbytes = kBlocks * kBlock,
         .codecs = std::make_shared<const CodecChain>(std::vector{Codec::Blosc, Codec::Zstd}),
         .grid = {1}});
    const Blob frame = zstd_frame(stored);
    const FileId chunk =
        table.add_stored(array, 0, {files.add("d", frame), 0, frame.size()}).value();
    ChunkSource source(files, table, BufferPool::create(64_MiB));
    Blob out(kBlocks * kBlock);
    return source.read_at(chunk, 0, out);
  };
  const auto done = read(8'000'000, kBlocks);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::Unsupported);
  EXPECT_THAT(done.error().message(), testing::HasSubstr("out-of-order blocks"));
  const auto same = read(8'000'000, 0, /*all_there=*/true);
  ASSERT_FALSE(same);
  EXPECT_EQ(same.error().code(), ErrorCode::Unsupported);
  // Fewer go as far as the last block, which is broken: it has all that lies between.
  EXPECT_EQ(read(8'000'000, 60).error().code(), ErrorCode::Corrupt);
  EXPECT_TRUE(read(kEnd + 4 + kBlock, kBlocks));
}

TEST(BrokenChunks, EveryFlippedByteIsAnErrorOrOtherBytes) {
  const Blob bytes = sample(3000);
  for (const auto& [codec, whole] :
       {std::pair{Codec::Zstd, zstd_frame(bytes)}, std::pair{Codec::Zlib, zlib(bytes)},
        std::pair{Codec::Blosc, blosc(bytes)}}) {
    for (std::size_t at = 0; at < whole.size(); at += 3) {
      MemorySource files;
      ChunkTable table;
      const ChunkArrayId array = table.add_array(
          {.name = "w",
           .nbytes = bytes.size(),
           .codecs = std::make_shared<const CodecChain>(std::vector{codec, Codec::Crc32c})});
      // The checksum is that of the right bytes, so that nothing broken is given out.
      Blob stored = with_sum(whole);
      stored[at] ^= std::byte{0x41};
      const FileId chunk =
          table.add_stored(array, 0, {files.add("d", stored), 0, stored.size()}).value();
      ChunkSource source(files, table, BufferPool::create(64_MiB));
      Blob out(100);
      const auto read = source.read_at(chunk, 0, out);
      ASSERT_FALSE(read);
      EXPECT_THAT(read.error().message(), testing::HasSubstr("crc32c"));
    }
  }
}

TEST(BrokenChunks, ShardsWithAWrongIndexAreErrors) {
  struct Entry {
    std::uint64_t offset, nbytes;
    std::string message;
  };
  for (const Entry& entry :
       {Entry{0, 101, "101 bytes from 0 of a shard of"}, Entry{~0ULL, 5, "5 bytes from"},
        Entry{~0ULL - 3, 100, "100 bytes from"}, Entry{0, 40, "40 bytes are stored (not 80)"}}) {
    Blob shard(80);
    Blob index(16);
    store_le(std::span(index), entry.offset);
    store_le(std::span(index).subspan(8), entry.nbytes);
    shard = then(shard, with_sum(index));
    MemorySource files;
    ChunkTable table;
    const ChunkArrayId array = table.add_array({.name = "w", .nbytes = 80, .grid = {1}});
    const auto chunk =
        table.add_shard(array, 0, {files.add("d", shard), 0, shard.size()}, {.count = 1});
    ASSERT_TRUE(chunk);
    ChunkSource source(files, table, BufferPool::create(64_MiB));
    Blob out(80);
    const auto read = source.read_at(*chunk, 0, out);
    ASSERT_FALSE(read);
    EXPECT_EQ(read.error().code(), ErrorCode::Corrupt);
    EXPECT_THAT(read.error().message(), testing::HasSubstr(entry.message));
  }
}

}  // namespace
}  // namespace ckfs
