// The hostile corpus (tests/data/torch-hostile/make.py): each file is refused with the error it
// lists, or its honest tensor is served and the hostile value left alone; in bounded memory, and
// nothing is ever executed. Every error text of the zip, pickle and torch readers is reached.
#include <algorithm>
#include <cstdlib>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include "base/load_le.h"
#include "base/units.h"
#include "format/torch_values.h"
#include "support/error_texts.h"
#include "support/heap_meter.h"
#include "support/sanitized.h"
#include "support/temporary_directory.h"

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

const fs::path kCorpus = "torch-hostile";

const std::vector<json>& cases() {
  static const std::vector<json> all = [] {
    const auto text = read_data(kCorpus / "cases.json");
    return json::parse(std::string(reinterpret_cast<const char*>(text.data()), text.size()));
  }();
  return all;
}

std::vector<std::byte> bytes_of(const json& test) {
  return read_data(kCorpus / "zip" / (std::string(test["name"]) + ".pt"));
}

/// The values of the honest tensor, looked for as whoever serves a state dict would.
Result<std::vector<std::byte>> read_w(MemorySource& source, FileId file) {
  CKFS_TRY(const TorchFile torch, TorchFile::open(source, file, whole(source, file)));
  const auto node = torch.pickle().find(torch.root(), "w");
  if (!node) return fail(ErrorCode::NotFound, "no tensor w");
  CKFS_TRY(const TorchTensor tensor, torch.tensor(*node));
  EXPECT_EQ(tensor.dtype, DType::F32);
  EXPECT_EQ(tensor.shape, (std::vector<std::int64_t>{5, 3}));
  return values_of(source, file, torch, tensor);
}

std::string message_of(const std::vector<std::byte>& bytes) {
  MemorySource source;
  const auto values = read_w(source, source.add("hostile.pt", bytes));
  return values ? "" : values.error().message();
}

std::vector<std::byte> honest_values() {
  std::vector<std::byte> bytes(15 * sizeof(float));
  for (std::size_t i = 0; i < 15; ++i) {
    store_le(std::span(bytes).subspan(i * sizeof(float)), static_cast<float>(i));
  }
  return bytes;
}

class Hostile : public testing::TestWithParam<std::size_t> {};

TEST_P(Hostile, IsRefusedWithItsErrorOrServesTheHonestTensor) {
  const json& test = cases()[GetParam()];
  const TemporaryDirectory directory;
  const fs::path marker = directory / "executed";
  ASSERT_EQ(::setenv("CKFS_HOSTILE_MARKER", marker.c_str(), 1), 0);

  MemorySource source;
  const auto bytes = bytes_of(test);
  const FileId file = source.add("hostile.pt", bytes);
  const heap_meter::Span memory;
  {
    const auto values = read_w(source, file);
    if (test["error"].is_null()) {
      ASSERT_TRUE(values) << values.error().message();
      EXPECT_EQ(*values, honest_values());
    } else {
      ASSERT_FALSE(values);
      EXPECT_THAT(values.error().message(), HasSubstr(std::string(test["error"])));
      EXPECT_EQ(values.error().message().find('\n'), std::string::npos) << "an error is one line";
      EXPECT_LE(values.error().message().size(), 1000U);
    }
  }
  EXPECT_LE(memory.most(), bytes.size() + 64_MiB);
  EXPECT_FALSE(fs::exists(marker));
  ::unsetenv("CKFS_HOSTILE_MARKER");
}

std::string hostile_name(const testing::TestParamInfo<std::size_t>& info) {
  std::string name = cases()[info.param]["name"];
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Torch, Hostile, testing::Range(std::size_t{0}, cases().size()),
                         hostile_name);

/// A pickle of `unit` again and again, in an honest zip.
std::vector<std::byte> stuffed_pickle(std::string_view unit, std::size_t bytes) {
  std::vector<std::byte> pickle{std::byte{0x80}, std::byte{2}};
  while (pickle.size() < bytes) {
    for (const char c : unit) pickle.push_back(static_cast<std::byte>(c));
  }
  pickle.push_back(std::byte{'.'});
  return pickle;
}

