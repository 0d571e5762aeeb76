#include "format/orbax_metadata.h"

#include "base/error.h"
#include "format/python_json.h"
#include "format/text_sink.h"

namespace ckfs::orbax {
namespace {

/// Calls `take` with each key of the path, and whether it is a place in a list.
template <typename Take>
void for_each_key(const Leaf& leaf, const Take& take) {
  std::string_view rest = leaf.path;
  while (!rest.empty()) {
    const std::size_t end = rest.find('\0');
    take(rest.substr(1, end - 1), rest.front() == 'i');
    rest.remove_prefix(end + 1);
  }
  if (!leaf.path.empty()) return;
  for (std::size_t begin = 0; begin <= leaf.name.size();) {
    const std::size_t end = std::min(leaf.name.find('.', begin), leaf.name.size());
    take(leaf.name.substr(begin, end - begin), false);
    begin = end + 1;
  }
}

/// The member's name: str() of the path as a tuple. Readers take it for an identifier and the path
/// from key_metadata, so a key with a quote need not be quoted as Python does.
std::string tuple_text(const Leaf& leaf) {
  std::string text = "(";
  int keys = 0;
  for_each_key(leaf, [&](std::string_view key, bool /*is_index*/) {
    if (keys++ > 0) text += ", ";
    text += '\'';
    for (const char c : key) {
      if (c == '\'' || c == '\\') text += '\\';
      text += c;
    }
    text += '\'';
  });
  text += keys == 1 ? ",)" : ")";
  return text;
}

std::string_view value_type(const Leaf& leaf) {
  switch (leaf.kind) {
    case Leaf::Kind::Array:
      return "np.ndarray";
    case Leaf::Kind::Scalar:
      return "scalar";
    case Leaf::Kind::EmptyDict:
      return "Dict";
    case Leaf::Kind::Other:
      return leaf.type;
  }
  return "";
}

/// Whether nothing is stored for it.
bool is_empty(const Leaf& leaf) {
  return leaf.kind == Leaf::Kind::EmptyDict ||
         (leaf.kind == Leaf::Kind::Other && leaf.type != "string");
}

template <typename Put>
void put_leaf(const Put& put, const Leaf& leaf) {
  put_python_string(put, tuple_text(leaf));
  put(R"(: {"key_metadata": [)");
  bool first = true;
  for_each_key(leaf, [&](std::string_view key, bool is_index) {
    put(first ? R"({"key": )" : R"(, {"key": )");
    first = false;
    put_python_string(put, key);
    put(is_index ? R"(, "key_type": 1})" : R"(, "key_type": 2})");
  });
  put(R"(], "value_metadata": {"value_type": )");
  put_python_string(put, value_type(leaf));
  put(R"(, "skip_deserialize": )");
  put(is_empty(leaf) ? "true}}" : "false}}");
}

template <typename Put>
void put_metadata(const Put& put, std::span<const Leaf> leaves, Storage storage,
                  std::string_view custom) {
  put(R"({"tree_metadata": {)");
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    if (i > 0) put(", ");
    put_leaf(put, leaves[i]);
  }
  put(R"(}, "use_ocdbt": )");
  put(storage.ocdbt ? "true" : "false");
  put(R"(, "use_zarr3": )");
  put(storage.zarr3 ? "true" : "false");
  // A chunk that is missing is an error and not zeros.
  put(R"(, "store_array_data_equal_to_fill_value": true, "custom_metadata": )");
  put(custom.empty() ? "null" : custom);
  put("}");
}

}  // namespace

std::string joined_keys(std::string_view path) {
  std::string joined;
  bool first = true;
  for_each_key({.name = {}, .path = path}, [&](std::string_view key, bool /*is_index*/) {
    if (!first) joined += '.';
    first = false;
    joined += key;
  });
  return joined;
}

std::uint64_t measure_metadata(std::span<const Leaf> leaves, Storage storage,
                               std::string_view custom) {
  CountingSink sink;
  put_metadata([&](std::string_view text) { sink.put(text); }, leaves, storage, custom);
  return sink.size();
}

std::string render_metadata(std::span<const Leaf> leaves, Storage storage,
                            std::string_view custom) {
  std::string text;
  put_metadata([&](std::string_view part) { text += part; }, leaves, storage, custom);
  return text;
}

std::string render_strings(std::span<const std::pair<std::string, std::string_view>> strings) {
  std::string text = "{";
  const auto put = [&](std::string_view part) { text += part; };
  for (const auto& [name, value] : strings) {
    if (text.size() > 1) text += ", ";
    put_python_string(put, name);
    text += ": ";
    put_python_string(put, value);
  }
  return text + "}";
}

std::string render_array_metadatas(std::span<const KeyArray> arrays) {
  std::string text = R"({"array_metadatas": [)";
  const auto put = [&](std::string_view part) { text += part; };
  for (const KeyArray& array : arrays) {
    text += &array == arrays.data() ? "" : ", ";
    text += R"({"array_metadata": {"param_name": )";
    put_python_string(put, array.name);
    text += fmt::format(R"(, "write_shape": [{}], "chunk_shape": [{}], "ext_metadata": )",
                        fmt::join(array.shape, ", "), fmt::join(array.chunk, ", "));
    text += R"({"random_key_impl": )";
    put_python_string(put, array.kind);
    text += "}}}";
  }
  return text + "]}";
}

std::string render_commit_success(std::string_view directory) {
  return fmt::format("Checkpoint commit was successful to {}", directory);
}

}  // namespace ckfs::orbax
