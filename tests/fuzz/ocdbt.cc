// Fuzz target: a manifest, a node. What is accepted must have places in its files, keys in order.
#include <cstddef>
#include <cstdint>

#include "format/crc32c.h"
#include "format/ocdbt_read.h"
#include "fuzz/fuzz_input.h"

namespace {

using namespace ckfs;

void check(const Error& error) {
  CKFS_CHECK(error.message().find('\n') == std::string::npos);
}

void check_node(const ocdbt::Node& node) {
  std::string before;
  bool first = true;
  const auto in_order = [&](std::string_view key) {
    CKFS_CHECK(first || before < key);
    before = key;
    first = false;
  };
  std::size_t entries = 0;
  if (node.height() == 0) {
    CKFS_CHECK(node.for_each_value([&](std::string_view key, const ocdbt::Value& value) {
      in_order(key);
      CKFS_CHECK(value.in_node || value.place.file < node.files().size());
      ++entries;
      return Result<void>();
    }));
  } else {
    CKFS_CHECK(node.for_each_child([&](const ocdbt::ChildRef& child) {
      in_order(child.key);
      CKFS_CHECK(child.place.file < node.files().size());
      CKFS_CHECK(child.stripped <= child.key.size());
      ++entries;
      return Result<void>();
    }));
  }
  CKFS_CHECK(entries == node.entries());
}

/// The body as the format has it around, so that a checksum does not keep the fuzzer out.
std::string enveloped(const char* magic, std::span<const std::uint8_t> body) {
  std::string text(magic, 4);
  const auto le = [&](std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xff);
  };
  le(body.size() + 16, 8);
  text.append(reinterpret_cast<const char*>(body.data()), body.size());
  le(crc32c(text), 4);
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size < 2) return 0;
  const std::span body(data + 1, size - 1);
  const std::uint8_t kind = data[0];
  if (kind == 0xff) {  // all of it is the fuzzer's
    const std::string text(reinterpret_cast<const char*>(body.data()), body.size());
    if (auto manifest = ocdbt::parse_manifest(text, "m"); !manifest) check(manifest.error());
  } else if (kind % 2 == 0) {
    const auto manifest = ocdbt::parse_manifest(enveloped("\x0c\xdb\x3a\x2a", body), "m");
    if (!manifest) {
      check(manifest.error());
    } else if (manifest->root) {
      CKFS_CHECK(manifest->root->file < manifest->files.size());
    }
  } else {
    const auto node = ocdbt::Node::parse(enveloped("\x0c\xdb\x20\xde", body),
                                         {.height = static_cast<std::uint8_t>(kind / 2 % 4),
                                          .base_path = "b/",
                                          .most_decoded = 1 << 24},
                                         "n");
    if (node) {
      check_node(*node);
    } else {
      check(node.error());
    }
  }
  return 0;
}
