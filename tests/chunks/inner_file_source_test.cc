#include "chunks/inner_file_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <mutex>
#include <numeric>
#include <thread>

#include "catalog/catalog.h"
#include "source/torch_writer.h"
#include "support/gather_all.h"
#include "support/memory_source.h"

namespace ckfs {
namespace {

using testing::AllOf;
using testing::HasSubstr;

/// The numbers 0, 1, ... of as many floats, where a tensor of these strides has them in row-major
/// order; the other elements of its storage are -1.
std::string numbers(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& stride,
                    std::int64_t numel) {
  std::vector<float> storage(static_cast<std::size_t>(numel), -1);
  const std::int64_t count =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t rest = i, at = 0;
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += rest % shape[d] * stride[d];
      rest /= shape[d];
    }
    storage[static_cast<std::size_t>(at)] = static_cast<float>(i);
  }
  return {reinterpret_cast<const char*>(storage.data()), storage.size() * sizeof(float)};
}

/// A recorder of hints over a MemorySource.
class Hinted final : public ByteSource {
 public:
  explicit Hinted(MemorySource& files) : files_(files) {}
  Result<void> read(std::span<const ReadRequest> batch) override {
    const std::lock_guard lock(mutex_);
    padded.clear();
    for (const ReadRequest& request : batch) padded.push_back(request.padded);
    return files_.read(batch);
  }
  std::optional<MappedBytes> map(const FileRange& range, std::uint64_t used) override {
    return files_.map(range, used);
  }
  void will_need(std::span<const FileRange> ranges) override {
    const std::lock_guard lock(mutex_);
    hints.assign(ranges.begin(), ranges.end());
  }
  Result<void> verify(std::span<const FileId> files) override {
    verified.assign(files.begin(), files.end());
    return {};
  }
  SourceTraits traits(FileId file) const override {
    return {.heeds_hints = true, .reads_past_cache = true, .streams = file == 0};
  }
  std::uint64_t size(FileId file) const override { return files_.size(file); }
  const std::string& name(FileId file) const override { return files_.name(file); }

  std::vector<FileRange> hints;
  std::vector<bool> padded;  // of the last batch
  std::vector<FileId> verified;

 private:
  MemorySource& files_;
  std::mutex mutex_;
};

/// A file of torch files, of [6, 4] floats each.
class InnerFileSourceTest : public testing::Test {
 protected:
  static constexpr std::uint64_t kBytes = 6 * 4 * sizeof(float);

  FileId add(const std::vector<std::int64_t>& stride = {4, 1}, std::int64_t offset = 0,
             std::int64_t numel = 24, const std::vector<std::int64_t>& shape = {6, 4}) {
    TorchWriter torch;
    std::string bytes = numbers(shape, stride, numel - offset);
    bytes.insert(0, static_cast<std::size_t>(offset) * sizeof(float), 'x');
    const std::string item =
        torch.file(torch.strided("Float", shape, stride, offset, numel, bytes));
    const FileRange stored{0, text_.size(), item.size()};
    text_ += item;
    if (tensor_ == kNone) {
      tensor_ = table_.add_tensor({std::string("w"), DType::F32, {6, 4}, kBytes});
    }
    return table_.add(tensor_, stored).value();
  }

  /// After the last add().
  InnerFileSource& source() {
    if (!source_) {
      memory_.add_text("__0_0.distcp", text_);
      source_.emplace(hinted_, table_);
      memory_.reset_counts();
    }
    return *source_;
  }

  std::vector<std::byte> read(FileId file, std::uint64_t offset = 0, std::uint64_t size = kBytes) {
    std::vector<std::byte> out(size);
    const auto done = source().read_at(file, offset, out);
    EXPECT_TRUE(done) << done.error().message();
    return out;
  }

  static std::vector<std::byte> expected() {
    std::vector<std::byte> bytes(kBytes);
    const std::string text = numbers({6, 4}, {4, 1}, 24);
    std::memcpy(bytes.data(), text.data(), bytes.size());
    return bytes;
  }

