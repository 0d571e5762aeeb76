// Tools compare, hash and diff config.json files, and people keep them in version control, so a
// view's config differs from its source in the members it must change and in no other byte. Parsing
// and dumping again would keep the order, but lose number spellings (1e-06), escapes and indents.
//
// So: read_json() decides whether the text is JSON at all; after that a scanner that trusts
// the grammar finds where members begin and end, and edits are made to the text.
#include "format/json_text.h"

#include <algorithm>
#include <charconv>
#include <deque>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"
#include "format/json_members.h"
#include "format/json_reader.h"

namespace ckfs {
namespace {

/// A handler that keeps nothing: it finds whether text is JSON, not nested too deeply, and of few
/// values.
class Validator {
 public:
  explicit Validator(std::string_view file_name) : file_name_(file_name) {}

  Result<void> check(std::string_view text) {
    constexpr JsonOptions kOptions{.token_bytes = std::size_t{4} << 20, .python_words = true};
    std::size_t end = 0;
    read_json(text, kOptions, end, *this);
    if (error_) return Failure(std::move(*error_));
    return {};
  }

  bool null() { return count_value(); }
  bool boolean(bool) { return count_value(); }
  bool number_integer(std::int64_t) { return count_value(); }
  bool number_unsigned(std::uint64_t) { return count_value(); }
  bool number_float(double, std::string_view) { return count_value(); }
  bool string(std::string_view) { return count_string() && count_value(); }
  bool key(std::string_view) { return count_string(); }
  bool start_object(std::size_t) { return deeper(); }
  bool start_array(std::size_t) { return deeper(); }
  bool end_object() { return shallower(); }
  bool end_array() { return shallower(); }
  bool parse_error(std::size_t byte, std::string_view reason) {
    return refuse(fmt::format("at byte {}: {}", byte, reason));
  }

 private:
  bool deeper() {
    if (++depth_ <= kMaxConfigDepth) return count_value();
    return refuse(fmt::format("objects and lists are nested more than {} deep", kMaxConfigDepth));
  }
  bool shallower() {
    --depth_;
    return true;
  }

  bool count_string() {
    if (++strings_ <= kMaxConfigStrings) return true;
    return refuse(fmt::format("more than {} strings", kMaxConfigStrings));
  }
  bool count_value() {
    if (++values_ <= kMaxConfigValues) return true;
    return refuse(fmt::format("more than {} values", kMaxConfigValues));
  }
  bool refuse(std::string_view what) {
    error_ = Error(ErrorCode::Corrupt, fmt::format("{}: {}", file_name_, what));
    return false;
  }

  std::string_view file_name_;
  std::optional<Error> error_;
  int depth_ = 0;
  std::size_t strings_ = 0, values_ = 0;
};

bool is_dtype(const JsonMember& member) {
  return is_key(member, "torch_dtype") || is_key(member, "dtype");
}

/// `value`: a JSON value as it is written.
bool names_float_dtype(std::string_view value) {
  constexpr std::string_view kNames[] = {"bfloat16", "float16",       "half",
                                         "float32",  "float",         "float64",
                                         "double",   "float8_e4m3fn", "float8_e5m2"};
  if (value.size() < 2 || value.front() != '"') return false;
  const JsonMember as_key{value.substr(1, value.size() - 2), 0, {}};
  return std::ranges::any_of(kNames, [&](std::string_view name) { return is_key(as_key, name); });
}

/// Collects edits while it walks, then applies them.
class DenseEditor {
 public:
  DenseEditor(std::string_view text, std::string_view torch_dtype, std::string_view file_name)
      : text_(text), scanner_(text), torch_dtype_(torch_dtype), file_name_(file_name) {}

  Result<std::string> edit(WithoutDtype without) {
    const JsonSpan top = scanner_.top();
    CKFS_TRY_VOID(edit_value(top));
    const std::vector<JsonMember> members = scanner_.children(top);
    if (without == WithoutDtype::Filled && std::ranges::none_of(members, is_dtype)) {
      add_member(top, members, "torch_dtype", fmt::format("\"{}\"", torch_dtype_));
    }
    return apply();
  }

