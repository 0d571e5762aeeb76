#include "base/write_all.h"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace ckfs {
namespace {

/// A file whose answers are scripted: bytes that a call takes, or minus the errno of one that
/// fails. Calls beyond the script take all.
struct ScriptedFile {
  std::vector<ssize_t> answers;
  std::string text{};
  int calls = 0;

  ssize_t operator()(std::span<const std::byte> bytes, std::uint64_t offset) {
    const std::size_t call = static_cast<std::size_t>(calls++);
    ssize_t answer = call < answers.size() ? answers[call] : std::ssize(bytes);
    if (answer < 0) {
      errno = static_cast<int>(-answer);
      return -1;
    }
    EXPECT_EQ(offset, 100 + text.size());
    text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<std::size_t>(answer));
    return answer;
  }
};

int write_to(ScriptedFile& file, std::string_view text) {
  return write_all(std::as_bytes(std::span(text)), 100, file);
}

TEST(WriteAll, GoesOnAfterShortWritesAndSignals) {
  ScriptedFile file{{2, -EINTR, 1, -EINTR, -EINTR}};
  EXPECT_EQ(write_to(file, "checkpoint"), 0);
  EXPECT_EQ(file.text, "checkpoint");
  EXPECT_EQ(file.calls, 6);
}

TEST(WriteAll, AWriteOfNothingIsAFullDisk) {
  ScriptedFile file{{5, 0}};
  EXPECT_EQ(write_to(file, "checkpoint"), ENOSPC);
  EXPECT_EQ(file.text, "check");
  EXPECT_EQ(file.calls, 2);
}

TEST(WriteAll, GivesTheErrorOfTheCallThatFailed) {
  ScriptedFile file{{3, -EDQUOT}};
  EXPECT_EQ(write_to(file, "checkpoint"), EDQUOT);
  EXPECT_EQ(file.calls, 2);
}

TEST(WriteAll, NothingNeedsNoCall) {
  ScriptedFile file{{-EIO}};
  EXPECT_EQ(write_to(file, ""), 0);
  EXPECT_EQ(file.calls, 0);
}

}  // namespace
}  // namespace ckfs
