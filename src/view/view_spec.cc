// Names of views, as directories and as arguments: `bf16-safetensors@max_shard=5GB`.
//
// A spelling is normalized as soon as it is parsed, so that all later code (inodes, the cache of
// views, the record of an export) compares plain strings. The alternative, to keep the user's
// spelling and compare by meaning, would need that comparison in each of those places.
#include <algorithm>
#include <charconv>

#include "base/size_text.h"
#include "base/suggest.h"
#include "base/text.h"
#include "view/recipes/recipe.h"
#include "view/view.h"
#include "view/view_table.h"

namespace ckfs {
namespace {

/// Names of modules and patterns may have all that a file name may, but the ',' between parameters.
bool is_value(std::string_view text, const ParameterRow* parameter) {
  if (parameter != nullptr && parameter->form == ParameterForm::Modules) {
    return !text.empty() && std::ranges::all_of(text, [](char c) {
      return c > ' ' && c < 0x7f && c != ',' && c != '/';
    });
  }
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '+' || c == '-';
  });
}

std::vector<std::string_view> names_of_parameters(const ViewRow& row) {
  std::vector<std::string_view> names;
  for (const ParameterRow& parameter : row.parameters) names.push_back(parameter.key);
  return names;
}

/// What a parameter does, in one sentence; the manual has more.
std::string_view text_of(std::string_view key) {
  struct Text {
    std::string_view key, text;
  };
  constexpr Text kTexts[] = {
      {"block", "the values that share a scale: a block, a row (channel) or all (default 128x128)"},
      {"cast", "which tensors take the view's dtype (default: all, or those that are quantized)"},
      {"dtype", "dtype of the floats (source: that of the source)"},
      {"ep", "devices of the target's mesh along its expert axis (default 1)"},
      {"exact", "1 shows FP4 experts as FP8 without changing a value, or refuses"},
      {"exclude_frozen", "1 leaves out weights that were not trained"},
      {"experts", "layout of the experts: one matrix each, fused, or as on the hub"},
      {"format", "safetensors files, or files of torch.save (bin)"},
      {"frozen", "module also shows frozen weights that only the module's state has"},
      {"fuse", "experts also share the global scale of NVFP4: gate and up, q, k and v"},
      {"fsdp", "devices of the target's mesh along its fsdp axis (default 1)"},
      {"group", "values of a row that share a scale, of W4A16 (default 128)"},
      {"ignore", "modules that are not quantized, beside those that the tool leaves; ';' between"},
      {"layers", "layers one by one, or stacked in one tensor as Megatron before 0.13 wants"},
      {"master", "1 shows the FP32 masters of Megatron's optimizer"},
      {"max_chunk", "bytes of a chunk, at most (default 64MiB)"},
      {"max_shard", "bytes of a file, at most, such as 5GB (default: 5GB, or the source's files)"},
      {"maxtext", "release of MaxText that reads the view, or wrote the source"},
      {"mtp", "1 adds the layer for multi-token prediction of DeepSeek V3"},
      {"multimodal", "1 adds what sees and hears: the encoders of images and sounds"},
      {"names", "whose names and shapes the tensors have (default hf: Hugging Face's)"},
      {"only", "no other modules are quantized; ';' between"},
      {"scale", "ue8m0: scales are powers of two, as DeepGEMM makes them"},
      {"scheme", "the scheme of llm-compressor (default FP8_DYNAMIC)"},
      {"step", "step that the checkpoint is of"},
      {"storage", "chunks in one OCDBT database, or in a file each (zarr3, zarr2)"},
      {"tp", "devices of the target's mesh along its tensor axis (default 1)"},
      {"unscaled",
       "F8 weights without a scale: take their bits as values (one), keep them, or drop "
       "them"},
  };
  const auto* const found = std::ranges::find(kTexts, key, &Text::key);
  return found == std::end(kTexts) ? std::string_view() : found->text;
}

Result<std::string> normalize(std::string_view spelling, const ParameterRow& parameter,
                              std::string_view value) {
  if (parameter.form == ParameterForm::Modules) return std::string(value);
  if (parameter.form == ParameterForm::Block && parse_block(value)) return std::string(value);
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
      return fail(ErrorCode::InvalidArgument, "{}: {} {} is not one of: {}{}", one_line(spelling),
                  parameter.key, quote(value), fmt::join(parameter.choices, ", "),
                  parameter.form == ParameterForm::Block ? ", ROWSxCOLUMNS (each from 1)" : "");
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

std::optional<std::array<std::int64_t, 2>> parse_block(std::string_view text) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  std::array<std::int64_t, 2> block{};
  const char* at = text.data();
  const char* const end = text.data() + text.size();
  for (std::int64_t& extent : block) {
    if (&extent != block.data()) {
      if (at == end || *at != 'x') return std::nullopt;
      ++at;
    }
    if (at == end || *at == '0') return std::nullopt;  // one spelling for each
    const auto [next, error] = std::from_chars(at, end, extent);
    if (error != std::errc() || extent < 1 || extent > kMost) return std::nullopt;
    at = next;
  }
  if (at != end) return std::nullopt;
  return block;
}

std::vector<std::string_view> names_of_views(const Recipes& recipes) {
  std::vector<std::string_view> names;
  for (const ViewRow& row : view_table()) names.push_back(row.name);
  for (const RecipeView& recipe : recipes.views) names.push_back(recipe.name);
  return names;
}

std::vector<ViewHelp> help_on_views() {
  std::vector<ViewHelp> views;
  for (const ViewRow& row : view_table()) {
    ViewHelp& view = views.emplace_back(row.name, row.description);
    for (const ParameterRow& parameter : row.parameters) {
      const std::string values =
          parameter.is_size()                        ? "SIZE"
          : parameter.form == ParameterForm::Modules ? "MODULES"
          : parameter.choices.empty()
              ? "N"
              : fmt::format("{}{}", parameter.form == ParameterForm::Block ? "ROWSxCOLUMNS|" : "",
                            fmt::join(parameter.choices, "|"));
      view.parameters.push_back({parameter.key, values, text_of(parameter.key)});
    }
  }
  return views;
}

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
  if (row == nullptr) {
    return fail(ErrorCode::NotFound, "{}: no such view{}", one_line(spelling),
                did_you_mean(name, names_of_views(recipes)));
  }

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
    const auto parameter = std::ranges::find(row->parameters, key, &ParameterRow::key);
    const ParameterRow* const known = parameter == row->parameters.end() ? nullptr : &*parameter;
    if (equals == std::string_view::npos || !is_value(pair.substr(equals + 1), known)) {
      return fail(ErrorCode::InvalidArgument, "{}: {} is not key=value (letters, digits and ._+-)",
                  one_line(spelling), quote(pair));
    }
    if (parameter == row->parameters.end()) {
      return fail(ErrorCode::InvalidArgument, "{}: {} has no parameter {}{}", one_line(spelling),
                  name, quote(key), did_you_mean(key, names_of_parameters(*row)));
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
