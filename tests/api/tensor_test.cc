#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ckfs/checkpoint.h>

#include "api/open.h"
#include "api/small_reader.h"
#include "support/forked_child.h"
#include "support/safetensors_text.h"
#include "support/sanitized.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::HasSubstr;

namespace fs = std::filesystem;

const fs::path kFp8Model = fs::path(CKFS_TEST_DATA) / "hf/deepseek-v3-fp8/source";

/// All tensors of a view's files, by a reader that shares no code with ckfs.
std::map<std::string, PlainTensor> tensors_of_files(const View& view) {
  std::map<std::string, PlainTensor> tensors;
  for (const FileInfo& info : view.files()) {
    if (!info.path.ends_with(".safetensors")) continue;
    auto file = view.open(info.path);
    add_tensors(text_of(*file->read(0, info.size)), tensors);
  }
  return tensors;
}

std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span(text));
}

View opened_view(const Checkpoint& checkpoint, std::string_view name) {
  auto view = checkpoint.view(name);
  if (!view) {
    ADD_FAILURE() << view.error().message();
    std::abort();
  }
  return *view;
}

/// A plain source: tensor "t" has `bytes` bytes of U8 in rows of 4.
Checkpoint open_plain(const TemporaryDirectory& directory, std::string_view data,
                      const OpenOptions& options = {}) {
  directory.write(
      "model.safetensors",
      safetensors_file(fmt::format(R"({{"t":{{"dtype":"U8","shape":[{},4],)"
                                   R"("data_offsets":[0,{}]}},)"
                                   R"("none":{{"dtype":"F32","shape":[0,3],)"
                                   R"("data_offsets":[{},{}]}}}})",
                                   data.size() / 4, data.size(), data.size(), data.size()),
                       std::string(data)));
  return open(directory.path(), options);
}

TEST(Tensor, HasTheBytesThatItsFileHas) {
  const Checkpoint checkpoint = open(kFp8Model);
  for (const char* name :
       {"bf16-safetensors", "fp32-safetensors@max_shard=1MB", "bf16-safetensors@experts=linear"}) {
    const auto view = checkpoint.view(name);
    if (!view) continue;  // this model may have no such layout of experts
    const auto expected = tensors_of_files(*view);
    const auto infos = view->tensors();
    ASSERT_EQ(infos.size(), expected.size()) << name;
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const PlainTensor& plain = expected.at(std::string(infos[i].name));
      EXPECT_EQ(infos[i].dtype, plain.dtype);
      EXPECT_EQ(std::vector(infos[i].shape.begin(), infos[i].shape.end()), plain.shape);
      const auto tensor = view->tensor(infos[i].name);
      ASSERT_TRUE(tensor);
      EXPECT_EQ(infos.find(infos[i].name), i);
      ASSERT_EQ(tensor->info().size, plain.bytes.size()) << infos[i].name;
      std::string out(plain.bytes.size(), '?');
      ASSERT_TRUE(tensor->read(bytes_of(out)));
      EXPECT_EQ(out, plain.bytes) << infos[i].name;
    }
  }
}

TEST(Tensor, GivesRowsAndReadsNoOthers) {
  const TemporaryDirectory directory;
  std::string data(std::size_t{4} << 20, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 7 + i / 4093);
  const Checkpoint checkpoint = open_plain(directory, data, {.use = {.io = IoEngine::Pread}});
  const auto tensor = opened_view(checkpoint, "bf16-safetensors").tensor("t");
  ASSERT_TRUE(tensor);
  const std::uint64_t before = checkpoint.statistics().source_bytes;
  EXPECT_EQ(tensor->size_of_rows(1000, 25), 100u);
  std::string out(100, '?');
  ASSERT_TRUE(tensor->read_rows(1000, 25, bytes_of(out)));
  EXPECT_EQ(out, data.substr(4000, 100));
  EXPECT_LE(checkpoint.statistics().source_bytes - before, 100u + 2 * 4096);
  const std::int64_t rows = tensor->info().shape[0];
  out.assign(8, '?');
  ASSERT_TRUE(tensor->read_rows(rows - 2, TensorRead::kAllRows, bytes_of(out)));
  EXPECT_EQ(out, data.substr(data.size() - 8));
  ASSERT_TRUE(tensor->read_rows(rows, 0, {}));
}

TEST(Tensor, RefusesRowsAndPlacesThatDoNotFit) {
  const TemporaryDirectory directory;
  const Checkpoint checkpoint = open_plain(directory, "0123456789abcdef");
  const View view = opened_view(checkpoint, "bf16-safetensors");
  const auto tensor = view.tensor("t");
  ASSERT_TRUE(tensor);
  std::string out(16, '?');
  for (const auto& [first, rows] : std::vector<std::pair<std::int64_t, std::int64_t>>{
           {5, 0},
           {-1, 1},
           {3, 2},
           {0, 5},
           {0, -2},
           {1, std::numeric_limits<std::int64_t>::max()}}) {
    const auto refused = tensor->read_rows(first, rows, bytes_of(out));
    ASSERT_FALSE(refused) << first << " " << rows;
    EXPECT_EQ(refused.error().code(), ErrorCode::InvalidArgument);
    EXPECT_THAT(refused.error().message(), HasSubstr("(the tensor has 4)"));
  }
  const auto narrow = tensor->read(bytes_of(out).first(15));
  ASSERT_FALSE(narrow);
  EXPECT_EQ(narrow.error().message(), "t: 16 bytes do not go into 15 bytes");
  EXPECT_TRUE(view.tensor("none")->read({}));
  const auto missing = view.tensor("tt");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::NotFound);
  EXPECT_EQ(view.tensor(7).error().code(), ErrorCode::NotFound);
}

