// An error that says "no such view" costs its reader a look into the manual; the word that was
// meant is nearly always one of ten that the program knows.
//
// Two kinds of mistakes are worth a guess: a slip of the fingers, which an edit distance measures,
// and a name that was cut short ("bf16" for "bf16-safetensors"), which it does not.
#include "base/suggest.h"

#include <algorithm>
#include <fmt/format.h>
#include <numeric>
#include <vector>

#include "base/text.h"

namespace ckfs {
namespace {

constexpr std::size_t kLongestWord = 64;
constexpr std::size_t kMostListed = 20;

/// Edits from `a` to `b`, where to swap two neighbours is one edit (optimal string alignment).
std::size_t distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
    std::swap(before_last, last);
    std::swap(last, row);
  }
  return last[b.size()];
}

/// Whether `text` is `start`, or `start` followed by another part of a name.
bool continues(std::string_view text, std::string_view start) {
  return text.starts_with(start) &&
         (text.size() == start.size() ||
          std::string_view("-_.").find(text[start.size()]) != std::string_view::npos);
}

}  // namespace

std::string_view closest(std::string_view word, std::span<const std::string_view> known) {
  if (word.empty() || word.size() > kLongestWord) return {};
  std::string_view best;
  std::size_t fewest = kLongestWord;
  for (const std::string_view candidate : known) {
    if (candidate.empty() || candidate.size() > kLongestWord) continue;
    const std::size_t edits = distance(word, candidate);
    if (edits >= fewest || 3 * edits > std::max(word.size(), candidate.size())) continue;
    fewest = edits;
    best = candidate;
  }
  if (!best.empty()) return best;
  const auto cut = std::ranges::find_if(known, [&](std::string_view candidate) {
    return !candidate.empty() && (continues(candidate, word) || continues(word, candidate));
  });
  return cut == known.end() ? std::string_view() : *cut;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known,
                         std::string_view before_list) {
  if (known.empty()) return {};
  std::string text = " (";
  if (const std::string_view meant = closest(word, known); !meant.empty()) {
    text += fmt::format("did you mean {}? ", one_line(meant));
  }
  text += before_list;
  for (std::size_t i = 0; i < std::min(known.size(), kMostListed); ++i) {
    text += (i > 0 ? ", " : "") + one_line(known[i]);
  }
  if (known.size() > kMostListed) text += fmt::format(" and {} more", known.size() - kMostListed);
  return text + ")";
}

}  // namespace ckfs
