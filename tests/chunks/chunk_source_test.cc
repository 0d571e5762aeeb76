#include "chunks/chunk_source.h"

#include <blosc.h>
#include <bzlib.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <zlib.h>
#include <zstd.h>

#include "base/load_le.h"
#include "chunks/encoded.h"
#include "format/crc32c.h"
#include "support/memory_source.h"

namespace ckfs {
namespace {

using Bytes_ = std::vector<std::byte>;

/// Bytes that compress a little: like weights.
Bytes_ weights(std::size_t size) {
  Bytes_ bytes(size);
  std::uint64_t state = 7;
  for (std::size_t i = 0; i < size; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    bytes[i] = static_cast<std::byte>(i % 2 == 0 ? state >> 56 : (state >> 60) + 0x30);
  }
  return bytes;
}

/// A frame that does not say how long it is.
Bytes_ zstd_stream(const Bytes_& bytes, int level = 3) {
  ZSTD_CCtx* const context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_compressionLevel, level);
  Bytes_ out(ZSTD_compressBound(bytes.size()) + 100);
  ZSTD_outBuffer to{out.data(), out.size(), 0};
  ZSTD_inBuffer from{bytes.data(), bytes.size(), 0};
  ZSTD_compressStream2(context, &to, &from, ZSTD_e_continue);
  while (ZSTD_compressStream2(context, &to, &from, ZSTD_e_end) != 0) {
  }
  ZSTD_freeCCtx(context);
  out.resize(to.pos);
  return out;
}

Bytes_ deflated(const Bytes_& bytes, bool gzip) {
  z_stream state{};
  deflateInit2(&state, 6, Z_DEFLATED, 15 + (gzip ? 16 : 0), 8, Z_DEFAULT_STRATEGY);
  Bytes_ out(deflateBound(&state, bytes.size()) + 100);
  state.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(bytes.data()));
  state.avail_in = static_cast<uInt>(bytes.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  EXPECT_EQ(deflate(&state, Z_FINISH), Z_STREAM_END);
  out.resize(state.total_out);
  deflateEnd(&state);
  return out;
}

Bytes_ bz2(const Bytes_& bytes, int level) {
  Bytes_ out(bytes.size() + bytes.size() / 100 + 600);  // what its manual asks for
  auto size = static_cast<unsigned>(out.size());
  char* const from = reinterpret_cast<char*>(const_cast<std::byte*>(bytes.data()));
  char none = 0;  // where there are no bytes: a null pointer is refused
  EXPECT_EQ(BZ2_bzBuffToBuffCompress(reinterpret_cast<char*>(out.data()), &size,
                                     bytes.empty() ? &none : from,
                                     static_cast<unsigned>(bytes.size()), level, 0, 0),
            BZ_OK);
  out.resize(size);
  return out;
}

Bytes_ blosc(const Bytes_& bytes, const char* compressor, std::size_t blocksize, int shuffle) {
  Bytes_ out(bytes.size() + BLOSC_MAX_OVERHEAD);
  const int size = blosc_compress_ctx(5, shuffle, 2, bytes.size(), bytes.data(), out.data(),
                                      out.size(), compressor, blocksize, 1);
  EXPECT_GT(size, 0);
  out.resize(static_cast<std::size_t>(size));
  return out;
}

std::shared_ptr<const CodecChain> chain(std::vector<Codec> codecs) {
  return std::make_shared<const CodecChain>(std::move(codecs));
}

struct Form {
  std::string name;
  std::vector<Codec> codecs;
  std::function<Bytes_(const Bytes_&)> encode;
};

std::vector<Form> forms() {
  return {
      {"zstd", {Codec::Zstd}, [](const Bytes_& b) { return zstd_frame(b); }},
      {"zstd of unknown size", {Codec::Zstd}, [](const Bytes_& b) { return zstd_stream(b); }},
      {"zstd, frames of growing windows",
       {Codec::Zstd},
       [](const Bytes_& b) {
         const auto third = static_cast<std::ptrdiff_t>(b.size() / 3);
         Bytes_ out = zstd_stream({b.begin(), b.begin() + third}, 1);
         const Bytes_ more = zstd_stream({b.begin() + third, b.end()}, 19);
         out.insert(out.end(), more.begin(), more.end());
         return out;
       }},
      {"gzip", {Codec::Gzip}, [](const Bytes_& b) { return deflated(b, true); }},
      {"gzip, two members",
       {Codec::Gzip},
       [](const Bytes_& b) {
         const auto half = static_cast<std::ptrdiff_t>(b.size() / 2);
         Bytes_ out = deflated({b.begin(), b.begin() + half}, true);
         const Bytes_ more = deflated({b.begin() + half, b.end()}, true);
         out.insert(out.end(), more.begin(), more.end());
         return out;
       }},
      {"zlib", {Codec::Zlib}, [](const Bytes_& b) { return deflated(b, false); }},
      {"bz2", {Codec::Bz2}, [](const Bytes_& b) { return bz2(b, 9); }},
      {"bz2, two streams",
       {Codec::Bz2},
       [](const Bytes_& b) {
         const auto half = static_cast<std::ptrdiff_t>(b.size() / 2);
         Bytes_ out = bz2({b.begin(), b.begin() + half}, 1);
         const Bytes_ more = bz2({b.begin() + half, b.end()}, 9);
         out.insert(out.end(), more.begin(), more.end());
         return out;
       }},
      {"blosc, bz2",
       {Codec::Blosc, Codec::Bz2},
       [](const Bytes_& b) { return bz2(blosc(b, "lz4", 4096, 1), 1); }},
      {"blosc lz4", {Codec::Blosc}, [](const Bytes_& b) { return blosc(b, "lz4", 4096, 1); }},
      {"blosc zstd, bits shuffled",
       {Codec::Blosc},
       [](const Bytes_& b) { return blosc(b, "zstd", 65536, 2); }},
      {"blosc of its own choice",
       {Codec::Blosc},
       [](const Bytes_& b) { return blosc(b, "blosclz", 0, 1); }},
      {"crc32c", {Codec::Crc32c}, with_sum},
      {"zstd, crc32c",
       {Codec::Zstd, Codec::Crc32c},
       [](const Bytes_& b) { return with_sum(zstd_frame(b)); }},
      {"crc32c, gzip",
       {Codec::Crc32c, Codec::Gzip},
       [](const Bytes_& b) { return deflated(with_sum(b), true); }},
      {"blosc, zstd",
       {Codec::Blosc, Codec::Zstd},
       [](const Bytes_& b) { return zstd_frame(blosc(b, "lz4", 4096, 1)); }},
  };
}

struct Fixture {
  MemorySource files;
  ChunkTable table;
  std::shared_ptr<BufferPool> pool = BufferPool::create(std::uint64_t{128} << 20);

