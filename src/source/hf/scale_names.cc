#include "source/hf/scale_names.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>

namespace ckfs {
namespace {

/// Words of a name's last part that are looked at, from its end.
constexpr std::size_t kMostWords = 8;

// Each list in byte order, in lower case.

/// What decodes codes. So does any word that ends with "scale", "scales", "zero" or "zeros".
constexpr std::array<std::string_view, 12> kPartWords = {
    "absmax", "amax", "centroids", "codebook", "codebooks", "lut",
    "scb",    "su",   "sv",        "svh",      "zeropoint", "zp"};

/// Words before or behind these that say which of several parts it is.
constexpr std::array<std::string_view, 43> kBesideParts = {
    "",        "0",        "1",      "2",      "3",      "block",   "blocks",  "bitsandbytes",
    "channel", "channels", "col",    "cols",   "comfy",  "data",    "expert",  "experts",
    "factor",  "factors",  "fp4",    "global", "group",  "groups",  "inv",     "inverse",
    "main",    "map",      "max",    "min",    "nested", "nf4",     "outlier", "packed",
    "per",     "point",    "points", "q",      "qdata",  "qweight", "res",     "row",
    "state",   "w",        "weight"};

/// Words for codes, and for weights, which are integers only as codes.
constexpr std::array<std::string_view, 18> kCodes = {
    "codes", "fp4",   "int4",      "int8",    "kernel",  "nf4",   "packed", "proj",   "qdata",
    "qidxs", "quant", "quantized", "qweight", "trellis", "uint8", "w",      "weight", "weights"};

/// Words beside those.
constexpr std::array<std::string_view, 8> kBesideCodes = {"",     "bits", "block", "blocks",
                                                          "code", "data", "int",   "q"};

constexpr std::array<std::string_view, 13> kTables = {
    "bias",  "bucket", "buckets",  "ids",       "index", "mask",  "masked",
    "masks", "pos",    "position", "positions", "token", "tokens"};

constexpr std::array<std::string_view, 16> kRuntime = {
    "activation_scale",  "input_global_scale", "input_scale",
    "input_scale_ub",    "input_zero_point",   "k_scale",
    "k_zero_point",      "kv_scale",           "output_scale",
    "output_zero_point", "prob_scale",         "q_scale",
    "qscale_act",        "scale_input",        "v_scale",
    "v_zero_point"};

/// What ends the names of the same where they are joined to a parameter's.
constexpr std::array<std::string_view, 4> kRuntimeEndings = {
    "_activation_scale", "_input_global_scale", "_input_scale", "_output_scale"};

bool is_in(std::span<const std::string_view> list, std::string_view word) {
  const auto same = [](char a, char b) {
    return a == b || (b >= 'A' && b <= 'Z' && a == static_cast<char>(b - 'A' + 'a'));
  };
  return std::ranges::any_of(
      list, [&](std::string_view known) { return std::ranges::equal(known, word, same); });
}

/// Where the last part of a name begins. Flattened tensors of torchao are "M.weight:scale".
std::size_t begin_of_last(std::string_view name) {
  const std::size_t border = name.find_last_of(".:");
  return border == std::string_view::npos ? 0 : border + 1;
}

/// The name before its last part; empty: there is none.
std::string_view before_last(std::string_view name) {
  const std::size_t begin = begin_of_last(name);
  return name.substr(0, begin == 0 ? 0 : begin - 1);
}

/// The words of a name's last part, from the end.
class Words {
 public:
  explicit Words(std::string_view name) : name_(name), first_(begin_of_last(name)) {
    for (std::size_t end = name.size(); count_ < kMostWords;) {
      const std::size_t border = name.substr(first_, end - first_).find_last_of("_-");
      const std::size_t begin = border == std::string_view::npos ? first_ : first_ + border + 1;
      begins_[count_] = begin;
      words_[count_++] = name.substr(begin, end - begin);
      if (begin == first_) break;
      end = begin - 1;
    }
  }

