// The malformed corpus (tests/data/malformed/make.py): each case is refused with the error it
// lists, in bounded memory; and every error text of src/format and src/source is reached by some
// case.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <malloc.h>
#include <new>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/units.h"
#include "format/hf_index.h"
#include "format/json_text.h"
#include "format/safetensors.h"
#include "source/header_loader.h"
#include "source/open_checkpoint.h"
#include "support/memory_source.h"
#include "support/temporary_directory.h"

namespace {

// All memory of this program that comes from new, now and at most: what a parser asks for, however
// many threads it uses and whatever the allocator makes of it.
std::atomic<std::size_t> memory_now{0};
std::atomic<std::size_t> memory_peak{0};

void* count_allocation(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const std::size_t now = memory_now += malloc_usable_size(memory);
  std::size_t peak = memory_peak;
  while (now > peak && !memory_peak.compare_exchange_weak(peak, now)) {
  }
  return memory;
}

void count_release(void* memory) {
  memory_now -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

void* operator new(std::size_t size) {
  return count_allocation(std::malloc(size));
}
void operator delete(void* memory) noexcept {
  count_release(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  count_release(memory);
}

namespace ckfs {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

const fs::path kCorpus = fs::path(CKFS_TEST_DATA) / "malformed";

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

const std::vector<json>& cases() {
  static const std::vector<json> all = json::parse(read_file(kCorpus / "cases.json"));
  return all;
}

/// JSON holds characters, cases bytes: each character stands for the byte of its number.
std::string bytes_of(const std::string& utf8) {
  std::string bytes;
  for (std::size_t i = 0; i < utf8.size(); ++i) {
    const auto c = static_cast<unsigned char>(utf8[i]);
    if (c < 0x80) {
      bytes += utf8[i];
    } else {
      bytes += static_cast<char>((c << 6) | (static_cast<unsigned char>(utf8[++i]) & 0x3f));
    }
  }
  return bytes;
}

std::string content(const json& test) {
  const std::string kind = test["kind"];
  if (!test.contains("parts")) return read_file(kCorpus / kind / std::string(test["name"]));
  std::string text;
  for (const json& part : test["parts"]) {
    const std::string piece = bytes_of(part[0]);
    for (int i = 0; i < static_cast<int>(part[1]); ++i) {
      std::size_t from = 0;
      for (std::size_t at; (at = piece.find("%i", from)) != std::string::npos; from = at + 2) {
        text.append(piece, from, at - from);
        text += std::to_string(i);
      }
      text.append(piece, from);
    }
  }
  if (kind == "header") {
    std::string length(safetensors::kLengthBytes, '\0');
    for (std::size_t i = 0; i < length.size(); ++i) {
      length[i] = static_cast<char>(text.size() >> (8 * i));
    }
    text = length + text;
  }
  return text;
}

struct Outcome {
  std::string message = "(no error)";
  std::size_t input = 0;   // bytes
  std::size_t memory = 0;  // bytes beyond what was there before
};

template <typename T>
void note(Outcome& outcome, const Result<T>& result) {
  if (!result) outcome.message = result.error().message();
}

Outcome run_text(const json& test) {
  const std::string kind = test["kind"];
  const std::string text = content(test);
  Outcome outcome;
  outcome.input = text.size();
  MemorySource source;
  FileId file = 0;
  if (kind == "header") file = source.add_text("model.safetensors", text);
  const std::size_t before = memory_now;
  memory_peak = before;
  if (kind == "header") {
    note(outcome, load_header(source, file));
  } else if (kind == "index") {
    note(outcome, parse_hf_index(text, "index.json"));
  } else {
    note(outcome, dense_config(text, "bfloat16", "config.json"));
    if (outcome.message == "(no error)") note(outcome, find_quantization(text, "config.json"));
  }
  outcome.memory = memory_peak - before;
  return outcome;
}

Outcome run_checkpoint(const json& test) {
  const TemporaryDirectory directory;
  Outcome outcome;
  for (const auto& [path, text] : test["files"].items()) {
    const std::string bytes = bytes_of(text);
    directory.write(path, bytes);
    outcome.input += bytes.size();
  }
  for (const auto& [path, target] : test["links"].items()) {
    const fs::path link = directory / path;
    fs::create_directories(link.parent_path());
    if (!path.ends_with('/')) fs::create_symlink(std::string(target), link);
  }
  auto files = SourceFiles::create({.engine = IoEngine::Pread});
  EXPECT_TRUE(files);
  const std::size_t before = memory_now;
  memory_peak = before;
  const std::string open = test["open"];
  note(outcome, open_checkpoint(open.empty() ? directory.path() : directory / open, **files));
  outcome.memory = memory_peak - before;
  return outcome;
}

Outcome run(const json& test) {
  return test["kind"] == "checkpoint" ? run_checkpoint(test) : run_text(test);
}

class Malformed : public testing::TestWithParam<std::size_t> {};

TEST_P(Malformed, IsRefusedWithItsErrorInBoundedMemory) {
  const json& test = cases()[GetParam()];
  const Outcome outcome = run(test);
  EXPECT_THAT(outcome.message, HasSubstr(std::string(test["expect"])));
  EXPECT_EQ(outcome.message.find('\n'), std::string::npos) << "an error is one line";
  EXPECT_LE(outcome.message.size(), 1000U);
  EXPECT_LE(outcome.memory, outcome.input + 64_MiB);
}

std::string name_of_case(const testing::TestParamInfo<std::size_t>& info) {
  const json& test = cases()[info.param];
  std::string name = std::string(test["kind"]) + "_" + std::string(test["name"]);
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Corpus, Malformed, testing::Range(std::size_t{0}, cases().size()),
                         name_of_case);

/// The format strings of all errors in the sources of `folder`.
std::set<std::string> error_texts(const std::string& folder) {
  // fail(ErrorCode::X, "..." "..."), refuse("...") and refuse_tensor("...").
  static const std::regex kError(
      R"re((?:\bfail\(\s*ErrorCode::\w+\s*,|\brefuse(?:_tensor)?\()\s*((?:"(?:[^"\\]|\\.)*"\s*)+))re");
  static const std::regex kLiteral(R"re("((?:[^"\\]|\\.)*)")re");
  std::set<std::string> texts;
  for (const auto& entry :
       fs::directory_iterator(fs::path(CKFS_TEST_DATA) / "../../src" / folder)) {
    if (entry.path().extension() != ".cc") continue;
    const std::string source = read_file(entry.path());
    for (std::sregex_iterator error(source.begin(), source.end(), kError), end; error != end;
         ++error) {
      std::string text;
      const std::string literals = (*error)[1];
      for (std::sregex_iterator part(literals.begin(), literals.end(), kLiteral); part != end;
           ++part) {
        text += std::regex_replace((*part)[1].str(), std::regex(R"(\\(.))"), "$1");
      }
      texts.insert(text);
    }
  }
  return texts;
}

/// Whether `message` can come from the format string `text`: its pieces, in their order.
bool comes_from(const std::string& message, const std::string& text) {
  std::size_t at = 0;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t open = std::min(text.find('{', begin), text.size());
    const std::string piece = text.substr(begin, open - begin);
    at = message.find(piece, at);
    if (at == std::string::npos) return false;
    at += piece.size();
    begin = std::min(text.find('}', open), text.size() - 1) + 1;
  }
  return true;
}

TEST(MalformedCorpus, ReachesEveryErrorTextOfTheParsers) {
  // Texts that no file can bring about by itself, each with its reason.
  const std::set<std::string> exempt = {
      "{}: no memory for its header",  // the machine's memory, not the file
      "{}: more than {} files",        // a hundred thousand files; by hand
      "{}: {} bytes (limit {})",       // an index of 256 MiB; config/long has this text
  };
  std::set<std::string> texts = error_texts("format");
  texts.merge(error_texts("source"));
  EXPECT_GE(texts.size(), 40U);

  std::vector<std::string> messages;
  for (const json& test : cases()) messages.push_back(run(test).message);
  for (const std::string& text : texts) {
    if (exempt.contains(text)) continue;
    EXPECT_TRUE(std::any_of(messages.begin(), messages.end(),
                            [&](const std::string& message) { return comes_from(message, text); }))
        << "no case has the error: " << text;
  }
}

TEST(MalformedCorpus, HasManyCases) {
  EXPECT_GE(cases().size(), 150U);
}

}  // namespace
}  // namespace ckfs
