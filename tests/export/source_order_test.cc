#include "export/source_order.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <sys/stat.h>

#include "api/checkpoint_impl.h"
#include "api/decode_cost.h"
#include "api/inside.h"
#include "base/units.h"
#include "chunks/chunk_source.h"
#include "chunks/encoded.h"
#include "export/export_record.h"
#include "export/exporter.h"
#include "export/ordered_writer.h"
#include "export/out_directory.h"
#include "source/orbax_writer.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;

const fs::path kData = CKFS_TEST_DATA;
/// Golden trees are small: nothing stays, no group is small, each row may be a piece.
constexpr OrderLimits kTiny{.kept = 0, .step = 1, .piece = 1};

struct OrderCase {
  std::string source, view, config = {}, family = {};

  friend void PrintTo(const OrderCase& one, std::ostream* out) {
    *out << one.view << " of " << one.source;
  }
};

OrderCase maxtext(const std::string& name, const std::string& tree, const std::string& view) {
  return {"maxtext/" + name + "/expected/" + tree + "/0/items", view, "maxtext/" + name + "/source",
          name == "llama31" ? "llama3.1-8b" : ""};
}

std::vector<OrderCase> cases() {
  return {maxtext("llama31", "scanned", "bf16-safetensors@max_shard=20000"),
          maxtext("qwen3-moe", "scanned", "bf16-safetensors"),
          maxtext("gpt-oss", "scanned", "bf16-safetensors"),
          maxtext("deepseek3-reshard", "reshard-scanned-default-nnx", "maxtext-unscanned@fsdp=4"),
          maxtext("deepseek3-reshard", "scanned", "maxtext-unscanned@ep=2,fsdp=2"),
          maxtext("qwen3-dense", "unscanned-zarr2-files", "maxtext-scanned@fsdp=2"),
          {"orbax/odd_zarr3/source", "safetensors"},
          {"orbax/sharded_v2/source", "orbax@max_chunk=64"}};
}

/// A checkpoint of the golden data, and directories to export into.
class Source {
 public:
  explicit Source(const OrderCase& test, std::uint64_t memory = 64_MiB)
      : path(kData / test.source) {
    OpenOptions options{.use = {.memory = memory, .threads = 2}};
    if (!test.config.empty()) options.choose.config = kData / test.config;
    options.choose.family = test.family;
    Result<Checkpoint> opened = Checkpoint::open(path, options);
    EXPECT_TRUE(opened.has_value()) << opened.error().message();
    checkpoint = std::make_unique<Checkpoint>(std::move(*opened));
    Result<View> found = checkpoint->view(test.view);
    EXPECT_TRUE(found.has_value()) << found.error().message();
    view = std::make_unique<View>(std::move(*found));
  }

  std::uint64_t decoded() const { return checkpoint->statistics().decoded_bytes; }
  Result<ExportResult> write(const fs::path& out, const SerialOptions& options = {}) const {
    return export_serial(*view, out, options);
  }

  fs::path path;
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<View> view;
};

/// Path -> bytes of all files, the export's own among them.
std::map<std::string, std::string> texts_below(const fs::path& root) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(root)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().lexically_relative(root)] = {std::istreambuf_iterator<char>(file), {}};
  }
  return files;
}

class SourceOrders : public testing::TestWithParam<OrderCase> {
 protected:
  /// What the export in the order of the files leaves.
  std::map<std::string, std::string> expected() const {
    const Source source(GetParam());
    const auto written = source.write(directory_ / "files");
    EXPECT_TRUE(written.has_value()) << written.error().message();
    return texts_below(directory_ / "files");
  }

  TemporaryDirectory directory_;
  const fs::path out_ = directory_ / "out";
};

INSTANTIATE_TEST_SUITE_P(Golden, SourceOrders, testing::ValuesIn(cases()));

TEST_P(SourceOrders, NoChunkIsInTwoStepsAndNoByteInTwoPieces) {
  const Source source(GetParam());
  const SourceOrder order = source_order(*source.view, kTiny);
  ASSERT_FALSE(order.empty());
  std::set<FileId> chunks;
  std::map<std::size_t, std::vector<ByteRange>> ranges;
  for (const SourceStep& step : order.steps) {
    std::uint64_t decoded = 0;
    for (const FileId chunk : step.chunks) {
      EXPECT_TRUE(chunks.insert(chunk).second);
      decoded += impl_of(*source.view).definition->catalog->chunks().size(chunk);
    }
    EXPECT_EQ(step.decoded, decoded);
    for (const ExportStep& piece : step.pieces) {
      EXPECT_FALSE(piece.range.empty());
      ranges[piece.file].push_back(piece.range);
    }
  }
  for (auto& [file, one] : ranges) {
    std::ranges::sort(one, {}, &ByteRange::begin);
    for (std::size_t i = 1; i < one.size(); ++i) EXPECT_LE(one[i - 1].end, one[i].begin);
    EXPECT_LE(one.back().end, source.view->files()[file].size);
  }
}

