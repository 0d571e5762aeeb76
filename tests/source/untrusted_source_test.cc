// Names, numbers and links of a stranger: what they cost, and where they lead.
#include <ctime>
#include <filesystem>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <sys/stat.h>

#include "source/opened.h"
#include "support/safetensors_text.h"
#include "support/sanitized.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

TEST(UntrustedSource, HeadersOfOneFileAreNotReadUnderAnyNumberOfNames) {
  const TemporaryDirectory directory;
  std::vector<std::pair<std::string, std::size_t>> tensors;
  for (int i = 0; i < 1000; ++i) tensors.push_back({std::to_string(i) + std::string(1000, 'n'), 1});
  directory.write("m.safetensors", safetensors_text(tensors, 1));
  std::string weights;
  for (int i = 0; i < 40; ++i) {
    const std::string name = fmt::format("m{}.safetensors", i);
    fs::create_symlink("m.safetensors", directory / name);
    weights += fmt::format(R"({}"w{}": "{}")", i == 0 ? "" : ", ", i, name);
  }
  directory.write("model.safetensors.index.json", R"({"weight_map": {)" + weights + "}}");
  EXPECT_THAT(error_of(directory.path()), HasSubstr(": another name of m"));
  // Nor in the search for a name in two files, where there is no index.
  fs::remove(directory / "model.safetensors.index.json");
  fs::rename(directory / "m.safetensors", directory / "model.safetensors");
  for (int i = 0; i < 40; ++i) {
    const fs::path link = directory / fmt::format("m{}.safetensors", i);
    fs::remove(link);
    fs::create_symlink("model.safetensors", link);
  }
  EXPECT_THAT(error_of(directory.path()), HasSubstr(": another name of m"));
}

TEST(UntrustedSource, NorAreTheyLookedThroughInAnyNumberOfFolders) {
  const TemporaryDirectory directory;
  std::vector<std::pair<std::string, std::size_t>> tensors;
  for (int i = 0; i < 3000; ++i) tensors.push_back({std::to_string(i) + std::string(1000, 'n'), 1});
  directory.write("modules.json", "[]");
  directory.write("a/model.safetensors", safetensors_text(tensors, 1));
  directory.write("a/other.safetensors", safetensors_text(tensors, 2));
  for (int i = 0; i < 40; ++i) {
    fs::create_directory(directory / fmt::format("b{}", i));
    for (const std::string file : {"model.safetensors", "other.safetensors"}) {
      fs::create_hard_link(directory / ("a/" + file), directory / fmt::format("b{}/{}", i, file));
    }
  }
  const std::clock_t begin = std::clock();
  const auto opened = open_source(directory.path());
  EXPECT_EQ(opened.catalog->parts().size(), 3U);
  std::size_t refused = 0;
  for (const Note& note : opened.catalog->notes()) {
    refused += note.text.find("another name of a/") != std::string::npos ? 1 : 0;
  }
  EXPECT_GE(refused, 37U);
  EXPECT_LT(std::clock() - begin, (kSanitized ? 60 : 6) * CLOCKS_PER_SEC);
}

TEST(UntrustedSource, TextsOfOneFileAreNotReadInAnyNumberOfFolders) {
  const TemporaryDirectory directory;
  directory.write("a.json", R"({"a": ")" + std::string(3'000'000, 'x') + "\"}");
  directory.write("modules.json", "[]");
  for (int i = 0; i < 20; ++i) {
    const std::string folder = fmt::format("{}/", i);
    directory.write(folder + "model.safetensors",
                    safetensors_text({{fmt::format("w{}", i), 1}}, 1));
    fs::create_symlink("../a.json", directory / (folder + "config.json"));
  }
  // The first under its own name, five more within 16 MiB; what is left out costs nothing.
  const auto opened = open_source(directory.path());
  EXPECT_EQ(opened.catalog->parts().size(), 6U);
  std::set<std::string> reasons;
  for (const Note& note : opened.catalog->notes()) {
    const std::size_t at = note.text.find("config.json: another name of ");
    if (at != std::string::npos) reasons.insert(note.subject);
  }
  EXPECT_EQ(reasons.size(), 14U);
}

TEST(UntrustedSource, NumbersOfASeriesAreNumbersThatItCanHave) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"1-of-2147483647", "model-*-of-*.safetensors: number 2 of 2147483647 is missing"},
      {"1-of-2147483648",
       "model-1-of-2147483648.safetensors: one of 2147483648 files "
       "(limit 1 to 2147483647)"},
      {"1-of-99999999999999999999",
       "model-1-of-99999999999999999999.safetensors: one of "
       "9223372036854775807 files (limit 1 to 2147483647)"},
      {"1-of--5", "model-1-of--5.safetensors: one of -5 files (limit 1 to 2147483647)"},
      {"1-of-0", "model-1-of-0.safetensors: one of 0 files (limit 1 to 2147483647)"},
      {"7-of-5", "model-7-of-5.safetensors: number 7 (limit 0 to 5)"},
      {"99999999999999999999-of-5",
       "model-99999999999999999999-of-5.safetensors: number "
       "9223372036854775807 (limit 0 to 5)"},
  };
  for (const auto& [name, error] : cases) {
    const TemporaryDirectory directory;
    directory.write("model-" + name + ".safetensors", safetensors_text({{"x", 1}}, 1));
    EXPECT_EQ(error_of(directory.path()), error);
  }
}

