// Against files that torch 2.13 wrote with compute_crc32 = False (tests/tools/make_torch_zip.py):
// the pickle from names, dtypes and shapes, the archive from sizes, and the bytes of both must be
// torch's own.
#include "format/torch_zip_writer.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>

#include "base/load_le.h"

namespace ckfs::torch_zip {
namespace {

using testing::HasSubstr;

std::string contents(const std::string& name) {
  std::ifstream file(std::string(CKFS_TEST_DATA "/torch_zip/") + name + ".bin", std::ios::binary);
  EXPECT_TRUE(file) << name;
  return {std::istreambuf_iterator<char>(file), {}};
}

/// What cases() in make_torch_zip.py has under `name`.
struct Case {
  std::vector<std::string> names;
  std::vector<DType> dtypes;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::uint32_t> same_as;

  void add(std::string tensor, DType dtype, std::vector<std::int64_t> shape,
           std::uint32_t source = TensorHead::kOwnStorage) {
    names.push_back(std::move(tensor));
    dtypes.push_back(dtype);
    shapes.push_back(std::move(shape));
    same_as.push_back(source);
  }

  std::vector<TensorHead> heads() const {
    std::vector<TensorHead> result;
    for (std::size_t i = 0; i < names.size(); ++i) {
      result.push_back({names[i], dtypes[i], shapes[i], same_as[i]});
    }
    return result;
  }

