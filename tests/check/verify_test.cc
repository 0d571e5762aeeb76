#include "check/verify.h"

#include <cmath>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <memory>

#include "support/forked_child.h"
#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::HasSubstr;

/// A view of src, whose files are in copy.
View copied(const TemporaryDirectory& directory) {
  const View view = Checkpoint::open(directory / "src").value().view("fp32-safetensors").value();
  for (const FileInfo file : view.files()) {
    const Bytes bytes = view.open(file.path)->read(0, file.size).value();
    directory.write("copy/" + std::string(file.path), bytes.span());
  }
  return view;
}

TEST(Verify, FollowsALinkInThePlaceOfADirectoryOfTheView) {
  const TemporaryDirectory directory;
  directory.write("src/model.safetensors", safetensors_text({{"top", 10}}, 1));
  directory.write("src/modules.json", "[]");
  directory.write("src/2_Dense/config.json", "{}");
  const View view = copied(directory);
  std::filesystem::rename(directory / "copy/2_Dense", directory / "elsewhere");
  std::filesystem::create_directory_symlink(directory / "elsewhere", directory / "copy/2_Dense");
  const auto same = verify_copy(view, directory / "copy", {});
  ASSERT_TRUE(same) << same.error().message();
  EXPECT_THAT(same->differences, testing::IsEmpty());

  directory.write("elsewhere/other", "x");
  std::filesystem::create_directory_symlink(directory / "copy", directory / "copy/round");
  const auto more = verify_copy(view, directory / "copy", {});
  ASSERT_TRUE(more) << more.error().message();
  EXPECT_THAT(more->differences, testing::UnorderedElementsAre(
                                     Difference{"2_Dense/other", "extra file, not in the view"},
                                     Difference{"round", "extra file, not in the view"}));
}

TEST(Verify, PassesOverTheRecordsOfADownloadAndOfAnExport) {
  const TemporaryDirectory directory;
  directory.write("src/model.safetensors", safetensors_text({{"top", 10}}, 1));
  const View view = copied(directory);
  // As `hf download --local-dir copy` leaves them, and an export that was interrupted.
  directory.write("copy/.cache/huggingface/.gitignore", "*");
  directory.write("copy/.cache/huggingface/CACHEDIR.TAG", "x");
  directory.write("copy/.cache/huggingface/download/model.safetensors.metadata", "x");
  directory.write("copy/.ckfs-export.d/record.json", "{}");
  const auto same = verify_copy(view, directory / "copy", {});
  ASSERT_TRUE(same) << same.error().message();
  EXPECT_THAT(same->differences, testing::IsEmpty());

  directory.write("copy/.cache/other", "x");
  directory.write("copy/folder/.cache/huggingface/x", "x");
  const auto more = verify_copy(view, directory / "copy", {});
  ASSERT_TRUE(more) << more.error().message();
  EXPECT_THAT(more->differences,
              testing::UnorderedElementsAre(
                  Difference{".cache/other", "extra file, not in the view"},
                  Difference{"folder/.cache/huggingface/x", "extra file, not in the view"}));
}

TEST(Verify, NamesTheTensorOfAFolderWithWeightsOfItsOwn) {
  const TemporaryDirectory directory;
  directory.write("src/model.safetensors", safetensors_text({{"top", 10}}, 1));
  directory.write("src/modules.json", "[]");
  directory.write("src/2_Dense/model.safetensors", safetensors_text({{"a", 3}, {"b", 3}}, 2));
  directory.write("src/2_Dense/config.json", "{}");
  const auto checkpoint = Checkpoint::open(directory / "src");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  const auto view = checkpoint->view("fp32-safetensors");
  ASSERT_TRUE(view) << view.error().message();
  const FileList files = view->files();
  for (const FileInfo file : files) {
    const Bytes bytes = view->open(file.path)->read(0, file.size).value();
    directory.write("copy/" + std::string(file.path), bytes.span());
  }
  const auto same = verify_copy(*view, directory / "copy", {});
  ASSERT_TRUE(same) << same.error().message();
  EXPECT_EQ(same->differing, 0U);

  const std::string path = "2_Dense/model.safetensors";
  const std::size_t file = files.find(path).value();
  EXPECT_EQ(place_in_view(*view, file, files[file].size - 1), "tensor b, element [2]");
  EXPECT_EQ(place_in_view(*view, file, 0), "the header");
  std::fstream copy(directory / "copy" / path, std::ios::in | std::ios::out | std::ios::binary);
  copy.seekp(-1, std::ios::end);
  copy.put('?');
  copy.close();
  const auto other = verify_copy(*view, directory / "copy", {});
  ASSERT_TRUE(other) << other.error().message();
  ASSERT_EQ(other->differences.size(), 1U);
  EXPECT_EQ(other->differences[0].path, path);
  EXPECT_THAT(other->differences[0].text, HasSubstr("tensor b, element [2] (byte "));
}