TEST(UntrustedSource, FilesTogetherHaveSizesThatAddUp) {
  const TemporaryDirectory directory("/dev/shm");  // its files may be of any size
  directory.write("model.safetensors", safetensors_text({{"x", 1}}, 1));
  for (const char* name : {"a.txt", "b.txt"}) {
    directory.write(name, "");
    fs::resize_file(directory / name, std::uint64_t{3} << 58);
  }
  EXPECT_EQ(error_of(directory.path()),
            "b.txt: 864691128455135232 bytes, and 864691128455135232 in those before it (limit "
            "1152921504606846976)");
}

/// A header of one tensor of bytes, and as many bytes as nobody has written.
void write_hollow(const TemporaryDirectory& directory, const std::string& name,
                  std::uint64_t bytes) {
  std::string header =
      fmt::format(R"({{"x":{{"dtype":"U8","shape":[{}],"data_offsets":[0,{}]}}}})", bytes, bytes);
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string prefix(8, '\0');
  prefix[0] = static_cast<char>(header.size());
  directory.write(name, prefix + header);
  fs::resize_file(directory / name, 8 + header.size() + bytes);
}

TEST(UntrustedSource, FoldersTogetherHaveElementsThatAddUp) {
  const TemporaryDirectory directory("/dev/shm");  // its files may be of any size
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 57;
  directory.write("modules.json", "[]");
  for (const char* folder : {"a", "b", "c"}) {
    write_hollow(directory, fmt::format("{}/model.safetensors", folder), kHalf);
  }
  // What is left out is not counted.
  write_hollow(directory, "d/model.safetensors", 1);
  const auto opened = open_source(directory.path());
  EXPECT_EQ(opened.catalog->parts().size(), 2U);
  std::vector<std::string> left_out;
  for (const Note& note : opened.catalog->notes()) {
    if (note.text.find("more than 288230376151711744 elements") != std::string::npos) {
      left_out.push_back(note.subject);
    }
  }
  EXPECT_THAT(left_out, testing::ElementsAre("c/model.safetensors", "d/model.safetensors"));
}

TEST(UntrustedSource, TensorsThatDescribeOthersAreNotReadInAnyNumber) {
  const TemporaryDirectory directory;
  std::string header;
  std::size_t end = 0;
  const auto add = [&](const std::string& name, std::string_view type, std::string_view shape,
                       std::size_t bytes) {
    header += fmt::format(R"({}"{}":{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.empty() ? "" : ",", name, type, shape, end, end + bytes);
    end += bytes;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string name = fmt::format("m{}.weight", i);
    add(name, "U8", "32,1", 32);
    add(name + ".absmax", "F32", "1", 4);
    add(name + ".quant_map", "F32", "16", 64);
    add(name + ".quant_state.bitsandbytes__nf4", "U8", "65536", 65536);
  }
  header = "{" + header + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  std::string file(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(header.size() >> (8 * i));
  directory.write("model.safetensors", file + header);
  fs::resize_file(directory / "model.safetensors", 8 + header.size() + end);
  EXPECT_THAT(error_of(directory.path()), HasSubstr(" bytes to read, with those before it, of "
                                                    "tensors that say how others are quantized "
                                                    "(limit 100663296)"));
}

TEST(UntrustedSource, AHubCacheNamesItsSnapshotInPlainWords) {
  const TemporaryDirectory directory;
  const std::string hub = "models--o--n/";
  const std::string shown = (directory / "models--o--n").string();
  directory.write(hub + "blobs/1", safetensors_text({{"a", 1}}, 1));
  directory.write(hub + "snapshots/abc/README.md", "a");
  fs::create_symlink("../../blobs/1", directory / (hub + "snapshots/abc/model.safetensors"));
  for (const std::string revision : {"abc\x01", "\x1b[31mabc", "abc\x7f", "ab\u0085c",
                                     "\u202e"
                                     "abc"}) {
    directory.write(hub + "refs/main", revision);
    EXPECT_EQ(error_of(directory / "models--o--n"), shown + ": refs/main has control characters");
  }
  for (const std::string revision : {"..", "../../elsewhere", "/etc", "abc/../abc", "."}) {
    directory.write(hub + "refs/main", revision);
    EXPECT_THAT(error_of(directory / "models--o--n"),
                HasSubstr(": refs/main names the snapshot " + revision + ", which is absent"));
  }
  directory.write(hub + "refs/main", "abc\n");
  EXPECT_TRUE(open_source(directory / "models--o--n").catalog->find("a"));

  // Nobody writes to a FIFO, nor waits for it.
  fs::remove(directory / (hub + "refs/main"));
  ASSERT_EQ(::mkfifo((directory / (hub + "refs/main")).c_str(), 0600), 0);
  EXPECT_THAT(error_of(directory / "models--o--n"), HasSubstr(": refs/main cannot be read"));
}

TEST(UntrustedSource, ASnapshotThatIsALinkIsNone) {
  const TemporaryDirectory directory;
  const std::string hub = "models--o--n/";
  directory.write(hub + "blobs/1", safetensors_text({{"a", 1}}, 1));
  directory.write("elsewhere/model.safetensors", safetensors_text({{"b", 1}}, 1));
  fs::create_directory(directory / (hub + "snapshots"));
  fs::create_symlink("../../elsewhere", directory / (hub + "snapshots/abc"));
  EXPECT_THAT(error_of(directory / "models--o--n"), HasSubstr(": a hub cache entry without a"));
  directory.write(hub + "refs/main", "abc");
  EXPECT_THAT(error_of(directory / "models--o--n"),
              HasSubstr(": refs/main names the snapshot abc, which is absent"));
  // The directory of snapshots is none of another tree's, either.
  fs::remove_all(directory / (hub + "snapshots"));
  fs::create_symlink("../elsewhere", directory / (hub + "snapshots"));
  EXPECT_THAT(error_of(directory / "models--o--n"), HasSubstr(": not a checkpoint"));
}

}  // namespace
}  // namespace ckfs
