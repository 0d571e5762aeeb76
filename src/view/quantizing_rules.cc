// The rules of tools are lists of words and patterns; other differences are a function each. They
// are in the program and not in recipe files, because a tool's rule is part of the promise "equal
// to the tool": a user who changed one would keep the label.
#include "view/quantizing_rules.h"

#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "view/quantizing_view.h"
#include "view/view_table.h"

namespace ckfs {
namespace {

using ConfigJson = nlohmann::json;

constexpr std::string_view kPattern = "re:";
constexpr std::string_view kWeight = ".weight";

std::vector<std::string> split_list(std::string_view text) {
  std::vector<std::string> entries;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(';'), text.size());
    if (end > 0) entries.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(text.size(), end + 1));
  }
  return entries;
}

/// Whether a pattern has no sign in it.
bool is_word(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  });
}

/// Sorted, each once.
std::vector<std::string> as_set(std::vector<std::string> names) {
  std::ranges::sort(names);
  const auto repeated = std::ranges::unique(names);
  names.erase(repeated.begin(), repeated.end());
  return names;
}

std::string replace_all(std::string_view text, std::string_view what, std::string_view by) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t found = std::min(text.find(what, at), text.size());
    out += text.substr(at, found - at);
    if (found < text.size()) out += by;
    at = std::min(text.size(), found + what.size());
  }
  return out;
}

/// Fused experts have three dimensions.
std::string_view split_hint(std::size_t dimensions) {
  return dimensions == 3 ? "add experts=linear, or " : "";
}

// slime: tools/convert_hf_to_fp8.py 624b824.

/// A tensor is left if its name has one of these in it.
constexpr std::array<std::string_view, 13> kSlimeLeaves{
    "layernorm", "embed",        "router", "mlp.gate.", "norm",      "lm_head",  "eh_proj",
    "conv1d",    "weights_proj", "A_log",  "dt_bias",   "in_proj_a", "in_proj_b"};

class Slime final : public QuantizingTool {
 public:
  Slime(ModuleList ignored, std::optional<ModuleList> only, std::string_view block, bool ue8m0)
      : QuantizingTool(std::move(ignored), std::move(only)), block_(block), ue8m0_(ue8m0) {
    if (const auto extents = parse_block(block)) granule_ = {(*extents)[0], (*extents)[1]};
  }

  std::string text() const override {
    return ue8m0_ ? "DeepGEMM 54e2261, in the files of slime 624b824" : "slime 624b824";
  }
  QuantizedForm form() const override {
    if (block_ == "channel") return QuantizedForm::Fp8Channel;
    if (block_ == "tensor") return QuantizedForm::Fp8Tensor;
    return ue8m0_ ? QuantizedForm::Fp8Ue8m0 : QuantizedForm::Fp8Block;
  }
  QuantizedGranule granule() const override {
    constexpr std::int64_t kRow = std::numeric_limits<std::int64_t>::max();
    return block_ == "channel" ? QuantizedGranule{1, kRow} : granule_;
  }
  std::string output_name(std::string_view name, std::string_view suffix) const override {
    return suffix == "weight" ? std::string(name)
                              : replace_all(name, kWeight, fmt::format(".{}", suffix));
  }

