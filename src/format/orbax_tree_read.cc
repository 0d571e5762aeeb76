// _METADATA has some 450 bytes for each leaf, so that of a large model has 100 MB. It is read event
// by event, and each leaf is passed on when its object ends.
#include "base/text.h"
#include "format/json_reader.h"
#include "format/orbax_read.h"

namespace ckfs::orbax {
namespace {

constexpr JsonOptions kOptions{.token_bytes = 1 << 20, .python_words = true};
constexpr int kMaxDepth = 64;

/// The handler of events. Depths: 1 is the outermost object, 2 tree_metadata, 3 a leaf, 4 its
/// key_metadata (a list) and value_metadata, 5 a key.
class TreeReader {
 public:
  TreeReader(std::string_view name, const std::function<Result<void>(TreeLeaf leaf)>& take)
      : name_(name), take_(take) {}

  Result<ItemFlags> read(std::string_view text) {
    CKFS_TRY_VOID(check_json_object(text, name_));
    text_ = text;
    read_json(text, kOptions, end_, *this);
    if (error_) return Failure(std::move(*error_));
    if (!has_tree_) return fail(ErrorCode::Corrupt, "{}: no member tree_metadata", name_);
    return std::move(flags_);
  }

  bool null() { return value(Token::Null, 0, ""); }
  bool boolean(bool value_of) { return value(Token::Boolean, value_of ? 1 : 0, ""); }
  bool number_integer(std::int64_t number) {
    return value(Token::Number, static_cast<double>(number), "");
  }
  bool number_unsigned(std::uint64_t number) {
    return value(Token::Number, static_cast<double>(number), "");
  }
  bool number_float(double number, std::string_view /*text*/) {
    return value(Token::Number, number, "");
  }
  bool string(std::string_view text) { return value(Token::String, 0, text); }
  bool start_object(std::size_t /*size*/) { return start(true); }
  bool start_array(std::size_t /*size*/) { return start(false); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }

  bool key(std::string_view text) {
    if (in_custom_) return true;
    keys_.back() = text;
    if (depth() == 1 && text == "custom_metadata") custom_begin_ = end_;
    if (depth() == 1 && text == "tree_metadata") {
      if (has_tree_) return refuse("tree_metadata comes twice");
      has_tree_ = true;
    }
    return true;
  }

  bool parse_error(std::size_t byte, std::string_view reason) {
    return refuse("byte {}: {}", byte, reason);
  }

 private:
  enum class Token : std::uint8_t { Null, Boolean, Number, String };

  template <typename... Args>
  bool refuse(fmt::format_string<Args...> text, Args&&... args) {
    if (error_) return false;
    error_ = Error(ErrorCode::Corrupt,
                   fmt::format("{}: {}", name_, fmt::format(text, std::forward<Args>(args)...)));
    return false;
  }

  std::size_t depth() const { return keys_.size(); }
  bool in_tree() const { return !keys_.empty() && keys_[0] == "tree_metadata"; }

  bool start(bool object) {
    if (depth() >= kMaxDepth) return refuse("nested more than {} deep", kMaxDepth);
    if (depth() == 1 && keys_[0] == "custom_metadata") in_custom_ = true;
    if (!in_custom_) {
      if (depth() == 0 && !object) return refuse("not an object");
      if (depth() == 1 && keys_[0] == "tree_metadata" && !object) {
        return refuse("tree_metadata is not an object");
      }
      if (in_tree() && depth() == 2) {
        if (!object) return refuse("{} is not an object", quote(keys_[1]));
        leaf_ = {};
        has_path_ = has_value_ = has_type_ = false;
      }
      if (in_tree() && depth() == 3) {
        if (keys_[2] == "key_metadata") {
          if (object) return refuse("{}: key_metadata is not a list", quote(keys_[1]));
          if (has_path_) return refuse("{}: key_metadata comes twice", quote(keys_[1]));
          has_path_ = true;
        } else if (keys_[2] == "value_metadata") {
          if (!object) return refuse("{}: value_metadata is not an object", quote(keys_[1]));
          if (has_value_) return refuse("{}: value_metadata comes twice", quote(keys_[1]));
          has_value_ = true;
        }
      }
      if (in_path() && depth() == 4) {
        if (!object) return refuse("{}: a key that is not an object", quote(keys_[1]));
        if (leaf_.path.size() >= kMaxTreeDepth) {
          return refuse("{}: more than {} keys", quote(keys_[1]), kMaxTreeDepth);
        }
        key_ = {};
        has_key_ = false;
      }
    }
    keys_.emplace_back();
    return true;
  }

  bool in_path() const { return in_tree() && depth() >= 3 && keys_[2] == "key_metadata"; }

