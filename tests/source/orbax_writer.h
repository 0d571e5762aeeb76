// Writes Orbax items for tests: a database of keys and values in one leaf, or files.
#pragma once

#include <algorithm>
#include <fmt/format.h>
#include <map>
#include <string>
#include <vector>
#include <zstd.h>

#include "format/crc32c.h"
#include "format/ocdbt.h"
#include "support/temporary_directory.h"

namespace ckfs {

/// zarr.json of an array without compression, but for what `codecs` adds behind "bytes".
inline std::string zarr3(std::string_view shape, std::string_view chunk,
                         std::string_view type = "float32", std::string_view codecs = "",
                         std::string_view fill = "0") {
  return fmt::format(
      R"({{"zarr_format":3,"node_type":"array","shape":{},"data_type":"{}","chunk_grid":)"
      R"({{"name":"regular","configuration":{{"chunk_shape":{}}}}},"chunk_key_encoding":)"
      R"({{"name":"default"}},"fill_value":{},"codecs":[{{"name":"bytes","configuration":)"
      R"({{"endian":"little"}}}}{}]}})",
      shape, type, chunk, fill, codecs);
}

/// A node whose body is a zstd frame: values in it are in no file.
inline std::string compressed(const std::string& node) {
  const std::string_view body = std::string_view(node).substr(14, node.size() - 18);
  std::string frame(ZSTD_compressBound(body.size()), '\0');
  frame.resize(ZSTD_compress(frame.data(), frame.size(), body.data(), body.size(), 3));
  std::string out = node.substr(0, 4);
  const std::size_t size = frame.size() + 18;
  for (std::size_t i = 0; i < 8; ++i) out += static_cast<char>(size >> (8 * i) & 0xff);
  out += std::string("\0\1", 2) + frame;
  const std::uint32_t crc = crc32c(out);
  for (std::size_t i = 0; i < 4; ++i) out += static_cast<char>(crc >> (8 * i) & 0xff);
  return out;
}

struct OrbaxWriter {
  /// A value out of line: bytes of a file.
  struct Outside {
    std::string file;
    std::uint64_t offset = 0, size = 0;
  };

  /// Of each leaf ("a", "b.c"; "|" is a dot within a key): its value_type.
  std::vector<std::pair<std::string, std::string>> leaves = {{"w", "np.ndarray"}};
  std::map<std::string, std::string> inside = {{"w/zarr.json", zarr3("[2]", "[2]")},
                                               {"w/c/0", "12345678"}};
  std::map<std::string, Outside> outside;
  std::map<std::string, std::string> files;  // beside them
  std::string flags = R"("use_ocdbt":true,"use_zarr3":true)";
  bool with_tree = true;
  bool with_manifest = true;
  bool compress = false;

  std::string tree() const {
    std::string text = R"({"tree_metadata":{)";
    for (const auto& [name, type] : leaves) {
      text += fmt::format("{}\"{}\":{{\"key_metadata\":[", text.ends_with('{') ? "" : ",", name);
      for (std::size_t begin = 0; begin <= name.size();) {
        const std::size_t end = std::min(name.find('.', begin), name.size());
        std::string key = name.substr(begin, end - begin);
        std::ranges::replace(key, '|', '.');
        text += fmt::format(R"({}{{"key":"{}","key_type":2}})", begin > 0 ? "," : "", key);
        begin = end + 1;
      }
      text += fmt::format(R"(],"value_metadata":{{"value_type":"{}","skip_deserialize":{}}}}})",
                          type, type == "Dict" || type == "None");
    }
    return text + "}," + flags + "}";
  }

  /// The leaf that has all keys.
  std::string node() const {
    std::vector<std::string> names;
    const ocdbt::FileName name = [&](std::uint32_t file) { return names[file]; };
    ocdbt::Leaf<ocdbt::KeptColumn> leaf(name);
    std::map<std::string, const Outside*> all;
    for (const auto& [key, value] : inside) all[key] = nullptr;
    for (const auto& [key, value] : outside) all[key] = &value;
    for (const auto& [key, where] : all) {
      if (where == nullptr) {
        leaf.add(key, inside.at(key));
        continue;
      }
      names.push_back(where->file);
      leaf.add(key, ocdbt::DataLocation{static_cast<std::uint32_t>(names.size() - 1), where->offset,
                                        where->size});
    }
    return compress ? compressed(leaf.render()) : leaf.render();
  }

  void write(const TemporaryDirectory& out, const std::string& directory = "") const {
    if (with_tree) out.write(directory + "_METADATA", tree());
    for (const auto& [path, text] : files) out.write(directory + path, text);
    if (!with_manifest) return;
    const std::string text = node();
    out.write(directory + "d/nodes", text);
    out.write(directory + "manifest.ocdbt",
              ocdbt::render_manifest("d/nodes", {{1, 2}, 0, 0, text.size(), {}}));
  }
};

}  // namespace ckfs