  std::string configuration(const LeftNames& left) const override {
    std::vector<std::string> modules;
    for (const std::string& name : left.all) modules.push_back(replace_all(name, kWeight, ""));
    modules = as_set(std::move(modules));
    ConfigJson config;
    if (block_ == "channel") {
      ConfigJson weights{{"actorder", nullptr},
                         {"block_structure", nullptr},
                         {"dynamic", false},
                         {"group_size", nullptr},
                         {"num_bits", 8},
                         {"observer", "minmax"},
                         {"observer_kwargs", ConfigJson::object()},
                         {"strategy", "channel"},
                         {"symmetric", true},
                         {"type", "float"}};
      ConfigJson activations = weights;
      activations["dynamic"] = true;
      activations["observer"] = nullptr;
      activations["strategy"] = "token";
      config = {{"config_groups",
                 {{"group_0",
                   {{"input_activations", activations},
                    {"output_activations", nullptr},
                    {"targets", ConfigJson::array({"Linear"})},
                    {"weights", weights}}}}},
                {"format", "float-quantized"},
                {"ignore", modules},
                {"quant_method", "compressed-tensors"},
                {"quantization_status", "compressed"}};
      return config.dump(2);
    }
    config = {{"activation_scheme", "dynamic"}, {"fmt", "e4m3"}, {"quant_method", "fp8"}};
    if (block_ != "tensor") config["weight_block_size"] = {granule_.rows, granule_.columns};
    if (ue8m0_) config["scale_fmt"] = "ue8m0";
    if (!modules.empty()) config["modules_to_not_convert"] = modules;
    return config.dump(2);
  }

 private:
  ToolVerdict rule(std::string_view name, std::size_t dimensions,
                   std::size_t& /*steps*/) const override {
    if (name.find("weight") == std::string_view::npos) return {};
    const auto* const word = std::ranges::find_if(kSlimeLeaves, [&](std::string_view each) {
      return name.find(each) != std::string_view::npos;
    });
    if (word != kSlimeLeaves.end()) {
      return {ToolVerdict::Kind::Leave, fmt::format("slime leaves names with {}", quote(*word))};
    }
    if (name.find(kWeight) == std::string_view::npos) {
      return {ToolVerdict::Kind::Refuse,
              "slime takes it for a weight (its name has \"weight\" in it) and would write its "
              "scale over it (its name has no \".weight\"); name it in ignore="};
    }
    if (dimensions != 2) {
      return {
          ToolVerdict::Kind::Refuse,
          fmt::format("slime takes it for a weight, but it has {} dimensions (not 2); {}name it "
                      "in ignore=",
                      dimensions, split_hint(dimensions))};
    }
    return {ToolVerdict::Kind::Quantize};
  }

  const std::string block_;
  const bool ue8m0_;
  QuantizedGranule granule_;
};

// llm-compressor: model_free_ptq of 0.14.0.1, with compressed-tensors 0.20.1.

/// What its examples ignore, put together. The tool itself ignores nothing, not even embeddings.
constexpr std::array<std::string_view, 10> kCtIgnores{
    "re:.*lm_head$", "re:.*embed.*",     "re:.*gate$",    "re:.*router.*", "re:.*visual.*",
    "re:.*vision.*", "re:.*projector.*", "re:.*conv1d.*", "re:.*eh_proj$", "re:.*weights_proj$"};

struct CtScheme {
  std::string_view name;
  QuantizedForm form;
  QuantizedGranule granule;
  std::string_view format;
  std::string_view strategy, type;
  int bits = 8;
  bool symmetric = true;
  std::string_view scale_dtype = {};
  std::string_view activations = {};  // their strategy; empty: they are not quantized
};

constexpr std::int64_t kWholeRow = std::numeric_limits<std::int64_t>::max();
constexpr std::array<CtScheme, kCtSchemes.size()> kCt{{
    {"FP8_DYNAMIC",
     QuantizedForm::CtFp8Channel,
     {1, kWholeRow},
     "float-quantized",
     "channel",
     "float",
     8,
     true,
     {},
     "token"},
    {"FP8_BLOCK",
     QuantizedForm::CtFp8Block,
     {128, 128},
     "float-quantized",
     "block",
     "float",
     8,
     true,
     {},
     "group"},
    {"W8A8",
     QuantizedForm::CtInt8Channel,
     {1, kWholeRow},
     "int-quantized",
     "channel",
     "int",
     8,
     true,
     {},
     "token"},
    {"W4A16",
     QuantizedForm::CtInt4Group,
     {1, 128},
     "pack-quantized",
     "group",
     "int",
     4,
     true,
     {},
     {}},
    {"W4A16_ASYM",
     QuantizedForm::CtInt4GroupAsymmetric,
     {1, 128},
     "pack-quantized",
     "group",
     "int",
     4,
     false,
     {},
     {}},
    {"MXFP4A16",
     QuantizedForm::CtMxfp4,
     {1, 32},
     "mxfp4-pack-quantized",
     "group",
     "float",
     4,
     true,
     "torch.uint8",
     {}},
    {"MXFP8A16",
     QuantizedForm::CtMxfp8,
     {1, 32},
     "mxfp8-quantized",
     "group",
     "float",
     8,
     true,
     "torch.uint8",
     {}},
    {"NVFP4A16",
     QuantizedForm::CtNvfp4,
     {1, 16},
     "nvfp4-pack-quantized",
     "tensor_group",
     "float",
     4,
     true,
     "torch.float8_e4m3fn",
     {}},
}};