TEST_P(SourceOrders, DependsOnTheViewAlone) {
  const SourceOrder one = source_order(*Source(GetParam()).view, kTiny);
  const SourceOrder other = source_order(*Source(GetParam(), 256_MiB).view, kTiny);
  EXPECT_EQ(one.id, other.id);
  ASSERT_EQ(one.steps.size(), other.steps.size());
  for (std::size_t i = 0; i < one.steps.size(); ++i) {
    EXPECT_EQ(one.steps[i].pieces, other.steps[i].pieces);
  }
  const SourceOrder larger = source_order(*Source(GetParam()).view, {.kept = 0, .step = 1_GiB});
  EXPECT_EQ(larger.steps.size(), 1u);
  if (one.steps.size() > 1) {
    EXPECT_NE(one.id, larger.id);
  }
}

TEST_P(SourceOrders, AViewOfFewChunksIsWrittenInTheOrderOfItsFiles) {
  EXPECT_TRUE(source_order(*Source(GetParam()).view).empty());
}

TEST_P(SourceOrders, TheBytesAreThoseOfTheOrderOfTheFiles) {
  const auto expected = this->expected();
  for (const unsigned jobs : {1u, 3u}) {
    for (const std::uint64_t step : {std::uint64_t{1}, 1_GiB}) {
      const Source source(GetParam());
      OrderLimits limits = kTiny;
      limits.step = step;
      const auto written =
          source.write(out_, {.common = {.jobs = jobs}, .order = limits, .order_sync = 1});
      ASSERT_TRUE(written.has_value()) << written.error().message();
      EXPECT_EQ(written->files, source.view->files().size());
      EXPECT_EQ(texts_below(out_), expected);
      fs::remove_all(out_);
    }
  }
}

TEST_P(SourceOrders, EachChunkIsDecodedOnce) {
  const Source source(GetParam());
  const View::Impl& view = impl_of(*source.view);
  const std::uint64_t chunks = decode_cost(view, 1_GiB, 0).chunks;
  ASSERT_TRUE(source.write(out_, {.common = {.jobs = 2}, .order = kTiny}).has_value());
  // The indexes of shards are read in the same way.
  const std::uint64_t indexes = 20 * view.definition->catalog->chunks().count();
  EXPECT_LE(source.decoded(), chunks + indexes);
}

/// The numbers of calls at which an export is killed: some of many.
std::vector<int> kills(int calls) {
  std::vector<int> at;
  for (int call = 0; call < calls; call += 1 + calls / 9) at.push_back(call);
  return at;
}

TEST_P(SourceOrders, GoesOnWhereItWasKilled) {
  const auto expected = this->expected();
  std::atomic<int> calls = 0;
  const SerialOptions whole{.common = {.jobs = 1},
                            .order = kTiny,
                            .order_sync = 1,
                            .system = {.fault = [&] { return ++calls, 0; }}};
  ASSERT_TRUE(Source(GetParam()).write(out_, whole).has_value());
  for (const int last : kills(calls)) {
    fs::remove_all(out_);
    std::atomic<int> left = last;
    SerialOptions killed = whole;
    // Every change from a chosen one on fails: what is left of a process that was killed there.
    killed.system.fault = [&] { return left.fetch_sub(1) > 0 ? 0 : EIO; };
    const Source source(GetParam());
    const auto first = source.write(out_, killed);
    ASSERT_FALSE(first.has_value());
    const auto again = source.write(out_, {.common = {.jobs = 2}, .order = kTiny, .order_sync = 1});
    ASSERT_TRUE(again.has_value()) << again.error().message();
    ASSERT_EQ(texts_below(out_), expected) << "killed at call " << last;
  }
}

