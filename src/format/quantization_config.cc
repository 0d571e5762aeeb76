// A configuration is read leniently where it does not matter and strictly where it does: unknown
// members are kept as text for callers that know them, while a member that decides how bytes are
// decoded must be of its type. In an object that is read, no key may come twice: which of the two
// counts would be a guess.
#include "format/quantization_config.h"

#include <algorithm>
#include <charconv>

#include "format/json_members.h"

namespace ckfs {
namespace {

constexpr std::size_t kMaxKey = 1024;                      // bytes of a key whose value is kept
constexpr std::size_t kMaxValues = std::size_t{16} << 20;  // bytes of keys and values that are
constexpr std::int64_t kMaxNumber = std::int64_t{1} << 31;

using Members = std::vector<JsonMember>;

class ConfigReader {
 public:
  ConfigReader(std::string_view text, std::string_view file_name)
      : scanner_(text), file_name_(file_name) {}

  Result<std::optional<QuantizationConfig>> find() {
    const JsonSpan top = scanner_.top();
    CKFS_TRY(std::optional<JsonSpan> found, member(top, "quantization_config"));
    if (!found) {
      CKFS_TRY(const std::optional<JsonSpan> text_config, member(top, "text_config"));
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
    CKFS_TRY(QuantizationConfig config, read(*found, "quantization_config"));
    return std::optional(std::move(config));
  }

  Result<QuantizationConfig> whole(std::string_view method) {
    CKFS_TRY(QuantizationConfig config, read(scanner_.top(), file_name_));
    if (config.method.empty()) config.method = method;
    return config;
  }

  Result<QuantizationConfig> modelopt() {
    CKFS_TRY(const Members top, members_of(scanner_.top()));
    const std::optional<JsonSpan> found = member(top, "quantization");
    QuantizationConfig config;
    if (found) {
      CKFS_TRY(config, read(*found, "quantization"));
    }
    config.file = file_name_;
    if (config.method.empty()) config.method = "modelopt";
    return config;
  }

 private:
  /// The value of a member; nullopt where there is none or it is null.
  Result<std::optional<JsonSpan>> member(JsonSpan object, std::string_view key) {
    const Members members = scanner_.children(object);
    CKFS_TRY_VOID(check_once(members, file_name_));
    return member(members, key);
  }

  std::optional<JsonSpan> member(const Members& members, std::string_view key) const {
    for (const JsonMember& candidate : members) {
      if (is_key(candidate, key) && scanner_.of(candidate.value) != "null") return candidate.value;
    }
    return std::nullopt;
  }

  /// All members of an object that is read.
  Result<Members> members_of(JsonSpan object) const {
    Members members = scanner_.children(object);
    CKFS_TRY_VOID(check_all_once(members, file_name_));
    return members;
  }

  /// A quantization_config anywhere below.
  Result<std::optional<JsonSpan>> search(JsonSpan value) {
    for (const JsonMember& child : scanner_.children(value)) {
      if (is_quantization(child)) continue;
      CKFS_TRY(std::optional<JsonSpan> found, member(child.value, "quantization_config"));
      if (!found) {
        CKFS_TRY(found, search(child.value));
      }
      if (found) return found;
    }
    return std::nullopt;
  }

  Result<QuantizationConfig> read(JsonSpan object, std::string_view what) {
    if (scanner_.first(object) != '{') return wrong(what, "an object");
    CKFS_TRY(const Members members, members_of(object));
    QuantizationConfig config;
    config.file = file_name_;
    CKFS_TRY(config.method, text(members, "quant_method", "quant_method"));
    CKFS_TRY(config.weight_block_size, pair(members, "weight_block_size", "weight_block_size"));
    for (const std::string_view key : {"ignore", "modules_to_not_convert", "exclude_modules"}) {
      if (const auto list = member(members, key)) {
        CKFS_TRY(const std::vector<std::string> names, strings(*list, key));
        config.ignore.insert(config.ignore.end(), names.begin(), names.end());
      }
    }
    if (const auto groups = member(members, "config_groups")) {
      if (scanner_.first(*groups) != '{') return wrong("config_groups", "an object");
      CKFS_TRY(const Members members_of_groups, members_of(*groups));
      for (const JsonMember& group : members_of_groups) {
        CKFS_TRY(QuantizationGroup one, read_group(group));
        config.groups.push_back(std::move(one));
      }
    }
    config.transforms = is_filled(members, "transform_config");
    config.overrides = is_filled(members, "dynamic");
    CKFS_TRY_VOID(keep_values(members, "", config));
    return config;
  }

  Result<QuantizationGroup> read_group(const JsonMember& member_of_groups) {
    QuantizationGroup group;
    group.name = decoded(member_of_groups.key);
    const std::string what = fmt::format("config_groups.{}", group.name);
    // A preset's name with its targets.
    if (scanner_.first(member_of_groups.value) == '[') {
      CKFS_TRY(group.targets, strings(member_of_groups.value, what));
      return group;
    }
    if (scanner_.first(member_of_groups.value) != '{') return wrong(what, "an object");
    CKFS_TRY(const Members members, members_of(member_of_groups.value));
    if (const auto targets = member(members, "targets")) {
      CKFS_TRY(group.targets, strings(*targets, what + ".targets"));
    }
    CKFS_TRY(group.format, text(members, "format", what + ".format"));
    if (const auto weights = member(members, "weights")) {
      CKFS_TRY(group.weights, read_weights(*weights, what + ".weights"));
    }
    return group;
  }

  Result<WeightArguments> read_weights(JsonSpan object, const std::string& what) {
    if (scanner_.first(object) != '{') return wrong(what, "an object");
    CKFS_TRY(const Members members, members_of(object));
    WeightArguments weights;
    CKFS_TRY(weights.num_bits, number(members, "num_bits", what + ".num_bits"));
    // -1: no groups.
    const auto size = member(members, "group_size");
    if (size && scanner_.of(*size) != "-1") {
      CKFS_TRY(weights.group_size, number(members, "group_size", what + ".group_size"));
    }
    if (const auto symmetric = member(members, "symmetric")) {
      const std::string_view word = scanner_.of(*symmetric);
      if (word != "true" && word != "false") return wrong(what + ".symmetric", "true or false");
      weights.symmetric = word == "true";
    }
    // Older releases of compressed-tensors write "128x128".
    const auto structure = member(members, "block_structure");
    if (structure && scanner_.first(*structure) == '"') {
      CKFS_TRY(weights.block_structure,
               pair_of(json_string(scanner_.of(*structure)), what + ".block_structure"));
    } else {
      CKFS_TRY(weights.block_structure,
               pair(members, "block_structure", what + ".block_structure"));
    }
    CKFS_TRY(weights.type, text(members, "type", what + ".type"));
    CKFS_TRY(weights.strategy, text(members, "strategy", what + ".strategy"));
    return weights;
  }

  /// Whether there is such an object or list, and something in it.
  bool is_filled(const Members& members, std::string_view key) const {
    const auto value = member(members, key);
    return value && !scanner_.children(*value).empty();
  }

  Result<void> keep_values(const Members& members, const std::string& prefix,
                           QuantizationConfig& config) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      const JsonMember& one = members[i];
      const std::string_view value = scanner_.of(one.value);
      // Each value inside has the whole key before its own.
      if (value == "null" || one.key.size() > kMaxKey) continue;
      std::string key = prefix + (one.key.empty() ? std::to_string(i) : decoded(one.key));
      if (value.front() != '{' && value.front() != '[') {
        kept_ += key.size() + value.size();
        if (kept_ > kMaxValues) {
          return fail(ErrorCode::Corrupt,
                      "{}: quantization_config has values that take more than {} bytes", file_name_,
                      kMaxValues);
        }
        config.values[std::move(key)] =
            value.front() == '"' ? json_string(value) : std::string(value);
        continue;
      }
      const bool inner_list = value.front() == '[' && !prefix.empty();
      const bool inner_object =
          value.front() == '{' && prefix.empty() && key != "config_groups" && key != "dynamic";
      if (!inner_list && !inner_object) continue;
      const Members inner = scanner_.children(one.value);
      if (inner_object) {
        CKFS_TRY_VOID(check_all_once(inner, file_name_));
      }
      CKFS_TRY_VOID(keep_values(inner, key + ".", config));
    }
    return {};
  }