  std::string error_of(FileId file) {
    std::vector<std::byte> out(kBytes);
    const auto done = source().read_at(file, 0, out);
    return done ? "(no error)" : std::string(done.error().message());
  }

  static constexpr InnerFiles::TensorNumber kNone = ~InnerFiles::TensorNumber{0};
  std::string text_ = "something before";
  InnerFiles table_;
  InnerFiles::TensorNumber tensor_ = kNone;
  MemorySource memory_;
  Hinted hinted_{memory_};
  std::optional<InnerFileSource> source_;
};

TEST_F(InnerFileSourceTest, ElementsAreFoundWhereverTheyLie) {
  const FileId row_major = add();
  const FileId transposed = add({1, 6});
  const FileId padded = add({5, 1}, 0, 30);
  const FileId behind_others = add({4, 1}, 3, 27);
  for (const FileId file : {row_major, transposed, padded, behind_others}) {
    EXPECT_EQ(source().size(file), kBytes);
    EXPECT_EQ(source().name(file), "__0_0.distcp");
    EXPECT_EQ(read(file), expected());
    for (std::uint64_t begin = 0; begin < kBytes; ++begin) {
      for (std::uint64_t size = 1; begin + size <= kBytes; size += 5) {
        const auto all = expected();
        const auto first = all.begin() + static_cast<std::ptrdiff_t>(begin);
        EXPECT_EQ(read(file, begin, size),
                  std::vector(first, first + static_cast<std::ptrdiff_t>(size)));
      }
    }
  }
}

TEST_F(InnerFileSourceTest, PlacesOfManyAreFoundByOneBatchAndKept) {
  std::vector<FileId> files;
  for (int i = 0; i < 64; ++i) files.push_back(add());
  const auto around = text_.size() - 64 * kBytes;
  std::vector<std::vector<std::byte>> outs(files.size(), std::vector<std::byte>(kBytes));
  std::vector<ReadRequest> batch;
  for (std::size_t i = 0; i < files.size(); ++i) batch.push_back({files[i], 0, outs[i]});
  batch.push_back(batch.front());  // twice
  ASSERT_TRUE(source().read(batch));
  for (const auto& out : outs) EXPECT_EQ(out, expected());
  EXPECT_EQ(memory_.batches(), 2U);
  EXPECT_LE(memory_.bytes_read(), around + 129 * kBytes);
  memory_.reset_counts();
  ASSERT_TRUE(source().read(batch));
  EXPECT_EQ(memory_.batches(), 1U);
  EXPECT_EQ(memory_.bytes_read(), 65 * kBytes);
}

TEST_F(InnerFileSourceTest, MoreThanAreLookedForTogether) {
  std::vector<FileId> files;
  for (int i = 0; i < 300; ++i) files.push_back(i % 7 == 0 ? add({1, 6}) : add());
  std::vector<std::vector<std::byte>> outs(files.size(), std::vector<std::byte>(kBytes));
  std::vector<ReadRequest> batch;
  for (std::size_t i = files.size(); i-- > 0;) batch.push_back({files[i], 0, outs[i]});
  ASSERT_TRUE(source().read(batch));
  for (const auto& out : outs) EXPECT_EQ(out, expected());
}

TEST_F(InnerFileSourceTest, IsForSeveralThreads) {
  std::vector<FileId> files;
  for (int i = 0; i < 50; ++i) files.push_back(i % 5 == 0 ? add({1, 6}) : add());
  source();
  std::vector<std::jthread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (const FileId file : files) {
        source().map({file, 0, kBytes}, kBytes);
        const FileRange all{file, 0, kBytes};
        source().will_need({&all, 1});
        EXPECT_EQ(read(file), expected());
      }
    });
  }
}

