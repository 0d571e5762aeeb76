#include "format/zarr_read.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "support/cost_limit.h"

namespace ckfs::zarr {
namespace {

using Indices = std::vector<std::int64_t>;

constexpr std::string_view kBytes = R"({"name":"bytes","configuration":{"endian":"little"}})";

using Member = std::pair<std::string_view, std::string>;

/// The members of an object, without its braces; those whose value is empty are left out.
std::string members(std::span<const Member> all) {
  std::string out;
  for (const auto& [key, value] : all) {
    if (value.empty()) continue;
    out += fmt::format("{}\"{}\":{}", out.empty() ? "" : ",", key, value);
  }
  return out;
}

/// A zarr.json of which members can be replaced; an empty one is left out.
struct V3 {
  std::string format = "3", node = R"("array")", shape = "[4,6]", type = R"("float32")";
  std::string grid = R"({"name":"regular","configuration":{"chunk_shape":[2,6]}})";
  std::string keys = R"({"name":"default"})", fill = "0.0";
  std::string codecs = fmt::format("[{}]", kBytes);
  std::string more;

  std::string text() const {
    const std::vector<Member> all{{"zarr_format", format}, {"node_type", node},
                                  {"shape", shape},        {"data_type", type},
                                  {"chunk_grid", grid},    {"chunk_key_encoding", keys},
                                  {"fill_value", fill},    {"codecs", codecs}};
    return "{" + members(all) + more + "}";
  }
};

struct V2 {
  std::string format = "2", shape = "[4,6]", chunks = "[2,6]", dtype = R"("<f4")", order = R"("C")";
  std::string compressor = "null", filters = "null", fill = "null", separator = R"(".")";