  std::string remove(std::string_view key) {
    const JsonSpan top = scanner_.top();
    remove_members(top, scanner_.children(top),
                   [&](const JsonMember& member) { return is_key(member, key); });
    return apply();
  }

  /// edit(), and the top level ends with the member `key`.
  std::string edit_and_add(std::string_view key, std::string_view value) {
    const JsonSpan top = scanner_.top();
    const auto edited = edit_value(top);
    CKFS_CHECK(edited.has_value());
    add_member(top, scanner_.children(top), key, value);
    return apply();
  }

 private:
  struct Edit {
    JsonSpan where;
    std::string by;
  };

  /// Recursion is bounded: the Validator has counted the depth.
  Result<void> edit_value(JsonSpan value) {
    const std::vector<JsonMember> members = scanner_.children(value);
    CKFS_TRY_VOID(check_once(members, file_name_));
    remove_members(value, members, is_quantization);
    for (const JsonMember& member : members) {
      if (is_quantization(member)) continue;
      if (!torch_dtype_.empty() && is_dtype(member) &&
          names_float_dtype(scanner_.of(member.value))) {
        edits_.push_back({member.value, fmt::format("\"{}\"", torch_dtype_)});
      } else {
        CKFS_TRY_VOID(edit_value(member.value));
      }
    }
    return {};
  }

  /// A member goes with the comma and the white space that set it apart from its neighbour.
  template <typename IsGone>
  void remove_members(JsonSpan object, const std::vector<JsonMember>& members, IsGone is_gone) {
    const auto first_kept = std::find_if_not(members.begin(), members.end(), is_gone);
    if (first_kept == members.end()) {
      if (!members.empty()) edits_.push_back({{object.begin + 1, object.end - 1}, ""});
      return;
    }
    if (first_kept != members.begin()) {
      edits_.push_back({{members.front().begin, first_kept->begin}, ""});
    }
    for (auto member = first_kept + 1; member < members.end(); ++member) {
      if (is_gone(*member)) {
        edits_.push_back({{std::prev(member)->value.end, member->value.end}, ""});
      }
    }
  }

  /// Adds the key as the last member, set apart as the others are.
  void add_member(JsonSpan object, const std::vector<JsonMember>& members, std::string_view key,
                  std::string_view value) {
    const std::string added = fmt::format(R"("{}": {})", key, value);
    const auto last_kept = std::find_if_not(members.rbegin(), members.rend(), is_quantization);
    if (last_kept == members.rend()) {
      // Nothing is left; the white space inside the braces stays.
      std::string_view before, after;
      if (!members.empty()) {
        before = scanner_.of({object.begin + 1, members.front().begin});
        after = scanner_.of({members.back().value.end, object.end - 1});
      }
      edits_.push_back(
          {{object.begin + 1, object.begin + 1}, fmt::format("{}{}{}", before, added, after)});
      return;
    }
    const std::string_view indent = scanner_.of({object.begin + 1, members.front().begin});
    std::string_view gap = indent.find('\n') == std::string_view::npos ? " " : indent;
    if (members.size() > 1) {
      const std::size_t comma = text_.find(',', members[0].value.end);
      gap = scanner_.of({comma + 1, members[1].begin});
    }
    const std::size_t end = last_kept->value.end;
    edits_.push_back({{end, end}, fmt::format(",{}{}", gap, added)});
  }

  std::string apply() {
    // An insertion at a place comes before a removal that begins there.
    std::sort(edits_.begin(), edits_.end(), [](const Edit& a, const Edit& b) {
      return std::pair(a.where.begin, a.where.end) < std::pair(b.where.begin, b.where.end);
    });
    std::string out;
    std::size_t at = 0;
    for (const Edit& edit : edits_) {
      CKFS_CHECK(edit.where.begin >= at);
      out += text_.substr(at, edit.where.begin - at);
      out += edit.by;
      at = edit.where.end;
    }
    out += text_.substr(at);
    return out;
  }