TEST_F(InnerFileSourceTest, FilesAreReadBesideThem) {
  const FileId inner = add();
  std::vector<std::byte> first(9), second(kBytes);
  const std::vector<ReadRequest> batch{{0, 0, first}, {inner, 0, second}};
  ASSERT_TRUE(source().read(batch));
  EXPECT_EQ(std::memcmp(first.data(), "something", 9), 0);
  EXPECT_EQ(second, expected());
}

TEST_F(InnerFileSourceTest, OnlyReadsOfFilesStayPadded) {
  const FileId inner = add();
  std::vector<std::byte> first(9), second(kBytes);
  const std::vector<ReadRequest> batch{{0, 0, first, true}, {inner, 0, second, true}};
  ASSERT_TRUE(source().read(batch));
  EXPECT_EQ(hinted_.padded, (std::vector{true, false}));
  ASSERT_TRUE(source().read({&batch[0], 1}));
  EXPECT_EQ(hinted_.padded, std::vector{true});
  ASSERT_TRUE(source().read({&batch[1], 1}));
  EXPECT_EQ(hinted_.padded, std::vector{false});
  EXPECT_EQ(second, expected());
}

TEST_F(InnerFileSourceTest, WhatIsAnotherTensorIsAnError) {
  add();
  const FileId wider = add({6, 1}, 0, 24, {4, 6});
  EXPECT_THAT(error_of(wider), AllOf(HasSubstr("__0_0.distcp: tensor \"w\": a chunk of F32 [4, 6]"),
                                     HasSubstr("but .metadata says F32 [6, 4]")));
}

TEST_F(InnerFileSourceTest, WhatIsNoTorchFileIsAnError) {
  const FileId file = add();
  text_.replace(16, 40, 40, 'x');
  EXPECT_THAT(error_of(file), HasSubstr("__0_0.distcp: tensor \"w\", bytes [16, "));
  EXPECT_THAT(error_of(file), HasSubstr("): not a torch file"));
}

TEST_F(InnerFileSourceTest, AHeaderOfManyBytesIsNotReadForIt) {
  TorchWriter torch;
  const Opcodes whole = torch.tensor("Float", {6, 4}, numbers({6, 4}, {4, 1}, 24));
  const std::string item = torch.file(py_str(std::string(40000, 'x')) + "0" + whole);
  tensor_ = table_.add_tensor({"w", DType::F32, {10000, 1}, 40000});
  const FileId file = table_.add(tensor_, {0, text_.size(), item.size()}).value();
  text_ += item;
  EXPECT_THAT(error_of(file), HasSubstr("): zip member \"archive/data.pkl\" has"));
}

TEST_F(InnerFileSourceTest, AFailedLookIsTriedAgain) {
  const FileId file = add();
  source();
  memory_.fail(0, {0, text_.size()}, EIO, 1);
  EXPECT_THAT(error_of(file), HasSubstr("__0_0.distcp"));
  EXPECT_EQ(read(file), expected());
}

TEST_F(InnerFileSourceTest, OnlyWhatLiesInOrderIsMapped) {
  const FileId row_major = add();
  const FileId transposed = add({1, 6});
  source();
  memory_.allow_mapping();
  EXPECT_FALSE(source().map({row_major, 4, 8}, 8));  // nobody knows yet where
  EXPECT_EQ(memory_.batches(), 0U);
  read(row_major);
  read(transposed);
  const auto mapped = source().map({row_major, 4, 8}, 8);
  ASSERT_TRUE(mapped);
  EXPECT_EQ(std::memcmp(mapped->data, expected().data() + 4, 8), 0);
  EXPECT_EQ(mapped->file, 0U);
  EXPECT_TRUE(source().check_mapped({&*mapped, 1}));
  EXPECT_FALSE(source().map({transposed, 4, 8}, 8));
}