TEST_P(SourceOrders, GoesOnWhereItWasStopped) {
  const auto expected = this->expected();
  std::uint64_t total = 0;
  for (const auto& [path, text] : expected) total += is_own_path(path) ? 0 : text.size();
  for (unsigned percent = 5; percent < 100; percent += 10) {
    fs::remove_all(out_);
    const Source source(GetParam());
    std::stop_source stop;
    SerialOptions options{
        .common = {.jobs = 1, .stop = stop.get_token()}, .order = kTiny, .order_sync = 1};
    std::uint64_t seen = 0;
    options.common.progress = [&](std::uint64_t done, std::uint64_t) {
      seen = done;
      if (done * 100 >= total * percent) stop.request_stop();
    };
    const auto first = source.write(out_, options);
    const auto again = source.write(out_, {.common = {.jobs = 2}, .order = kTiny, .order_sync = 1});
    ASSERT_TRUE(again.has_value()) << again.error().message();
    ASSERT_EQ(texts_below(out_), expected);
    // The disk of OUT is free again, though the view lives on.
    if (const ChunkSource* const chunks = chunk_source_of(*source.view)) {
      EXPECT_EQ(chunks->spill_limit(), 0U);
    }
    if (first) continue;
    // No more is written again than a step, or what lies between the pieces of one file.
    std::uint64_t most = 0;
    std::vector<std::uint64_t> between;
    for (const FileInfo& file : source.view->files()) between.push_back(file.size);
    for (const SourceStep& step : source_order(*source.view, kTiny).steps) {
      std::uint64_t bytes = 0;
      for (const ExportStep& piece : step.pieces) {
        bytes += piece.range.size();
        between[piece.file] -= piece.range.size();
      }
      most = std::max(most, bytes);
    }
    EXPECT_LE(again->bytes, total - seen + std::max(most, *std::ranges::max_element(between)));
  }
}

TEST(SourceOrder, OfATensorWithoutEndIsFoundAtOnce) {
  // 2^37 rows of a MiB, and a chunk ends in the middle of all: rows of one are where pieces end.
  OrbaxWriter item;
  item.inside = {{"w/zarr.json", zarr3("[137438953473,1048576]", "[68719476736,1048576]", "uint8",
                                       R"(,{"name":"zstd","configuration":{"level":1}})")},
                 {"w/c/0/0", "stored"},
                 {"w/c/1/0", "stored"}};
  const TemporaryDirectory directory;
  item.write(directory);
  const auto opened = Checkpoint::open(directory.path());
  ASSERT_TRUE(opened) << opened.error().message();
  const Checkpoint& checkpoint = *opened;
  const auto view_found = checkpoint.view("safetensors");
  ASSERT_TRUE(view_found) << view_found.error().message();
  const View& view = *view_found;
  const SourceOrder order = source_order(view);
  std::size_t pieces = 0;
  for (const SourceStep& step : order.steps) pieces += step.pieces.size();
  EXPECT_LE(pieces, 1U << 16);
}

TEST(SourceOrder, AFailureBeforeTheFirstByteLeavesNoPart) {
  TemporaryDirectory directory;
  const fs::path out = directory / "out";
  int failures = 0;
  for (int last = 0; last < 40; ++last) {
    fs::remove_all(out);
    const Source source(cases()[0]);
    int calls = 0;
    bool begun = false;
    const auto written = source.write(
        out, {.common = {.jobs = 1,
                         .progress = [&](std::uint64_t done,
                                         std::uint64_t) { begun = begun || done > 0; }},
              .order = kTiny,
              .system = {.fault = [&] { return calls++ == last ? ENOSPC : 0; }}});
    if (begun || written) continue;  // a hint, or the probe failed
    ++failures;
    for (const auto& [path, text] : texts_below(out)) EXPECT_FALSE(path.ends_with(".part")) << path;
  }
  EXPECT_GT(failures, 5);
}