TEST(View, ReadsManyTensorsToTheirPlaces) {
  const Checkpoint checkpoint = open(kFp8Model);
  for (const char* name : {"bf16-safetensors", "maxtext-unscanned"}) {
    const auto view = checkpoint.view(name);
    if (!view) continue;
    const auto infos = view->tensors();
    std::vector<std::string> alone, together;
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const auto tensor = view->tensor(i);
      alone.emplace_back(tensor->info().size, '?');
      ASSERT_TRUE(tensor->read(bytes_of(alone.back())));
      together.emplace_back(tensor->info().size, '!');
    }
    for (const unsigned jobs : {1u, 3u}) {
      std::vector<TensorRead> reads;
      for (std::size_t i = infos.size(); i-- > 0;) {
        together[i].assign(together[i].size(), '!');
        reads.push_back({.tensor = i, .out = bytes_of(together[i])});
      }
      std::uint64_t done = 0, total = 0;
      ASSERT_TRUE(view->read(reads, {.jobs = jobs, .progress = [&](auto now, auto all) {
                                       EXPECT_GE(now, done);
                                       done = now;
                                       total = all;
                                     }}));
      EXPECT_EQ(together, alone) << name;
      EXPECT_EQ(done, total);
    }
  }
}

TEST(View, StopsReadingManyTensors) {
  const View view = opened_view(open(kFp8Model), "bf16-safetensors");
  std::string out(view.tensor(0)->info().size, '?');
  const std::vector<TensorRead> reads = {{.tensor = 0, .out = bytes_of(out)}};
  std::stop_source stop;
  stop.request_stop();
  const auto stopped = view.read(reads, {.stop = stop.get_token()});
  ASSERT_FALSE(stopped);
  EXPECT_EQ(stopped.error().code(), ErrorCode::Stopped);
}

TEST(ViewFile, StopsWhenItsTokenSaysSo) {
  const View view = opened_view(open(kFp8Model), "bf16-safetensors");
  std::stop_source stop;
  auto file = view.open("config.json", {.stop = stop.get_token()});
  ASSERT_TRUE(file->read(0, 100));
  stop.request_stop();
  EXPECT_EQ(file->read(0, 100).error().code(), ErrorCode::Stopped);
}

TEST(ViewFile, GoesOnWhenAProgramKeepsMoreResultsThanTheBudgetHas) {
  const TemporaryDirectory directory;
  std::string data(std::size_t{8} << 20, '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i * 5 + i / 4099);
  const Checkpoint checkpoint = open_plain(directory, data, {.use = {.memory = 64 << 20}});
  const View view = opened_view(checkpoint, "source");
  std::vector<Bytes> kept;
  std::string first;
  for (int round = 0; round < 20; ++round) {  // 160 MiB of a budget of 64 MiB
    auto file = view.open("model.safetensors");
    const std::uint64_t size = file->info().size;
    for (std::uint64_t at = 0; at < size; at += std::uint64_t{1} << 20) {
      auto bytes = file->read(at, std::size_t{1} << 20);
      ASSERT_TRUE(bytes) << bytes.error().message();
      kept.push_back(*std::move(bytes));
    }
  }
  EXPECT_LE(checkpoint.statistics().memory_peak, std::uint64_t{64} << 20);
  std::string all;
  for (const Bytes& bytes : kept) all += text_of(bytes);
  const std::string whole = read_text(directory.path() / "model.safetensors");
  ASSERT_EQ(all.size(), 20 * whole.size());
  for (std::size_t round = 0; round < 20; ++round) {
    ASSERT_TRUE(all.compare(round * whole.size(), whole.size(), whole) == 0) << round;
  }
  // What is given back can be lent again.
  kept.clear();
  auto file = view.open("model.safetensors");
  ASSERT_TRUE(file->read(0, std::size_t{1} << 20));
}

TEST(Checkpoint, IsNotUsedByAForkedChild) {
  auto checkpoint = std::make_optional(open(kFp8Model));
  auto view = std::make_optional(opened_view(*checkpoint, "bf16-safetensors"));
  auto file = std::make_optional(*view->open("config.json"));
  auto tensor = std::make_optional(*view->tensor(0));
  auto kept = std::make_optional(*file->read(0, 10));
  std::string out(tensor->info().size, '?');
  const auto refused = [&](auto use) {
    EXPECT_THAT(message_in_child([&] { return use().error().message(); }),
                HasSubstr("(open it again after a fork)"));
  };
  refused([&] { return checkpoint->view("bf16-safetensors"); });
  refused([&] { return view->open("config.json"); });
  refused([&] { return view->tensor(0); });
  refused([&] { return file->read(0, 10); });
  refused([&] { return tensor->read(bytes_of(out)); });
  EXPECT_EQ(message_in_child([&] {
              if (!checkpoint->views().empty() || !view->tensors().empty()) return "not empty";
              kept.reset();
              tensor.reset();
              file.reset();
              view.reset();
              checkpoint.reset();
              if (kSanitized) return "read again";  // their threads do not survive a fork
              const auto again = Checkpoint::open(kFp8Model);
              const auto norm = again->view("bf16-safetensors")->tensor(0);
              return norm->read(bytes_of(out)) ? "read again" : "not read";
            }),
            "read again");
  ASSERT_TRUE(tensor->read(bytes_of(out)));
}

}  // namespace
}  // namespace ckfs