/// Weights of NVFP4 that share a scale. The parent is all before the first name; `ends`: how it
/// must end, one of them.
struct CtSet {
  std::span<const std::string_view> members;
  std::span<const std::string_view> ends;
};
constexpr std::array<std::string_view, 3> kQkv{"q_proj", "k_proj", "v_proj"};
constexpr std::array<std::string_view, 2> kWqa{"wq_a", "wkv_a_with_mqa"};
constexpr std::array<std::string_view, 2> kGateUp{"gate_proj", "up_proj"};
constexpr std::array<std::string_view, 2> kW1W3{"w1", "w3"};
constexpr std::array<std::string_view, 2> kQkva{"q_a_proj", "kv_a_proj_with_mqa"};
constexpr std::array<std::string_view, 2> kAttention{"attn.", "attention."};
constexpr std::array<std::string_view, 1> kMlp{"mlp."};
constexpr std::array<std::string_view, 1> kAny{""};
constexpr std::array<std::string_view, 1> kModule{"."};
/// model_free_ptq's own.
constexpr std::array<CtSet, 4> kSets{
    {{kQkv, kAttention}, {kWqa, kAttention}, {kGateUp, kMlp}, {kW1W3, kAny}}};
/// fuse=experts: those of oneshot.
constexpr std::array<CtSet, 4> kSetsOfParents{
    {{kGateUp, kModule}, {kQkv, kModule}, {kQkva, kModule}, {kW1W3, kModule}}};

class LlmCompressor final : public QuantizingTool {
 public:
  LlmCompressor(ModuleList ignored, std::optional<ModuleList> only, ModuleList all_ignored,
                const CtScheme& scheme, std::optional<std::int64_t> group, bool fuses)
      : QuantizingTool(std::move(ignored), std::move(only)),
        ignores_(std::move(all_ignored)),
        scheme_(scheme),
        granule_(group ? QuantizedGranule{1, *group} : scheme.granule),
        fuses_(fuses) {}

  std::string text() const override {
    return fuses_ ? "llm-compressor 0.14.0.1 (oneshot)" : "llm-compressor 0.14.0.1";
  }
  QuantizedForm form() const override { return scheme_.form; }
  QuantizedGranule granule() const override { return granule_; }
  bool splits_experts() const override { return true; }

  std::vector<std::string> set_of(std::string_view name) const override {
    const std::string_view module = module_of_weight(name);
    for (const CtSet& set : fuses_ ? kSetsOfParents : kSets) {
      for (const std::string_view member : set.members) {
        if (!module.ends_with(member)) continue;
        const std::string_view parent = module.substr(0, module.size() - member.size());
        if (std::ranges::none_of(set.ends,
                                 [&](std::string_view end) { return parent.ends_with(end); })) {
          continue;
        }
        std::vector<std::string> names;
        for (const std::string_view other : set.members) {
          names.push_back(fmt::format("{}{}{}", parent, other, kWeight));
        }
        return names;
      }
    }
    return {};
  }