// What is written in the source's order lies in files of their full sizes, for whose rest there is
// room from the beginning: arrays that are not compressed, here.
TEST(SourceOrder, OneThatIsStoppedKeepsNoDiskThatItHasNotWritten) {
  constexpr std::size_t kWide = 4_MiB, kRest = 1_MiB;
  OrbaxWriter item;
  item.flags = R"("use_ocdbt":false,"use_zarr3":true)";
  item.with_manifest = false;
  item.leaves.clear();
  item.inside.clear();
  const std::vector<std::byte> frame = zstd_frame(std::vector<std::byte>(kWide / 4, std::byte{7}));
  for (const std::string name : {"a", "b"}) {
    item.leaves.emplace_back(name + "1", "np.ndarray");
    item.leaves.emplace_back(name + "2", "np.ndarray");
    item.files[name + "1/zarr.json"] = zarr3("[4,1048576]", "[4,262144]", "uint8",
                                             R"(,{"name":"zstd","configuration":{"level":1}})");
    for (int k = 0; k < 4; ++k) {
      item.files[fmt::format("{}1/c/0/{}", name, k)] = {reinterpret_cast<const char*>(frame.data()),
                                                        frame.size()};
    }
    item.files[name + "2/zarr.json"] = zarr3("[1048576]", "[1048576]", "uint8");
    item.files[name + "2/c/0"] = std::string(kRest, 'r');
  }
  const TemporaryDirectory directory;
  item.write(directory);
  const auto opened = Checkpoint::open(directory.path(), {.use = {.memory = 64_MiB}});
  ASSERT_TRUE(opened) << opened.error().message();
  const auto view = opened->view("safetensors@max_shard=6MB");
  ASSERT_TRUE(view) << view.error().message();
  const TemporaryDirectory out;
  std::stop_source stop;
  const auto written = export_serial(*view, out / "out",
                                     {.common = {.jobs = 1,
                                                 .stop = stop.get_token(),
                                                 .progress =
                                                     [&](std::uint64_t done, std::uint64_t) {
                                                       if (done > 2 * kWide) stop.request_stop();
                                                     }},
                                      .order = kTiny,
                                      .order_sync = 1});
  ASSERT_FALSE(written);
  std::size_t parts = 0;
  for (const auto& entry : fs::recursive_directory_iterator(out / "out")) {
    if (entry.path().extension() != ".part") continue;
    ++parts;
    struct stat status{};
    ASSERT_EQ(::stat(entry.path().c_str(), &status), 0);
    EXPECT_GE(status.st_size, static_cast<off_t>(kWide + kRest)) << entry.path();
    EXPECT_LE(status.st_blocks * 512, static_cast<blkcnt_t>(kWide + kRest / 4)) << entry.path();
  }
  EXPECT_EQ(parts, 2U);
}

// A second sync would succeed although the bytes are not on disk.
TEST(SourceOrder, NothingIsRecordedBehindASyncThatFailed) {
  TemporaryDirectory directory;
  const Source source(cases()[0]);
  const SourceOrder order = source_order(*source.view, kTiny);
  ASSERT_GT(order.steps.size(), 2U);
  const auto out = OutDirectory::open(directory / "out");
  ASSERT_TRUE(out) << out.error().message();
  for (const std::size_t good : {0, 1}) {
    std::size_t calls = 0;
    const auto written = write_in_order(
        *source.view, order,
        {.ends = [] { return false; },
         .advance = [](std::uint64_t) {},
         .wanted = [](std::size_t, const ExportStep&) { return true; },
         .open = [&](std::size_t file) { return out->open_shared(fmt::format("{}", file)); },
         .synced = [&](std::size_t) -> Result<void> {
           if (calls++ == good) return fail(ErrorCode::Io, "not on disk");
           return {};
         },
         .sync_step = 1,
         .jobs = 1});
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().message(), "not on disk");
    EXPECT_EQ(calls, good + 1);
  }
}

TEST(SourceOrder, WritesAgainWhatSomebodyRemoved) {
  const OrderCase test = cases()[0];
  TemporaryDirectory directory;
  const Source source(test);
  const SerialOptions options{.common = {.jobs = 2}, .order = kTiny, .order_sync = 1};
  ASSERT_TRUE(source.write(directory / "out", options).has_value());
  const auto expected = texts_below(directory / "out");
  for (const auto& [path, text] : expected) {
    if (is_own_path(path)) continue;
    fs::remove(directory / "out" / path);
    const auto again = source.write(directory / "out", options);
    ASSERT_TRUE(again.has_value()) << again.error().message();
    EXPECT_EQ(again->files, 1u);
    EXPECT_EQ(again->bytes, text.size());
    EXPECT_EQ(texts_below(directory / "out"), expected);
  }
}

TEST(SourceOrder, AFileSystemThatTakesNoOffsetsGetsFilesInOrder) {
  const OrderCase test = cases()[0];
  TemporaryDirectory directory;
  const Source source(test);
  ASSERT_TRUE(source.write(directory / "files").has_value());
  std::atomic<int> calls = 0;
  // Making the directory is the first change, a file the second, the first write the third.
  const SerialOptions options{.common = {.jobs = 1},
                              .order = kTiny,
                              .system = {.fault = [&] { return ++calls == 3 ? ESPIPE : 0; }}};
  const auto written = source.write(directory / "out", options);
  ASSERT_TRUE(written.has_value()) << written.error().message();
  EXPECT_EQ(texts_below(directory / "out"), texts_below(directory / "files"));
}

}  // namespace
}  // namespace ckfs
