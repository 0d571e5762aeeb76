#include "format/orbax_metadata.h"

#include <gtest/gtest.h>

namespace ckfs::orbax {
namespace {

TEST(OrbaxMetadata, HasAnEntryForEachLeaf) {
  const Leaf leaves[] = {{"a", Leaf::Kind::Array},
                         {"b.c's", Leaf::Kind::Scalar},
                         {"opt_state", Leaf::Kind::EmptyDict}};
  const std::string expected =
      R"json({"tree_metadata": {"('a',)": {"key_metadata": [{"key": "a", "key_type": 2}], )json"
      R"json("value_metadata": {"value_type": "np.ndarray", "skip_deserialize": false}}, )json"
      R"json("('b', 'c\\'s')": {"key_metadata": [{"key": "b", "key_type": 2}, )json"
      R"json({"key": "c's", "key_type": 2}], )json"
      R"json("value_metadata": {"value_type": "scalar", "skip_deserialize": false}}, )json"
      R"json("('opt_state',)": {"key_metadata": [{"key": "opt_state", "key_type": 2}], )json"
      R"json("value_metadata": {"value_type": "Dict", "skip_deserialize": true}}}, )json"
      R"json("use_ocdbt": true, "use_zarr3": true, )json"
      R"json("store_array_data_equal_to_fill_value": true, "custom_metadata": null})json";
  EXPECT_EQ(render_metadata(leaves, {}), expected);
  EXPECT_EQ(measure_metadata(leaves, {}), expected.size());
}

TEST(OrbaxMetadata, SaysHowArraysAreStored) {
  const std::string text = render_metadata({}, {.ocdbt = false, .zarr3 = false});
  EXPECT_NE(text.find(R"json("use_ocdbt": false, "use_zarr3": false)json"), std::string::npos);
}

TEST(OrbaxMetadata, HasTheTextOfOrbaxBesideIt) {
  EXPECT_EQ(render_commit_success("v/0"), "Checkpoint commit was successful to v/0");
}

}  // namespace
}  // namespace ckfs::orbax
