// Databases are those that our writer makes (which are TensorStore's, byte for byte, see
// ocdbt_test.cc), the format's worked examples, one that TensorStore compressed, and damage.
#include "format/ocdbt_read.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <set>
#include <zstd.h>

#include "base/units.h"
#include "format/crc32c.h"
#include "support/cost_limit.h"
#include "support/hex.h"

namespace ckfs::ocdbt {
namespace {

std::string le(std::uint64_t value, int bytes) {
  std::string out;
  for (int i = 0; i < bytes; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
  return out;
}

std::string varint(std::uint64_t value) {
  std::string out;
  for (; value > 127; value >>= 7) out += static_cast<char>(value | 0x80);
  return out + static_cast<char>(value);
}

constexpr std::string_view kManifest("\x0c\xdb\x3a\x2a", 4);
constexpr std::string_view kNode("\x0c\xdb\x20\xde", 4);

/// A body in its envelope: `compression` 1 makes a zstd frame of it.
std::string enveloped(std::string_view magic, std::string body, int compression = 0,
                      std::uint64_t version = 0) {
  if (compression == 1) {
    std::string frame(ZSTD_compressBound(body.size()), '\0');
    frame.resize(ZSTD_compress(frame.data(), frame.size(), body.data(), body.size(), 3));
    body = std::move(frame);
  }
  body = varint(version) + varint(static_cast<std::uint64_t>(compression)) + body;
  std::string out = std::string(magic) + le(body.size() + 16, 8) + body;
  return out + le(crc32c(out), 4);
}

/// The table of a file "d/v".
const std::string kTable = from_hex("01 03 00 64 2f 76");

struct Got {
  std::string key, text;
  DataLocation place;
  std::optional<std::uint64_t> at;
};

std::vector<Got> values_of(const Node& node) {
  std::vector<Got> all;
  EXPECT_TRUE(node.for_each_value([&](std::string_view key, const Value& value) -> Result<void> {
    all.push_back({std::string(key), std::string(value.text), value.place, value.at});
    return {};
  }));
  return all;
}

Node parsed(std::string bytes, std::uint8_t height = 0, std::string_view base = "") {
  auto node = Node::parse(std::move(bytes), {.height = height, .base_path = base}, "n");
  EXPECT_TRUE(node) << node.error().message();
  return *std::move(node);
}

TEST(OcdbtNode, IsReadAsItIsWritten) {
  const FileName name = [](std::uint32_t file) { return fmt::format("d/{}", file); };
  Leaf<KeptColumn> leaf(name);
  std::vector<Got> want;
  for (int i = 0; i < 1000; ++i) {
    const std::string key = fmt::format("array{:04}/c/{:04}", i / 3, i);
    if (i % 4 == 0) {
      leaf.add(key, fmt::format("<{}>", i));
      want.push_back({key, fmt::format("<{}>", i), {}, {}});
    } else {
      const DataLocation place{static_cast<std::uint32_t>(i % 7),
                               static_cast<std::uint64_t>(i) << 30, static_cast<std::uint64_t>(i)};
      leaf.add(key, place);
      want.push_back({key, "", place, {}});
    }
  }
  const std::string stored = leaf.render();
  for (const std::string& bytes :
       {stored, enveloped(kNode, stored.substr(14, stored.size() - 18), 1)}) {
    const Node node = parsed(bytes);
    const std::vector<Got> got = values_of(node);
    ASSERT_EQ(got.size(), want.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i].key, want[i].key);
      EXPECT_EQ(got[i].text, want[i].text);
      if (want[i].text.empty()) {
        EXPECT_EQ(node.files()[got[i].place.file].path, name(want[i].place.file));
        EXPECT_EQ(got[i].place.offset, want[i].place.offset);
        EXPECT_EQ(got[i].place.size, want[i].place.size);
      } else if (bytes == stored) {
        EXPECT_EQ(stored.substr(got[i].at.value(), got[i].text.size()), got[i].text);
      } else {
        EXPECT_EQ(got[i].at, std::nullopt);
      }
    }
  }
}

TEST(OcdbtNode, SaysWhatItsDataFilesTake) {
  const FileName name = [](std::uint32_t file) {
    return "d/" + std::string(50000, 'v') + std::to_string(file);
  };
  Leaf<KeptColumn> leaf(name);
  for (std::uint32_t i = 0; i < 30; ++i) leaf.add(fmt::format("{:03}", i), DataLocation{i, 0, 1});
  const std::string stored = leaf.render();
  EXPECT_LE(stored.size(), 51'000U) << "names share what they begin with";
  const heap_meter::Span memory;
  const Node node = parsed(stored);
  EXPECT_GE(node.held(), 30 * 50000U);
  EXPECT_LE(memory.most(), 2 * node.held() + 1_MiB);
}

TEST(OcdbtNode, CostsItsOwnBytesHoweverLongItsKeysAre) {
  constexpr std::size_t kCount = 1U << 20;
  const std::string same(65000, 'k');
  std::string shared, rest, keys, values(kCount, '\0');
  for (std::size_t i = 0; i < kCount; ++i) {
    if (i > 0) shared += varint(same.size());
    rest += varint(i == 0 ? same.size() + 3 : 3);
    if (i == 0) keys += same;
    for (const int shift : {16, 8, 0}) keys += static_cast<char>(i >> shift & 0xff);
  }
  const std::string kinds(kCount, '\1');
  // Of no bytes, at the begin of its file.
  const std::string stored =
      enveloped(kNode, std::string(1, '\0') + kTable + varint(kCount) + shared + rest + keys +
                           values + kinds + values + values);
  const CostLimit limit(stored.size());
  const Node node = parsed(stored);
  std::size_t seen = 0;
  EXPECT_TRUE(node.for_each_value(
      [&](std::string_view key, const Value& /*value*/) -> Result<void> {
        EXPECT_TRUE(key.starts_with("abckkk") && key.size() == 6 + same.size());
        ++seen;
        return {};
      },
      "abc"));
  EXPECT_EQ(seen, kCount);
}

TEST(OcdbtNode, OfTwoLevelsIsTheWorkedExample) {
  const Node root = parsed(
      from_hex("0c db 20 de 3b 00 00 00 00 00 00 00 00 00 01 01 03 00 64 2f 6e 02 02 07 09 06 0b "
               "77 2f 63 2f 30 2f 30 7a 61 72 72 2e 6a 73 6f 6e 00 00 00 27 27 1a 02 01 27 1a 10 "
               "00 49 04 49 a0"),
      1, "ocdbt.process_0/");
  EXPECT_EQ(root.files()[0].path, "ocdbt.process_0/d/n");
  EXPECT_EQ(root.files()[0].base_path(), "ocdbt.process_0/");
  std::vector<std::string> keys;
  std::vector<std::size_t> stripped;
  EXPECT_TRUE(root.for_each_child([&](const ChildRef& child) -> Result<void> {
    keys.emplace_back(child.key);
    stripped.push_back(child.stripped);
    return {};
  }));
  EXPECT_EQ(keys, (std::vector<std::string>{"w/c/0/0", "w/zarr.json"}));
  EXPECT_EQ(stripped, (std::vector<std::size_t>{6, 11}));
  const Node second = parsed(
      from_hex("0c db 20 de 1a 00 00 00 00 00 00 00 00 00 00 00 01 00 02 00 7b 7d 60 69 24 8d"));
  EXPECT_EQ(values_of(second)[0].key, "");
  EXPECT_EQ(values_of(second)[0].text, "{}");
}

TEST(OcdbtManifest, IsReadAsTensorStoreCompressesIt) {
  const auto manifest = parse_manifest(
      from_hex(
          "0cdb3a2a7100000000000000000128b52ffd2056b10200742afc1202bf44cfc9d8950f54c5b9e9008008"
          "80c2d72f04010000000001220064"
          "2f3662333138386332393632393838313164366566333137353932366163666435"
          "0101000000f90204f90200efad2da9f646af1800a092883c"),
      "manifest.ocdbt");
  ASSERT_TRUE(manifest) << manifest.error().message();
  EXPECT_FALSE(manifest->numbered);
  ASSERT_TRUE(manifest->root);
  EXPECT_EQ(manifest->files[manifest->root->file].path, "d/6b3188c296298811d6ef3175926acfd5");
  EXPECT_EQ(manifest->root->size, 377U);
  EXPECT_EQ(manifest->height, 0);
}

TEST(OcdbtManifest, IsReadAsItIsWritten) {
  const Root root{{1, 2}, 3, 1234567, 4242, {3, 329, 16}};
  const auto manifest = parse_manifest(render_manifest("d/nodes", root), "m");
  ASSERT_TRUE(manifest) << manifest.error().message();
  EXPECT_EQ(manifest->height, 3);
  EXPECT_EQ(manifest->root->offset, 1234567U);
  EXPECT_EQ(manifest->root->size, 4242U);
}

/// A manifest's parts.
struct ManifestParts {
  std::string uuid = std::string(16, 'u');
  std::string kind = std::string(1, '\0');
  std::string config = from_hex("80 08 80 c2 d7 2f 04 00");
  std::string files = kTable;
  std::string versions = from_hex("01 01 00 00 00 32 03 32 10 01 00 00 00 00 00 00 00");
  std::string older = std::string(1, '\0');
  std::string body() const { return uuid + kind + config + files + versions + older; }
};

TEST(OcdbtManifest, OfNoKeysHasNoRoot) {
  ManifestParts parts;
  parts.files = std::string(1, '\0');
  parts.versions = from_hex(
      "01 01 00 00 ff ff ff ff ff ff ff ff ff 01 ff ff ff ff ff ff ff ff ff 01 00 00 00 01 00 00 "
      "00 00 00 00 00");
  const auto manifest = parse_manifest(enveloped(kManifest, parts.body()), "m");
  ASSERT_TRUE(manifest) << manifest.error().message();
  EXPECT_EQ(manifest->root, std::nullopt);
}

TEST(OcdbtManifest, NumberedHasItsStateElsewhere) {
  ManifestParts parts;
  const auto manifest = parse_manifest(enveloped(kManifest, parts.uuid + '\1' + parts.config), "m");
  ASSERT_TRUE(manifest) << manifest.error().message();
  EXPECT_TRUE(manifest->numbered);
  EXPECT_EQ(numbered_manifest("manifest.00000000000000ff"), 255U);
  for (const std::string_view name : {"manifest.ocdbt", "manifest.00000000000000FF", "manifest.1",
                                      "Manifest.00000000000000ff", "manifest.00000000000000ff0"}) {
    EXPECT_EQ(numbered_manifest(name), std::nullopt) << name;
  }
}

struct Broken {
  std::string bytes, error;
};

std::vector<Broken> broken_manifests() {
  std::vector<Broken> all;
  const std::string whole = enveloped(kManifest, ManifestParts().body());
  all.push_back({"", "0 bytes, fewer than any has (16)"});
  all.push_back({whole.substr(0, 15), "15 bytes, fewer than any has (16)"});
  all.push_back(
      {enveloped(kNode, ManifestParts().body()), "begins with 0cdb20de, not with 0cdb3a2a"});
  all.push_back({whole + "x", fmt::format("records a length of {}, and has {}", whole.size(),
                                          whole.size() + 1)});
  std::string flipped = whole;
  flipped[20] ^= 1;
  all.push_back({flipped, "its CRC-32C is"});
  all.push_back({enveloped(kManifest, "", 0, 1), "format version 1 (known: 0)"});
  all.push_back({enveloped(kManifest, "", 2), "compression method 2 (known: 0, 1)"});
  all.push_back({enveloped(kManifest, "x"), "cut short in its configuration"});
  const auto add = [&](auto change, std::string error, int compression = 0) {
    ManifestParts parts;
    change(parts);
    all.push_back({enveloped(kManifest, parts.body(), compression), std::move(error)});
  };
  add([](ManifestParts& m) { m.kind = "\2"; }, "manifest kind 2 (known: 0, 1)");
  add([](ManifestParts& m) { m.config = from_hex("80 08 01 00 00"); },
      "a version tree of arity 2^0 (limits 1, 16)");
  add([](ManifestParts& m) { m.config = from_hex("80 08 01 04 07"); },
      "compression method 7 (known: 0, 1)");
  add([](ManifestParts& m) { m.config = std::string(11, '\x80'); },
      "cut short in its configuration", 1);
  add([](ManifestParts& m) { m.files = varint(1U << 30); }, "cut short in its table of data files");
  // 3 MB of a frame of some hundred bytes, too few for as many paths.
  add(
      [](ManifestParts& m) {
        m.files = varint((1U << 20) + 1) + std::string(3 * ((1U << 20) + 1), '\0');
      },
      "1048577 data files (limit 657", 1);
  add([](ManifestParts& m) { m.files = from_hex("02 09 03 01 00 00 64 2f 76 78"); },
      "data file 1: shares 9 bytes with a path of 3");
  add([](ManifestParts& m) { m.files = from_hex("01 03 04 64 2f 76"); },
      "data file 0: a base of 4 bytes in a path of 3");
  add([](ManifestParts& m) { m.files = from_hex("01 04 00 2e 2e 2f 76"); },
      R"(data file "../v" is not a plain path)");
  add([](ManifestParts& m) { m.files = from_hex("01 02 00 2f 76"); },
      R"(data file "/v" has an empty part)");
  add([](ManifestParts& m) { m.files = from_hex("01 02 00 00 76"); }, "has a NUL");
  add([](ManifestParts& m) { m.files = "\1" + varint(70000) + '\0' + std::string(70000, 'v'); },
      "paths of 70000 bytes, 70000 with those before it (limits 65535, 2169568)");
  add(
      [](ManifestParts& m) {
        std::string shared, rest, base;
        for (int i = 0; i < 1000; ++i) {
          if (i > 0) shared += varint(60000);
          rest += varint(i == 0 ? 60000 : 1);
          base += '\0';
        }
        m.files = varint(1000) + shared + rest + base + std::string(60999, 'v');
      },
      "data file 35: paths of");
  add([](ManifestParts& m) { m.versions[0] = 0; }, "0 versions (limits 1, 16)");
  add([](ManifestParts& m) { m.versions = varint(17) + std::string(400, '\1'); },
      "17 versions (limits 1, 16)");
  add([](ManifestParts& m) { m.versions[1] = 0; }, "version 0: generation 0 after 0");
  add([](ManifestParts& m) { m.versions[3] = 5; }, "the root: in data file 5 of 1");
  add(
      [](ManifestParts& m) {
        m.versions = from_hex("01 01 00 00") + varint((1ULL << 63) - 1) + varint(9) +
                     from_hex("03 32 10 01 00 00 00 00 00 00 00");
      },
      "the root: 9 bytes from 9223372036854775807 on exceed 2^63 - 1");
  add([](ManifestParts& m) { m.versions.resize(12); }, "cut short in its versions", 1);
  add([](ManifestParts& m) { m.older = ""; }, "cut short in its table of older versions");
  add([](ManifestParts& m) { m.older = "\1"; }, "cut short in its table of older versions", 1);
  add([](ManifestParts& m) { m.older = std::string(3, '\0'); }, "2 bytes behind its last table");
  const auto frame = [](std::string body) {
    body = std::string("\0\1", 2) + body;
    std::string out = std::string(kManifest) + le(body.size() + 16, 8) + body;
    return out + le(crc32c(out), 4);
  };
  all.push_back({frame("no frame at all"), "zstd: Unknown frame descriptor"});
  std::string cut = enveloped(kManifest, ManifestParts().body(), 1);
  cut = cut.substr(14, cut.size() - 18);
  all.push_back({frame(cut.substr(0, cut.size() - 3)), "its zstd frame is cut short"});
  all.push_back({frame(cut + "more"), "4 bytes behind its zstd frame"});
  return all;
}

TEST(OcdbtManifest, SaysWhatIsWrong) {
  std::set<std::string> seen;
  for (const Broken& broken : broken_manifests()) {
    const CostLimit limit(broken.bytes.size());
    const auto read = parse_manifest(broken.bytes, "m");
    ASSERT_FALSE(read) << broken.error;
    EXPECT_NE(read.error().message().find(broken.error), std::string::npos)
        << read.error().message() << " has no " << broken.error;
    EXPECT_TRUE(read.error().message().starts_with("m: "));
    seen.insert(read.error().message());
  }
  EXPECT_GE(seen.size(), 28U);
}

/// A leaf's parts: keys "a" (in the node) and "b" (8 bytes of the file at 3).
struct LeafParts {
  std::string height = std::string(1, '\0');
  std::string files = kTable;
  std::string entries = "\2";
  std::string shared = std::string(1, '\0');
  std::string rest = "\1\1";
  std::string keys = "ab";
  std::string sizes = "\2\10";
  std::string kinds = std::string("\0\1", 2);
  std::string ids = std::string(1, '\0');
  std::string offsets = "\3";
  std::string values = "{}";
  std::string body() const {
    return height + files + entries + shared + rest + keys + sizes + kinds + ids + offsets + values;
  }
};

TEST(OcdbtNode, OfThePartsBelowIsWhole) {
  const std::vector<Got> got = values_of(parsed(enveloped(kNode, LeafParts().body())));
  ASSERT_EQ(got.size(), 2U);
  EXPECT_EQ(got[0].text, "{}");
  EXPECT_EQ(got[1].place.offset, 3U);
}

/// The same with a height: "a" and "b" are children of 8 and 9 bytes.
struct InteriorParts {
  std::string rest = "\1\1", stripped = std::string("\0\1", 2), ids = std::string(2, '\0');
  std::string totals = std::string(6, '\1');
  std::string body() const {
    return "\1" + kTable + "\2" + std::string(1, '\0') + rest + stripped + "ab" + ids + "\3\4" +
           "\10\11" + totals;
  }
};

std::vector<Broken> broken_nodes() {
  std::vector<Broken> all;
  const auto add = [&](auto change, std::string error) {
    LeafParts parts;
    change(parts);
    all.push_back({enveloped(kNode, parts.body()), std::move(error)});
  };
  all.push_back({enveloped(kNode, ""), "cut short in its height"});
  add([](LeafParts& n) { n.height = "\1"; }, "of height 1, expected at height 0");
  add([](LeafParts& n) { n.height = "\xff"; }, "of height 255, expected at height 0");
  add(
      [](LeafParts& n) {
        n.files = "\x80";
        n = {n.height, n.files, "", "", "", "", "", "", "", "", ""};
      },
      "cut short in its table of data files");
  add([](LeafParts& n) { n = {n.height, n.files, "", "", "", "", "", "", "", "", ""}; },
      "cut short in its number of entries");
  add([](LeafParts& n) { n.entries = std::string(1, '\0'); }, "0 entries (limits 1, 1048576)");
  add([](LeafParts& n) { n.entries = varint(1048577); }, "1048577 entries (limits 1, 1048576)");
  add([](LeafParts& n) { n.entries = varint(1000); }, "cut short in its keys");
  add([](LeafParts& n) { n.rest = "\1" + varint(65536); }, "key 1 of more than 65535 bytes");
  add([](LeafParts& n) { n.rest = "\1" + varint(6000); }, "cut short in its keys");
  add([](LeafParts& n) { n.shared = "\2"; },
      "key 1 shares more with the key before it than that has, or has more than 65535 "
      "bytes");
  add([](LeafParts& n) { n.keys = "ba"; }, R"(key "a" after "b")");
  add([](LeafParts& n) { n.keys = "aa"; }, R"(key "a" after "a")");
  add([](LeafParts& n) { n.kinds = std::string("\0\2", 2); }, "value 1 of kind 2 (known: 0, 1)");
  add([](LeafParts& n) { n.sizes = varint(1048577) + "\10"; },
      "value 0: 1048577 bytes in the node (limit 1048576)");
  add([](LeafParts& n) { n.sizes = "\3\10"; }, "cut short in its values");
  add([](LeafParts& n) { n.sizes = "\1\10"; }, "1 bytes behind its last entry");
  add([](LeafParts& n) { n.ids = "\1"; }, R"("b": in data file 1 of 1)");
  add([](LeafParts& n) { n.offsets = varint(~0ULL); },
      R"("b": 8 bytes from 18446744073709551615 on exceed 2^63 - 1)");
  add([](LeafParts& n) { n.values += "x"; }, "1 bytes behind its last entry");
  add(
      [](LeafParts& n) {
        n.kinds.resize(1);
        n.ids = n.offsets = n.values = "";
      },
      "cut short in its table of values");
  add([](LeafParts& n) { n.offsets = std::string(11, '\xff'); }, "cut short in its values");
  return all;
}

std::vector<Broken> broken_interiors() {
  std::vector<Broken> all;
  const auto add = [&](auto change, std::string error) {
    InteriorParts parts;
    change(parts);
    all.push_back({enveloped(kNode, parts.body()), std::move(error)});
  };
  add([](InteriorParts& n) { n.stripped = std::string("\0\2", 2); },
      R"(child "b" leaves out more than its key has)");
  add([](InteriorParts& n) { n.ids = std::string("\0\7", 2); }, R"("b": in data file 7 of 1)");
  add([](InteriorParts& n) { n.totals = ""; }, "cut short in its table of children");
  add([](InteriorParts& n) { n.totals += '\0'; }, "1 bytes behind its last entry");
  return all;
}

TEST(OcdbtNode, SaysWhatIsWrong) {
  std::set<std::string> seen;
  const auto check = [&](const std::vector<Broken>& all, std::uint8_t height) {
    for (const Broken& broken : all) {
      const CostLimit limit(broken.bytes.size());
      const auto read = Node::parse(broken.bytes, {.height = height, .base_path = ""}, "n");
      ASSERT_FALSE(read) << broken.error;
      EXPECT_NE(read.error().message().find(broken.error), std::string::npos)
          << read.error().message() << " has no " << broken.error;
      seen.insert(read.error().message());
    }
  };
  check(broken_nodes(), 0);
  check(broken_interiors(), 1);
  EXPECT_GE(seen.size(), 22U);
}

TEST(OcdbtNode, HasNoKeyBelowWhatItsParentSays) {
  const auto read =
      Node::parse(enveloped(kNode, LeafParts().body()), {.base_path = "", .least = "aa"}, "n");
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().message(), R"(n: its first key is "a", expected none below "aa")");
}

TEST(OcdbtNode, ThatBecomesTooMuchIsRefusedBeforeItIsDecoded) {
  const auto read = Node::parse(enveloped(kNode, std::string(std::size_t{8} << 20, '\0'), 1),
                                {.base_path = "", .most_decoded = 1 << 20}, "n");
  ASSERT_FALSE(read);
  EXPECT_NE(read.error().message().find("become more than 1048576"), std::string::npos);
}

}  // namespace
}  // namespace ckfs::ocdbt
