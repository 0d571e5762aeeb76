// Names are matched from the left; a text hole tries the places where the literal text behind it
// occurs, nearest first. The text after the last hole is compared first: that alone rules out
// nearly every name that does not fit, and there are 200,000 names to each rule.
#include "view/recipes/pattern.h"

#include <algorithm>
#include <optional>

#include "base/text.h"

namespace ckfs {
namespace {

constexpr std::size_t kMaxPattern = 1000;  // characters
constexpr std::size_t kMaxOpenHoles = 3;
constexpr std::size_t kMaxDigits = 9;

/// The digits at the start of `text` that are a number.
std::size_t number_size(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size() && size <= kMaxDigits && is_digit(text[size])) ++size;
  const bool leading_zero = size > 1 && text[0] == '0';
  return leading_zero || size > kMaxDigits ? 0 : size;
}

bool is_name(std::string_view text) {
  return !text.empty() && !is_digit(text.front()) && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || is_digit(c);
  });
}

/// A text cut at its braces.
struct Cut {
  struct TextAndBraces {
    std::string_view before, inside;
  };
  std::vector<TextAndBraces> parts;
  std::string_view tail;
};

Result<Cut> cut(std::string_view text) {
  if (text.size() > kMaxPattern) {
    return fail(ErrorCode::Corrupt, "a name of {} characters (limit {})", text.size(), kMaxPattern);
  }
  Cut found;
  std::string_view rest = text;
  while (true) {
    const std::size_t open = rest.find_first_of("{}");
    if (open == std::string_view::npos) break;
    const std::size_t close = rest.find_first_of("{}", open + 1);
    if (rest[open] == '}' || close == std::string_view::npos || rest[close] == '{') {
      return fail(ErrorCode::Corrupt, "{}: braces do not match", quote(text));
    }
    found.parts.push_back({rest.substr(0, open), trim(rest.substr(open + 1, close - open - 1))});
    rest.remove_prefix(close + 1);
  }
  found.tail = rest;
  return found;
}

/// Whether one of them begins with another, so that both may fit.
bool may_both_fit(const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    for (std::size_t k = 0; k < words.size(); ++k) {
      if (i != k && words[i].starts_with(words[k])) return true;
    }
  }
  return false;
}

}  // namespace

Result<Pattern> Pattern::parse(std::string_view text, CaptureNames& names) {
  CKFS_TRY(const Cut found, cut(text));
  Pattern pattern;
  pattern.text_ = text;
  pattern.tail_ = found.tail;
  for (const auto& [before, inside] : found.parts) {
    const std::size_t colon = inside.find(':');
    const std::string_view name = inside.substr(0, colon);
    const std::string_view kind =
        colon == std::string_view::npos ? std::string_view() : inside.substr(colon + 1);
    if (!is_name(name)) {
      return fail(ErrorCode::Corrupt, "{}: {} is not the name of a capture", quote(text),
                  quote(name));
    }
    TextAndHole piece{.before = std::string(before)};
    if (kind == "**") {
      piece.hole = Hole::Text;
    } else if (kind == "*") {
      piece.hole = Hole::Part;
    } else if (colon != std::string_view::npos) {
      piece.hole = Hole::Words;
      for (std::string_view rest = kind;;) {
        const std::size_t bar = rest.find('|');
        piece.words.emplace_back(rest.substr(0, bar));
        if (bar == std::string_view::npos) break;
        rest.remove_prefix(bar + 1);
      }
    }
    const auto known = std::ranges::find(names, name);
    piece.capture = static_cast<std::size_t>(known - names.begin());
    if (known == names.end()) names.emplace_back(name);
    if (names.size() > kMaxCaptures) {
      return fail(ErrorCode::Corrupt, "{}: more than {} captures in a rule", quote(text),
                  kMaxCaptures);
    }
    if (pattern.has(piece.capture)) {
      return fail(ErrorCode::Corrupt, "{}: capture {} comes twice", quote(text), name);
    }
    pattern.pieces_.push_back(std::move(piece));
  }
  CKFS_TRY_VOID(pattern.check_open_holes());
  return pattern;
}