  FileId add(const Form& form, const Bytes_& bytes) {
    const Bytes_ stored = form.encode(bytes);
    Bytes_ padded(13 + stored.size() + 5);
    std::ranges::copy(stored, padded.begin() + 13);
    const FileId file = files.add("d/0", padded);
    const ChunkArrayId array = table.add_array(
        {.name = "params.w", .nbytes = bytes.size(), .codecs = chain(form.codecs), .grid = {1}});
    return table.add_stored(array, 0, {file, 13, stored.size()}).value();
  }
};

TEST(ChunkSource, GivesTheDecodedBytesOfEveryCodec) {
  for (const Form& form : forms()) {
    for (const std::size_t size : {1, 100, 4096, 70'000, 3'000'001}) {
      SCOPED_TRACE(form.name + ", " + std::to_string(size));
      Fixture fixture;
      const Bytes_ bytes = weights(size);
      const FileId chunk = fixture.add(form, bytes);
      ChunkSource source(fixture.files, fixture.table, fixture.pool);
      EXPECT_EQ(source.size(chunk), size);
      Bytes_ out(size);
      ASSERT_TRUE(source.read_at(chunk, 0, out)) << source.read_at(chunk, 0, out).error().message();
      EXPECT_TRUE(out == bytes);
      Bytes_ end(size / 3 + 1);
      ASSERT_TRUE(source.read_at(chunk, size - end.size(), end));
      EXPECT_TRUE(std::ranges::equal(end, std::span(bytes).last(end.size())));
    }
  }
}

TEST(ChunkSource, AbsentChunksAreTheirFillValue) {
  MemorySource files;
  ChunkTable table;
  const ChunkArrayId ones = table.add_array({.name = "a",
                                             .nbytes = std::uint64_t{1} << 40,
                                             .codecs = chain({Codec::Zstd}),
                                             .fill = {std::byte{0x80}, std::byte{0x3f}}});
  const FileId chunk = table.add_absent(ones).value();
  ChunkSource source(files, table, BufferPool::create(std::uint64_t{64} << 20));
  Bytes_ out(5);
  ASSERT_TRUE(source.read_at(chunk, (std::uint64_t{1} << 40) - 5, out));
  EXPECT_EQ(out, (Bytes_{std::byte{0x3f}, std::byte{0x80}, std::byte{0x3f}, std::byte{0x80},
                         std::byte{0x3f}}));
}

TEST(ChunkSource, InlineChunksAreDecodedFromTheTable) {
  MemorySource files;
  ChunkTable table;
  const Bytes_ bytes = weights(500);
  const ChunkArrayId a = table.add_array({.name = "a", .nbytes = 500});
  const ChunkArrayId b =
      table.add_array({.name = "b", .nbytes = 500, .codecs = chain({Codec::Zstd})});
  const FileId plain = table.add_inline(a, 0, bytes).value();
  const FileId coded = table.add_inline(b, 0, zstd_frame(bytes)).value();
  ChunkSource source(files, table, BufferPool::create(std::uint64_t{64} << 20));
  for (const FileId chunk : {plain, coded}) {
    Bytes_ out(400);
    ASSERT_TRUE(source.read_at(chunk, 100, out));
    EXPECT_TRUE(std::ranges::equal(out, std::span(bytes).last(400)));
  }
}

TEST(ChunkSource, InnerChunksOfShardsAreFoundByTheIndex) {
  for (const bool at_end : {true, false}) {
    for (const bool coded : {true, false}) {
      SCOPED_TRACE(testing::Message() << at_end << coded);
      const Bytes_ first = weights(3000);
      Bytes_ third = weights(3001);
      third.erase(third.begin());
      const auto encode = [&](const Bytes_& bytes) { return coded ? zstd_frame(bytes) : bytes; };
      Bytes_ data = encode(third);  // in another order
      const std::size_t third_size = data.size();
      const Bytes_ encoded = encode(first);
      data.insert(data.end(), encoded.begin(), encoded.end());
      constexpr std::uint64_t kIndex = 3 * 16 + 4;
      const std::uint64_t base = at_end ? 0 : kIndex;
      Bytes_ index(3 * 16, std::byte{0xff});
      store_le(std::span(index), std::uint64_t{base + third_size});
      store_le(std::span(index).subspan(8), std::uint64_t{encoded.size()});
      store_le(std::span(index).subspan(32), base);
      store_le(std::span(index).subspan(40), std::uint64_t{third_size});
      index = with_sum(index);
      data.insert(at_end ? data.end() : data.begin(), index.begin(), index.end());
      MemorySource files;
      ChunkTable table;
      const FileId file = files.add("c/0", data);
      const ChunkArrayId array =
          table.add_array({.name = "a",
                           .nbytes = 3000,
                           .codecs = coded ? chain({Codec::Zstd}) : chain({}),
                           .fill = {std::byte{7}}});
      const auto chunk =
          table.add_shard(array, 0, {file, 0, data.size()}, {.count = 3, .at_end = at_end});
      ASSERT_TRUE(chunk);
      ChunkSource source(files, table, BufferPool::create(std::uint64_t{64} << 20));
      EXPECT_EQ(files.bytes_read(), 0);
      Bytes_ out(3000);
      ASSERT_TRUE(source.read_at(*chunk, 0, out));
      EXPECT_TRUE(out == first);
      ASSERT_TRUE(source.read_at(*chunk + 1, 0, out));
      EXPECT_TRUE(out == Bytes_(3000, std::byte{7}));
      ASSERT_TRUE(source.read_at(*chunk + 2, 0, out));
      EXPECT_TRUE(out == third);
      table.require_all(array, "all are written");
      const auto absent = source.read_at(*chunk + 1, 0, out);
      ASSERT_FALSE(absent);
      EXPECT_EQ(absent.error().code(), ErrorCode::Corrupt);
      EXPECT_NE(absent.error().message().find("is absent in its shard, and all are written"),
                std::string::npos);
      EXPECT_TRUE(source.read_at(*chunk + 2, 0, out));
    }
  }
}

/// Counts what is hinted before the first read, and what is hinted when it is read already.
class HintedSource final : public ByteSource {
 public:
  explicit HintedSource(MemorySource& source) : source_(source) {}
  Result<void> read(std::span<const ReadRequest> batch) override {
    begun_ = true;
    end_ = batch.back().offset + batch.back().out.size();
    return source_.read(batch);
  }
  void will_need(std::span<const FileRange> ranges) override {
    if (!begun_) hints += ranges.size();
    for (const FileRange& range : ranges) {
      hinted += range.size;
      if (begun_ && range.offset < end_) ++late;
    }
  }
  Result<void> verify(std::span<const FileId> files) override { return source_.verify(files); }
  std::uint64_t size(FileId file) const override { return source_.size(file); }
  const std::string& name(FileId file) const override { return source_.name(file); }

  std::size_t hints = 0;
  std::size_t late = 0;
  std::uint64_t hinted = 0;  // bytes

 private:
  MemorySource& source_;
  bool begun_ = false;
  std::uint64_t end_ = 0;  // of the last read
};

// From a cold disk it would be read twice, and stay cached where it is read once.
TEST(ChunkSource, WhatIsReadAlreadyIsNotHintedAt) {
  for (const std::size_t size : {1000, 1'000'000, 20'000'000}) {
    Fixture fixture;
    const Bytes_ bytes = weights(size);
    const FileId chunk = fixture.add({"crc32c", {Codec::Crc32c}, with_sum}, bytes);
    HintedSource hinted(fixture.files);
    ChunkSource source(hinted, fixture.table, fixture.pool);
    Bytes_ out(size);
    ASSERT_TRUE(source.read_at(chunk, 0, out));
    EXPECT_TRUE(out == bytes);
    EXPECT_EQ(hinted.late, 0U);
    EXPECT_GT(hinted.hinted, 0U);
  }
}

TEST(ChunkSource, IndexesOfManyShardsAreReadTogether) {
  constexpr std::size_t kShards = 20, kInner = 3, kInnerBytes = 100;
  for (const bool sums : {true, false}) {
    MemorySource files;
    HintedSource hinted(files);
    ChunkTable table;
    const ChunkArrayId array = table.add_array(
        {.name = "a", .nbytes = kInnerBytes, .codecs = chain({}), .grid = {kShards}});
    const Bytes_ bytes = weights(kInner * kInnerBytes);
    std::vector<FileId> inner;
    for (std::size_t shard = 0; shard < kShards; ++shard) {
      Bytes_ index(kInner * 16);
      for (std::size_t k = 0; k < kInner; ++k) {
        store_le(std::span(index).subspan(16 * k), std::uint64_t{k * kInnerBytes});
        store_le(std::span(index).subspan(16 * k + 8), std::uint64_t{kInnerBytes});
      }
      if (sums) index = with_sum(index);
      Bytes_ data = bytes;
      data.insert(data.end(), index.begin(), index.end());
      const FileId file = files.add(fmt::format("c/{}", shard), data);
      const FileId first =
          table.add_shard(array, shard, {file, 0, data.size()}, {.count = kInner, .crc32c = sums})
              .value();
      for (std::size_t k = 0; k < kInner; ++k) inner.push_back(first + static_cast<FileId>(k));
    }
    ChunkSource source(hinted, table, BufferPool::create(std::uint64_t{64} << 20));
    for (int pass = 0; pass < 2; ++pass) {
      files.reset_counts();
      Bytes_ out(inner.size() * 2 * 10);
      std::vector<ReadRequest> batch;
      for (std::size_t i = 0; i < 2 * inner.size(); ++i) {
        batch.push_back({inner[i / 2], 50 * (i % 2), std::span(out).subspan(10 * i, 10)});
      }
      ASSERT_TRUE(source.read(batch));
      for (std::size_t i = 0; i < 2 * inner.size(); ++i) {
        EXPECT_TRUE(std::ranges::equal(
            std::span(out).subspan(10 * i, 10),
            std::span(bytes).subspan(i / 2 % kInner * kInnerBytes + 50 * (i % 2), 10)));
      }
      if (!sums) {
        EXPECT_EQ(files.batches(), 2U);
      }
      EXPECT_EQ(hinted.hints, sums ? kShards : 0);
    }
  }
}

TEST(ChunkTable, NamesAChunkByItsPlaceInTheGrid) {
  ChunkTable table;
  const ChunkArrayId array = table.add_array({.name = "params.w", .nbytes = 8, .grid = {2, 3, 4}});
  EXPECT_EQ(table.describe(table.add_stored(array, 23, {0, 0, 8}).value()),
            "params.w: chunk 1.2.3");
  const auto shard = table.add_shard(array, 5, {0, 0, 1000}, {.count = 4});
  ASSERT_TRUE(shard);
  EXPECT_EQ(table.describe(*shard + 2), "params.w: shard 0.1.1, inner chunk 2");
}

TEST(ChunkTable, AShardHasRoomForItsIndex) {
  ChunkTable table;
  const ChunkArrayId array = table.add_array({.name = "w", .nbytes = 8, .grid = {2}});
  const auto shard = table.add_shard(array, 1, {0, 0, 67}, {.count = 4});
  ASSERT_FALSE(shard);
  EXPECT_EQ(shard.error().message(), "w: shard 1 of 67 bytes has no room for its index (68 bytes)");
}

}  // namespace
}  // namespace ckfs
