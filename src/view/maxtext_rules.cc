#include "view/maxtext_rules.h"

#include "base/text.h"

namespace ckfs {

MaxTextRules rules_of(const ModelFamily& family, ConfigNumbers config, bool mtp) {
  MaxTextRules rules{&*family.maxtext, std::move(config)};
  rules.config.set("view.mtp", mtp ? 1 : 0);
  for (const auto& [key, number] : rules.trees->config) rules.config.set_default(key, number);
  return rules;
}

Result<MaxTextRules> find_rules(const Catalog& catalog, bool mtp, const Recipes& recipes) {
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
  if (mtp && !family->maxtext->mtp) {
    return fail(ErrorCode::Unsupported, "mtp=1: {} has no rules for such layers", family->file);
  }
  return rules_of(*family, std::move(config), mtp);
}

}  // namespace ckfs
