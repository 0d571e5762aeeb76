// Against the set of strings that torch uses, where this library has it; and against ids that were
// written down, everywhere.
#include "format/torch_serialization_id.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <string>
#include <unordered_set>
#include <vector>

namespace ckfs::torch_zip {
namespace {

std::uint64_t hash_of(const std::vector<std::string>& names) {
  NameSetHash set;
  for (const std::string& name : names) set.add(name);
  return set.value();
}

TEST(NameSetHash, HasTheValuesOfTorch) {
  std::vector<std::string> names = {"data.pkl", ".format_version", ".storage_alignment",
                                    "byteorder"};
  for (int i = 0; i < 40; ++i) names.push_back(fmt::format("data/{}", i));
  names.emplace_back("version");
  EXPECT_EQ(hash_of({}), 0U);
  EXPECT_EQ(hash_of(names), 15065861001111053755U);
}

#ifdef __GLIBCXX__
std::uint64_t reference(const std::vector<std::string>& names) {
  std::unordered_set<std::string> set;
  for (const std::string& name : names) set.insert(name);
  std::uint64_t hash = 0;
  for (const std::string& name : set) hash = combine(hash, std::hash<std::string>()(name));
  return hash;
}

TEST(NameSetHash, WalksAsTheLibraryDoesAtEverySize) {
  std::vector<std::string> names;
  for (int i = 0; i < 6000; ++i) {
    names.push_back(fmt::format("data/{}", i));
    if (i % 97 != 0 && i >= 300) continue;
    EXPECT_EQ(hash_of(names), reference(names)) << i;
  }
}

RC_GTEST_PROP(NameSetHash, WalksAsTheLibraryDoes, (const std::vector<std::string>& names)) {
  std::vector<std::string> twice = names;
  twice.insert(twice.end(), names.begin(), names.end());
  RC_ASSERT(hash_of(twice) == reference(twice));
}
#endif

}  // namespace
}  // namespace ckfs::torch_zip
