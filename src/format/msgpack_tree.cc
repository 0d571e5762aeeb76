// The file `checkpoint` of Orbax before 0.4. nlohmann's reader gives events and copies of binary
// values; how far it has read tells where the bytes of an array are in the file. It recurses for
// nested values, so depth is bounded here.
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/checked.h"
#include "base/text.h"
#include "format/orbax_read.h"

namespace ckfs::orbax {
namespace {

using Binary = nlohmann::json::binary_t;

/// An iterator over bytes that knows how far the reader has come: nlohmann reads a byte, and
/// `*position` is the address of the next.
class TrackingIterator {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  TrackingIterator(const char* at, const char** position) : at_(at), position_(position) {}
  reference operator*() const { return *at_; }
  TrackingIterator& operator++() {
    *position_ = ++at_;
    return *this;
  }
  TrackingIterator operator++(int) {
    const TrackingIterator before = *this;
    ++*this;
    return before;
  }
  bool operator==(const TrackingIterator& other) const { return at_ == other.at_; }
  bool operator!=(const TrackingIterator& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** position_;
};

/// The text of nlohmann's parse error, without the text it found: "syntax error while parsing ...".
std::string syntax_reason(std::string_view what) {
  const std::size_t begin = what.find("syntax error");
  if (begin != std::string_view::npos) what.remove_prefix(begin);
  // The token that was read last may be long and hold anything.
  what = what.substr(0, what.find("; last read"));
  return std::string(what.substr(0, 160));
}

// Extension types of Flax.
constexpr int kArray = 1;
constexpr int kScalar = 3;
constexpr std::size_t kMaxRank = 32;
constexpr std::size_t kMaxKeys = 500'000;  // of all leaves together
// Bytes of these keys: a key is in the file once, and in the path of each leaf below it.
constexpr std::uint64_t kKeyBytesBase = std::uint64_t{16} << 20;
constexpr std::uint64_t kKeyBytesFactor = 16;

/// numpy's names of dtypes, and ml_dtypes'.
std::optional<DType> dtype_of(std::string_view name) {
  struct Row {
    std::string_view name;
    DType dtype;
  };
  constexpr std::array<Row, 20> kRows{{{"bool", DType::Bool},
                                       {"uint8", DType::U8},
                                       {"int8", DType::I8},
                                       {"uint16", DType::U16},
                                       {"int16", DType::I16},
                                       {"uint32", DType::U32},
                                       {"int32", DType::I32},
                                       {"uint64", DType::U64},
                                       {"int64", DType::I64},
                                       {"float16", DType::F16},
                                       {"bfloat16", DType::BF16},
                                       {"float32", DType::F32},
                                       {"float64", DType::F64},
                                       {"complex64", DType::C64},
                                       {"complex128", DType::C128},
                                       {"float8_e4m3fn", DType::F8E4M3},
                                       {"float8_e5m2", DType::F8E5M2},
                                       {"float8_e4m3fnuz", DType::F8E4M3FNUZ},
                                       {"float8_e5m2fnuz", DType::F8E5M2FNUZ},
                                       {"float8_e8m0fnu", DType::F8E8M0}}};
  const auto* const row = std::ranges::find(kRows, name, &Row::name);
  return row == kRows.end() ? std::nullopt : std::optional(row->dtype);
}

/// The payload of an array: [shape, dtype's name, bytes].
class ArrayReader {
 public:
  explicit ArrayReader(std::string_view bytes) : bytes_(bytes) {}

  /// Whether it is an array; then sets `leaf`, with `bytes` counted from its own first byte.
  bool read(MsgpackLeaf& leaf) {
    leaf_ = &leaf;
    const bool whole =
        nlohmann::json::sax_parse(TrackingIterator(bytes_.data(), &position_),
                                  TrackingIterator(bytes_.data() + bytes_.size(), &position_), this,
                                  nlohmann::json::input_format_t::msgpack);
    return whole && has_bytes_;
  }

