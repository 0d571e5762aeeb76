// nlohmann's tree drops duplicate keys silently and (in Debian's version) knows no positions.
#include "format/json_tree.h"

#include <algorithm>
#include <optional>

#include "base/text.h"
#include "format/json_reader.h"
#include "format/json_text.h"

namespace ckfs {
namespace {

constexpr JsonOptions kOptions{.token_bytes = 1 << 20, .python_words = true};
constexpr std::size_t kMaxUniqueKeys = 1000;  // each is compared with those before it

class TreeBuilder {
 public:
  TreeBuilder(std::string_view text, std::string_view file_name, JsonKeys keys)
      : text_(text), file_name_(file_name), keys_(keys) {}

  Result<JsonNode> build() {
    read_json(text_, kOptions, end_, *this);
    if (error_) return Failure(std::move(*error_));
    return std::move(root_);
  }

  bool null() { return add({}); }
  bool boolean(bool value) {
    return add({.kind = JsonNode::Kind::Boolean, .number = value ? 1.0 : 0.0});
  }
  bool number_integer(std::int64_t value) { return number(static_cast<double>(value)); }
  bool number_unsigned(std::uint64_t value) { return number(static_cast<double>(value)); }
  bool number_float(double value, std::string_view /*text*/) { return number(value); }
  bool string(std::string_view value) {
    return add({.kind = JsonNode::Kind::String, .text = std::string(value)});
  }
  bool start_object(std::size_t /*size*/) { return start(JsonNode::Kind::Object); }
  bool start_array(std::size_t /*size*/) { return start(JsonNode::Kind::List); }
  bool key(std::string_view name) {
    JsonNode& object = *open_.back();
    if (keys_ == JsonKeys::Unique && object.keys.size() >= kMaxUniqueKeys) {
      return refuse(fmt::format("{}:{}: an object of more than {} members", file_name_, line(),
                                kMaxUniqueKeys));
    }
    if (keys_ == JsonKeys::Unique && object.find(name) != nullptr) {
      return refuse(fmt::format("{}:{}: key {} comes twice", file_name_, line(), quote(name)));
    }
    object.keys.emplace_back(name);
    return true;
  }
  bool end_object() { return end(); }
  bool end_array() { return end(); }
  bool parse_error(std::size_t byte, std::string_view reason) {
    end_ = byte;
    return refuse(fmt::format("{}:{}: {}", file_name_, line(), reason));
  }

 private:
  bool refuse(std::string message) {
    error_ = Error(ErrorCode::Corrupt, std::move(message));
    return false;
  }
  std::uint32_t line() {
    line_ += static_cast<std::uint32_t>(
        std::ranges::count(text_.substr(counted_, end_ - counted_), '\n'));
    counted_ = end_;
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

  std::string_view text_;
  std::size_t end_ = 0;      // of the last token
  std::size_t counted_ = 0;  // lines are counted up to here
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
  CKFS_TRY_VOID(check_json_object(text, file_name));
  return TreeBuilder(text, file_name, keys).build();
}

}  // namespace ckfs
