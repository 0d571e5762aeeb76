// Expected bytes are those of databases that TensorStore reads, computed by a codec that shares no
// code with ours and reproduces TensorStore's own nodes.
#include "format/ocdbt.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "support/hex.h"

namespace ckfs::ocdbt {
namespace {

constexpr std::string_view kMeta =
    R"({"chunk_grid":{"configuration":{"chunk_shape":[2,2]},"name":"regular"},"chunk_key_encoding":{"name":"default"},"codecs":[{"configuration":{"endian":"little"},"name":"bytes"}],"data_type":"bfloat16","fill_value":0.0,"node_type":"array","shape":[2,4],"zarr_format":3})";

template <typename Column>
Leaf<Column> example(const FileName& name) {
  Leaf<Column> leaf(name);
  leaf.add("w/c/0/0", DataLocation{7, 0, 8});
  leaf.add("w/c/0/1", DataLocation{7, 8, 8});
  leaf.add("w/zarr.json", kMeta);
  return leaf;
}

std::string values(std::uint32_t /*file*/) {
  return "d/values";
}

TEST(OcdbtLeaf, IsTheWorkedExample) {
  const FileName name = values;
  const std::string expected =
      from_hex(
          "0c db 20 de 49 01 00 00 00 00 00 00 00 00 00 01 08 00 64 2f 76 61 6c 75 65 73 03 06 "
          "02 07 01 09 77 2f 63 2f 30 2f 30 31 7a 61 72 72 2e 6a 73 6f 6e 08 08 89 02 01 01 00 "
          "00 00 00 08") +
      std::string(kMeta) + from_hex("71 46 74 a4");
  EXPECT_EQ(example<KeptColumn>(name).render(), expected);
  EXPECT_EQ(example<KeptColumn>(name).size(), 329U);
  EXPECT_EQ(example<CountedColumn>(name).size(), 329U);
  EXPECT_EQ(example<CountedColumn>(name).totals().value_bytes, 16U);
}

TEST(OcdbtManifest, IsTheWorkedExample) {
  const Root root{{0x7766554433221100, 0xffeeddccbbaa9988}, 0, 0, 329, {3, 329, 16}};
  EXPECT_EQ(
      render_manifest("d/nodes", root),
      from_hex("0c db 3a 2a 49 00 00 00 00 00 00 00 00 00 00 11 22 33 44 55 66 77 88 99 aa bb "
               "cc dd ee ff 00 80 08 80 c2 d7 2f 04 00 01 07 00 64 2f 6e 6f 64 65 73 01 01 00 "
               "00 00 c9 02 03 c9 02 10 01 00 00 00 00 00 00 00 00 c8 4a f3 49"));
}

TEST(OcdbtLeaf, NumbersFilesInItsOwnTableAndSharesTheirPrefixes) {
  const FileName name = [](std::uint32_t file) { return fmt::format("d/{:05}", file); };
  Leaf<KeptColumn> leaf(name);
  leaf.add("a", DataLocation{12, 5, 1});
  leaf.add("b", DataLocation{3, 300, 2});
  leaf.add("c", DataLocation{12, 6, 0});
  const std::string body = from_hex("00 02 05 07 02 00 00") + "d/0001203" +
                           from_hex("03 00 00 01 01 01") + "abc" +
                           from_hex("01 02 00 01 01 01 00 01 00 05 ac 02 06");
  EXPECT_EQ(leaf.render().substr(14, body.size()), body);
  EXPECT_EQ(leaf.render().size(), leaf.size());
  EXPECT_EQ(leaf.size(), 14 + body.size() + 4);
}

TEST(OcdbtInterior, HasAColumnForEachMember) {
  const Child children[] = {{"w/c/0/0", 0, 39, {2, 39, 16}}, {"w/zarr.json", 39, 26, {1, 26, 0}}};
  const std::string node = render_interior(1, "d/n", children);
  const std::string body = from_hex("01 01 03 00 64 2f 6e 02 02 07 09 00 00") + "w/c/0/0" +
                           "zarr.json" + from_hex("00 00 00 27 27 1a 02 01 27 1a 10 00");
  EXPECT_EQ(node.substr(14, node.size() - 18), body);
  EXPECT_EQ(node.substr(0, 14), from_hex("0c db 20 de 3b 00 00 00 00 00 00 00 00 00"));
}

}  // namespace
}  // namespace ckfs::ocdbt