TEST_F(InnerFileSourceTest, HintsAreOfWhatWillBeRead) {
  const FileId row_major = add();
  const FileId transposed = add({1, 6});
  const auto covered = [&](const FileRange& bytes) {
    return std::ranges::any_of(hinted_.hints, [&](const FileRange& hint) {
      return hint.offset <= bytes.offset && hint.offset + hint.size >= bytes.offset + bytes.size;
    });
  };
  const FileRange stored = table_.file(row_major).stored;
  const FileRange wanted{row_major, 8, 16};
  source().will_need({&wanted, 1});
  read(row_major, 8, 16);
  const auto before = hinted_.hints;
  source().will_need({&wanted, 1});
  ASSERT_EQ(hinted_.hints.size(), 1U);
  const FileRange exact = hinted_.hints.front();
  EXPECT_EQ(exact.size, 16U);
  EXPECT_EQ(std::memcmp(text_.data() + exact.offset, expected().data() + 8, 16), 0);
  hinted_.hints = before;
  EXPECT_TRUE(covered(exact));
  EXPECT_TRUE(covered({0, stored.offset, 30}));
  EXPECT_TRUE(covered({0, stored.offset + stored.size - 22, 22}));
  for (const FileRange& hint : before) {
    EXPECT_GE(hint.offset, stored.offset);
    EXPECT_LE(hint.offset + hint.size, stored.offset + stored.size);
  }
  read(transposed);
  hinted_.hints.clear();
  const FileRange columns{transposed, 0, kBytes};
  source().will_need({&columns, 1});
  EXPECT_TRUE(hinted_.hints.empty());
  EXPECT_TRUE(source().traits(row_major).heeds_hints);
  EXPECT_FALSE(source().traits(transposed).heeds_hints);
}

TEST_F(InnerFileSourceTest, TheFileAnswersForThem) {
  const FileId first = add();
  const FileId second = add();
  EXPECT_TRUE(source().traits(second).streams);
  EXPECT_FALSE(source().traits(second).reads_past_cache);
  EXPECT_TRUE(source().traits(0).reads_past_cache);
  const std::vector<FileId> both{first, second};
  ASSERT_TRUE(source().verify(both));
  EXPECT_EQ(hinted_.verified, std::vector<FileId>{0});
}

TEST_F(InnerFileSourceTest, BoxesAreFoundTogetherWhereTheyAreGathered) {
  constexpr std::int64_t kBoxes = 64;
  CatalogBuilder builder("test");
  InnerFiles& table = builder.inner_files();
  const auto tensor = table.add_tensor({"w", DType::F32, {6, 4}, kBytes});
  std::vector<StorageBox> boxes;
  for (std::int64_t i = 0; i < kBoxes; ++i) {
    const FileRange stored = table_.file(add()).stored;
    const Extent all{table.add(tensor, stored).value(), 0, kBytes};
    const StorageId storage = builder.add_storage(DType::F32, 24, std::span(&all, 1));
    boxes.push_back({storage, 0, {0, 4 * i}, {6, 4}, {4, 1}});
  }
  const StorageId first = boxes.front().storage;
  const std::vector<std::int64_t> shape{6, 4 * kBoxes};
  builder.add_tensor("w", shape, first, std::move(boxes));
  const auto catalog = std::move(builder).build();
  memory_.add_text("__0_0.distcp", text_);
  memory_.allow_mapping();
  InnerFileSource source(memory_, catalog->inner_files());
  const TensorExpr expr = TensorExpr::stored(*catalog, 0);
  std::vector<std::byte> out(expr.nbytes()), staging(2 * expr.nbytes());
  ASSERT_TRUE(gather(*catalog, source, expr, 0, expr.numel(), out, staging, KernelSet::Fast));
  EXPECT_LE(memory_.batches(), 2U);
  for (std::int64_t at = 0; at < expr.numel(); ++at) {
    const std::int64_t row = at / (4 * kBoxes);
    float value = 0;
    std::memcpy(&value, out.data() + static_cast<std::size_t>(at) * sizeof value, sizeof value);
    ASSERT_EQ(value, static_cast<float>(4 * row + at % 4)) << at;
  }
}

}  // namespace
}  // namespace ckfs