  std::vector<std::uint64_t> sizes() const {
    std::vector<std::uint64_t> result;
    for (std::size_t i = 0; i < names.size(); ++i) {
      if (same_as[i] != TensorHead::kOwnStorage) continue;
      std::uint64_t bytes = static_cast<std::uint64_t>(bits(dtypes[i])) / 8;
      for (const std::int64_t extent : shapes[i]) bytes *= static_cast<std::uint64_t>(extent);
      result.push_back(bytes);
    }
    return result;
  }
};

Case dtypes_case() {
  Case result;
  for (const char* kind : {"a", "b"}) {
    for (const auto& [name, dtype] : std::initializer_list<std::pair<const char*, DType>>{
             {"bool", DType::Bool},
             {"uint8", DType::U8},
             {"int8", DType::I8},
             {"int16", DType::I16},
             {"int32", DType::I32},
             {"int64", DType::I64},
             {"float16", DType::F16},
             {"bfloat16", DType::BF16},
             {"float32", DType::F32},
             {"float64", DType::F64},
             {"complex64", DType::C64},
             {"complex128", DType::C128},
             {"uint16", DType::U16},
             {"uint32", DType::U32},
             {"uint64", DType::U64},
             {"float8_e4m3fn", DType::F8E4M3},
             {"float8_e5m2", DType::F8E5M2},
             {"float8_e4m3fnuz", DType::F8E4M3FNUZ},
             {"float8_e5m2fnuz", DType::F8E5M2FNUZ},
             {"float8_e8m0fnu", DType::F8E8M0}}) {
      result.add(fmt::format("{}.{}", kind, name), dtype, {3, 2});
    }
  }
  result.add("größe_λ", DType::F32, {2});
  return result;
}

Case shapes_case() {
  Case result;
  result.add("scalar", DType::F32, {});
  result.add("first", DType::F32, {5});
  result.add("empty", DType::F32, {3, 0, 2});
  result.add("again", DType::F32, {5}, 1);
  result.add("four", DType::I8, {1, 2, 3, 4});
  result.add("five", DType::I8, {1, 1, 7, 1, 5});
  result.add("wide", DType::U8, {300});
  result.add("empty too", DType::U8, {0});
  result.add("once more", DType::F32, {5}, 1);
  return result;
}

Case one_case() {
  Case result;
  result.add("only", DType::BF16, {4});
  return result;
}

class TorchFiles : public testing::TestWithParam<std::pair<const char*, Case>> {};

TEST_P(TorchFiles, AreMadeOfTheSameBytes) {
  const auto& [name, tensors] = GetParam();
  const std::string torch = contents(name);
  const std::vector<TensorHead> heads = tensors.heads();
  const std::string pickle = render_pickle(heads);
  EXPECT_EQ(pickle.size(), measure_pickle(heads));

  const auto archive = TorchArchive::plan(name, pickle.size(), tensors.sizes());
  ASSERT_TRUE(archive) << archive.error().message();
  ASSERT_EQ(archive->size(), torch.size());
  const auto of_torch = [&](ByteRange range) { return torch.substr(range.begin, range.size()); };
  EXPECT_EQ(archive->render_head(), of_torch(archive->head()));
  EXPECT_EQ(pickle, of_torch(archive->pickle()));
  std::string all;
  for (std::size_t k = 0; k < archive->storages(); ++k) {
    EXPECT_EQ(archive->render_before(k, k + 1), of_torch(archive->before(k))) << k;
    EXPECT_EQ(archive->before(k).end, archive->storage(k).begin);
    all += of_torch(archive->before(k));
  }
  EXPECT_EQ(archive->render_before(0, archive->storages()), all);
  EXPECT_EQ(archive->render_tail(), of_torch(archive->tail()));
}

INSTANTIATE_TEST_SUITE_P(Written, TorchFiles,
                         testing::Values(std::pair("dtypes", dtypes_case()),
                                         std::pair("shapes", shapes_case()),
                                         std::pair("one", one_case()), std::pair("none", Case())),
                         [](const auto& param) { return std::string(param.param.first); });

TEST(TorchPickle, CutsADictIntoBatchesOfAThousand) {
  // MARK, items, SETITEMS; a batch that is full is followed by another, if an empty one.
  const std::vector<std::int64_t> shape{1};
  std::vector<std::string> names;
  for (int i = 0; i < 1001; ++i) names.push_back(fmt::format("n{}", i));
  const auto pickle = [&](std::size_t count) {
    std::vector<TensorHead> heads;
    for (std::size_t i = 0; i < count; ++i) heads.push_back({names[i], DType::F32, shape});
    return render_pickle(heads);
  };
  // The sizes are those that torch gives for float32 tensors of one element.
  EXPECT_EQ(pickle(2).size(), 222U);
  EXPECT_EQ(pickle(999).size(), 85050U);
  EXPECT_EQ(pickle(1000).size(), 85138U);
  EXPECT_TRUE(pickle(999).ends_with(std::string("Rr=\x1f\0\0u.", 8)));
  EXPECT_TRUE(pickle(1000).ends_with(std::string("RrE\x1f\0\0u(u.", 10)));
  EXPECT_THAT(pickle(1001), HasSubstr(std::string("u(X\5\0\0\0n1000", 12)));
}

TEST(TorchPickle, SpellsLargeNumbers) {
  const auto pickle = [](std::int64_t extent) {
    const std::vector<std::int64_t> shape{extent};
    const std::vector<TensorHead> heads{{"n", DType::U8, shape}};
    return render_pickle(heads);
  };
  using namespace std::string_literals;
  EXPECT_THAT(pickle(0xff), HasSubstr("K\xff\x85"s));
  EXPECT_THAT(pickle(0xffff), HasSubstr("M\xff\xff\x85"s));
  EXPECT_THAT(pickle(0x10000), HasSubstr("J\0\0\1\0\x85"s));
  EXPECT_THAT(pickle(0x7fffffff), HasSubstr("J\xff\xff\xff\x7f\x85"s));
  EXPECT_THAT(pickle(0x80000000), HasSubstr("\x8a\5\0\0\0\x80\0\x85"s));
  EXPECT_THAT(pickle(0x7fffffffff), HasSubstr("\x8a\5\xff\xff\xff\xff\x7f\x85"s));
  EXPECT_THAT(pickle(0x8000000000), HasSubstr("\x8a\6\0\0\0\0\x80\0\x85"s));
}

TEST(TorchArchive, HasZip64FieldsWhereTorchHasThem) {
  // Offsets and sizes of an archive of torch 2.13: two storages, of 2^32 + 4 and of 4 bytes, then
  // another beyond 4 GiB.
  const std::uint64_t large = (std::uint64_t{1} << 32) + 4;
  const auto archive = TorchArchive::plan("big", 300, {large, 4, 0});
  ASSERT_TRUE(archive);
  // A large member: 28 bytes more in its header, a descriptor of 24.
  const std::string first = archive->render_before(0, 1);
  EXPECT_THAT(first, HasSubstr(std::string("big/data/0\1\0\x10\0\4\0\0\0\1\0\0\0\0\0\0\0\0\0\0\0"
                                           "FB",
                                           10 + 20 + 2)));
  EXPECT_EQ(archive->storage(0).begin % 64, 0U);
  // A small one behind it: the offset of its header alone, and a descriptor of 24, too.
  const std::string second = archive->render_before(1, 2);
  EXPECT_EQ(second.substr(0, 4), "PK\7\x8");
  EXPECT_EQ(second.substr(24, 4), "PK\3\4");
  const std::size_t name = second.find("big/data/1");
  ASSERT_NE(name, std::string::npos);
  EXPECT_EQ(second.substr(name + 10, 4), std::string("\1\0\x8\0", 4));
  EXPECT_EQ(load_le<std::uint64_t>(std::as_bytes(std::span(second)).subspan(name + 14)),
            archive->storage(0).end + 24);
  EXPECT_EQ(archive->storage(1).begin % 64, 0U);
  // One without data has no descriptor; the fourth gap is the tail's.
  EXPECT_EQ(archive->storage(2).size(), 0U);
  EXPECT_EQ(archive->render_tail().size(), archive->tail().size());
  EXPECT_EQ(archive->render_tail().substr(0, 4), "PK\3\4");
}

TEST(TorchArchive, RefusesWhatNoFileCanHold) {
  const std::uint64_t half = std::uint64_t{1} << 62;
  EXPECT_TRUE(TorchArchive::plan("x", 10, {half}));
  const auto archive = TorchArchive::plan("x", 10, {half, half});
  ASSERT_FALSE(archive);
  EXPECT_EQ(archive.error().code(), ErrorCode::Unsupported);
  EXPECT_FALSE(TorchArchive::plan("x", 10, {~std::uint64_t{0}, half}));
}

TEST(TorchPickle, HoldsWhatTorchHas) {
  EXPECT_TRUE(can_hold(DType::C128));
  EXPECT_TRUE(can_hold(DType::F8E8M0));
  EXPECT_FALSE(can_hold(DType::F4));
  EXPECT_FALSE(can_hold(DType::F6E2M3));
}

}  // namespace
}  // namespace ckfs::torch_zip