/// A pattern with more of them is one that its reader cannot follow.
Result<void> Pattern::check_open_holes() const {
  std::size_t open_holes = 0;
  for (std::size_t i = 0; i < pieces_.size(); ++i) {
    // One of a part ends at its dot, unless something else may follow before that.
    const bool is_last = i + 1 == pieces_.size();
    const bool ends_at_dot = is_last || pieces_[i + 1].before.find('.') != std::string::npos;
    const Hole hole = pieces_[i].hole;
    if (hole == Hole::Text || (hole == Hole::Part && !ends_at_dot) ||
        (hole == Hole::Words && !is_last && may_both_fit(pieces_[i].words))) {
      ++open_holes;
    }
  }
  if (open_holes <= kMaxOpenHoles) return {};
  return fail(ErrorCode::Corrupt, "{}: more than {} captures that may end in several places",
              quote(text_), kMaxOpenHoles);
}

bool Pattern::has(std::size_t capture) const {
  return std::ranges::find(pieces_, capture, &TextAndHole::capture) != pieces_.end();
}

bool Pattern::is_number(std::size_t capture) const {
  const auto piece = std::ranges::find(pieces_, capture, &TextAndHole::capture);
  return piece != pieces_.end() && piece->hole == Hole::Number;
}

/// One name and one pattern. Whether the pieces from one on fit the name from a place on depends on
/// these two alone, so a failed pair is not tried again. So the steps grow with the name's length
/// and the pieces, whatever the name is.
class Pattern::Matching {
 public:
  /// `name` without the pattern's tail.
  Matching(const Pattern& pattern, std::string_view name, Captured& captured)
      : pieces_(pattern.pieces_), name_(name), captured_(captured), dot_(name.rfind('.')) {}

  bool fits(std::size_t at, std::size_t index) {
    if (index == pieces_.size()) return at == name_.size();
    const TextAndHole& piece = pieces_[index];
    if (!name_.substr(at).starts_with(piece.before)) return false;
    at += piece.before.size();
    const std::string_view rest = name_.substr(at);
    switch (piece.hole) {
      case Hole::Number: {
        const std::size_t size = number_size(rest);
        return size > 0 && take(at, at + size, index);
      }
      case Hole::Words:
        return std::ranges::any_of(piece.words, [&](const std::string& word) {
          return rest.starts_with(word) && take(at, at + word.size(), index);
        });
      case Hole::Part:
      case Hole::Text:
        return fits_open(at, index);
    }
    return false;
  }

 private:
  /// The hole's text from `at` on, the shortest first.
  bool fits_open(std::size_t at, std::size_t index) {
    const bool part = pieces_[index].hole == Hole::Part;
    const std::size_t least = at + (part ? 1 : 0);
    if (index + 1 == pieces_.size()) {
      const bool has_dot = part && dot_ != std::string_view::npos && dot_ >= at;
      return name_.size() >= least && !has_dot && take(at, name_.size(), index);
    }
    const std::size_t limit = part ? std::min(name_.find('.', at), name_.size()) : name_.size();
    // From an earlier place the hole may end nearer, and nowhere else than from a later one.
    std::size_t last = limit;
    if (!vain_.empty() && vain_[index].limit == limit) last = std::min(limit, vain_[index].least);
    const std::string& next = pieces_[index + 1].before;
    for (std::size_t end = least; end <= last; ++end) {
      end = name_.find(next, end);
      if (end == std::string_view::npos || end > last) break;
      if (take(at, end, index)) return true;
    }
    if (!vain_.empty()) vain_[index] = {std::min(least, last), limit};
    return false;
  }

  /// The hole's text is [at, end); what follows is tried once for each end.
  bool take(std::size_t at, std::size_t end, std::size_t index) {
    const std::size_t state = index * (name_.size() + 1) + end;
    if (!failed_.empty() && failed_[state]) return false;
    captured_[pieces_[index].capture] = name_.substr(at, end - at);
    if (fits(end, index + 1)) return true;
    if (failed_.empty()) {
      failed_.resize(pieces_.size() * (name_.size() + 1));
      vain_.resize(pieces_.size());
    }
    failed_[state] = true;
    return false;
  }