TEST(VerifyCopy, RefusesSamplesThatHaveNoMeaning) {
  const TemporaryDirectory directory;
  directory.write("src/model.safetensors", safetensors_text({{"a", 10}}, 1));
  directory.write("copy/model.safetensors", safetensors_text({{"a", 10}}, 1));
  const Checkpoint checkpoint = Checkpoint::open(directory / "src").value();
  const View view = checkpoint.view("source").value();
  const auto message = [&](const VerifyOptions& options) {
    const auto result = verify_copy(view, directory / "copy", options);
    return result ? std::string("none") : result.error().message();
  };
  EXPECT_EQ(message({.sample = 1}), "none");
  EXPECT_EQ(message({.sample = 0.5, .seed = 1}), "none");
  for (const double share : {0.0, -1.0, 1.5, std::nan("")}) {
    EXPECT_THAT(message({.sample = share}), HasSubstr("is not a share (more than 0, at most 1)"));
  }
  EXPECT_EQ(message({.sample = 0.5, .resume = directory / "state"}), "resume: not with a sample");
  const auto listed = verify_digests(view, digest_view(view)->files, "list", {.sample = 0.5});
  ASSERT_FALSE(listed.has_value());
  EXPECT_THAT(listed.error().message(), HasSubstr("sample: list: "));
}

TEST(VerifyDigests, ComparesEachSumOfAFile) {
  const TemporaryDirectory directory;
  directory.write("src/model.safetensors", safetensors_text({{"a", 10}}, 1));
  const Checkpoint checkpoint = Checkpoint::open(directory / "src").value();
  const View view = checkpoint.view("source").value();
  const auto all = digest_view(view, {.algorithms = {Algorithm::Sha256, Algorithm::Crc32c}});
  ASSERT_TRUE(all && all->files.size() == 1);
  // Two lists that a caller has joined.
  FileDigest one = all->files[0], other = one;
  one.sums.erase(Algorithm::Crc32c);
  other.sums.erase(Algorithm::Sha256);
  const auto equal = verify_digests(view, {one, other}, "list");
  ASSERT_TRUE(equal) << equal.error().message();
  EXPECT_EQ(std::pair(equal->differing, equal->files),
            std::pair(std::uint64_t{0}, std::uint64_t{1}));
  FileDigest wrong = one;
  wrong.sums.begin()->second = std::string(64, '0');
  const auto unequal = verify_digests(view, {wrong, other}, "list");
  ASSERT_TRUE(unequal) << unequal.error().message();
  EXPECT_EQ(unequal->differing, 1U);
  const auto refused = [&](const std::vector<FileDigest>& digests) {
    const auto result = verify_digests(view, digests, "list");
    return result ? std::string("none") : result.error().message();
  };
  EXPECT_EQ(refused({one, wrong}), "list: model.safetensors: two different sums sha256");
  EXPECT_EQ(refused({FileDigest{.path = one.path, .sums = {}}}),
            "list: model.safetensors: no sum that can be checked");
}

