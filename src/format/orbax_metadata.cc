#include "format/orbax_metadata.h"

#include "base/error.h"
#include "format/python_json.h"
#include "format/text_sink.h"

namespace ckfs::orbax {
namespace {

/// The member's name: str() of the path as a tuple. Readers take it for an identifier and the path
/// from key_metadata, so a key with a quote need not be quoted as Python does.
std::string tuple_text(std::string_view name) {
  std::string text = "(";
  bool one = true;
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('.', begin), name.size());
    if (begin > 0) {
      text += ", ";
      one = false;
    }
    text += '\'';
    for (const char c : name.substr(begin, end - begin)) {
      if (c == '\'' || c == '\\') text += '\\';
      text += c;
    }
    text += '\'';
    begin = end + 1;
  }
  text += one ? ",)" : ")";
  return text;
}

std::string_view value_type(Leaf::Kind kind) {
  switch (kind) {
    case Leaf::Kind::Array:
      return "np.ndarray";
    case Leaf::Kind::Scalar:
      return "scalar";
    case Leaf::Kind::EmptyDict:
      return "Dict";
  }
  return "";
}

template <typename Put>
void put_leaf(const Put& put, const Leaf& leaf) {
  put_python_string(put, tuple_text(leaf.name));
  put(R"(: {"key_metadata": [)");
  for (std::size_t begin = 0; begin <= leaf.name.size();) {
    const std::size_t end = std::min(leaf.name.find('.', begin), leaf.name.size());
    put(begin > 0 ? R"(, {"key": )" : R"({"key": )");
    put_python_string(put, leaf.name.substr(begin, end - begin));
    put(R"(, "key_type": 2})");
    begin = end + 1;
  }
  put(R"(], "value_metadata": {"value_type": ")");
  put(value_type(leaf.kind));
  put(R"(", "skip_deserialize": )");
  put(leaf.kind == Leaf::Kind::EmptyDict ? "true}}" : "false}}");
}

template <typename Put>
void put_metadata(const Put& put, std::span<const Leaf> leaves, Storage storage) {
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
  put(R"(, "store_array_data_equal_to_fill_value": true, "custom_metadata": null})");
}

}  // namespace

std::uint64_t measure_metadata(std::span<const Leaf> leaves, Storage storage) {
  CountingSink sink;
  put_metadata([&](std::string_view text) { sink.put(text); }, leaves, storage);
  return sink.size();
}

std::string render_metadata(std::span<const Leaf> leaves, Storage storage) {
  std::string text;
  put_metadata([&](std::string_view part) { text += part; }, leaves, storage);
  return text;
}

std::string render_checkpoint_metadata(std::string_view custom) {
  return fmt::format(R"({{"custom_metadata": {}}})", custom);
}

std::string render_commit_success(std::string_view directory) {
  return fmt::format("Checkpoint commit was successful to {}", directory);
}

}  // namespace ckfs::orbax
