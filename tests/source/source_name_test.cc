// Names of the hub and URLs in the place of a path, against caches laid out as huggingface_hub
// does.
#include "source/source_name.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <map>
#include <string>

#include "source/opened.h"
#include "source/safetensors_files.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::EndsWith;
using testing::HasSubstr;

using Variables = std::map<std::string, std::string>;

Variable variables_of(const Variables& variables) {
  return [&variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

TEST(HubCacheDirectory, IsFoundAsHuggingfaceHubFindsIt) {
  const auto hub = [](const Variables& variables) {
    return hub_cache_directory(variables_of(variables)).string();
  };
  EXPECT_EQ(hub({}), "");
  EXPECT_EQ(hub({{"HOME", "/h"}}), "/h/.cache/huggingface/hub");
  EXPECT_EQ(hub({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}), "/x/huggingface/hub");
  EXPECT_EQ(hub({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "~/m"}}), "/h/m/hub");
  EXPECT_EQ(hub({{"HOME", "/h"}, {"HF_HOME", "/m"}, {"HUGGINGFACE_HUB_CACHE", "/o"}}), "/o");
  EXPECT_EQ(hub({{"HOME", "/h"}, {"HF_HOME", "/m"}, {"HF_HUB_CACHE", "/c"}}), "/c");
  EXPECT_EQ(hub({{"HOME", "/h"}, {"HF_HOME", ""}}), "/h/.cache/huggingface/hub");
}

/// A cache with one repository, of two snapshots.
struct HubCache {
  HubCache() {
    const std::string repository = "models--org--name/";
    directory.write(repository + "refs/main", "2222");
    directory.write(repository + "refs/v1", "1111\n");
    directory.write(repository + "refs/refs/pr/7", "1111");
    for (const char* commit : {"1111", "2222"}) {
      directory.write(repository + "snapshots/" + commit + "/model.safetensors",
                      file_of({{std::string("of") + commit}}));
    }
  }
  std::string find(const std::string& name) const {
    const auto path = find_source(name, *store, variables_of(variables));
    return path ? fs::relative(*path, directory.path()).string() : path.error().message();
  }

  TemporaryDirectory directory;
  Variables variables{{"HF_HUB_CACHE", directory.path().string()}};
  std::unique_ptr<OpenStore> store = make_local_store();
};

TEST(FindSource, FindsAModelOfTheHubInItsCache) {
  const HubCache hub;
  EXPECT_EQ(hub.find("org/name"), "models--org--name");
  EXPECT_EQ(hub.find("hf://org/name"), "models--org--name");
  for (const char* revision : {"v1", "1111", "11", "refs/pr/7"}) {
    EXPECT_EQ(hub.find(std::string("org/name@") + revision), "models--org--name/snapshots/1111");
  }
  EXPECT_EQ(hub.find("org/name@main"), "models--org--name/snapshots/2222");
}

TEST(FindSource, SaysWhereItLookedAndWhatDownloadsTheModel) {
  const HubCache hub;
  EXPECT_EQ(hub.find("org/other"),
            "org/other: no such file or directory, and not in the hub's cache (" +
                (hub.directory / "models--org--other").string() +
                " is absent); ask the hub with: ckfs inspect hf://org/other; or download it with: "
                "hf download org/other");
  EXPECT_THAT(hub.find("org/other@v2"), EndsWith("hf download org/other --revision v2"));
  EXPECT_EQ(hub.find("org/name@v9"), "org/name@v9: no such revision in the hub's cache (" +
                                         (hub.directory / "models--org--name").string() +
                                         "); download it with: hf download org/name --revision v9");
  const Variables none;
  EXPECT_THAT(find_source("org/other", *hub.store, variables_of(none)).error().message(),
              HasSubstr("neither HF_HOME nor HOME says where that is"));
}

TEST(FindSource, DoesNotChooseBetweenSnapshots) {
  const HubCache hub;
  hub.directory.write("models--org--name/snapshots/1122/model.safetensors", "");
  EXPECT_EQ(hub.find("org/name@11"), "org/name@11: 2 snapshots begin so: 1111 and others");
}

TEST(FindSource, TakesAPathThatIsThereForAPath) {
  const HubCache hub;
  const fs::path there = hub.directory / "models--org--name/refs/main";
  EXPECT_EQ(find_source(there, *hub.store, variables_of(hub.variables)).value(), there);
}

TEST(FindSource, LeadsOutOfTheCacheByNoName) {
  const HubCache hub;
  hub.directory.write("models--org--name/refs/evil", "../../../../etc");
  for (const char* name :
       {"org/name@../../x", "org/..", "../name", "org/name@", "a/b/c", "org/name@.",
        "org/name@a/../b", "gpt2", "", "/org/name", "./org/name", "-x/name"}) {
    EXPECT_EQ(hub.find(name), std::string(name) + ": no such file or directory") << name;
  }
  EXPECT_THAT(hub.find("org/name@evil"), HasSubstr("no such revision"));
}

TEST(FindSource, SaysWhatToDoWithAUrl) {
  const HubCache hub;
  const std::string install =
      ": on another machine, and ckfs-fetcher is not installed (package ckfs-remote); install it, "
      "or ";
  const std::string rclone = ", or mount its store with rclone mount and give ckfs that directory";
  EXPECT_EQ(hub.find("s3://bucket/m"),
            "s3://bucket/m" + install + "copy it with: aws s3 sync s3://bucket/m DIR" + rclone);
  EXPECT_EQ(hub.find("gs://bucket/m"), "gs://bucket/m" + install +
                                           "copy it with: gcloud storage rsync -r gs://bucket/m "
                                           "DIR" +
                                           rclone);
  EXPECT_EQ(hub.find("https://huggingface.co/org/other/tree/main"),
            "https://huggingface.co/org/other/tree/main" + install +
                "download it with: hf download org/other; then name it so: ckfs inspect org/other");
  EXPECT_EQ(hub.find("https://huggingface.co/"),
            "https://huggingface.co/" + install +
                "download it with: hf download ORG/NAME; then name it so: ckfs inspect ORG/NAME");
  EXPECT_EQ(hub.find("https://a.b/m.safetensors"),
            "https://a.b/m.safetensors" + install + "download it first" + rclone);
  EXPECT_EQ(hub.find("az://account/m"),
            "az://account/m: not a location that ckfs reads (hf://, https://, s3://, gs://); "
            "download it first" +
                rclone);
  EXPECT_EQ(hub.find("hf://org/other"),
            "hf://org/other: not in the hub's cache (" +
                (hub.directory / "models--org--other").string() +
                " is absent); the hub is asked where the package ckfs-remote is installed and "
                "neither --offline nor HF_HUB_OFFLINE says no; or download it with: hf download "
                "org/other");
  EXPECT_THAT(hub.find("hf://datasets/org/name"), HasSubstr("hf download ORG/NAME"));
}

TEST(OpenCheckpoint, OpensAModelByItsNameOnTheHub) {
  const HubCache hub;
  ::setenv("HF_HUB_CACHE", hub.directory.path().c_str(), 1);
  EXPECT_TRUE(open_source("org/name").catalog->find("of2222"));
  EXPECT_TRUE(open_source("org/name@v1").catalog->find("of1111"));
  fs::remove_all(hub.directory / "models--org--name/refs");
  fs::create_directory(hub.directory / "models--org--name/blobs");
  EXPECT_THAT(error_of("org/name"), HasSubstr("no refs/main, and 2 snapshots: name one of them"));
  EXPECT_THAT(error_of("org/name"), HasSubstr("snapshots/1111; there are also: 2222"));
  ::unsetenv("HF_HUB_CACHE");
}

}  // namespace
}  // namespace ckfs