  const std::vector<TextAndHole>& pieces_;
  const std::string_view name_;
  Captured& captured_;
  const std::size_t dot_;     // the last one
  std::vector<bool> failed_;  // behind the hole of a piece, by where it ends
  /// Of an open hole that ends at `limit` at the latest: all ends from `least` on have failed.
  struct Vain {
    std::size_t least = 0;
    std::size_t limit = std::string_view::npos;
  };
  std::vector<Vain> vain_;
};

bool Pattern::match(std::string_view name, Captured& captured) const {
  if (pieces_.empty()) return name == tail_;
  // One character first: names of one model have their ends and beginnings in common.
  if (name.size() < tail_.size()) return false;
  if (!tail_.empty() && name[name.size() - tail_.size()] != tail_.front()) return false;
  if (!name.ends_with(tail_) || !name.starts_with(pieces_.front().before)) return false;
  return Matching(*this, name.substr(0, name.size() - tail_.size()), captured).fits(0, 0);
}

std::string Pattern::fill(const Captured& captured) const {
  std::string name;
  for (const TextAndHole& piece : pieces_) {
    name += piece.before;
    name += captured[piece.capture];
  }
  return name + tail_;
}

Result<Template> Template::parse(std::string_view text, const CaptureNames& names) {
  CKFS_TRY(const Cut found, cut(text));
  Template result;
  result.text_ = text;
  result.tail_ = found.tail;
  for (const auto& [before, inside] : found.parts) {
    TextAndValue piece{.before = std::string(before)};
    const auto capture = std::ranges::find(names, inside);
    if (capture != names.end()) {
      piece.capture = static_cast<std::size_t>(capture - names.begin());
    }
    auto expression = Expression::parse(inside, names);
    if (!expression) return Failure(expression.error().within(quote(text)));
    piece.expression = std::move(*expression);
    result.pieces_.push_back(std::move(piece));
  }
  return result;
}

Result<std::string> Template::fill(const Captured& captured, const Scope& scope) const {
  std::string name;
  for (const TextAndValue& piece : pieces_) {
    name += piece.before;
    const std::size_t capture = piece.capture;
    if (capture < captured.size() && captured[capture].data() != nullptr) {
      name += captured[capture];
      continue;
    }
    CKFS_TRY(const std::int64_t number, piece.expression.evaluate_whole(scope));
    if (number < 0 || number > static_cast<std::int64_t>(kMaxNumber)) {
      return fail(ErrorCode::InvalidArgument, "{} is {} in a name (0 to {})",
                  quote(piece.expression.text()), number, kMaxNumber);
    }
    fmt::format_to(std::back_inserter(name), "{}", number);
  }
  return name + tail_;
}

Result<Template::Reversed> Template::reversed(const Pattern& taken, std::size_t captures) const {
  Reversed result;
  result.pattern.text_ = text_;
  result.pattern.tail_ = tail_;
  for (const TextAndValue& piece : pieces_) {
    Pattern::TextAndHole hole{.before = piece.before};
    if (piece.capture < captures) {
      const auto like =
          std::ranges::find(taken.pieces_, piece.capture, &Pattern::TextAndHole::capture);
      CKFS_CHECK(like != taken.pieces_.end());  // each pattern of a rule has all its captures
      hole.hole = like->hole;
      hole.words = like->words;
      hole.capture = piece.capture;
      if (result.pattern.has(hole.capture)) {
        return fail(ErrorCode::Unsupported, "{}: a capture comes twice", quote(text_));
      }
    } else {
      hole.capture = captures + result.computed.size();
      result.computed.push_back(piece.expression);
    }
    result.pattern.pieces_.push_back(std::move(hole));
  }
  if (const auto checked = result.pattern.check_open_holes(); !checked) {
    return fail(ErrorCode::Unsupported, "{}", checked.error().message());
  }
  return result;
}

bool Template::uses(std::size_t capture) const {
  return std::ranges::any_of(
      pieces_, [&](const TextAndValue& piece) { return piece.expression.uses(capture); });
}

}  // namespace ckfs
