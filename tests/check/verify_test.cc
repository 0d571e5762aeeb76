#include "check/verify.h"

#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/safetensors_text.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(Verify, FollowsALinkInThePlaceOfADirectoryOfTheView) {
  const TemporaryDirectory directory;
  directory.write("src/model.safetensors", safetensors_text({{"top", 10}}, 1));
  directory.write("src/modules.json", "[]");
  directory.write("src/2_Dense/config.json", "{}");
  const auto checkpoint = Checkpoint::open(directory / "src");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  const auto view = checkpoint->view("fp32-safetensors");
  ASSERT_TRUE(view) << view.error().message();
  for (const FileInfo file : view->files()) {
    const Bytes bytes = view->open(file.path)->read(0, file.size).value();
    directory.write("copy/" + std::string(file.path), bytes.span());
  }
  std::filesystem::rename(directory / "copy/2_Dense", directory / "elsewhere");
  std::filesystem::create_directory_symlink(directory / "elsewhere", directory / "copy/2_Dense");
  const auto same = verify_directory(*view, directory / "copy", {});
  ASSERT_TRUE(same) << same.error().message();
  EXPECT_THAT(same->differences, testing::IsEmpty());

  directory.write("elsewhere/other", "x");
  std::filesystem::create_directory_symlink(directory / "copy", directory / "copy/round");
  const auto more = verify_directory(*view, directory / "copy", {});
  ASSERT_TRUE(more) << more.error().message();
  EXPECT_THAT(more->differences,
              testing::UnorderedElementsAre(HasSubstr("2_Dense/other: is too much"),
                                            HasSubstr("round: is too much")));
}

TEST(Verify, NamesTheTensorOfAFolderWithWeightsOfItsOwn) {
  const TemporaryDirectory directory;
  directory.write("src/model.safetensors", safetensors_text({{"top", 10}}, 1));
  directory.write("src/modules.json", "[]");
  directory.write("src/2_Dense/model.safetensors", safetensors_text({{"a", 3}, {"b", 3}}, 2));
  directory.write("src/2_Dense/config.json", "{}");
  const auto checkpoint = Checkpoint::open(directory / "src");
  ASSERT_TRUE(checkpoint) << checkpoint.error().message();
  const auto view = checkpoint->view("fp32-safetensors");
  ASSERT_TRUE(view) << view.error().message();
  const FileList files = view->files();
  for (const FileInfo file : files) {
    const Bytes bytes = view->open(file.path)->read(0, file.size).value();
    directory.write("copy/" + std::string(file.path), bytes.span());
  }
  const auto same = verify_directory(*view, directory / "copy", {});
  ASSERT_TRUE(same) << same.error().message();
  EXPECT_EQ(same->differing, 0U);

  const std::string path = "2_Dense/model.safetensors";
  const std::size_t file = files.find(path).value();
  EXPECT_EQ(place_in_view(*view, file, files[file].size - 1), "tensor b, element [2]");
  EXPECT_EQ(place_in_view(*view, file, 0), "the header");
  std::fstream copy(directory / "copy" / path, std::ios::in | std::ios::out | std::ios::binary);
  copy.seekp(-1, std::ios::end);
  copy.put('?');
  copy.close();
  const auto other = verify_directory(*view, directory / "copy", {});
  ASSERT_TRUE(other) << other.error().message();
  EXPECT_THAT(other->differences, ElementsAre(HasSubstr(path + ": tensor b, element [2] (byte ")));
}

}  // namespace
}  // namespace ckfs