TEST(HostilePickle, TakesNoMoreMemoryThanAFewTimesItsBytes) {
  using std::string_view_literals::operator""sv;
  // The most memory for a byte each: nodes, marks, stack, memo, growing lists.
  for (const std::string_view unit :
       {"]"sv, "("sv, "N"sv, "N\x94"sv, "(t"sv, "]Na"sv, "}NNs"sv, "(N0"sv, "J\xff\xff\xff\xff"sv,
        "ca\nb\n"sv, "K\1K\1\x86"sv}) {
    for (const std::size_t size : {100'000, 4'000'000}) {
      const auto pickle = stuffed_pickle(unit, size);
      const heap_meter::Span memory;
      const auto parsed = parse_pickle(pickle, "hostile.pkl");
      EXPECT_LE(memory.most(), pickle.size() + 64_MiB) << unit << " x " << size;
    }
  }
}

TEST(HostilePickle, IsRefusedBeforeItsObjectsAreMade) {
  // As many objects as there may be, and then a list of all of them.
  std::string text(15_MiB, 'N');
  text.front() = '(';
  text += "l.";
  const std::uint64_t limit = kPickleBase + kPickleFactor * text.size();
  const heap_meter::Span memory;
  const auto pickle = parse_pickle(std::as_bytes(std::span(text)), "f");
  ASSERT_FALSE(pickle);
  EXPECT_THAT(pickle.error().message(), testing::HasSubstr("its objects need more than"));
  EXPECT_LE(memory.most(), kSanitized ? 3 * limit : limit + limit / 2);
}

TEST(HostileCorpus, ReachesEveryErrorTextOfTheReaders) {
  // Texts that no file of the corpus can bring about, each with its reason.
  const std::set<std::string> exempt = {
      "{}: zip directory of {} bytes (limit {})",  // a directory of 256 MiB
      "{}: a pickle of {} bytes (limit {})",       // of 1 GiB
      "{}: a pickle of more than {} bytes",
  };
  const auto texts =
      error_texts(fs::path(CKFS_TEST_DATA) / "../../src/format", [](const std::string& name) {
        return name == "zip.cc" || name == "pickle_read.cc" || name.starts_with("torch_file") ||
               name.starts_with("torch_open");
      });
  EXPECT_GE(texts.size(), 60U);

  std::vector<std::string> messages;
  for (const json& test : cases()) messages.push_back(message_of(bytes_of(test)));
  messages.push_back(parse_pickle(stuffed_pickle("]", 4'000'000), "lists").error().message());
  messages.push_back(parse_pickle(stuffed_pickle("\x8c\1\xe0", 10), "text").error().message());
  for (const std::string& text : texts) {
    if (exempt.contains(text)) continue;
    EXPECT_TRUE(std::any_of(messages.begin(), messages.end(),
                            [&](const std::string& message) { return comes_from(message, text); }))
        << "no case has the error: " << text;
  }
}

TEST(HostileCorpus, HasManyCases) {
  EXPECT_GE(cases().size(), 60U);
}

/// Any byte of an honest file replaced: refused or served, but never a crash and, with the values
/// themselves unchanged, never other values of `w`'s first 15 floats than the file has.
TEST(HonestFile, WithAnyByteChangedIsRefusedOrReadInBounds) {
  for (const char* name : {"honest", "honest-stream", "honest-without-zip64"}) {
    const auto bytes = read_data(kCorpus / "zip" / (std::string(name) + ".pt"));
    int refused = 0;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      for (const int flip : {0x01, 0x80, 0xff}) {
        auto changed = bytes;
        changed[i] ^= static_cast<std::byte>(flip);
        MemorySource source;
        const FileId file = source.add("f.pt", std::move(changed));
        const auto torch = TorchFile::open(source, file, whole(source, file));
        if (!torch) {
          ++refused;
          continue;
        }
        const auto node = torch->pickle().find(torch->root(), "w");
        if (!node) continue;
        const auto tensor = torch->tensor(*node);
        // values_of() expects each element to lie inside its storage.
        if (tensor) std::ignore = values_of(source, file, *torch, *tensor);
      }
    }
    EXPECT_GT(refused, 50) << name;
  }
}

}  // namespace
}  // namespace ckfs
