// The small vocabulary types: half-open ranges, checked numbers, error macros, descriptors.
#include <array>
#include <cerrno>
#include <cstdint>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <limits>
#include <rapidcheck/gtest.h>
#include <string>
#include <vector>

#include "base/byte_range.h"
#include "base/checked.h"
#include "base/error.h"
#include "base/gallop.h"
#include "base/load_le.h"
#include "base/name_hash.h"
#include "base/text.h"
#include "base/unique_fd.h"
#include "base/units.h"

namespace ckfs {
namespace {

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

TEST(ByteRange, IntersectionOfDistantRangesIsEmpty) {
  EXPECT_TRUE((ByteRange{0, 4}.intersect({8, 10}).empty()));
  EXPECT_TRUE((ByteRange{8, 10}.intersect({0, 4}).empty()));
  EXPECT_TRUE((ByteRange{0, 4}.intersect({4, 8}).empty()));
  EXPECT_EQ((ByteRange{0, 6}.intersect({4, 8})), (ByteRange{4, 6}));
}

TEST(ByteRange, IsPrintedHalfOpen) {
  EXPECT_EQ(fmt::format("{}", ByteRange{3, 9}), "[3, 9)");
}

RC_GTEST_PROP(ByteRange, IntersectionHoldsJustTheCommonBytes, ()) {
  const auto number = rc::gen::inRange<std::uint64_t>(0, 24);
  const auto range = [&] {
    const std::uint64_t a = *number, b = *number;
    return a < b ? ByteRange{a, b} : ByteRange{b, a};
  };
  const ByteRange x = range(), y = range();
  const ByteRange both = x.intersect(y);
  RC_ASSERT(both.begin <= both.end);
  for (std::uint64_t i = 0; i < 24; ++i) {
    const auto holds = [&](ByteRange r) { return r.begin <= i && i < r.end; };
    RC_ASSERT(holds(both) == (holds(x) && holds(y)));
  }
}

TEST(Checked, GivesNothingInsteadOfAWrappedNumber) {
  EXPECT_EQ(checked_add<std::uint64_t>(~0ULL, 1), std::nullopt);
  EXPECT_EQ(checked_add<std::uint64_t>(~0ULL, 0), ~0ULL);
  EXPECT_EQ(checked_mul<std::int64_t>(kMax, 2), std::nullopt);
  EXPECT_EQ(checked_mul<std::int64_t>(kMax / 2, 2), kMax - 1);
  EXPECT_EQ(checked_cast<std::int64_t>(~0ULL), std::nullopt);
  EXPECT_EQ(checked_cast<std::uint64_t>(std::int64_t{-1}), std::nullopt);
  EXPECT_EQ(checked_cast<std::int32_t>(std::uint64_t{7}), 7);
}

TEST(Checked, NumelOfAZeroSizedShapeIsZeroHoweverLargeTheRest) {
  const std::array<std::int64_t, 4> zero = {kMax, kMax, 0, kMax};
  EXPECT_EQ(checked_numel(zero), 0);
  const std::array<std::int64_t, 2> negative = {0, -1};
  EXPECT_EQ(checked_numel(negative), std::nullopt);
  const std::array<std::int64_t, 2> large = {kMax, 2};
  EXPECT_EQ(checked_numel(large), std::nullopt);
  EXPECT_EQ(checked_numel({}), 1);
}

TEST(Units, AreBinary) {
  EXPECT_EQ(4_KiB, 4096u);
  EXPECT_EQ(1_MiB, 1024u * 1024);
  EXPECT_EQ(1_GiB, 1024u * 1024 * 1024);
}

TEST(LoadLe, ReadsAtAnyAlignment) {
  const std::array<std::byte, 6> bytes = {std::byte{0xFF}, std::byte{1}, std::byte{2},
                                          std::byte{3},    std::byte{4}, std::byte{0xFF}};
  EXPECT_EQ(load_le<std::uint32_t>(std::span(bytes).subspan(1)), 0x04030201u);
  std::array<std::byte, 3> out{};
  store_le<std::uint16_t>(std::span(out).subspan(1), 0x0201);
  EXPECT_EQ(out, (std::array<std::byte, 3>{std::byte{0}, std::byte{1}, std::byte{2}}));
}

Result<int> half(int n) {
  if (n % 2 != 0) return fail(ErrorCode::InvalidArgument, "{}: odd", n);
  return n / 2;
}

Result<int> quarter(int n) {
  CKFS_TRY(const int once, half(n));
  CKFS_TRY(const int twice, half(once));
  return twice;
}

Result<void> check_quarter(int n) {
  CKFS_TRY_VOID(quarter(n));
  return {};
}

TEST(Error, TryGivesTheValueOrReturnsTheFailure) {
  EXPECT_EQ(quarter(12), 3);
  const auto failed = quarter(6);
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::InvalidArgument);
  EXPECT_EQ(failed.error().message(), "3: odd");
  EXPECT_TRUE(check_quarter(12));
  ASSERT_FALSE(check_quarter(6));
  EXPECT_EQ(check_quarter(6).error().message(), "3: odd");
}

TEST(Error, IsToldFromFurtherOutWithTheSameCodeAndErrno) {
  const Error error = Error(ErrorCode::Io, "read", EIO).within("a.safetensors");
  EXPECT_EQ(error.message(), "a.safetensors: read");
  EXPECT_EQ(error.code(), ErrorCode::Io);
  EXPECT_EQ(error.system_error(), EIO);
}

TEST(Error, SystemFailureNamesThingCallAndFact) {
  const Error denied = system_failure(EACCES, "a.bin", "open").value();
  EXPECT_EQ(denied.message(), "a.bin: open: Permission denied");
  EXPECT_EQ(denied.code(), ErrorCode::Io);
  EXPECT_EQ(denied.system_error(), EACCES);
  EXPECT_EQ(system_failure(ENOENT, "a.bin", "open").value().code(), ErrorCode::NotFound);
}

TEST(ErrorDeathTest, CheckAbortsWithTheConditionAndItsPlace) {
  const int n = 3;
  EXPECT_DEATH(CKFS_CHECK(n == 4), "base_test.cc:[0-9]+: broken invariant: n == 4");
}

bool is_open(int fd) {
  return ::fcntl(fd, F_GETFD) >= 0;
}

TEST(Text, QuotesWhatCouldSteerATerminal) {
  EXPECT_EQ(quote("a\"b\\c\n\x1b\x7f"), "\"a\\\"b\\\\c\\u000a\\u001b\\u007f\"");
  EXPECT_EQ(quote(std::string(200, 'x')), '"' + std::string(200, 'x') + '"');
  EXPECT_EQ(quote(std::string(201, 'x')), '"' + std::string(200, 'x') + "...\"");
}

TEST(Text, OfOneLineHasNoOther) {
  EXPECT_EQ(one_line("a\nb\tc\x1b[0m \n"), "a b c\\x1b[0m");
  EXPECT_EQ(one_line("\xc2\x9b[0m"), "\\x9b[0m") << "C1, as UTF-8";
  EXPECT_EQ(one_line("\x9b[0m"), "\\x9b[0m") << "C1, as a byte";
  EXPECT_EQ(one_line("a\xe2\x80\xae"
                     "b\xe2\x81\xa6"
                     "c"),
            "a\\u202eb\\u2066c")
      << "direction";
  EXPECT_EQ(one_line("a\xe2\x80\xa8"
                     "b\xe2\x80\xa9"
                     "c"),
            "a\\u2028b\\u2029c")
      << "lines";
  for (const char* shown : {"\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xc2\xa0", "\xff"}) {
    EXPECT_EQ(one_line(shown), shown);
  }
}

TEST(Text, IsUtf8AsUnicodeDefinesIt) {
  for (const char* good :
       {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad : {"\x80", "\xc3", "\xc0\x80", "\xe0\x9f\xbf", "\xed\xa0\x80",
                          "\xf0\x8f\xbf\xbf", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80",
                          "\xe2\x82"
                          "a"}) {
    EXPECT_FALSE(is_utf8(bad)) << quote(bad);
  }
}

TEST(Text, OfPythonMayHaveSurrogates) {
  for (const char* good : {"", "eight or more bytes", "\xed\xa0\x80", "a\xed\xbf\xbf\xc3\xa9"}) {
    EXPECT_TRUE(is_python_text(good)) << quote(good);
  }
  for (const char* bad : {"\xe0", "\xed", "\xed\xa0", "\xed\xa0\x7f", "\xed\xc0\x80", "\xe0\xa0",
                          "12345678\x80", "1234567\xf0\x90\x80"}) {
    EXPECT_FALSE(is_python_text(bad)) << quote(bad);
    EXPECT_FALSE(is_utf8(bad)) << quote(bad);
  }
}

TEST(NameHash, IsThatOfPythonUnderAKeyOfItsOwn) {
  // hash() of bytes with PYTHONHASHSEED=0.
  EXPECT_EQ(sip_hash("a", {}), 0x407448d2b89b1813);
  EXPECT_EQ(sip_hash("abcdefg", {}), 0x6db12aae9070f506);
  EXPECT_EQ(sip_hash("abcdefgh", {}), 0x3f7b849c0b8e35ea);
  EXPECT_EQ(sip_hash("model.layers.0.self_attn.q_proj.weight", {}), 0x8656cde91cac843b);
  EXPECT_NE(NameHash()("abcdefgh"), sip_hash("abcdefgh", {}));
  EXPECT_EQ(NameHash()("abcdefgh"), NameHash()(std::string("abcdefgh")));
}

TEST(Gallop, FindsTheBorderFromEverywhere) {
  for (std::size_t count = 0; count <= 70; ++count) {
    for (std::size_t border = 0; border <= count; ++border) {
      for (std::size_t near = 0; near <= count + 2; ++near) {
        const auto is_before = [&](std::size_t i) {
          EXPECT_LT(i, count);
          return i < border;
        };
        ASSERT_EQ(gallop(count, near, is_before), border) << "of " << count << " from " << near;
      }
    }
  }
}

TEST(Gallop, CostsTheLogarithmOfTheDistance) {
  constexpr std::size_t kCount = std::size_t{1} << 40;
  constexpr std::size_t kNear = kCount / 3;
  for (std::size_t distance = 1, bits = 1; distance < kCount / 4; distance *= 2, ++bits) {
    for (const std::size_t border : {kNear - distance, kNear + distance}) {
      std::size_t looks = 0;
      const auto is_before = [&](std::size_t i) { return ++looks > 0 && i < border; };
      EXPECT_EQ(gallop(kCount, kNear, is_before), border);
      EXPECT_LE(looks, 2 * bits + 2) << distance;
    }
  }
}

TEST(Text, IsTrimmedAtBothEndsOnly) {
  EXPECT_EQ(trim(" \r\n\t a b\n"), "a b");
  EXPECT_EQ(trim(" \n"), "");
  EXPECT_EQ(trim("\fa"), "\fa");  // no white space in JSON
}

TEST(UniqueFd, ClosesOnceAndOnlyWhatItOwns) {
  UniqueFd first(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const int fd = first.get();
  ASSERT_TRUE(first);
  {
    UniqueFd second = std::move(first);
    EXPECT_FALSE(first);  // NOLINT(bugprone-use-after-move): that is what is tested
    EXPECT_EQ(second.get(), fd);
    first = std::move(second);
  }
  EXPECT_TRUE(is_open(fd));
  const int released = first.release();
  first.reset();
  EXPECT_TRUE(is_open(released));
  first.reset(released);
  first.reset();
  EXPECT_FALSE(is_open(fd));
}

}  // namespace
}  // namespace ckfs
