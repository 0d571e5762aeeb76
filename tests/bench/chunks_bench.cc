// How fast zstd chunks are decoded, all cores, in process: through ChunkSource, read in order by 1
// MiB, and by libzstd's own streaming decode of the same frames into a buffer of 1 MiB. The memory
// of the budget is that of the pass before, as a mount's is that of the chunks before: to get fresh
// pages costs as much as decoding, and what it costs depends on the host.
//
//   chunks_bench
//
// Prints one line: GB/s of libzstd and of chunks, and the median over passes of the ratio of
// neighbours.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <thread>
#include <vector>
#include <zstd.h>

#include "chunks/chunk_source.h"

namespace {

using namespace ckfs;

constexpr std::size_t kChunk = std::size_t{32} << 20;
constexpr std::size_t kChunks = 8;
constexpr std::size_t kPiece = std::size_t{1} << 20;

/// BF16 weights: noise in the mantissa, few exponents.
std::vector<std::byte> weights() {
  std::vector<std::byte> bytes(kChunk);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0F, 0.02F);
  for (std::size_t i = 0; i < kChunk; i += 2) {
    const float value = normal(random);
    std::uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    bytes[i] = static_cast<std::byte>(bits >> 16);
    bytes[i + 1] = static_cast<std::byte>(bits >> 24);
  }
  return bytes;
}

class Frames final : public ByteSource {
 public:
  explicit Frames(std::vector<std::byte> frame) : frame_(std::move(frame)) {}
  Result<void> read(std::span<const ReadRequest> batch) override {
    for (const ReadRequest& request : batch) {
      std::memcpy(request.out.data(), frame_.data() + request.offset, request.out.size());
    }
    return {};
  }
  std::uint64_t size(FileId) const override { return frame_.size(); }
  const std::string& name(FileId) const override { return name_; }
  std::span<const std::byte> bytes() const { return frame_; }

 private:
  const std::vector<std::byte> frame_;
  const std::string name_ = "frame";
};

/// Seconds until all threads have done chunk after chunk.
template <typename Decode>
double timed(Decode decode) {
  const auto begin = std::chrono::steady_clock::now();
  std::atomic<std::size_t> next{0};
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t) {
    threads.emplace_back([&] {
      std::vector<std::byte> piece(kPiece);
      for (std::size_t chunk = next++; chunk < kChunks; chunk = next++) decode(chunk, piece);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return seconds.count();
}

void must(bool right, const char* what) {
  if (right) return;
  std::fprintf(stderr, "chunks_bench: %s\n", what);
  std::exit(1);
}

}  // namespace

int main() {
  const std::vector<std::byte> plain = weights();
  std::vector<std::byte> frame(ZSTD_compressBound(plain.size()));
  frame.resize(ZSTD_compress(frame.data(), frame.size(), plain.data(), plain.size(), 3));
  Frames files(std::move(frame));

  const auto zstd = [&](std::size_t, std::vector<std::byte>& piece) {
    ZSTD_DStream* const stream = ZSTD_createDStream();
    ZSTD_inBuffer in{files.bytes().data(), files.bytes().size(), 0};
    while (in.pos < in.size) {
      ZSTD_outBuffer out{piece.data(), piece.size(), 0};
      must(ZSTD_isError(ZSTD_decompressStream(stream, &out, &in)) == 0, "zstd");
    }
    ZSTD_freeDStream(stream);
  };
  const auto pool = BufferPool::create(std::uint64_t{256} << 20);
  const auto chunks = [&] {
    ChunkTable table;
    const ChunkArrayId array =
        table.add_array({.name = "w",
                         .nbytes = kChunk,
                         .codecs = std::make_shared<const CodecChain>(std::vector{Codec::Zstd})});
    for (std::size_t i = 0; i < kChunks; ++i) {
      must(table.add_stored(array, i, {0, 0, files.bytes().size()}).has_value(), "table");
    }
    ChunkSource source(files, table, pool);
    return timed([&](std::size_t chunk, std::vector<std::byte>& piece) {
      const FileId file = kFirstChunkFile + static_cast<FileId>(chunk);
      for (std::size_t at = 0; at < kChunk; at += kPiece) {
        must(source.read_at(file, at, piece).has_value(), "chunk");
      }
      must(piece.back() == plain.back(), "other bytes");
    });
  };

  std::vector<double> ratios, of_zstd, of_chunks;
  for (int pass = 0; pass < 6; ++pass) {
    const double theirs = timed(zstd), ours = chunks();
    if (pass == 0) continue;  // warms up
    of_zstd.push_back(theirs);
    of_chunks.push_back(ours);
    ratios.push_back(theirs / ours);
  }
  const auto median = [](std::vector<double> all) {
    std::ranges::sort(all);
    return all[all.size() / 2];
  };
  const double size = static_cast<double>(kChunk * kChunks) * 1e-9;
  std::printf("%.2f %.2f %.3f\n", size / median(of_zstd), size / median(of_chunks), median(ratios));
  return 0;
}
