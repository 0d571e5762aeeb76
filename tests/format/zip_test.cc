// Archives laid out by hand: each field in its place, at any alignment, inside other bytes. Files
// of torch: torch_file_test.cc; broken ones: torch_hostile_test.cc.
#include "format/zip.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <set>

#include "format/torch_values.h"

namespace ckfs {
namespace {

struct Member {
  std::string name;
  std::string data;
  std::size_t local_extra = 0;
  bool zip64 = false;  // size and place in a zip64 field only
};

void put(std::string& out, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

/// APPNOTE 4.3 and 4.5.3, written down.
std::string archive_of(const std::vector<Member>& members, bool zip64_end,
                       const std::string& comment = "") {
  std::string out;
  std::string directory;
  for (const Member& member : members) {
    const std::uint64_t begin = out.size();
    out += "PK\3\4";
    for (const int value : {45, 8, 0, 0, 0}) put(out, static_cast<std::uint64_t>(value), 2);
    out += std::string(12, '\0');  // CRC and sizes, left to the directory
    put(out, member.name.size(), 2);
    put(out, member.local_extra, 2);
    out += member.name + std::string(member.local_extra, 'Z') + member.data;

    std::string field;
    if (member.zip64) {
      put(field, 9, 2);  // somebody else's field before it
      put(field, 3, 2);
      field += "abc";
      put(field, 1, 2);
      put(field, 24, 2);
      put(field, member.data.size(), 8);
      put(field, member.data.size(), 8);
      put(field, begin, 8);
    }
    const std::uint64_t size = member.zip64 ? 0xffffffff : member.data.size();
    directory += "PK\1\2";
    for (const int value : {45, 45, 8, 0, 0, 0})
      put(directory, static_cast<std::uint64_t>(value), 2);
    put(directory, 0, 4);
    put(directory, size, 4);
    put(directory, size, 4);
    put(directory, member.name.size(), 2);
    put(directory, field.size(), 2);
    put(directory, 5, 2);  // a comment
    put(directory, 0, 8);
    put(directory, member.zip64 ? 0xffffffff : begin, 4);
    directory += member.name + field + "hello";
  }
  const std::uint64_t begin = out.size();
  out += directory;
  if (zip64_end) {
    const std::uint64_t at = out.size();
    out += "PK\6\6";
    put(out, 44, 8);
    put(out, 45, 2);
    put(out, 45, 2);
    put(out, 0, 8);
    put(out, members.size(), 8);
    put(out, members.size(), 8);
    put(out, directory.size(), 8);
    put(out, begin, 8);
    out += "PK\6\7";
    put(out, 0, 4);
    put(out, at, 8);
    put(out, 1, 4);
  }
  out += "PK\5\6";
  put(out, 0, 4);
  put(out, zip64_end ? 0xffff : members.size(), 2);
  put(out, zip64_end ? 0xffff : members.size(), 2);
  put(out, zip64_end ? 0xffffffff : directory.size(), 4);
  put(out, zip64_end ? 0xffffffff : begin, 4);
  put(out, comment.size(), 2);
  return out + comment;
}

RC_GTEST_PROP(ZipArchive, FindsEveryMemberAndItsBytesWhereverTheArchiveLies, ()) {
  const auto names = *rc::gen::container<std::set<std::string>>(rc::gen::arbitrary<std::string>());
  std::vector<Member> members;
  for (const std::string& name : names) {
    members.push_back({name, *rc::gen::arbitrary<std::string>(),
                       *rc::gen::inRange<std::size_t>(0, 200), *rc::gen::arbitrary<bool>()});
  }
  const bool zip64 = *rc::gen::arbitrary<bool>();
  // A comment may hold what looks like an end record, as long as it does not reach to the end.
  const std::string comment = *rc::gen::element(std::string(), std::string("PK\5\6") + "x",
                                                std::string(70, 'c'), std::string(60000, 'c'));
  const std::string before(*rc::gen::inRange<std::size_t>(0, 100), 'b');
  const std::string after(*rc::gen::inRange<std::size_t>(0, 100), 'a');
  const std::string archive = archive_of(members, zip64, comment);

  MemorySource source;
  const FileId file = source.add_text("f", before + archive + after);
  const auto zip = ZipArchive::open(source, file, {before.size(), before.size() + archive.size()});
  RC_ASSERT(zip.has_value());
  RC_ASSERT(zip->size() == members.size());
  std::vector<ZipMember> all;
  for (std::size_t i = 0; i < members.size(); ++i) {
    const auto found = zip->find(members[i].name);
    RC_ASSERT(found.has_value());
    RC_ASSERT(found->name == members[i].name);
    RC_ASSERT(found->size == members[i].data.size());
    RC_ASSERT((*zip)[i].name == members[i].name);
    const auto bytes = zip->read(*found, 1'000'000);
    RC_ASSERT(bytes.has_value());
    const auto expected = std::as_bytes(std::span(members[i].data));
    RC_ASSERT(std::equal(bytes->begin(), bytes->end(), expected.begin(), expected.end()));
    all.push_back(*found);
  }
  const auto ranges = zip->data(all);
  RC_ASSERT(ranges.has_value());
  for (std::size_t i = 0; i < all.size(); ++i) RC_ASSERT(zip->data(all[i]).value() == (*ranges)[i]);
  RC_ASSERT(!zip->find("no such member \x01\x02"));
}

TEST(ZipArchive, ReadsOnlyItsEndItsDirectoryAndTheHeadersAskedFor) {
  std::vector<Member> members;
  for (int i = 0; i < 10; ++i) {
    members.push_back({fmt::format("archive/data/{}", i), std::string(4096, 'x'), 24, false});
  }
  MemorySource source;
  const std::string archive = archive_of(members, true);
  const FileId file = source.add_text("f", archive);
  const auto zip = ZipArchive::open(source, file, whole(source, file));
  ASSERT_TRUE(zip);
  const std::uint64_t directory = 10 * (46 + std::string("archive/data/0").size() + 5);
  EXPECT_EQ(source.bytes_read(), directory + 98);
  source.reset_counts();
  const auto data = zip->data(*zip->find("archive/data/7"));
  ASSERT_TRUE(data);
  EXPECT_EQ(source.bytes_read(), 30 + std::string("archive/data/7").size());
  EXPECT_EQ(data->size(), 4096U);
}

TEST(ZipArchive, HoldsAHundredThousandMembersInLittleMemory) {
  // As a ZeRO-3 model file has them: one empty storage for each parameter.
  std::vector<Member> members;
  for (int i = 0; i < 100'000; ++i)
    members.push_back({fmt::format("archive/data/{}", i), "", 0, false});
  MemorySource source;
  const FileId file = source.add_text("f", archive_of(members, true));
  const auto zip = ZipArchive::open(source, file, whole(source, file));
  ASSERT_TRUE(zip);
  EXPECT_EQ(source.batches(), 2U);
  EXPECT_EQ(zip->size(), 100'000U);
  EXPECT_EQ(zip->find("archive/data/99999")->size, 0U);
  std::vector<ZipMember> all;
  for (std::size_t i = 0; i < zip->size(); ++i) all.push_back((*zip)[i]);
  EXPECT_TRUE(zip->data(all));
  EXPECT_LE(source.batches(), 110U) << "local headers are read many at a time";
}

TEST(ZipArchive, RefusesToReadMoreThanItsCallerWants) {
  MemorySource source;
  const FileId file = source.add_text("f", archive_of({{"a", "12345", 0, false}}, false));
  const auto zip = ZipArchive::open(source, file, whole(source, file));
  ASSERT_TRUE(zip);
  EXPECT_TRUE(zip->read(*zip->find("a"), 5));
  const auto refused = zip->read(*zip->find("a"), 4);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "f: zip member \"a\" has 5 bytes (limit 4)");
}

}  // namespace
}  // namespace ckfs