  std::string configuration(const LeftNames& left) const override {
    const auto number = [](std::int64_t value) {
      return value == kWholeRow ? ConfigJson() : ConfigJson(value);
    };
    const bool is_block = scheme_.strategy == "block";
    ConfigJson weights{{"dynamic", false},
                       {"group_size", is_block ? ConfigJson() : number(granule_.columns)},
                       {"num_bits", scheme_.bits},
                       {"strategy", scheme_.strategy},
                       {"symmetric", scheme_.symmetric},
                       {"type", scheme_.type}};
    if (is_block) weights["block_structure"] = {granule_.rows, granule_.columns};
    if (!scheme_.scale_dtype.empty()) weights["scale_dtype"] = scheme_.scale_dtype;
    ConfigJson activations;
    if (!scheme_.activations.empty()) {
      activations = {
          {"dynamic", true},
          {"group_size", scheme_.activations == "group" ? ConfigJson(128) : ConfigJson()},
          {"num_bits", 8},
          {"strategy", scheme_.activations},
          {"symmetric", true},
          {"type", scheme_.type}};
    }
    std::vector<std::string> ignored = ignores_.texts();
    const std::vector<std::string> more = as_set(left.by_only);
    ignored.insert(ignored.end(), more.begin(), more.end());
    const ConfigJson config{{"config_groups",
                             {{std::string(scheme_.name),
                               {{"format", scheme_.format},
                                {"input_activations", activations},
                                {"output_activations", nullptr},
                                {"targets", ConfigJson::array({"Linear"})},
                                {"weights", weights}}}}},
                            {"format", scheme_.format},
                            {"global_compression_ratio", nullptr},
                            {"ignore", ignored},
                            {"kv_cache_scheme", nullptr},
                            {"moe_sparsity_config", nullptr},
                            {"quant_method", "compressed-tensors"},
                            {"quantization_status", "compressed"},
                            {"transform_config", ConfigJson::object()},
                            {"version", "0.20.1"}};
    return config.dump(2);
  }

 private:
  ToolVerdict rule(std::string_view name, std::size_t dimensions,
                   std::size_t& steps) const override {
    const std::string_view module = module_of_weight(name);
    if (module.size() == name.size()) return {};
    if (module.ends_with("norm")) {
      return {ToolVerdict::Kind::Leave, "llm-compressor leaves names that end in \"norm\""};
    }
    if (const std::string* entry = ignores_.find(module, steps)) {
      return {ToolVerdict::Kind::Leave, *entry};
    }
    if (dimensions != 2) {
      return {ToolVerdict::Kind::Refuse,
              fmt::format("llm-compressor takes it for a weight, but it has {} dimensions (not 2); "
                          "{}name its module in ignore=",
                          dimensions, split_hint(dimensions))};
    }
    return {ToolVerdict::Kind::Quantize};
  }

  const ModuleList ignores_;  // the default and the parameter's, as config.json has them
  const CtScheme& scheme_;
  const QuantizedGranule granule_;
  const bool fuses_;
};

// bitsandbytes 0.50.2 through transformers 5.24: every nn.Linear but the head. Names do not say
// which modules are linear ones; these are not.
constexpr std::array<std::string_view, 4> kNf4Leaves{"re:.*lm_head$", "re:.*embed.*",
                                                     "re:.*\\.gate$", "re:.*router.*"};

class BitsAndBytes final : public QuantizingTool {
 public:
  BitsAndBytes(ModuleList ignored, std::optional<ModuleList> only, ModuleList leaves)
      : QuantizingTool(std::move(ignored), std::move(only)), leaves_(std::move(leaves)) {}

  std::string text() const override { return "bitsandbytes 0.50.2"; }
  QuantizedForm form() const override { return QuantizedForm::Nf4; }
  QuantizedGranule granule() const override { return {1, 64}; }
  bool casts_all() const override { return true; }