  std::string decoded(std::string_view key) const {
    return key.find('\\') == std::string_view::npos ? std::string(key)
                                                    : json_string(fmt::format("\"{}\"", key));
  }

  /// The string of that key; empty where there is none.
  Result<std::string> text(const Members& members, std::string_view key, std::string_view what) {
    const auto value = member(members, key);
    if (!value) return std::string();
    if (scanner_.first(*value) != '"') return wrong(what, "a string");
    return json_string(scanner_.of(*value));
  }

  Result<std::optional<std::int64_t>> number(const Members& members, std::string_view key,
                                             std::string_view what) {
    const auto value = member(members, key);
    if (!value) return std::nullopt;
    const auto read = positive(scanner_.of(*value));
    if (!read) return wrong(what, fmt::format("a whole number from 1 to {}", kMaxNumber));
    return read;
  }

  /// Of "128x64".
  Result<std::array<std::int64_t, 2>> pair_of(std::string_view text, std::string_view what) {
    const std::size_t between = text.find('x');
    const auto first = positive(text.substr(0, between));
    const auto second =
        between == std::string_view::npos ? std::nullopt : positive(text.substr(between + 1));
    if (!first || !second) return wrong(what, "two numbers with an x between");
    return std::array{*first, *second};
  }

  Result<std::optional<std::array<std::int64_t, 2>>> pair(const Members& members,
                                                          std::string_view key,
                                                          std::string_view what) {
    const auto value = member(members, key);
    if (!value) return std::nullopt;
    const Members elements = scanner_.children(*value);
    std::array<std::int64_t, 2> read{};
    bool good = scanner_.first(*value) == '[' && elements.size() == read.size();
    for (std::size_t i = 0; good && i < read.size(); ++i) {
      const auto one = positive(scanner_.of(elements[i].value));
      good = one.has_value();
      read[i] = one.value_or(0);
    }
    if (!good) return wrong(what, fmt::format("two whole numbers from 1 to {}", kMaxNumber));
    return read;
  }

