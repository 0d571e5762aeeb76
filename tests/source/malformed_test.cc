// The malformed corpus (tests/data/malformed/make.py): each case is refused with the error it
// lists, in bounded memory; and every error text of src/format and src/source is reached by some
// case.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "base/units.h"
#include "format/hf_index.h"
#include "format/json_text.h"
#include "format/quant_state.h"
#include "format/quantization_config.h"
#include "format/safetensors.h"
#include "source/header_loader.h"
#include "source/open_checkpoint.h"
#include "support/error_texts.h"
#include "support/heap_meter.h"
#include "support/memory_source.h"
#include "support/temporary_directory.h"

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

const std::vector<json>& malformed_cases() {
  static const std::vector<json> all = json::parse(read_file(kCorpus / "cases.json"));
  return all;
}

/// JSON holds characters, cases bytes: each character stands for the byte of its number.
std::string bytes_of_case(const std::string& utf8) {
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
    const std::string piece = bytes_of_case(part[0]);
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
  const heap_meter::Span memory;
  if (kind == "header") {
    note(outcome, load_header(source, file));
  } else if (kind == "index") {
    note(outcome, parse_hf_index(text, "index.json"));
  } else if (kind == "quant_state") {
    note(outcome, parse_quant_state(text, "quant_state"));
  } else {
    note(outcome, dense_config(text, "bfloat16", "config.json"));
    if (outcome.message == "(no error)") note(outcome, find_quantization(text, "config.json"));
  }
  outcome.memory = memory.most();
  return outcome;
}

Outcome run_checkpoint(const json& test) {
  const TemporaryDirectory directory;
  Outcome outcome;
  for (const auto& [path, text] : test["files"].items()) {
    const std::string bytes = bytes_of_case(text);
    directory.write(path, bytes);
    outcome.input += bytes.size();
  }
  for (const auto& [path, target] : test["links"].items()) {
    const fs::path link = directory / path;
    fs::create_directories(link.parent_path());
    if (!path.ends_with('/')) fs::create_symlink(std::string(target), link);
  }
  auto files = LocalFiles::create({.engine = IoEngine::Pread});
  EXPECT_TRUE(files);
  const heap_meter::Span memory;
  const std::string open = test["open"];
  note(outcome, open_checkpoint(open.empty() ? directory.path() : directory / open, **files));
  outcome.memory = memory.most();
  return outcome;
}

Outcome run(const json& test) {
  return test["kind"] == "checkpoint" ? run_checkpoint(test) : run_text(test);
}

class Malformed : public testing::TestWithParam<std::size_t> {};

TEST_P(Malformed, IsRefusedWithItsErrorInBoundedMemory) {
  const json& test = malformed_cases()[GetParam()];
  const Outcome outcome = run(test);
  EXPECT_THAT(outcome.message, HasSubstr(std::string(test["expect"])));
  EXPECT_EQ(outcome.message.find('\n'), std::string::npos) << "an error is one line";
  EXPECT_LE(outcome.message.size(), 1000U);
  EXPECT_LE(outcome.memory, outcome.input + 64_MiB);
}

std::string name_of_case(const testing::TestParamInfo<std::size_t>& info) {
  const json& test = malformed_cases()[info.param];
  std::string name = std::string(test["kind"]) + "_" + std::string(test["name"]);
  std::replace_if(name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Corpus, Malformed,
                         testing::Range(std::size_t{0}, malformed_cases().size()), name_of_case);

TEST(MalformedCorpus, ReachesEveryErrorTextOfTheParsers) {
  // Texts that no file can bring about by itself, each with its reason.
  const std::set<std::string> exempt = {
      "{}: no memory for its header",  // the machine's memory, not the file
      "{}: more than {} files",        // a hundred thousand files; by hand
      "{}: {} bytes (limit {})",       // an index of 256 MiB; config/long has this text
      // Modules are needed for these: tests/format/module_pattern_test.cc.
      "{}: its targets need more than {} steps for the modules here (with those of other folders)",
      "{}: {} bytes of patterns (limit {})",
      // Only strides of 0 make so many of a file: torch_broken_test.cc.
      "{}: tensor {}: more than {} elements with those before it",
      // Sizes of files without content: untrusted_source_test.cc.
      "{}: {} bytes, and {} in those before it (limit {})",
      "tensor {}: {} bytes to read, with those before it, of tensors that say how others are "
      "quantized (limit {})",
      // A long one, made by a program: json_text_test.cc.
      "{}: quantization_config has values that take more than {} bytes",
      // What it names would be a file of its own: open_checkpoint_test.cc.
      "{}: refs/main cannot be read, or names nothing",
      // What one node has of a DCP checkpoint: torch_sources_test.cc.
      "{}: a part of a DCP checkpoint ({}), and .metadata is not here: it lies on the first node "
      "that saved it (copy the files of all nodes into one directory)",
      // Options, not files: open_checkpoint_test.cc, torch_sources_test.cc.
      "{}: only {} have {}",
      "{}: --config does not go with a safetensors checkpoint, which has its own config.json "
      "(leave the option out)",
      "{}: --{} does not go with a safetensors checkpoint, whose tensors are all at one place "
      "(leave the option out)",
  };
  // The readers of torch files and of Orbax's, and of what is made of them, have their own corpora
  // (tests/format/torch_hostile_test.cc, tests/source/orbax_sources_test.cc) and their own tests.
  static const std::regex kOthers(
      "(zip|pickle|torch|dcp|deepspeed|universal|zero|numbered_files|model_directory|source_name|"
      "parallel|fsdp|device_mesh|megatron|"
      "ocdbt|zarr|orbax|msgpack).*");
  const auto wanted = [](const std::string& name) { return !std::regex_match(name, kOthers); };
  const fs::path sources = fs::path(CKFS_TEST_DATA) / "../../src";
  std::set<std::string> texts = error_texts(sources / "format", wanted);
  texts.merge(error_texts(sources / "source", wanted));
  EXPECT_GE(texts.size(), 40U);

  std::vector<std::string> messages;
  for (const json& test : malformed_cases()) messages.push_back(run(test).message);
  for (const std::string& text : texts) {
    if (exempt.contains(text)) continue;
    EXPECT_TRUE(std::any_of(messages.begin(), messages.end(),
                            [&](const std::string& message) { return comes_from(message, text); }))
        << "no case has the error: " << text;
  }
}

TEST(MalformedCorpus, HasManyCases) {
  EXPECT_GE(malformed_cases().size(), 150U);
}

}  // namespace
}  // namespace ckfs