  std::string_view text_;
  JsonScanner scanner_;
  std::string_view torch_dtype_, file_name_;
  std::vector<Edit> edits_;
};

Failure refuse_repeated(std::string_view key, std::ptrdiff_t count, std::string_view file_name) {
  return fail(ErrorCode::Corrupt, "{}: {} {} times in one object", file_name, quote(key), count);
}

}  // namespace

// Compared as it is written, because each key of a config.json is compared with a dozen names: to
// make a string for each takes seconds where all keys are escaped.
bool is_key(const JsonMember& member, std::string_view name) {
  std::string_view key = member.key;
  for (const char wanted : name) {
    if (key.empty()) return false;
    if (key[0] != '\\') {
      if (key[0] != wanted) return false;
      key.remove_prefix(1);
      continue;
    }
    // The names are words: no letter of theirs has an escape of two characters.
    if (key.size() < 6 || key[1] != 'u') return false;
    unsigned code = 0;
    const auto [end, error] = std::from_chars(key.data() + 2, key.data() + 6, code, 16);
    if (error != std::errc() || end != key.data() + 6) return false;
    if (code != static_cast<unsigned char>(wanted)) return false;
    key.remove_prefix(6);
  }
  return key.empty();
}

std::string json_string(std::string_view text) {
  return nlohmann::json::parse(text).get<std::string>();
}

bool is_quantization(const JsonMember& member) {
  return is_key(member, "quantization_config") || is_key(member, "compression_config");
}

Result<void> check_once(const std::vector<JsonMember>& members, std::string_view file_name) {
  constexpr std::string_view kKeys[] = {
      "quantization_config", "compression_config", "text_config", "torch_dtype", "dtype",
      "quant_method",        "weight_block_size"};
  for (const std::string_view key : kKeys) {
    const auto count = std::count_if(members.begin(), members.end(),
                                     [&](const JsonMember& member) { return is_key(member, key); });
    if (count > 1) return refuse_repeated(key, count, file_name);
  }
  return {};
}

Result<void> check_all_once(const std::vector<JsonMember>& members, std::string_view file_name) {
  std::deque<std::string> unescaped;
  std::vector<std::string_view> keys;
  keys.reserve(members.size());
  for (const JsonMember& member : members) {
    const bool escaped = member.key.find('\\') != std::string_view::npos;
    keys.push_back(escaped ? unescaped.emplace_back(json_string(fmt::format("\"{}\"", member.key)))
                           : member.key);
  }
  std::ranges::sort(keys);
  const auto twice = std::ranges::adjacent_find(keys);
  if (twice == keys.end()) return {};
  return refuse_repeated(*twice, std::ranges::count(keys, *twice), file_name);
}

Result<void> validate_config(std::string_view text, std::string_view file_name) {
  if (text.size() > kMaxConfig) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes (limit {})", file_name, text.size(), kMaxConfig);
  }
  CKFS_TRY_VOID(check_json_object(text, file_name));
  return Validator(file_name).check(text);
}

Result<std::string> dense_config(std::string_view text, std::string_view torch_dtype,
                                 std::string_view file_name, WithoutDtype without) {
  CKFS_TRY_VOID(validate_config(text, file_name));
  return DenseEditor(text, torch_dtype, file_name).edit(without);
}

std::string edit_without_member(std::string_view text, std::string_view key) {
  return DenseEditor(text, "", "config.json").remove(key);
}

std::string edit_quantized_config(std::string_view text, std::string_view torch_dtype,
                                  std::string_view quantization) {
  return DenseEditor(text, torch_dtype, "config.json")
      .edit_and_add("quantization_config", quantization);
}

std::string edit_dense_config(std::string_view text, std::string_view torch_dtype,
                              WithoutDtype without) {
  auto edited = DenseEditor(text, torch_dtype, "config.json").edit(without);
  CKFS_CHECK(edited.has_value());
  return *std::move(edited);
}

}  // namespace ckfs
