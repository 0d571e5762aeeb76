#include "check/digest.h"

#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <memory>
#include <random>

#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

const std::string kSha(64, 'a');
const std::string kXxh(32, 'b');

TEST(Digests, CheckFilesComeBack) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::map<std::string, FileDigest> digests;
    for (unsigned left = 1 + static_cast<unsigned>(random() % 5); left > 0; --left) {
      std::string path = "a";
      for (unsigned n = static_cast<unsigned>(random() % 8); n > 0; --n) {
        path += "b \\\n\r()=*/"[random() % 10];
      }
      digests[path] = {path, {{Algorithm::Sha256, kSha}}};
      if (random() % 2 == 0) digests[path].sums[Algorithm::Crc32c] = "4waSgw==";
      if (random() % 2 == 0) digests[path].sums[Algorithm::Xxh128] = kXxh;
    }
    for (const bool tagged : {false, true}) {
      std::string text = "# a comment\n";
      std::vector<FileDigest> want;
      for (const auto& [path, digest] : digests) {
        text += check_lines(digest, tagged);
        want.push_back(digest);
      }
      const auto parsed = parse_digests(text);
      ASSERT_TRUE(parsed.has_value()) << parsed.error().message() << "\n" << text;
      EXPECT_EQ(*parsed, want);
    }
  }
}

TEST(Digests, ALineMayComeTwice) {
  const auto parsed = parse_digests(kSha + "  a\n" + kSha + "  a\n");
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message();
  EXPECT_EQ(parsed->size(), 1U);
}

TEST(Digests, WhatIsNoneIsRefused) {
  for (const std::string& text :
       {std::string(), std::string("\n"), std::string("hello\n"), kSha + "\n", kSha + "  \n",
        std::string("{}"), std::string(R"({"version":1,"files":[]})"),
        std::string(R"({"version":2,"files":[{"path":"a","sha256":"b"}]})"),
        std::string(R"({"version":1,"files":[{"path":"a"}]})"),
        std::string(R"({"version":1,"files":[{"path":"a\ufffd","sha256":"b"}]})"),
        std::string(
            R"({"version":1,"files":[{"path":"a","sha256":"b"},{"path":"a","sha256":"b"}]})"),
        "x" + kSha.substr(1) + "  a\n",
        kSha + "  a\n" + (kSha[0] == '0' ? '1' : '0') + kSha.substr(1) + "  a\n"}) {
    EXPECT_FALSE(parse_digests(text).has_value()) << text;
  }
}

namespace fs = std::filesystem;

/// A view of several files, whose digests are computed with a journal.
class Journal : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"a", "b", "c"}) {
      directory_.write(fmt::format("src/model-{}.safetensors", name),
                       safetensors_text({{name, 1000}}, 1));
    }
    open();
    right_ = run().value();
    fs::remove(path_);
  }

  void open() {
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(directory_ / "src").value());
    view_ = std::make_unique<View>(checkpoint_->view("fp32-safetensors").value());
  }

  /// The digests; an error where `most` of them were taken.
  Result<std::vector<FileDigest>> run(std::size_t most = 100) {
    std::size_t taken = 0;
    CKFS_TRY(DigestResult result,
             digest_view(*view_, {.algorithms = algorithms_,
                                  .jobs = 1,
                                  .each = [&](const FileDigest&) -> Result<void> {
                                    if (++taken < most) return {};
                                    return fail(ErrorCode::Io, "enough");
                                  },
                                  .resume = path_}));
    known_ = result.files_kept;
    return std::move(result.files);
  }

  std::string text() const {
    std::ifstream file(path_);
    return {std::istreambuf_iterator<char>(file), {}};
  }

  TemporaryDirectory directory_;
  const std::string path_ = (directory_ / "sums.partial").native();
  std::vector<Algorithm> algorithms_{Algorithm::Sha256, Algorithm::Crc32c};
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<View> view_;
  std::vector<FileDigest> right_;
  std::size_t known_ = 0;
};