  bool null() { return false; }
  bool boolean(bool) { return false; }
  bool number_integer(std::int64_t) { return false; }
  bool number_unsigned(std::uint64_t value) {
    const auto extent = checked_cast<std::int64_t>(value);
    if (!in_shape_ || !extent || leaf_->shape.size() >= kMaxRank) return false;
    leaf_->shape.push_back(*extent);
    return true;
  }
  bool number_float(double, const std::string&) { return false; }
  bool string(std::string& value) {
    if (!has_shape_ || in_shape_ || has_dtype_) return false;
    leaf_->dtype = dtype_of(value);
    leaf_->text = value;
    has_dtype_ = true;
    return true;
  }
  bool binary(Binary& value) {
    if (!has_dtype_ || has_bytes_ || value.has_subtype()) return false;
    const auto end = static_cast<std::uint64_t>(position_ - bytes_.data());
    leaf_->bytes = {end - value.size(), end};
    has_bytes_ = true;
    return true;
  }
  bool start_object(std::size_t) { return false; }
  bool key(std::string&) { return false; }
  bool end_object() { return false; }
  bool start_array(std::size_t) {
    if (depth_++ == 0) return true;
    if (has_shape_) return false;
    has_shape_ = in_shape_ = true;
    return true;
  }
  bool end_array() {
    --depth_;
    in_shape_ = false;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const std::exception&) { return false; }

 private:
  std::string_view bytes_;
  const char* position_ = nullptr;
  MsgpackLeaf* leaf_ = nullptr;
  int depth_ = 0;
  bool has_shape_ = false, in_shape_ = false, has_dtype_ = false, has_bytes_ = false;
};

class MsgpackReader {
 public:
  MsgpackReader(std::string_view bytes, std::string_view name) : bytes_(bytes), name_(name) {}

  Result<std::vector<MsgpackLeaf>> read() {
    if (bytes_.size() > kMaxMsgpack) {
      return fail(ErrorCode::Unsupported, "{}: {} bytes (limit {})", name_, bytes_.size(),
                  kMaxMsgpack);
    }
    nlohmann::json::sax_parse(TrackingIterator(bytes_.data(), &position_),
                              TrackingIterator(bytes_.data() + bytes_.size(), &position_), this,
                              nlohmann::json::input_format_t::msgpack);
    if (error_) return Failure(std::move(*error_));
    return std::move(leaves_);
  }

  bool null() { return add(MsgpackLeaf::Kind::None, ""); }
  bool boolean(bool) { return add(MsgpackLeaf::Kind::Other, "a boolean"); }
  bool number_integer(std::int64_t) { return add(MsgpackLeaf::Kind::Other, "a number"); }
  bool number_unsigned(std::uint64_t) { return add(MsgpackLeaf::Kind::Other, "a number"); }
  bool number_float(double, const std::string&) {
    return add(MsgpackLeaf::Kind::Other, "a number");
  }

  bool string(std::string& value) {
    if (!is_utf8(value)) return refuse("a text that is not UTF-8");
    constexpr std::string_view kPlaceholder = "PLACEHOLDER://";
    constexpr std::string_view kAggregated = "AGGREGATED://";
    for (const std::string_view prefix : {kPlaceholder, kAggregated}) {
      if (value.starts_with(prefix)) {
        return add(MsgpackLeaf::Kind::Placeholder, value.substr(prefix.size()));
      }
    }
    return add(MsgpackLeaf::Kind::Text, value);
  }

  bool binary(Binary& value) {
    if (!value.has_subtype()) return add(MsgpackLeaf::Kind::Other, "bytes");
    const auto kind = static_cast<int>(value.subtype());
    if (kind != kArray && kind != kScalar) {
      return add(MsgpackLeaf::Kind::Other, fmt::format("a value of extension type {}", kind));
    }
    const auto end = static_cast<std::uint64_t>(position_ - bytes_.data());
    MsgpackLeaf leaf;
    leaf.kind = MsgpackLeaf::Kind::Array;
    const std::uint64_t begin = end - value.size();
    if (!ArrayReader(bytes_.substr(begin, value.size())).read(leaf)) {
      return refuse("{}: an array that is not [shape, dtype, bytes]", where());
    }
    leaf.bytes = {begin + leaf.bytes.begin, begin + leaf.bytes.end};
    const auto numel = checked_numel(leaf.shape);
    const auto wanted = numel && leaf.dtype ? nbytes(*leaf.dtype, *numel) : std::nullopt;
    if (leaf.dtype && wanted != leaf.bytes.size()) {
      return refuse("{}: {} bytes for [{}] of {}", where(), leaf.bytes.size(),
                    fmt::join(leaf.shape, ", "), leaf.text);
    }
    return add(std::move(leaf));
  }