  bool end() {
    keys_.pop_back();
    if (in_custom_) {
      if (depth() == 1) finish_custom();
      return true;
    }
    if (in_path() && depth() == 4) {
      if (!has_key_) return refuse("{}: a key without a name", quote(keys_[1]));
      leaf_.path.push_back(std::move(key_));
    }
    if (!in_tree() || depth() != 2) return true;
    if (!has_path_) return refuse("{}: no key_metadata", quote(keys_[1]));
    if (!has_type_) return refuse("{}: no value_type", quote(keys_[1]));
    if (auto taken = take_(std::move(leaf_)); !taken) {
      error_ = std::move(taken).error();
      return false;
    }
    return true;
  }

  bool value(Token token, double number, std::string_view text) {
    if (in_custom_) return true;
    if (depth() == 0) return refuse("not an object");
    if (depth() == 1) return flag(token, number);
    if (!in_tree()) return true;
    if (depth() == 2) return refuse("{} is not an object", quote(keys_[1]));
    if (depth() == 3 && (keys_[2] == "key_metadata" || keys_[2] == "value_metadata")) {
      return refuse("{}: {} is not {}", quote(keys_[1]), keys_[2],
                    keys_[2] == "key_metadata" ? "a list" : "an object");
    }
    if (depth() == 4 && in_path())
      return refuse("{}: a key that is not an object", quote(keys_[1]));
    if (depth() == 5 && in_path()) return path_value(token, number, text);
    if (depth() == 4 && keys_[2] == "value_metadata") return leaf_value(token, number, text);
    return true;
  }

  bool flag(Token token, double number) {
    const std::string& member = keys_[0];
    if (member == "tree_metadata") return refuse("tree_metadata is not an object");
    if (member == "custom_metadata") {
      if (token != Token::Null) finish_custom();
      return true;
    }
    const bool known = member == "use_ocdbt" || member == "use_zarr3" ||
                       member == "store_array_data_equal_to_fill_value";
    if (!known || token == Token::Null) return true;
    if (token != Token::Boolean) return refuse("{} is not a boolean", member);
    if (member == "use_ocdbt") flags_.use_ocdbt = number != 0;
    if (member == "use_zarr3") flags_.use_zarr3 = number != 0;
    if (member == "store_array_data_equal_to_fill_value") {
      flags_.missing_chunk_is_error = number != 0;
    }
    return true;
  }

  bool path_value(Token token, double number, std::string_view text) {
    if (keys_[4] == "key") {
      if (token != Token::String) return refuse("{}: a key that is not a string", quote(keys_[1]));
      key_.text = text;
      has_key_ = true;
    } else if (keys_[4] == "key_type") {
      if (token != Token::Number || (number != 1 && number != 2)) {
        return refuse("{}: a key_type that is neither 1 nor 2", quote(keys_[1]));
      }
      key_.is_index = number == 1;
    }
    return true;
  }

  bool leaf_value(Token token, double number, std::string_view text) {
    if (keys_[3] == "value_type") {
      if (token != Token::String) return refuse("{}: value_type is not a string", quote(keys_[1]));
      leaf_.value_type = text;
      has_type_ = true;
    } else if (keys_[3] == "skip_deserialize") {
      leaf_.skip_deserialize = token == Token::Boolean && number != 0;
    }
    return true;
  }

  /// Keeps the text between the member's key and the end of the last token.
  void finish_custom() {
    in_custom_ = false;
    const std::string_view text = trim(text_.substr(custom_begin_, end_ - custom_begin_));
    flags_.custom_metadata = trim(text.substr(1));  // behind the colon
  }

  const std::string_view name_;
  const std::function<Result<void>(TreeLeaf leaf)>& take_;
  std::string_view text_;
  std::size_t end_ = 0;            // of the last token
  std::vector<std::string> keys_;  // the current key of each open object; of a list empty
  bool has_tree_ = false;
  bool in_custom_ = false;
  std::size_t custom_begin_ = 0;
  TreeLeaf leaf_;
  bool has_path_ = false, has_value_ = false, has_type_ = false;
  PathKey key_;
  bool has_key_ = false;
  ItemFlags flags_;
  std::optional<Error> error_;
};

}  // namespace

std::string joined(const std::vector<PathKey>& path) {
  std::string name;
  for (const PathKey& key : path) {
    if (&key != &path.front()) name += '.';
    name += key.text;
  }
  return name;
}

Result<ItemFlags> parse_item_metadata(std::string_view text, std::string_view name,
                                      const std::function<Result<void>(TreeLeaf leaf)>& take) {
  return TreeReader(name, take).read(text);
}

}  // namespace ckfs::orbax
