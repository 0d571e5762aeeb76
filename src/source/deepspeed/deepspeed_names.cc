// Names are parsed, not globbed and sorted: DeepSpeed's own reader takes every *_optim_states.pt in
// "natural" order for a rank, and before 0.6.2 in the order of characters, where rank 10 comes
// before rank 2. Here a file's rank is the number in its name.
//
// The grammar is small and fixed, so it is a scanner of a few lines; std::regex would take longer
// than reading the files, on a directory of a thousand ranks.
#include "source/deepspeed/deepspeed_names.h"

#include <charconv>

namespace ckfs {
namespace {

/// Eats a name from its front.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool eat(std::string_view word) {
    if (!text_.starts_with(word)) return false;
    text_.remove_prefix(word.size());
    return true;
  }

  std::optional<std::uint32_t> number() {
    std::uint32_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc()) return std::nullopt;
    text_.remove_prefix(static_cast<std::size_t>(end - text_.data()));
    return value;
  }

  bool at_end() const { return text_.empty(); }

 private:
  std::string_view text_;
};

/// What follows the ending .pt in a name of FastPersist: -<writer>.<writers>
struct WriterSuffix {
  std::string_view stem;  // the name without it
  std::uint32_t writers = 0;
};

std::optional<WriterSuffix> parse_writer_suffix(std::string_view name) {
  const std::size_t end = name.rfind(".pt-");
  if (end == std::string_view::npos) return std::nullopt;
  Scanner rest(name.substr(end + 4));
  const auto writer = rest.number();
  if (!writer || !rest.eat(".")) return std::nullopt;
  const auto writers = rest.number();
  if (!writers || !rest.at_end()) return std::nullopt;
  return WriterSuffix{name.substr(0, end + 3), *writers};
}

// [bf16_|fp16_]zero_pp_rank_<dp>_mp_rank_<mp>[_]{optim|model}_states.pt
std::optional<DeepSpeedName> parse_rank_file(std::string_view name) {
  Scanner scan(name);
  if (!scan.eat("bf16_")) scan.eat("fp16_");
  if (!scan.eat("zero_pp_rank_")) return std::nullopt;
  const auto dp = scan.number();
  if (!dp || !scan.eat("_mp_rank_")) return std::nullopt;
  const auto mp = scan.number();
  if (!mp) return std::nullopt;
  scan.eat("_");  // very old writers have none
  const bool optimizer = scan.eat("optim_states.pt");
  if ((!optimizer && !scan.eat("model_states.pt")) || !scan.at_end()) return std::nullopt;
  return DeepSpeedName{optimizer ? DeepSpeedFile::Optimizer : DeepSpeedFile::ModelRank, *dp, *mp,
                       0};
}

// mp_rank_<mp>_model_states.pt
std::optional<DeepSpeedName> parse_shared_file(std::string_view name) {
  Scanner scan(name);
  if (!scan.eat("mp_rank_")) return std::nullopt;
  const auto mp = scan.number();
  if (!mp || !scan.eat("_model_states.pt") || !scan.at_end()) return std::nullopt;
  return DeepSpeedName{DeepSpeedFile::ModelShared, 0, *mp, 0};
}

// layer_<layer>[-model_<slice>]-model_states.pt
std::optional<DeepSpeedName> parse_layer_file(std::string_view name) {
  Scanner scan(name);
  if (!scan.eat("layer_")) return std::nullopt;
  const auto layer = scan.number();
  if (!layer) return std::nullopt;
  std::uint32_t slice = 0;
  if (!scan.eat("-model_states.pt")) {
    if (!scan.eat("-model_")) return std::nullopt;
    const auto number = scan.number();
    if (!number || !scan.eat("-model_states.pt")) return std::nullopt;
    slice = *number;
  }
  if (!scan.at_end()) return std::nullopt;
  return DeepSpeedName{DeepSpeedFile::Layer, 0, slice, *layer};
}

bool is_expert_file(std::string_view name) {
  if (!name.ends_with("_states.pt")) return false;
  if (name.starts_with("expp_rank_") || name.starts_with("expert_")) return true;
  return name.starts_with("layer_") && name.find("_expert_") != std::string_view::npos;
}

void add_file(DeepSpeedTag& tag, const DeepSpeedName& name, const std::string& path) {
  bool is_new = true;
  switch (name.kind) {
    case DeepSpeedFile::Optimizer:
      is_new = tag.cells[name.mp].optimizer.emplace(name.dp, path).second;
      break;
    case DeepSpeedFile::ModelRank:
      is_new = tag.cells[name.mp].model_ranks.emplace(name.dp, path).second;
      break;
    case DeepSpeedFile::ModelShared: {
      std::string& known = tag.cells[name.mp].model_shared;
      is_new = known.empty();
      if (is_new) known = path;
      break;
    }
    case DeepSpeedFile::Layer:
      tag.layers.push_back({name.layer, name.mp, path});
      break;
    case DeepSpeedFile::Expert:
      tag.experts.push_back(path);
      break;
    case DeepSpeedFile::Split:
      tag.splits.push_back(path);
      break;
  }
  if (!is_new) tag.twin = path;
}

}  // namespace

std::optional<DeepSpeedName> parse_deepspeed_name(std::string_view name) {
  bool split = false;
  if (const auto suffix = parse_writer_suffix(name)) {
    name = suffix->stem;
    split = suffix->writers != 1;
  }
  std::optional<DeepSpeedName> parsed = parse_rank_file(name);
  if (!parsed) parsed = parse_shared_file(name);
  if (!parsed) parsed = parse_layer_file(name);
  if (!parsed && is_expert_file(name)) parsed = DeepSpeedName{DeepSpeedFile::Expert, 0, 0, 0};
  if (parsed && split) parsed->kind = DeepSpeedFile::Split;
  return parsed;
}

std::string tag_name(const DeepSpeedTag& tag) {
  return tag.prefix.empty() ? "." : tag.prefix.substr(0, tag.prefix.size() - 1);
}

std::vector<DeepSpeedTag> find_deepspeed_tags(const SourceTree& tree) {
  std::map<std::string, DeepSpeedTag> tags;
  for (const TreeFile& file : tree.files) {
    const std::size_t slash = file.path.rfind('/');
    const std::size_t begin = slash == std::string::npos ? 0 : slash + 1;
    const auto name = parse_deepspeed_name(std::string_view(file.path).substr(begin));
    if (!name) continue;
    const std::string prefix = file.path.substr(0, begin);
    DeepSpeedTag& tag = tags[prefix];
    tag.prefix = prefix;
    add_file(tag, *name, file.path);
  }
  std::vector<DeepSpeedTag> found;
  for (auto& [prefix, tag] : tags) found.push_back(std::move(tag));
  return found;
}

}  // namespace ckfs