  std::string text() const {
    const std::vector<Member> all{
        {"zarr_format", format}, {"shape", shape},     {"chunks", chunks},
        {"dtype", dtype},        {"order", order},     {"compressor", compressor},
        {"filters", filters},    {"fill_value", fill}, {"dimension_separator", separator}};
    return "{" + members(all) + "}";
  }
};

Metadata parsed(const V3& v3) {
  auto read = parse_metadata(Version::V3, v3.text(), "w/zarr.json");
  EXPECT_TRUE(read) << read.error().message();
  return read ? *read : Metadata();
}

Metadata parsed(const V2& v2) {
  auto read = parse_metadata(Version::V2, v2.text(), "w/.zarray");
  EXPECT_TRUE(read) << read.error().message();
  return read ? *read : Metadata();
}

std::string sharded(std::string_view chunk, std::string_view codecs, std::string_view more = "",
                    std::string_view before = "", std::string_view after = "") {
  return fmt::format(
      R"([{}{{"name":"sharding_indexed","configuration":{{"chunk_shape":{},"codecs":[{}],)"
      R"("index_codecs":[{},{{"name":"crc32c"}}]{}}}}}{}])",
      before, chunk, codecs, kBytes, more, after);
}

TEST(ZarrMetadata3, IsWhatOurWriterWrites) {
  constexpr std::array<std::int64_t, 3> kShape{2, 4, 6};
  constexpr std::array<std::int64_t, 3> kChunk{1, 2, 6};
  constexpr std::array<std::int64_t, 3> kOrder{1, 2, 0};
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (!can_hold(dtype)) continue;
    const auto read = parse_metadata(
        Version::V3, render_metadata(Version::V3, {dtype, kShape, kChunk, kOrder}), "w");
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(read->dtype, dtype);
    EXPECT_EQ(read->width * 8, bits(dtype));
    EXPECT_EQ(read->shape, (Indices{2, 4, 6}));
    EXPECT_EQ(read->inner, (Indices{1, 2, 6}));
    EXPECT_EQ(read->codecs.order, (Indices{1, 2, 0}));
    EXPECT_TRUE(read->fill.empty());
    const auto old =
        parse_metadata(Version::V2, render_metadata(Version::V2, {dtype, kShape, kChunk, {}}), "w");
    ASSERT_TRUE(old) << old.error().message();
    EXPECT_EQ(old->dtype, dtype);
    EXPECT_FALSE(old->codecs.big_endian);
  }
}

TEST(ZarrMetadata3, HasTheShardsThatOrbaxWrites) {
  V3 v3;
  v3.codecs = sharded("[2,3]", fmt::format(R"({},{{"name":"zstd"}})", kBytes));
  const Metadata read = parsed(v3);
  ASSERT_TRUE(read.sharding);
  EXPECT_EQ(read.chunk, (Indices{2, 6}));
  EXPECT_EQ(read.inner, (Indices{2, 3}));
  EXPECT_TRUE(read.sharding->index_at_end);
  EXPECT_TRUE(read.sharding->index_crc32c);
  EXPECT_EQ(read.codecs.bytes_codecs, std::vector<std::string>{"zstd"});
  EXPECT_TRUE(read.sharding->bytes_codecs.empty());
}

TEST(ZarrMetadata3, ComposesWhatTransposesAShardAndWhatTransposesInIt) {
  V3 v3;
  v3.shape = "[4,6,8]";
  v3.grid = R"({"name":"regular","configuration":{"chunk_shape":[4,6,8]}})";
  v3.codecs = sharded(
      "[8,2,3]",
      fmt::format(R"({{"name":"transpose","configuration":{{"order":[0,2,1]}}}},{})", kBytes),
      R"(,"index_location":"start")", R"({"name":"transpose","configuration":{"order":[2,0,1]}},)");
  const Metadata read = parsed(v3);
  ASSERT_TRUE(read.sharding);
  EXPECT_EQ(read.sharding->order, (Indices{2, 0, 1}));
  EXPECT_EQ(read.inner, (Indices{2, 3, 8}));
  EXPECT_EQ(read.codecs.order, (Indices{2, 1, 0}));
  EXPECT_FALSE(read.sharding->index_at_end);
}

TEST(ZarrMetadata3, KeepsTheFillValueAsTheElementItIs) {
  const auto fill_of = [](std::string_view type, std::string_view fill) {
    V3 v3;
    v3.type = fmt::format("\"{}\"", type);
    v3.fill = fill;
    return parsed(v3).fill;
  };
  EXPECT_EQ(fill_of("float32", R"("NaN")"), std::string("\0\0\xc0\x7f", 4));
  EXPECT_EQ(fill_of("float32", "1.5"), std::string("\0\0\xc0\x3f", 4));
  EXPECT_EQ(fill_of("float32", R"("0x00000001")"), std::string("\1\0\0\0", 4));
  EXPECT_EQ(fill_of("float32", R"("-Infinity")"), std::string("\0\0\x80\xff", 4));
  EXPECT_EQ(fill_of("bfloat16", "1.0"), std::string("\x80\x3f", 2));
  EXPECT_EQ(fill_of("float16", "-2.0"), std::string("\0\xc0", 2));
  EXPECT_EQ(fill_of("float64", R"("Infinity")"), std::string("\0\0\0\0\0\0\xf0\x7f", 8));
  EXPECT_EQ(fill_of("int16", "-2"), std::string("\xfe\xff", 2));
  EXPECT_EQ(fill_of("uint8", "255"), "\xff");
  EXPECT_EQ(fill_of("int8", "-128"), "\x80");
  EXPECT_EQ(fill_of("uint64", "9007199254740992"), std::string("\0\0\0\0\0\0\x20\0", 8));
  EXPECT_EQ(fill_of("int64", "-1"), std::string(8, '\xff'));
  EXPECT_EQ(fill_of("bool", "true"), "\1");
  EXPECT_EQ(fill_of("float8_e4m3fn", "1.0"), "\x38");
  // Codes as TensorStore 0.1.86 gives them.
  EXPECT_EQ(fill_of("float8_e4m3fn", R"("NaN")"), "\x7f");
  EXPECT_EQ(fill_of("float8_e5m2", R"("NaN")"), "\x7e");
  EXPECT_EQ(fill_of("float8_e4m3fnuz", R"("NaN")"), "\x80");
  EXPECT_EQ(fill_of("float8_e5m2fnuz", R"("NaN")"), "\x80");
  EXPECT_EQ(fill_of("complex64", R"([1.0,"NaN"])"), std::string("\0\0\x80\x3f\0\0\xc0\x7f", 8));
  EXPECT_EQ(fill_of("complex128", "[0.0,0.0]"), "");
  EXPECT_EQ(fill_of("int32", "0.0"), "");
}

TEST(ZarrMetadata3, NamesElementsThatNoDTypeIs) {
  for (const std::string_view type : {"int4", "int2", "float4_e2m1fn", "float8_e4m3b11fnuz"}) {
    V3 v3;
    v3.type = fmt::format("\"{}\"", type);
    const Metadata read = parsed(v3);
    EXPECT_EQ(read.dtype, std::nullopt);
    EXPECT_EQ(read.width, 1);
    EXPECT_EQ(read.data_type, type);
  }
  V3 v3;
  v3.type = R"("string")";
  EXPECT_EQ(parsed(v3).width, 0);
}

TEST(ZarrMetadata2, HasOrderEndiannessSeparatorAndCompressor) {
  V2 v2;
  v2.dtype = R"(">f8")";
  v2.order = R"("F")";
  v2.separator = R"("/")";
  v2.compressor = R"({"id":"gzip","level":1})";
  v2.fill = R"("NaN")";
  const Metadata read = parsed(v2);
  EXPECT_EQ(read.dtype, DType::F64);
  EXPECT_TRUE(read.codecs.big_endian);
  EXPECT_EQ(read.codecs.order, (Indices{1, 0}));
  EXPECT_EQ(read.codecs.bytes_codecs, std::vector<std::string>{"gzip"});
  EXPECT_EQ(read.names, (ChunkNames{false, '/'}));
  EXPECT_EQ(read.fill, std::string("\0\0\0\0\0\0\xf8\x7f", 8));
}

TEST(ZarrChunkName, IsReadAsItIsWritten) {
  constexpr std::array<std::int64_t, 2> kIndex{10, 3};
  const ChunkNames v3{true, '/'};
  const ChunkNames v2{false, '.'};
  EXPECT_EQ(parse_chunk_name(v3, 2, chunk_name(Version::V3, kIndex)), (Indices{10, 3}));
  EXPECT_EQ(parse_chunk_name(v2, 2, chunk_name(Version::V2, kIndex)), (Indices{10, 3}));
  EXPECT_EQ(parse_chunk_name(v3, 0, chunk_name(Version::V3, {})), Indices());
  EXPECT_EQ(parse_chunk_name(v2, 0, chunk_name(Version::V2, {})), Indices());
  EXPECT_EQ(parse_chunk_name({true, '.'}, 2, "c.1.2"), (Indices{1, 2}));
  EXPECT_EQ(parse_chunk_name({false, '/'}, 2, "1/2"), (Indices{1, 2}));
}

TEST(ZarrChunkName, IsNothingElse) {
  for (const std::string_view text :
       {"c", "c/1", "c/1/2/3", "c/1/", "c//1", "c/01/2", "c/-1/2", "c/+1/2", "c/1/2x", "d/1/2",
        "1.2", "", "c/1/ 2", "c/99999999999999999999/1"}) {
    EXPECT_EQ(parse_chunk_name({true, '/'}, 2, text), std::nullopt) << text;
  }
  EXPECT_EQ(parse_chunk_name({false, '.'}, 0, "0.0"), std::nullopt);
  EXPECT_EQ(parse_chunk_name({false, '.'}, 1, "0.0"), std::nullopt);
}

struct Broken {
  std::string text;
  std::string error;
};

std::vector<Broken> broken3() {
  std::vector<Broken> all;
  const auto add = [&](auto change, std::string error) {
    V3 v3;
    change(v3);
    all.push_back({v3.text(), std::move(error)});
  };
  add([](V3& v) { v.format = ""; }, "no member zarr_format");
  add([](V3& v) { v.format = "2"; }, "zarr_format is 2, expected 3");
  add([](V3& v) { v.format = R"("3")"; }, "zarr_format is a string, not a number");
  add([](V3& v) { v.node = ""; }, "no member node_type");
  add([](V3& v) { v.node = R"("group")"; }, R"(node_type is "group", not "array")");
  add([](V3& v) { v.shape = ""; }, "no member shape");
  add([](V3& v) { v.shape = "4"; }, "shape is a number, not a list");
  add([](V3& v) { v.shape = "[4.5,6]"; }, "shape[0] is not a whole number");
  add([](V3& v) { v.shape = R"([4,"6"])"; }, "shape[1] is not a whole number");
  add([](V3& v) { v.shape = "[-1,6]"; }, "shape[0] is -1 (limits 0, 2^53)");
  add([](V3& v) { v.shape = "[1e18,6]"; }, "shape[0] is 1e+18 (limits 0, 2^53)");
  add([](V3& v) { v.shape = "[9007199254740992,9007199254740992]"; },
      "a shape of [9007199254740992,9007199254740992]: 2^59 elements or more");
  add(
      [](V3& v) {
        v.shape = "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]";
      },
      "shape has 33 dimensions (limit 32)");
  add([](V3& v) { v.type = ""; }, "no member data_type");
  add([](V3& v) { v.type = R"({"name":"float32"})"; }, "a data_type that is an object");
  add([](V3& v) { v.grid = ""; }, "no member chunk_grid");
  add([](V3& v) { v.grid = R"({"name":"rectilinear"})"; }, R"(chunk_grid "rectilinear")");
  add([](V3& v) { v.grid = R"({"name":"regular"})"; }, "no member configuration");
  add([](V3& v) { v.grid = R"({"name":"regular","configuration":{}})"; }, "no member chunk_shape");
  add([](V3& v) { v.grid = R"({"name":"regular","configuration":{"chunk_shape":[0,6]}})"; },
      "chunk_shape[0] is 0 (limits 1, 2^53)");
  add([](V3& v) { v.grid = R"({"name":"regular","configuration":{"chunk_shape":[2]}})"; },
      "chunk_shape has 1 dimensions, and shape has 2");
  add(
      [](V3& v) {
        v.grid =
            R"({"name":"regular","configuration":{"chunk_shape":[9007199254740992,9007199254740992]}})";
      },
      "chunks of [9007199254740992,9007199254740992]: 2^59 elements or more");
  add([](V3& v) { v.keys = ""; }, "no member chunk_key_encoding");
  add([](V3& v) { v.keys = R"({"name":"fan"})"; }, R"(chunk_key_encoding "fan")");
  add([](V3& v) { v.keys = R"({"name":"v2","configuration":{"separator":"-"}})"; },
      R"(separator is neither "." nor "/")");
  add([](V3& v) { v.fill = ""; }, "no member fill_value");
  add([](V3& v) { v.fill = "null"; }, "a fill_value that float32 cannot hold");
  add([](V3& v) { v.fill = R"("0x")"; }, "a fill_value that float32 cannot hold");
  const auto fill = [&](std::string type, std::string value, std::string error) {
    add(
        [&](V3& v) {
          v.type = fmt::format("\"{}\"", type);
          v.fill = value;
        },
        std::move(error));
  };
  fill("uint8", "300", "fill_value is 300 (limits 0, 255)");
  fill("uint8", "-1", "fill_value is -1 (limits 0, 255)");
  fill("int8", "128", "fill_value is 128 (limits -128, 127)");
  fill("int16", "-32769", "fill_value is -32769 (limits -32768, 32767)");
  fill("uint32", "4294967296", "fill_value is 4294967296 (limits 0, 4294967295)");
  fill("uint64", "-1", "fill_value is -1 (limits 0, 1.8446744073709552e+19)");
  fill("int64", "1e19", "fill_value is 1e+19 (limits -9.223372036854776e+18, ");
  fill("int64", "9007199254740994", "a fill_value that int64 cannot hold");
  fill("int32", "1.5", "a fill_value that int32 cannot hold");
  fill("bfloat16", R"("0x7fc00000")", R"(fill_value "0x7fc00000" has 8 digits (limit 4))");
  fill("float32", R"("0x10000000000000000")", "has 17 digits (limit 8)");
  fill("float8_e4m3fn", R"("0x138")", "has 3 digits (limit 2)");
  fill("complex64", R"([0.0,"0x7fc000000"])", "has 9 digits (limit 8)");
  add([](V3& v) { v.codecs = ""; }, "no member codecs");
  add([](V3& v) { v.codecs = "[]"; }, "no codec makes bytes");
  add([](V3& v) { v.codecs = "[7]"; }, "codecs has a number");
  add([](V3& v) { v.codecs = "[{}]"; }, "no member name");
  add([](V3& v) { v.codecs = fmt::format("[{},{}]", kBytes, kBytes); },
      "two codecs that make bytes");
  add([](V3& v) { v.codecs = R"(["zstd"])"; }, R"(codec "zstd" before one that makes bytes)");
  add([](V3& v) { v.codecs = fmt::format(R"(["vlen-utf8",{}])", kBytes); }, R"(codec "vlen-utf8")");
  add([](V3& v) { v.codecs = R"(["bytes"])"; }, "codec bytes: no endian, for elements of 4 bytes");
  add([](V3& v) { v.codecs = R"([{"name":"bytes","configuration":{"endian":"middle"}}])"; },
      R"(codec bytes: endian is neither "little" nor "big")");
  const auto transpose = [](std::string_view order) {
    return fmt::format(R"([{{"name":"transpose","configuration":{{"order":{}}}}},{}])", order,
                       kBytes);
  };
  add([&](V3& v) { v.codecs = transpose("[0]"); },
      "codec transpose: order [0] is not a permutation of 2 dimensions");
  add([&](V3& v) { v.codecs = transpose("[0,0]"); },
      "codec transpose: order [0,0] is not a permutation of 2 dimensions");
  add([&](V3& v) { v.codecs = transpose("[1,2]"); },
      "codec transpose: order [1,2] is not a permutation of 2 dimensions");
  add([&](V3& v) { v.codecs = R"(["transpose"])"; }, "codec transpose without a configuration");
  add([&](V3& v) { v.codecs = fmt::format(R"([{},"transpose"])", kBytes); },
      "codec transpose after one that makes bytes");
  add([](V3& v) { v.codecs = R"(["sharding_indexed"])"; },
      "codec sharding_indexed without a configuration");
  add([](V3& v) { v.codecs = sharded("[2]", kBytes); },
      "inner chunk_shape has 1 dimensions, and shape has 2");
  add([](V3& v) { v.codecs = sharded("[2,4]", kBytes); },
      "inner chunks of 4 do not divide shards of 6 along dimension 1");
  add([](V3& v) { v.codecs = sharded("[2,0]", kBytes); }, "chunk_shape[1] is 0 (limits 1, 2^53)");
  add([](V3& v) { v.codecs = sharded("[2,3]", ""); }, "no codec makes bytes");
  add([](V3& v) { v.codecs = sharded("[2,3]", kBytes, R"(,"index_location":"middle")"); },
      R"(index_location is neither "start" nor "end")");
  add(
      [](V3& v) {
        const std::string inner = sharded("[1,1]", kBytes);
        v.codecs = sharded("[2,3]", inner.substr(1, inner.size() - 2));
      },
      "shards within shards");
  const auto indexed = [](std::string_view codecs) {
    return fmt::format(
        R"([{{"name":"sharding_indexed","configuration":{{"chunk_shape":[2,3],"codecs":[{}])"
        R"({}}}}}])",
        kBytes, codecs);
  };
  add([&](V3& v) { v.codecs = indexed(""); }, "no member index_codecs");
  add([&](V3& v) { v.codecs = indexed(R"(,"index_codecs":[])"); }, "no index codec makes bytes");
  add([&](V3& v) { v.codecs = indexed(fmt::format(R"(,"index_codecs":[{},"gzip"])", kBytes)); },
      R"(index codec "gzip")");
  add([](V3& v) { v.more = R"(,"extra":1)"; }, R"(a member "extra" that must be understood)");
  add([](V3& v) { v.more = R"(,"storage_transformers":[1])"; }, "storage transformers");
  add([](V3& v) { v.more = R"(,"shape":[1])"; }, R"(key "shape" comes twice)");
  all.push_back({"", "not JSON, only white space"});
  all.push_back({"[3]", "not a JSON object"});
  all.push_back({R"({"zarr_format":3)", "not JSON: "});
  all.push_back({std::string(kMaxMetadata + 1, ' '), "1048577 bytes (limit 1048576)"});
  return all;
}

std::vector<Broken> broken2() {
  std::vector<Broken> all;
  const auto add = [&](auto change, std::string error) {
    V2 v2;
    change(v2);
    all.push_back({v2.text(), std::move(error)});
  };
  add([](V2& v) { v.format = "3"; }, "zarr_format is 3, expected 2");
  add([](V2& v) { v.chunks = ""; }, "no member chunks");
  add([](V2& v) { v.chunks = "[2]"; }, "chunks has 1 dimensions, and shape has 2");
  add([](V2& v) { v.chunks = "[2,0]"; }, "chunks[1] is 0 (limits 1, 2^53)");
  add([](V2& v) { v.dtype = ""; }, "no member dtype");
  add([](V2& v) { v.dtype = R"([["a","<f4"]])"; }, "a dtype with fields");
  add([](V2& v) { v.order = R"("A")"; }, R"(order is "A" (known: C, F))");
  add([](V2& v) { v.order = ""; }, "no member order");
  add([](V2& v) { v.filters = R"([{"id":"delta"}])"; }, "filters");
  add([](V2& v) { v.compressor = ""; }, "no member compressor");
  add([](V2& v) { v.compressor = "{}"; }, "no member id");
  add([](V2& v) { v.separator = R"("-")"; }, R"(dimension_separator is neither "." nor "/")");
  add([](V2& v) { v.fill = ""; }, "no member fill_value");
  add([](V2& v) { v.fill = R"("x")"; }, "a fill_value that <f4 cannot hold");
  return all;
}

TEST(ZarrMetadata, SaysWhatIsWrong) {
  std::set<std::string> seen;
  const auto check = [&](Version version, const std::vector<Broken>& all) {
    for (const Broken& broken : all) {
      const CostLimit limit(broken.text.size());
      const auto read = parse_metadata(version, broken.text, "w");
      ASSERT_FALSE(read) << broken.error;
      const std::string message = read.error().message();
      EXPECT_TRUE(message.starts_with("w:")) << message;
      EXPECT_NE(message.find(broken.error), std::string::npos)
          << message << " has no " << broken.error;
      seen.insert(fmt::format("{}", message));
    }
  };
  check(Version::V3, broken3());
  check(Version::V2, broken2());
  EXPECT_GE(seen.size(), 65U);
}

}  // namespace
}  // namespace ckfs::zarr
