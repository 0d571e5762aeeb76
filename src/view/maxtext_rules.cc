#include "view/maxtext_rules.h"

#include <algorithm>

#include "base/text.h"

namespace ckfs {
namespace {

/// 10000 a + 100 b + c of "a.b.c".
double release_number(std::string_view release) {
  double number = 0, part = 0;
  for (const char c : release) {
    if (c == '.') {
      number = 100 * (number + part);
      part = 0;
    } else {
      part = 10 * part + (c - '0');
    }
  }
  return number + part;
}

}  // namespace

std::span<const std::string_view> releases_of(const MaxTextTrees& trees) {
  if (!trees.releases.empty()) return trees.releases;
  return std::span(kMaxTextReleases).first(1);
}

MaxTextRules rules_of(const ModelFamily& family, ConfigNumbers config,
                      const MaxTextChoice& choice) {
  MaxTextRules rules{&family, std::move(config)};
  rules.config.set_text("view.dtype", choice.dtype ? name(*choice.dtype) : "");
  rules.config.set("view.mtp", choice.mtp ? 1 : 0);
  rules.config.set("view.multimodal", choice.multimodal ? 1 : 0);
  rules.config.set("view.maxtext",
                   release_number(choice.release.empty() ? releases_of(*family.maxtext).front()
                                                         : choice.release));
  for (const auto& [key, number] : rules.trees().config) rules.config.set_default(key, number);
  return rules;
}

Result<TensorList> scan(const MaxTextRules& rules, TensorList list) {
  const RuleList& scanned = rules.trees().scanned;
  if (scanned.rules.empty()) {
    return fail(ErrorCode::Unsupported,
                "MaxText has no tree with stacked layers for this model ({}); maxtext-unscanned is "
                "what it reads",
                rules.trees().unscanned.file);
  }
  return apply_rules(scanned, rules.config, std::move(list));
}

Result<MaxTextRules> find_rules(const Catalog& catalog, const MaxTextChoice& choice,
                                const Recipes& recipes) {
  CKFS_TRY(ConfigNumbers config, config_numbers(catalog));
  const ModelFamily* family = recipes.find_maxtext(config);
  if (family == nullptr) {
    const std::vector<std::string> models = recipes.models(config);
    return fail(ErrorCode::Unsupported,
                "no rules are known for this model ({}; --family names another, --recipe adds "
                "rules: ckfs-recipe(5))",
                models.empty() ? "config.json has no model_type"
                               : fmt::format("model_type {}", one_line(models.front())));
  }
  const MaxTextTrees& trees = *family->maxtext;
  if (choice.mtp && !trees.mtp) {
    return fail(ErrorCode::Unsupported, "mtp=1: {} has no rules for such layers", family->file);
  }
  if (choice.multimodal && !trees.multimodal) {
    return fail(ErrorCode::Unsupported, "multimodal=1: {} has no rules for such encoders",
                family->file);
  }
  if (!trees.releases.empty() && !choice.release.empty() &&
      std::ranges::find(trees.releases, choice.release) == trees.releases.end()) {
    return fail(ErrorCode::Unsupported, "maxtext={}: {} has rules for MaxText {} alone",
                choice.release, family->file, fmt::join(trees.releases, ", "));
  }
  return rules_of(*family, std::move(config), choice);
}

}  // namespace ckfs