  std::string configuration(const LeftNames& left) const override {
    std::vector<std::string> modules = left.by_ignore;
    modules.insert(modules.end(), left.by_only.begin(), left.by_only.end());
    modules = as_set(std::move(modules));
    const ConfigJson config{
        {"_load_in_4bit", true},
        {"_load_in_8bit", false},
        {"bnb_4bit_compute_dtype", "bfloat16"},
        {"bnb_4bit_quant_storage", "uint8"},
        {"bnb_4bit_quant_type", "nf4"},
        {"bnb_4bit_use_double_quant", false},
        {"llm_int8_enable_fp32_cpu_offload", false},
        {"llm_int8_has_fp16_weight", false},
        {"llm_int8_skip_modules", modules.empty() ? ConfigJson() : ConfigJson(modules)},
        {"llm_int8_threshold", 6.0},
        {"load_in_4bit", true},
        {"load_in_8bit", false},
        {"quant_method", "bitsandbytes"}};
    return config.dump(2);
  }

 private:
  ToolVerdict rule(std::string_view name, std::size_t dimensions,
                   std::size_t& steps) const override {
    const bool is_expert = name.find("experts.") != std::string_view::npos && dimensions == 3;
    if (is_expert) {
      return {ToolVerdict::Kind::Refuse,
              "bitsandbytes takes no fused experts (add experts=linear)"};
    }
    const std::string_view module = module_of_weight(name);
    if (module.size() == name.size() || dimensions != 2) return {};
    if (module.ends_with("norm")) return {ToolVerdict::Kind::Leave, "a norm"};
    if (const std::string* entry = leaves_.find(module, steps)) {
      return {ToolVerdict::Kind::Leave, *entry};
    }
    return {ToolVerdict::Kind::Quantize};
  }

  const ModuleList leaves_;
};

std::vector<std::string> texts_of(std::span<const std::string_view> texts) {
  return {texts.begin(), texts.end()};
}

}  // namespace

std::string_view module_of_weight(std::string_view name) {
  return name.ends_with(kWeight) ? name.substr(0, name.size() - kWeight.size()) : name;
}

Result<ModuleList> ModuleList::make(std::vector<std::string> entries) {
  constexpr std::size_t kMost = 256;
  if (entries.size() > kMost) {
    return fail(ErrorCode::InvalidArgument, "{} modules and patterns (limit {})", entries.size(),
                kMost);
  }
  ModuleList list;
  list.entries_.reserve(entries.size());  // words are views of texts that stay
  for (std::string& text : entries) {
    Entry& entry = list.entries_.emplace_back();
    entry.text = std::move(text);
    if (!entry.text.starts_with(kPattern)) continue;
    const std::string_view pattern = std::string_view(entry.text).substr(kPattern.size());
    entry.kind = Entry::Kind::Pattern;
    entry.pattern = ModulePattern(pattern);
    if (!entry.pattern.valid()) {
      return fail(ErrorCode::InvalidArgument, "{}: not a pattern that is understood",
                  quote(entry.text));
    }
  }
  // `.*word.*` and `.*word$`, the usual entries of lists, are looked for directly.
  for (Entry& entry : list.entries_) {
    if (entry.kind != Entry::Kind::Pattern) continue;
    std::string_view rest = std::string_view(entry.text).substr(kPattern.size());
    if (!rest.starts_with(".*")) continue;
    rest.remove_prefix(2);
    if (rest.ends_with(".*") && is_word(rest.substr(0, rest.size() - 2))) {
      entry.kind = Entry::Kind::Contains;
      entry.word = rest.substr(0, rest.size() - 2);
    } else if (rest.ends_with('$') && is_word(rest.substr(0, rest.size() - 1))) {
      entry.kind = Entry::Kind::Ends;
      entry.word = rest.substr(0, rest.size() - 1);
    }
  }
  return list;
}

const std::string* ModuleList::find(std::string_view module, std::size_t& steps) const {
  for (const Entry& entry : entries_) {
    bool found = false;
    switch (entry.kind) {
      case Entry::Kind::Name:
        found = entry.text == module;
        break;
      case Entry::Kind::Contains:
        found = module.find(entry.word) != std::string_view::npos;
        break;
      case Entry::Kind::Ends:
        found = module.ends_with(entry.word);
        break;
      case Entry::Kind::Pattern:
        if (steps >= ModuleTargets::kMostSteps) return nullptr;
        found = entry.pattern.matches(module, steps);
        break;
    }
    if (found) return &entry.text;
  }
  return nullptr;
}

