// Tools compare, hash and diff config.json files, and people keep them in version control, so a
// view's config differs from its source in the members it must change and in no other byte. Parsing
// and dumping again would reorder nothing but lose number spellings (1e-06), escapes and indents.
//
// So: nlohmann's reader decides whether the text is JSON at all; after that a scanner that trusts
// the grammar finds where members begin and end, and edits are made to the text.
#include "format/json_text.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/text.h"
#include "format/json_scan.h"

namespace ckfs {
namespace {

/// A SAX handler that keeps nothing: it finds whether text is JSON and not nested too deeply.
class Validator {
 public:
  explicit Validator(std::string_view file_name) : file_name_(file_name) {}

  Result<void> check(const std::string& text) {
    nlohmann::json::sax_parse(text, this);
    if (error_) return Failure(std::move(*error_));
    return {};
  }

  bool null() { return true; }
  bool boolean(bool) { return true; }
  bool number_integer(std::int64_t) { return true; }
  bool number_unsigned(std::uint64_t) { return true; }
  bool number_float(double, const std::string&) { return true; }
  bool string(const std::string&) { return true; }
  bool binary(const std::vector<std::uint8_t>&) { return true; }
  bool key(const std::string&) { return true; }
  bool start_object(std::size_t) { return deeper(); }
  bool start_array(std::size_t) { return deeper(); }
  bool end_object() { return shallower(); }
  bool end_array() { return shallower(); }
  bool parse_error(std::size_t position, const std::string&, const std::exception& error) {
    error_ = Error(ErrorCode::Corrupt, fmt::format("{}: not JSON at byte {}: {}", file_name_,
                                                   position, syntax_reason(error.what())));
    return false;
  }

 private:
  bool deeper() {
    if (++depth_ <= kMaxConfigDepth) return true;
    error_ =
        Error(ErrorCode::Corrupt, fmt::format("{}: objects and lists are nested more than {} deep",
                                              file_name_, kMaxConfigDepth));
    return false;
  }
  bool shallower() {
    --depth_;
    return true;
  }

  std::string_view file_name_;
  std::optional<Error> error_;
  int depth_ = 0;
};

/// A run of the text.
struct Span {
  std::size_t begin = 0;
  std::size_t end = 0;
};

/// A member of an object, or (with an empty key) an element of a list.
struct Member {
  std::string_view key;  // decoded only where is_key() needs it
  std::size_t begin = 0;
  Span value;
};

/// The scanner. It may be given only text that the Validator has passed.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::string_view of(Span span) const { return text_.substr(span.begin, span.end - span.begin); }
  char first(Span span) const { return text_[span.begin]; }

  Span top() const {
    const std::size_t begin = skip_space(0);
    return {begin, skip_value(begin)};
  }

  /// Members of an object, elements of a list, nothing for anything else.
  std::vector<Member> children(Span value) const {
    std::vector<Member> out;
    const bool object = first(value) == '{';
    if (!object && first(value) != '[') return out;
    std::size_t at = skip_space(value.begin + 1);
    while (at + 1 < value.end) {
      Member member;
      member.begin = at;
      if (object) {
        const std::size_t end = skip_value(at);
        member.key = text_.substr(at + 1, end - at - 2);
        at = skip_space(skip_space(end) + 1);
      }
      member.value = {at, skip_value(at)};
      out.push_back(member);
      at = skip_space(member.value.end);
      if (text_[at] == ',') at = skip_space(at + 1);
    }
    return out;
  }

  std::size_t skip_space(std::size_t at) const {
    while (at < text_.size() && is_space(text_[at])) ++at;
    return at;
  }

 private:
  std::size_t skip_string(std::size_t at) const {
    for (++at; text_[at] != '"'; ++at) {
      if (text_[at] == '\\') ++at;
    }
    return at + 1;
  }

  std::size_t skip_value(std::size_t at) const {
    if (text_[at] == '"') return skip_string(at);
    if (text_[at] != '{' && text_[at] != '[') {
      while (at < text_.size() && !ends_json_word(text_[at])) ++at;
      return at;
    }
    int depth = 0;
    do {
      const char c = text_[at];
      if (c == '"') {
        at = skip_string(at);
        continue;
      }
      depth += (c == '{' || c == '[') ? 1 : (c == '}' || c == ']') ? -1 : 0;
      ++at;
    } while (depth > 0);
    return at;
  }