TEST_F(Journal, WhatItListsIsNotReadAgain) {
  ASSERT_FALSE(run(2).has_value());
  // A sum that only this test knows.
  std::string kept = text();
  const std::string sum = right_[0].sums[Algorithm::Sha256];
  ASSERT_NE(kept.find(sum), std::string::npos);
  kept.replace(kept.find(sum), sum.size(), kSha);
  std::ofstream(path_) << kept;
  const auto again = run();
  ASSERT_TRUE(again.has_value()) << again.error().message();
  EXPECT_GE(known_, 2U);
  auto expected = right_;
  expected[0].sums[Algorithm::Sha256] = kSha;
  EXPECT_EQ(*again, expected);
}

TEST_F(Journal, WhereverItWasCutOffTheDigestsAreRight) {
  ASSERT_TRUE(run().has_value());
  const std::string whole = text();
  for (std::size_t size = 0; size <= whole.size(); ++size) {
    std::ofstream(path_) << whole.substr(0, size);
    const auto again = run();
    ASSERT_TRUE(again.has_value()) << again.error().message();
    ASSERT_EQ(*again, right_) << size;
    // As a power failure may leave what was written last.
    std::ofstream(path_) << whole.substr(0, size) + std::string(whole.size() - size, '\0');
    const auto zeros = run();
    if (size >= ResumeFile::kBegin.size()) {
      ASSERT_TRUE(zeros.has_value()) << zeros.error().message();
      ASSERT_EQ(*zeros, right_) << size;
    }
    fs::remove(path_);
  }
}

TEST_F(Journal, BelievesNothingThatWasMadeFromSomethingElse) {
  ASSERT_TRUE(run().has_value());
  const auto all = algorithms_;
  algorithms_ = {Algorithm::Sha256};
  ASSERT_TRUE(run().has_value());
  EXPECT_EQ(known_, 0U) << "other sums";
  algorithms_ = all;
  *view_ = checkpoint_->view("source").value();
  ASSERT_TRUE(run().has_value());
  EXPECT_EQ(known_, 0U) << "another view";
  directory_.write("src/model-b.safetensors", safetensors_text({{"b", 1000}}, 2));
  open();
  ASSERT_TRUE(run().has_value());
  EXPECT_EQ(known_, 0U) << "another source";
  ASSERT_TRUE(run().has_value());
  EXPECT_EQ(known_, right_.size());
}

TEST_F(Journal, ReplacesNoFileOfAnotherKind) {
  const auto message = [&] { return run().error().message(); };
  std::ofstream(path_) << "my notes\n";
  EXPECT_THAT(message(), testing::HasSubstr("not a file that an interrupted ckfs run left"));
  EXPECT_EQ(text(), "my notes\n");
  fs::remove(path_);
  fs::create_symlink(directory_ / "src/model-a.safetensors", path_);
  EXPECT_THAT(message(), testing::HasSubstr("a symbolic link"));
  fs::remove(path_);
  ASSERT_TRUE(run().has_value());
  fs::permissions(path_, fs::perms::others_write, fs::perm_options::add);
  EXPECT_THAT(message(), testing::HasSubstr("other users may write to it"));
}

TEST_F(Journal, StaysUntilItsUserRemovesIt) {
  ASSERT_TRUE(run().has_value());
  EXPECT_TRUE(fs::exists(path_));
  // Without one, and without a function that takes them, the sums are the same.
  const auto plain = digest_view(*view_, {.algorithms = algorithms_});
  ASSERT_TRUE(plain.has_value()) << plain.error().message();
  EXPECT_EQ(plain->files, right_);
  EXPECT_EQ(plain->files_kept, 0U);
}

TEST(DigestView, NeedsAnAlgorithm) {
  const TemporaryDirectory directory;
  directory.write("model.safetensors", safetensors_text({{"a", 10}}, 1));
  const Checkpoint checkpoint = Checkpoint::open(directory.path()).value();
  const auto none = digest_view(checkpoint.view("source").value(), {.algorithms = {}});
  ASSERT_FALSE(none.has_value());
  EXPECT_EQ(none.error().code(), ErrorCode::InvalidArgument);
  EXPECT_EQ(none.error().message(), "source: no algorithm for its digests");
}

TEST_F(Journal, IsOneProcesssAtATime) {
  const auto held = DigestJournal::open(path_, *view_, algorithms_);
  ASSERT_TRUE(held.has_value());
  EXPECT_THAT(run().error().message(), testing::HasSubstr("another ckfs is at work with it"));
}

}  // namespace
}  // namespace ckfs