  bool start_object(std::size_t /*size*/) { return start(false); }
  bool start_array(std::size_t /*size*/) { return start(true); }
  bool key(std::string& text) {
    if (!is_utf8(text)) return refuse("a key that is not UTF-8");
    path_.back() = {text, false};
    ++entries_.back();
    return true;
  }
  bool end_object() { return end(MsgpackLeaf::Kind::Dict); }
  bool end_array() { return end(MsgpackLeaf::Kind::List); }

  bool parse_error(std::size_t position, const std::string& /*token*/,
                   const std::exception& error) {
    return refuse("byte {}: {}", position, syntax_reason(error.what()));
  }

 private:
  template <typename... Args>
  bool refuse(fmt::format_string<Args...> text, Args&&... args) {
    if (error_) return false;
    error_ = Error(ErrorCode::Corrupt,
                   fmt::format("{}: {}", name_, fmt::format(text, std::forward<Args>(args)...)));
    return false;
  }

  /// Of what add() has not counted yet.
  std::string where() const {
    auto path = path_;
    if (!path.empty() && lists_.back()) path.back() = {std::to_string(entries_.back()), true};
    return quote(joined(path));
  }

  /// An element of a list has its place for a key.
  void count_element() {
    if (path_.empty() || !lists_.back()) return;
    path_.back() = {std::to_string(entries_.back()), true};
    ++entries_.back();
  }

  bool start(bool list) {
    if (path_.size() >= static_cast<std::size_t>(kMaxTreeDepth)) {
      return refuse("nested more than {} deep", kMaxTreeDepth);
    }
    count_element();
    path_.emplace_back();
    lists_.push_back(list);
    entries_.push_back(0);
    return true;
  }

  bool end(MsgpackLeaf::Kind kind) {
    const bool empty = entries_.back() == 0;
    path_.pop_back();
    lists_.pop_back();
    entries_.pop_back();
    if (!empty) return true;
    return keep(MsgpackLeaf{.kind = kind});
  }

  bool add(MsgpackLeaf::Kind kind, std::string text) {
    MsgpackLeaf leaf;
    leaf.kind = kind;
    leaf.text = std::move(text);
    return add(std::move(leaf));
  }

  bool add(MsgpackLeaf leaf) {
    count_element();
    return keep(std::move(leaf));
  }

  bool keep(MsgpackLeaf leaf) {
    keys_ += path_.size() + 1;
    if (keys_ > kMaxKeys) return refuse("leaves of more than {} keys", kMaxKeys);
    // Each leaf has a copy of all keys that lead to it.
    for (const PathKey& key : path_) key_bytes_ += key.text.size();
    const std::uint64_t most = kKeyBytesBase + kKeyBytesFactor * bytes_.size();
    if (key_bytes_ > most) return refuse("leaves with keys of more than {} bytes", most);
    leaf.path = path_;
    leaves_.push_back(std::move(leaf));
    return true;
  }

  const std::string_view bytes_, name_;
  const char* position_ = nullptr;
  std::vector<PathKey> path_;         // the current key of each open container
  std::vector<bool> lists_;           // by the same: whether it is a list
  std::vector<std::size_t> entries_;  // how many it has so far
  std::vector<MsgpackLeaf> leaves_;
  std::size_t keys_ = 0;  // of leaves_
  std::uint64_t key_bytes_ = 0;
  std::optional<Error> error_;
};

}  // namespace

Result<std::vector<MsgpackLeaf>> parse_msgpack_tree(std::string_view bytes, std::string_view name) {
  return MsgpackReader(bytes, name).read();
}

}  // namespace ckfs::orbax