  std::string_view text_;
};

bool is_key(const Member& member, std::string_view name) {
  if (member.key.find('\\') == std::string_view::npos) return member.key == name;
  return nlohmann::json::parse(fmt::format("\"{}\"", member.key)).get<std::string>() == name;
}

bool is_quantization(const Member& member) {
  return is_key(member, "quantization_config") || is_key(member, "compression_config");
}

bool is_dtype(const Member& member) {
  return is_key(member, "torch_dtype") || is_key(member, "dtype");
}

bool names_float_dtype(std::string_view value) {
  constexpr std::string_view kNames[] = {"\"bfloat16\"", "\"float16\"",       "\"half\"",
                                         "\"float32\"",  "\"float\"",         "\"float64\"",
                                         "\"double\"",   "\"float8_e4m3fn\"", "\"float8_e5m2\""};
  return std::find(std::begin(kNames), std::end(kNames), value) != std::end(kNames);
}

/// Members that decide what a view shows; of two of them it would be a guess which one counts.
Result<void> check_once(const std::vector<Member>& members, std::string_view file_name) {
  constexpr std::string_view kKeys[] = {
      "quantization_config", "compression_config", "text_config", "torch_dtype", "dtype",
      "quant_method",        "weight_block_size"};
  for (const std::string_view key : kKeys) {
    const auto count = std::count_if(members.begin(), members.end(),
                                     [&](const Member& member) { return is_key(member, key); });
    if (count > 1) {
      return fail(ErrorCode::Corrupt, "{}: \"{}\" {} times in one object", file_name, key, count);
    }
  }
  return {};
}

Result<void> validate(std::string_view text, std::string_view file_name) {
  if (text.size() > kMaxConfig) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes (limit {})", file_name, text.size(), kMaxConfig);
  }
  constexpr ScanLimits kLimits{.string_bytes = std::size_t{4} << 20,
                               .whitespace_bytes = std::size_t{1} << 20};
  CKFS_TRY(const ScanResult scan, scan_json(text, kLimits, file_name));
  if (scan.strings > kMaxConfigStrings) {
    return fail(ErrorCode::Corrupt, "{}: {} strings (limit {})", file_name, scan.strings,
                kMaxConfigStrings);
  }
  return Validator(file_name).check(without_python_words(text));
}

/// Collects edits while it walks, then applies them.
class DenseEditor {
 public:
  DenseEditor(std::string_view text, std::string_view torch_dtype, std::string_view file_name)
      : text_(text), scanner_(text), torch_dtype_(torch_dtype), file_name_(file_name) {}

  Result<std::string> edit() {
    const Span top = scanner_.top();
    CKFS_TRY_VOID(edit_value(top));
    const std::vector<Member> members = scanner_.children(top);
    if (std::none_of(members.begin(), members.end(), is_dtype)) add_dtype(top, members);
    return apply();
  }

 private:
  struct Edit {
    Span where;
    std::string by;
  };

  /// Recursion is bounded: the Validator has counted the depth.
  Result<void> edit_value(Span value) {
    const std::vector<Member> members = scanner_.children(value);
    CKFS_TRY_VOID(check_once(members, file_name_));
    remove_quantization(value, members);
    for (const Member& member : members) {
      if (is_quantization(member)) continue;
      if (is_dtype(member) && names_float_dtype(scanner_.of(member.value))) {
        edits_.push_back({member.value, fmt::format("\"{}\"", torch_dtype_)});
      } else {
        CKFS_TRY_VOID(edit_value(member.value));
      }
    }
    return {};
  }

  /// A member goes with the comma and the white space that set it apart from its neighbour.
  void remove_quantization(Span object, const std::vector<Member>& members) {
    const auto first_kept = std::find_if_not(members.begin(), members.end(), is_quantization);
    if (first_kept == members.end()) {
      if (!members.empty()) edits_.push_back({{object.begin + 1, object.end - 1}, ""});
      return;
    }
    if (first_kept != members.begin()) {
      edits_.push_back({{members.front().begin, first_kept->begin}, ""});
    }
    for (auto member = first_kept + 1; member < members.end(); ++member) {
      if (is_quantization(*member)) {
        edits_.push_back({{std::prev(member)->value.end, member->value.end}, ""});
      }
    }
  }

