// nlohmann's own tree drops duplicate keys without a word and (in Debian's version) knows no
// positions; so its SAX reader builds ours.
#include "format/json_tree.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "base/text.h"
#include "format/json_scan.h"
#include "format/json_text.h"

namespace ckfs {
namespace {

constexpr ScanLimits kLimits{.string_bytes = 1 << 20, .whitespace_bytes = 1 << 20};
constexpr std::size_t kMaxUniqueKeys = 1000;  // each is compared with those before it

class TreeBuilder {
 public:
  TreeBuilder(std::string_view file_name, JsonKeys keys) : file_name_(file_name), keys_(keys) {}

  Result<JsonNode> build(const std::string& text) {
    counted_ = text.data();
    nlohmann::json::sax_parse(TrackingIterator(text.data(), &position_),
                              TrackingIterator(text.data() + text.size(), &position_), this);
    if (error_) return Failure(std::move(*error_));
    return std::move(root_);
  }

  bool null() { return add({}); }
  bool boolean(bool value) {
    return add({.kind = JsonNode::Kind::Boolean, .number = value ? 1.0 : 0.0});
  }
  bool number_integer(std::int64_t value) { return number(static_cast<double>(value)); }
  bool number_unsigned(std::uint64_t value) { return number(static_cast<double>(value)); }
  bool number_float(double value, const std::string& /*text*/) { return number(value); }
  bool string(std::string& value) {
    return add({.kind = JsonNode::Kind::String, .text = std::move(value)});
  }
  bool binary(const std::vector<std::uint8_t>& /*value*/) { return add({}); }
  bool start_object(std::size_t /*size*/) { return start(JsonNode::Kind::Object); }
  bool start_array(std::size_t /*size*/) { return start(JsonNode::Kind::List); }
  bool key(std::string& name) {
    JsonNode& object = *open_.back();
    if (keys_ == JsonKeys::Unique && object.keys.size() >= kMaxUniqueKeys) {
      return refuse(fmt::format("{}:{}: an object of more than {} members", file_name_, line(),
                                kMaxUniqueKeys));
    }
    if (keys_ == JsonKeys::Unique && object.find(name) != nullptr) {
      return refuse(fmt::format("{}:{}: key {} comes twice", file_name_, line(), quote(name)));
    }
    object.keys.push_back(std::move(name));
    return true;
  }
  bool end_object() { return end(); }
  bool end_array() { return end(); }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const std::exception& error) {
    return refuse(
        fmt::format("{}:{}: not JSON: {}", file_name_, line(), syntax_reason(error.what())));
  }

 private:
  bool refuse(std::string message) {
    error_ = Error(ErrorCode::Corrupt, std::move(message));
    return false;
  }
  std::uint32_t line() {
    // Not the last character: behind a number it is that which ended it.
    if (position_ - 1 > counted_) {
      line_ += static_cast<std::uint32_t>(std::count(counted_, position_ - 1, '\n'));
      counted_ = position_ - 1;
    }
    return line_;
  }
  bool number(double value) { return add({.kind = JsonNode::Kind::Number, .number = value}); }
  bool add(JsonNode node) {
    if (++nodes_ > kMaxJsonNodes) {
      return refuse(fmt::format("{}: more than {} values", file_name_, kMaxJsonNodes));
    }
    node.line = line();
    if (open_.empty()) {
      root_ = std::move(node);
    } else {
      open_.back()->items.push_back(std::move(node));
    }
    return true;
  }
  bool start(JsonNode::Kind kind) {
    if (open_.size() >= kMaxConfigDepth) {
      return refuse(fmt::format("{}:{}: objects and lists are nested more than {} deep", file_name_,
                                line(), kMaxConfigDepth));
    }
    if (!add({.kind = kind})) return false;
    // Items are added to the innermost open node only, so the others do not move.
    open_.push_back(open_.empty() ? &root_ : &open_.back()->items.back());
    return true;
  }
  bool end() {
    open_.pop_back();
    return true;
  }

  const char* position_ = nullptr;
  const char* counted_ = nullptr;  // lines are counted up to here
  std::uint32_t line_ = 1;
  std::string_view file_name_;
  JsonKeys keys_;
  JsonNode root_;
  std::vector<JsonNode*> open_;
  std::size_t nodes_ = 0;
  std::optional<Error> error_;
};

}  // namespace

const JsonNode* JsonNode::find(std::string_view key) const {
  const auto found = std::ranges::find(keys.rbegin(), keys.rend(), key);
  if (found == keys.rend()) return nullptr;
  const auto index = static_cast<std::size_t>(keys.rend() - found) - 1;
  return index < items.size() ? &items[index] : nullptr;
}

std::string_view JsonNode::kind_text() const {
  switch (kind) {
    case Kind::Null:
      return "null";
    case Kind::Boolean:
      return "a boolean";
    case Kind::Number:
      return "a number";
    case Kind::String:
      return "a string";
    case Kind::List:
      return "a list";
    case Kind::Object:
      return "an object";
  }
  return "";
}

Result<JsonNode> parse_json_tree(std::string_view text, std::string_view file_name, JsonKeys keys) {
  CKFS_TRY_VOID(scan_json(text, kLimits, file_name));
  return TreeBuilder(file_name, keys).build(without_python_words(text));
}

}  // namespace ckfs