  Result<std::vector<std::string>> strings(JsonSpan list, std::string_view what) {
    std::vector<std::string> read;
    bool good = scanner_.first(list) == '[';
    for (const JsonMember& element : scanner_.children(list)) {
      good = good && scanner_.first(element.value) == '"';
      if (good) read.push_back(json_string(scanner_.of(element.value)));
    }
    if (!good) return wrong(what, "a list of strings");
    return read;
  }

  static std::optional<std::int64_t> positive(std::string_view digits) {
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    const bool good = error == std::errc() && end == digits.data() + digits.size() && value > 0 &&
                      value <= kMaxNumber;
    return good ? std::optional(value) : std::nullopt;
  }

  Failure wrong(std::string_view what, std::string_view wanted) const {
    return fail(ErrorCode::Corrupt, "{}: {} is not {}", file_name_, what, wanted);
  }

  JsonScanner scanner_;
  std::string_view file_name_;
  std::size_t kept_ = 0;  // bytes of values
};

}  // namespace

std::string_view QuantizationConfig::value(std::string_view key) const {
  const auto found = values.find(key);
  return found == values.end() ? std::string_view() : std::string_view(found->second);
}

std::optional<std::int64_t> QuantizationConfig::number(std::string_view key) const {
  const std::string_view text = value(key);
  std::int64_t read = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), read);
  const bool good = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return good ? std::optional(read) : std::nullopt;
}

Result<std::optional<QuantizationConfig>> find_quantization(std::string_view text,
                                                            std::string_view file_name) {
  CKFS_TRY_VOID(validate_config(text, file_name));
  return ConfigReader(text, file_name).find();
}

Result<QuantizationConfig> parse_modelopt(std::string_view text, std::string_view file_name) {
  CKFS_TRY_VOID(validate_config(text, file_name));
  return ConfigReader(text, file_name).modelopt();
}

Result<QuantizationConfig> parse_quantization_file(std::string_view text,
                                                   std::string_view file_name,
                                                   std::string_view method) {
  CKFS_TRY_VOID(validate_config(text, file_name));
  return ConfigReader(text, file_name).whole(method);
}

}  // namespace ckfs