  /// Adds the key as the last member, set apart as the others are.
  void add_dtype(Span object, const std::vector<Member>& members) {
    const std::string added = fmt::format(R"("torch_dtype": "{}")", torch_dtype_);
    const auto last_kept = std::find_if_not(members.rbegin(), members.rend(), is_quantization);
    if (last_kept == members.rend()) {
      // Nothing is left; what stood between the braces' inner ends and the members stays.
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
  Scanner scanner_;
  std::string_view torch_dtype_, file_name_;
  std::vector<Edit> edits_;
};

/// Reads the first quantization object in the order of the header.
class QuantizationFinder {
 public:
  QuantizationFinder(std::string_view text, std::string_view file_name)
      : scanner_(text), file_name_(file_name) {}

  Result<std::optional<QuantizationConfig>> find() {
    const Span top = scanner_.top();
    CKFS_TRY(std::optional<Span> found, member(top, "quantization_config"));
    if (!found) {
      CKFS_TRY(const std::optional<Span> text_config, member(top, "text_config"));
      if (text_config) {
        CKFS_TRY(found, member(*text_config, "quantization_config"));
      }
    }
    if (!found) {
      CKFS_TRY(found, member(top, "compression_config"));
    }
    if (!found) {
      CKFS_TRY(found, search(top));
    }
    if (!found) return std::nullopt;
    return read(*found);
  }

 private:
  /// The value of a member; nullopt where there is none or it is null.
  Result<std::optional<Span>> member(Span object, std::string_view key) {
    const std::vector<Member> members = scanner_.children(object);
    CKFS_TRY_VOID(check_once(members, file_name_));
    for (const Member& candidate : members) {
      if (is_key(candidate, key) && scanner_.of(candidate.value) != "null") return candidate.value;
    }
    return std::nullopt;
  }

  /// A quantization_config anywhere below.
  Result<std::optional<Span>> search(Span value) {
    for (const Member& child : scanner_.children(value)) {
      if (is_quantization(child)) continue;
      CKFS_TRY(std::optional<Span> found, member(child.value, "quantization_config"));
      if (!found) {
        CKFS_TRY(found, search(child.value));
      }
      if (found) return found;
    }
    return std::nullopt;
  }

  Result<std::optional<QuantizationConfig>> read(Span object) {
    if (scanner_.first(object) != '{') {
      return fail(ErrorCode::Corrupt, "{}: quantization_config is not an object", file_name_);
    }
    QuantizationConfig config;
    CKFS_TRY(const std::optional<Span> method, member(object, "quant_method"));
    if (method) {
      if (scanner_.first(*method) != '"') {
        return fail(ErrorCode::Corrupt, "{}: quant_method is not a string", file_name_);
      }
      config.method = nlohmann::json::parse(scanner_.of(*method)).get<std::string>();
    }
    CKFS_TRY(const std::optional<Span> block, member(object, "weight_block_size"));
    if (block) {
      CKFS_TRY(config.weight_block_size, read_block(*block));
    }
    return config;
  }

  Result<std::array<std::int64_t, 2>> read_block(Span value) {
    constexpr std::int64_t kMaxBlock = std::int64_t{1} << 31;
    std::array<std::int64_t, 2> block{};
    const std::vector<Member> elements = scanner_.children(value);
    bool good = scanner_.first(value) == '[' && elements.size() == block.size();
    for (std::size_t i = 0; good && i < block.size(); ++i) {
      const std::string_view digits = scanner_.of(elements[i].value);
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), block[i]);
      good = error == std::errc() && end == digits.data() + digits.size() && block[i] > 0 &&
             block[i] <= kMaxBlock;
    }
    if (!good) {
      return fail(ErrorCode::Corrupt, "{}: weight_block_size is not two whole numbers from 1 to {}",
                  file_name_, kMaxBlock);
    }
    return block;
  }

  Scanner scanner_;
  std::string_view file_name_;
};

}  // namespace

Result<std::string> dense_config(std::string_view text, std::string_view torch_dtype,
                                 std::string_view file_name) {
  CKFS_TRY_VOID(validate(text, file_name));
  return DenseEditor(text, torch_dtype, file_name).edit();
}

Result<std::optional<QuantizationConfig>> find_quantization(std::string_view text,
                                                            std::string_view file_name) {
  CKFS_TRY_VOID(validate(text, file_name));
  return QuantizationFinder(text, file_name).find();
}

}  // namespace ckfs