std::vector<std::string> ModuleList::texts() const {
  std::vector<std::string> texts;
  for (const Entry& entry : entries_) texts.push_back(entry.text);
  return texts;
}

ToolVerdict QuantizingTool::judge(std::string_view name, std::size_t dimensions) const {
  ToolVerdict verdict = rule(name, dimensions, steps_);
  if (verdict.kind == ToolVerdict::Kind::Leave) return verdict;
  const std::string_view module = module_of_weight(name);
  if (const std::string* entry = ignored_.find(module, steps_)) {
    return {ToolVerdict::Kind::Leave, fmt::format("ignore={}", *entry), ToolVerdict::By::Ignore};
  }
  if (only_ && only_->find(module, steps_) == nullptr) {
    return {ToolVerdict::Kind::Leave, "only= does not name it", ToolVerdict::By::Only};
  }
  return verdict;
}

std::string QuantizingTool::output_name(std::string_view name, std::string_view suffix) const {
  return fmt::format("{}.{}", module_of_weight(name), suffix);
}

Result<void> QuantizingTool::check() const {
  if (steps_ < ModuleTargets::kMostSteps) return {};
  return fail(ErrorCode::InvalidArgument,
              "ignore= and only= need more than {} steps for the modules here",
              ModuleTargets::kMostSteps);
}

Result<std::unique_ptr<const QuantizingTool>> quantizing_tool(const ViewSpec& spec) {
  const auto refuse = [&](std::string_view what) {
    return fail(ErrorCode::InvalidArgument, "{}: {}", one_line(spec.canonical()), what);
  };
  const auto within = [&](Error error) {
    return Failure(error.within(one_line(spec.canonical())));
  };
  auto ignored = ModuleList::make(split_list(parameter_of(spec, "ignore", "")));
  if (!ignored) return within(ignored.error());
  std::optional<ModuleList> only;
  if (spec.parameters.contains("only")) {
    auto list = ModuleList::make(split_list(parameter_of(spec, "only", "")));
    if (!list) return within(list.error());
    only = *std::move(list);
  }
  if (spec.view == kFp8View) {
    const std::string_view block = parameter_of(spec, "block", "128x128");
    const bool ue8m0 = parameter_of(spec, "scale", "f32") == "ue8m0";
    if (ue8m0 && !parse_block(block)) {
      return refuse("scale=ue8m0 is for blocks (block=128x128)");
    }
    return std::make_unique<const Slime>(*std::move(ignored), std::move(only), block, ue8m0);
  }
  if (spec.view == kNf4View) {
    CKFS_TRY(ModuleList leaves, ModuleList::make(texts_of(kNf4Leaves)));
    return std::make_unique<const BitsAndBytes>(*std::move(ignored), std::move(only),
                                                std::move(leaves));
  }
  const std::string_view name = parameter_of(spec, "scheme", kCtSchemes[0]);
  const auto* const scheme = std::ranges::find(kCt, name, &CtScheme::name);
  CKFS_CHECK(scheme != kCt.end());
  std::optional<std::int64_t> group;
  if (spec.parameters.contains("group")) {
    if (scheme->format != "pack-quantized") return refuse("group= is for W4A16 and W4A16_ASYM");
    group = std::stoll(std::string(parameter_of(spec, "group", "")));
  }
  const bool fuses = spec.parameters.contains("fuse");
  if (fuses && scheme->form != QuantizedForm::CtNvfp4) return refuse("fuse= is for NVFP4A16");
  std::vector<std::string> all = texts_of(kCtIgnores);
  for (std::string& more : split_list(parameter_of(spec, "ignore", "")))
    all.push_back(std::move(more));
  auto list = ModuleList::make(std::move(all));
  if (!list) return within(list.error());
  return std::make_unique<const LlmCompressor>(*std::move(ignored), std::move(only),
                                               *std::move(list), *scheme, group, fuses);
}

}  // namespace ckfs
