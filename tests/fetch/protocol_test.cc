#include "fetch/protocol.h"

#include <array>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <random>
#include <sys/mman.h>
#include <sys/socket.h>

#include "base/unique_fd.h"
#include "fetch/shared_memory.h"

namespace ckfs {
namespace {

using ::testing::HasSubstr;

RemoteSource example() {
  RemoteSource source;
  source.pinned = parse_location("hf://a/b@0123/x y").value();
  source.is_file = true;
  source.is_pinned = false;
  source.time = 1709164800;
  source.refused = {"one", "two\n"};
  return source;
}

RemoteObject object(std::string name) {
  return {std::move(name), 7, "\"etag\"", "sha256:00", -1};
}

TEST(FetchProtocol, GivesBackWhatWasPacked) {
  const AttachRequest request{parse_location("https://u:p@h/x?sig=1").value(),
                              {"http://127.0.0.1:9000", true, true, "/h"},
                              true,
                              "0123abc"};
  const AttachRequest again = unpack_attach(pack(request)).value();
  EXPECT_EQ(again.location, request.location);
  EXPECT_EQ(again.options.endpoint_url, request.options.endpoint_url);
  EXPECT_EQ(again.options.header_file, request.options.header_file);
  EXPECT_TRUE(again.options.anonymous && again.options.requester_pays && again.is_file);
  EXPECT_EQ(again.known, "0123abc");
  const RemoteSource head = unpack_head(pack_head(example())).value();
  EXPECT_EQ(head.pinned, example().pinned);
  EXPECT_EQ(head.refused, example().refused);
  EXPECT_EQ(head.time, example().time);
  EXPECT_TRUE(head.is_file && !head.is_pinned);
  EXPECT_EQ(unpack_object(pack(object("a/b"))).value(), object("a/b"));
  const FetchStats stats{1, 2, 3, 4, 5, 6};
  EXPECT_EQ(unpack_stats(pack(stats)).value(), stats);
}

TEST(FetchProtocol, PacksAsManyObjectsAsThereIsRoomFor) {
  const std::vector<RemoteObject> objects = {object("a"), object("b"), object("c")};
  const std::size_t one = pack(objects[0]).size();
  const PackedObjects two = pack_objects(objects, 3 * one - 1);
  EXPECT_EQ(two.count, 2);
  EXPECT_EQ(unpack_objects(two.bytes).value(),
            std::vector<RemoteObject>(objects.begin(), objects.begin() + 2));
  EXPECT_EQ(pack_objects(objects, 10'000).count, 3);
}

TEST(FetchProtocol, HasRoomForTheLongestObject) {
  RemoteObject longest = object(std::string(1024, 'n'));
  longest.version = std::string(2048 - longest.hash.size(), 'v');
  EXPECT_LE(pack(longest).size(), kLeastPlace);
  EXPECT_EQ(unpack_object(pack(longest)).value(), longest);
  longest.version += 'v';
  EXPECT_FALSE(unpack_object(pack(longest)));
}

TEST(FetchProtocol, TakesNoObjectThatCannotBeAFile) {
  for (const std::string_view name : {"../x", "/x", "a//b", "a/", "", "a\nb"}) {
    EXPECT_FALSE(unpack_object(pack(object(std::string(name))))) << name;
  }
  RemoteObject large = object("a");
  large.size = ~std::uint64_t{0};
  EXPECT_FALSE(unpack_object(pack(large)));
  RemoteObject unpinned = object("a");
  unpinned.version.clear();
  EXPECT_FALSE(unpack_object(pack(unpinned)));
}

TEST(FetchProtocol, TakesNoBytesThatAreCutOrChanged) {
  const std::string head = pack_head(example());
  const std::string table = pack(object("a"));
  for (std::size_t size = 0; size < head.size(); ++size) {
    EXPECT_FALSE(unpack_head(std::string_view(head).substr(0, size))) << size;
  }
  for (std::size_t size = 1; size < table.size(); ++size) {
    EXPECT_FALSE(unpack_objects(std::string_view(table).substr(0, size))) << size;
  }
  EXPECT_FALSE(unpack_object(table + "x"));
  // Whatever it is, it is an answer or an error.
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string changed = i % 2 == 0 ? head : table;
    changed[random() % changed.size()] = static_cast<char>(random());
    changed[random() % changed.size()] = static_cast<char>(random());
    (void)unpack_head(changed);
    (void)unpack_objects(changed);
    (void)unpack_attach(changed);
  }
}

TEST(FetchProtocol, TakesMessagesOfItsOwnKindOnly) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
  UniqueFd here(ends[0]);
  const UniqueFd there(ends[1]);
  FetchMessage message;
  message.kind = FetchMessageKind::Read;
  message.id = 42;
  ASSERT_TRUE(send_message(here.get(), message));
  EXPECT_EQ(receive_message(there.get()), message);
  ASSERT_EQ(::send(here.get(), &message, sizeof message - 1, 0), sizeof message - 1);
  EXPECT_FALSE(receive_message(there.get()));
  const std::array<FetchMessage, 2> two = {message, message};
  ASSERT_EQ(::send(here.get(), two.data(), sizeof two, 0), sizeof two);
  EXPECT_FALSE(receive_message(there.get()));
  message.magic = 0;
  ASSERT_TRUE(send_message(here.get(), message));
  EXPECT_FALSE(receive_message(there.get()));
  here.reset();
  EXPECT_FALSE(receive_message(there.get()));
}

TEST(Places, AreLentOnceAndJoinWhenTheyComeBack) {
  Places places(64 * Places::kPage);
  std::mt19937 random(1);
  std::vector<std::pair<std::uint64_t, std::size_t>> lent;
  for (int i = 0; i < 10'000; ++i) {
    const std::size_t size = 1 + random() % (8 * Places::kPage);
    const auto place = places.take(size);
    if (place) {
      EXPECT_LE(*place + size, 64 * Places::kPage);
      for (const auto& [begin, length] : lent) {
        EXPECT_TRUE(*place + size <= begin || begin + length <= *place);
      }
      lent.emplace_back(*place, size);
    }
    if (!lent.empty() && (!place || random() % 2 == 0)) {
      std::swap(lent[random() % lent.size()], lent.back());
      places.give_back(lent.back().first, lent.back().second);
      lent.pop_back();
    }
  }
  for (const auto& [begin, size] : lent) places.give_back(begin, size);
  EXPECT_EQ(places.free(), 64 * Places::kPage);
  EXPECT_TRUE(places.take(64 * Places::kPage));
  EXPECT_FALSE(places.take(1));
}

TEST(SharedMemory, IsTheSameToBothAndOfASizeThatStays) {
  SharedMemory ours = SharedMemory::make(8192).value();
  const SharedMemory theirs = SharedMemory::map(UniqueFd(::dup(ours.descriptor()))).value();
  theirs.bytes()[5] = std::byte{7};
  EXPECT_EQ(ours.bytes()[5], std::byte{7});
  EXPECT_NE(::ftruncate(theirs.descriptor(), 0), 0);
  // What another could make shorter would be a signal at the next look.
  const auto refused = SharedMemory::map(UniqueFd(::memfd_create("unsealed", 0)));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("not made by a client of ckfs"));
}

}  // namespace
}  // namespace ckfs
