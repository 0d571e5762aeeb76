#include "source/hf/tensor_names.h"

#include <gtest/gtest.h>
#include <map>
#include <random>
#include <string>

namespace ckfs {
namespace {

CatalogBuilder builder_of(const std::vector<std::string>& names) {
  CatalogBuilder builder("test");
  for (const std::string& name : names) {
    const StorageId storage = builder.add_storage(DType::F32, 0, {});
    const std::int64_t shape[] = {0};
    builder.add_tensor(name, shape, storage);
  }
  return builder;
}

TEST(TensorNames, FindsWhatIsThereFromEverywhere) {
  std::mt19937 random(7);
  std::map<std::string, TensorId> all;
  std::vector<std::string> names;
  while (names.size() < 300) {
    std::string name;
    for (std::size_t size = random() % 7; size > 0; --size) name += "ab.\xff"[random() % 4];
    if (all.emplace(name, static_cast<TensorId>(names.size())).second) names.push_back(name);
  }
  const CatalogBuilder builder = builder_of(names);
  const TensorNames table(builder);
  EXPECT_EQ(table.size(), names.size());
  EXPECT_FALSE(table.twins());
  for (int i = 0; i < 20000; ++i) {
    std::string name = names[random() % names.size()];
    if (random() % 2 == 0) name += "ab.\xff"[random() % 4];
    const std::size_t cut = random() % (name.size() + 1);
    const auto found =
        table.find(std::string_view(name).substr(0, cut), std::string_view(name).substr(cut),
                   static_cast<TensorId>(random() % 310));
    const auto want = all.find(name);
    ASSERT_EQ(found.has_value(), want != all.end()) << name;
    if (found) {
      EXPECT_EQ(*found, want->second) << name;
    }
  }
}

TEST(TensorNames, KnowsNamesThatComeTwice) {
  const CatalogBuilder builder = builder_of({"c", "b", "a", "b"});
  const TensorNames table(builder);
  const auto twins = table.twins();
  ASSERT_TRUE(twins);
  EXPECT_EQ(*twins, std::pair(TensorId{1}, TensorId{3}));
  const CatalogBuilder none = builder_of({});
  EXPECT_FALSE(TensorNames(none).twins());
  EXPECT_FALSE(TensorNames(none).find("a"));
}

}  // namespace
}  // namespace ckfs