TEST(VerifyCopy, IsNotUsedByAForkedChild) {
  const TemporaryDirectory directory;
  directory.write("src/model.safetensors", safetensors_text({{"a", 10}}, 1));
  directory.write("copy/model.safetensors", safetensors_text({{"a", 10}}, 1));
  const Checkpoint checkpoint = Checkpoint::open(directory / "src").value();
  const View view = checkpoint.view("source").value();
  const auto refused = [](auto use) {
    EXPECT_THAT(message_in_child([&] { return use().error().message(); }),
                HasSubstr("(open it again after a fork)"));
  };
  refused([&] { return digest_view(view); });
  refused([&] { return verify_copy(view, directory / "copy"); });
  refused([&] { return verify_digests(view, {}, "list"); });
}

/// A view of three shards, and a copy of it.
class VerifyAgain : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b", "c"}) {
      directory_.write(fmt::format("src/model-{}.safetensors", name),
                       safetensors_text({{name, 1000}}, 1));
    }
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(directory_ / "src").value());
    view_ = std::make_unique<View>(checkpoint_->view("fp32-safetensors").value());
    for (const FileInfo file : view_->files()) {
      const Bytes bytes = view_->open(file.path)->read(0, file.size).value();
      directory_.write("copy/" + std::string(file.path), bytes.span());
      total_ += file.size;
    }
  }

  Result<VerifyResult> verify(std::stop_token stop = {}, const View* view = nullptr) const {
    return verify_copy(view ? *view : *view_, directory_ / "copy",
                       {.jobs = 1, .stop = std::move(stop), .resume = directory_ / "state"});
  }

  /// Stops when the first file has been compared.
  void interrupt() const {
    std::stop_source stop;
    const auto interrupted =
        verify_copy(*view_, directory_ / "copy",
                    {.jobs = 1,
                     .stop = stop.get_token(),
                     .progress = [&](std::uint64_t, std::uint64_t) { stop.request_stop(); },
                     .resume = directory_ / "state"});
    ASSERT_FALSE(interrupted.has_value());
    EXPECT_EQ(interrupted.error().code(), ErrorCode::Stopped);
    EXPECT_THAT(
        interrupted.error().message(),
        testing::ContainsRegex("copy: interrupted after .*; no difference so far .*continues"));
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<View> view_;
  std::uint64_t total_ = 0;
};

TEST_F(VerifyAgain, GoesOnAfterAnInterruption) {
  interrupt();
  const auto rest = verify();
  ASSERT_TRUE(rest) << rest.error().message();
  EXPECT_GT(rest->bytes_kept, 0U);
  EXPECT_LT(rest->bytes_kept, total_);
  EXPECT_EQ(rest->bytes, total_);
  EXPECT_EQ(rest->differing, 0U);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "state")) << "all is done";
}

TEST_F(VerifyAgain, ComparesAgainWhatHasChangedSince) {
  interrupt();
  const auto first = view_->files()[0];
  const std::filesystem::path path = directory_ / "copy" / first.path;
  const auto mtime = std::filesystem::last_write_time(path);
  std::fstream copy(path, std::ios::in | std::ios::out | std::ios::binary);
  copy.seekp(-1, std::ios::end);
  copy.put('?');
  copy.close();
  std::filesystem::last_write_time(path, mtime);
  const auto rest = verify();
  ASSERT_TRUE(rest) << rest.error().message();
  EXPECT_EQ(rest->bytes_kept, 0U);
  ASSERT_EQ(rest->differing, 1U);
  EXPECT_EQ(rest->differences[0].path, first.path);
  // What was equal stays known while the copy is being mended.
  const auto again = verify();
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(again->differing, 1U);
  EXPECT_EQ(again->bytes_kept, total_ - first.size);
}

TEST_F(VerifyAgain, BelievesNothingOfAnotherView) {
  interrupt();
  const View other = checkpoint_->view("source").value();
  const auto compared = verify({}, &other);
  ASSERT_TRUE(compared) << compared.error().message();
  EXPECT_EQ(compared->bytes_kept, 0U);
}

}  // namespace
}  // namespace ckfs
