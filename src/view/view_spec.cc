// Names of views, as directories and as arguments: `bf16-safetensors@max_shard=5GB`.
//
// A spelling is normalized as soon as it is parsed, so that all later code (inodes, the cache of
// views, the record of an export) compares plain strings. The alternative, to keep the user's
// spelling and compare by meaning, would need that comparison in each of those places.
#include <algorithm>
#include <charconv>

#include "base/size_text.h"
#include "base/text.h"
#include "view/recipes/recipe.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {
namespace {

bool is_value(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '+' || c == '-';
  });
}

Result<std::string> normalize(std::string_view spelling, const ParameterRow& parameter,
                              std::string_view value) {
  if (parameter.greatest > 0) {
    std::uint64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number == 0 ||
        number > parameter.greatest) {
      return fail(ErrorCode::InvalidArgument, "{}: {} {} is not a whole number from 1 to {}",
                  one_line(spelling), parameter.key, quote(value), parameter.greatest);
    }
    return fmt::format("{}", number);
  }
  if (!parameter.is_size()) {
    if (std::ranges::find(parameter.choices, value) == parameter.choices.end()) {
      return fail(ErrorCode::InvalidArgument, "{}: {} {} is not one of: {}", one_line(spelling),
                  parameter.key, quote(value), fmt::join(parameter.choices, ", "));
    }
    return std::string(value);
  }
  const Result<std::uint64_t> bytes = parse_size(value);
  if (!bytes)
    return Failure(bytes.error().within(fmt::format("{}: {}", one_line(spelling), parameter.key)));
  if (*bytes == 0) {
    return fail(ErrorCode::InvalidArgument, "{}: {} 0 < 1", one_line(spelling), parameter.key);
  }
  return size_text(*bytes);
}

}  // namespace

std::string ViewSpec::canonical() const {
  std::string text = view;
  char separator = '@';
  for (const auto& [key, value] : parameters) {
    text += separator;
    text += key;
    text += '=';
    text += value;
    separator = ',';
  }
  return text;
}

Result<ViewSpec> parse_view_spec(std::string_view spelling, const Recipes& recipes) {
  const std::size_t at = spelling.find('@');
  const std::string_view name = spelling.substr(0, at);
  const RecipeView* recipe = recipes.find_view(name);
  const ViewRow* row =
      recipe != nullptr ? &recipe_view_row(recipe->container) : find_view_row(name);
  if (row == nullptr) return fail(ErrorCode::NotFound, "{}: no such view", one_line(spelling));

  ViewSpec spec{std::string(name), {}};
  if (at == std::string_view::npos) return spec;
  std::map<std::string, std::string, std::less<>> seen;
  std::string_view rest = spelling.substr(at + 1);
  for (bool more = true; more;) {
    const std::size_t comma = rest.find(',');
    const std::string_view pair = rest.substr(0, comma);
    more = comma != std::string_view::npos;
    rest.remove_prefix(more ? comma + 1 : rest.size());

    const std::size_t equals = pair.find('=');
    const std::string_view key = pair.substr(0, equals);
    if (equals == std::string_view::npos || !is_value(pair.substr(equals + 1))) {
      return fail(ErrorCode::InvalidArgument, "{}: {} is not key=value (letters, digits and ._+-)",
                  one_line(spelling), quote(pair));
    }
    const auto parameter = std::ranges::find(row->parameters, key, &ParameterRow::key);
    if (parameter == row->parameters.end()) {
      return fail(ErrorCode::InvalidArgument, "{}: {} has no parameter {}", one_line(spelling),
                  name, quote(key));
    }
    CKFS_TRY(std::string value, normalize(spelling, *parameter, pair.substr(equals + 1)));
    if (!seen.emplace(key, value).second) {
      return fail(ErrorCode::InvalidArgument, "{}: {} comes twice", one_line(spelling), key);
    }
    if (value != parameter->default_value) spec.parameters.emplace(key, std::move(value));
  }
  return spec;
}

}  // namespace ckfs