  std::span<const std::string_view> all() const { return std::span(words_).first(count_); }
  /// The name before word `i` (counted from the end): without what sets the two apart.
  std::string_view before(std::size_t i) const {
    const std::size_t begin = begins_[i];
    return name_.substr(0, begin == 0 ? 0 : begin - 1);
  }
  bool is_first(std::size_t i) const { return begins_[i] == first_; }

 private:
  std::string_view name_;
  std::size_t first_;
  std::size_t count_ = 0;
  std::array<std::string_view, kMostWords> words_;
  std::array<std::size_t, kMostWords> begins_{};
};

bool is_part(std::string_view word) {
  constexpr std::array<std::string_view, 4> kEndings = {"scale", "scales", "zero", "zeros"};
  return is_in(kPartWords, word) || std::ranges::any_of(kEndings, [&](std::string_view ending) {
           return word.size() >= ending.size() &&
                  is_in(std::span(&ending, 1), word.substr(word.size() - ending.size()));
         });
}

/// "tid2eid", "d2t".
bool is_mapping(std::string_view word) {
  const std::size_t two = word.find('2');
  const auto is_letters = [](std::string_view text) {
    return !text.empty() && std::ranges::all_of(text, [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    });
  };
  return two != std::string_view::npos && is_letters(word.substr(0, two)) &&
         is_letters(word.substr(two + 1));
}

}  // namespace

bool is_runtime_scale(std::string_view name) {
  const std::string_view last = name.substr(begin_of_last(name));
  return std::ranges::find(kRuntime, last) != kRuntime.end() ||
         std::ranges::any_of(kRuntimeEndings,
                             [&](std::string_view ending) { return last.ends_with(ending); });
}

bool is_part_name(std::string_view name) {
  const Words words(name);
  for (const std::string_view word : words.all()) {
    if (is_part(word)) return true;
    if (!is_in(kBesideParts, word)) return false;
  }
  return false;
}

bool is_code_name(std::string_view name) {
  const Words words(name);
  return std::ranges::any_of(words.all(),
                             [](std::string_view word) { return is_in(kCodes, word); });
}

bool is_table_name(std::string_view name) {
  const Words words(name);
  return std::ranges::any_of(
      words.all(), [](std::string_view word) { return is_in(kTables, word) || is_mapping(word); });
}

void ScaleNames::add(TensorId id, std::string_view name) {
  const Words words(name);
  bool is_named = false;  // a word so far is that of a part
  for (std::size_t i = 0; i < words.all().size(); ++i) {
    const std::string_view word = words.all()[i];
    const bool part = is_part(word);
    if (!part && !is_in(kBesideParts, word)) break;
    is_named = is_named || part;
    if (!is_named) continue;
    of_names_.emplace(words.before(i), id);
    if (!words.is_first(i)) continue;
    of_modules_.emplace(before_last(name), id);
    return;
  }
  if (is_named) loose_.emplace(before_last(name), id);
}

std::optional<ScaleNames::Found> ScaleNames::find(std::string_view codes) const {
  const auto in = [](const Names& names, std::string_view name,
                     Kinship kinship) -> std::optional<Found> {
    const auto found = names.find(name);
    if (found == names.end()) return std::nullopt;
    return Found{found->second, kinship};
  };
  if (auto found = in(of_names_, codes, Kinship::Own)) return found;
  const Words words(codes);
  for (std::size_t i = 0; i < words.all().size(); ++i) {
    const std::string_view word = words.all()[i];
    if (!is_in(kCodes, word) && !is_in(kBesideCodes, word)) break;
    const Names& names = words.is_first(i) ? of_modules_ : of_names_;
    if (auto found = in(names, words.before(i), Kinship::Own)) return found;
  }
  const std::string_view module = before_last(codes);
  if (auto found = in(of_modules_, module, Kinship::Module)) return found;
  return in(loose_, module, Kinship::Loose);
}

}  // namespace ckfs
