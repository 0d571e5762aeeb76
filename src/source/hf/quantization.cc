// Tensors decide what is quantized, not the configuration: configs name modules by patterns that no
// two tools read alike, and are lost or stale in every tenth upload, while a weight of one-byte
// floats with a grid of scales beside it can only be one thing. The configuration gives what
// tensors cannot: the method's name and the block size. (transformers infers the block from the
// grid, which is wrong wherever the last block is partial.)
//
// Whatever does not fit is an obstacle, which takes the converted views away; a tensor is never
// shown by a guess.
#include "source/hf/quantization.h"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "base/name_hash.h"
#include "base/text.h"
#include "format/json_tree.h"
#include "format/module_pattern.h"
#include "source/hf/scale_names.h"
#include "source/hf/scheme.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

/// The most bytes of one checkpoint that are read of the tensors that say how others are quantized.
/// A thousand weights of the usual kinds have a megabyte of them.
constexpr std::uint64_t kMaxWantedTogether = std::uint64_t{96} << 20;

std::string_view last_word(std::string_view name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string_view::npos ? name : name.substr(dot + 1);
}

/// Beside a weight of ComfyUI's: which of its formats that is.
constexpr std::string_view kComfyFormat = ".comfy_quant";
/// And of a whole file: a tensor that only says that its F8 has scales.
constexpr std::string_view kComfyMark = "scaled_fp8";

/// Whether elements of that dtype may be codes: not floats that are cast, complex numbers or
/// booleans.
bool may_be_codes(DType dtype) {
  return !is_castable_float(dtype) && dtype != DType::Bool && dtype != DType::C64 &&
         dtype != DType::C128;
}

class Quantizer final : public HeldTensors {
 public:
  Quantizer(CatalogBuilder& builder, const TensorNames& names,
            const std::optional<QuantizationConfig>& config, ByteSource& source,
            QuantizationCost& cost)
      : builder_(builder),
        names_(names),
        declared_(config.has_value()),
        config_(config.value_or(QuantizationConfig{})),
        targets_(config_, ModuleTargets::kMostSteps, cost.pattern_steps),
        source_(source),
        cost_(cost),
        claimed_(builder.tensor_count(), false),
        companion_(builder.tensor_count(), false) {}

  ~Quantizer() override { cost_.pattern_steps = targets_.steps(); }
  Quantizer(const Quantizer&) = delete;
  Quantizer& operator=(const Quantizer&) = delete;

  Result<std::vector<bool>> run() {
    recognize();
    if (!config_.method.empty() && !is_known_method()) {
      refuse_method();
      return std::move(companion_);
    }
    CKFS_TRY_VOID(targets_.check());
    CKFS_TRY_VOID(read_wanted());
    // All are read before one is taken: that gives its codes another shape.
    std::vector<std::optional<QuantizedWeight>> weights;
    weights.reserve(claims_.size());
    for (const Claim& claim : claims_) weights.push_back(read(claim));
    for (std::size_t i = 0; i < claims_.size(); ++i) {
      if (weights[i]) take(claims_[i], *std::move(weights[i]));
    }
    find_suspects();
    if (!check_config()) return std::vector<bool>(companion_.size(), false);
    check_targets();
    sweep();
    describe();
    CKFS_TRY_VOID(targets_.check());
    return std::move(companion_);
  }

  std::optional<TensorId> find(std::string_view name, std::string_view suffix) const override {
    return names_.find(name, suffix, near_);
  }
  std::string_view name(TensorId id) const override { return builder_.tensor(id).name; }
  std::span<const std::int64_t> shape(TensorId id) const override {
    return builder_.tensor(id).shape;
  }
  DType dtype(TensorId id) const override {
    return builder_.storage(builder_.tensor(id).storage).dtype;
  }
  std::span<const std::byte> content(TensorId id) const override {
    const auto at = contents_.find(id);
    return at == contents_.end() ? std::span<const std::byte>() : at->second;
  }
  const QuantizationConfig& config() const override { return config_; }
  const QuantizationGroup* group(std::string_view module) const override {
    return targets_.find(module);
  }
  std::shared_ptr<const WeightKind> shared(std::string key,
                                           const std::function<WeightKind()>& make) const override {
    auto& kind = kinds_[std::move(key)];
    if (!kind) kind = std::make_shared<const WeightKind>(make());
    return kind;
  }

 private:
  /// A tensor that a scheme takes for the codes of a weight.
  struct Claim {
    TensorId codes = 0;
    const Scheme* scheme = nullptr;
    std::string_view name;  // as it is stored
  };

  void recognize() {
    for (TensorId id = 0; id < companion_.size(); ++id) {
      near_ = id;
      has_mark_ = has_mark_ || name(id).ends_with(kComfyMark) || name(id).ends_with(kComfyFormat);
      for (const Scheme& scheme : quantization_schemes()) {
        if (!scheme.recognizes(*this, id)) continue;
        claims_.push_back({id, &scheme, name(id)});
        claimed_[id] = true;
        targets_.saw(module_of(name(id)));
        break;
      }
    }
  }

  Result<void> read_wanted() {
    std::vector<WantedTensor> wanted;
    for (const Claim& claim : claims_) {
      near_ = claim.codes;
      if (claim.scheme->wants != nullptr) claim.scheme->wants(*this, claim.codes, wanted);
      if (const auto format = comfy_format(claim)) wanted.push_back({*format});
    }
    const auto checks = std::ranges::count_if(wanted, &WantedTensor::is_check);
    const bool checked = checks <= static_cast<std::ptrdiff_t>(kMaxChecked);
    std::vector<ReadRequest> batch;
    for (const auto& [id, is_check] : wanted) {
      if (is_check && !checked) continue;
      const Storage& storage = builder_.storage(builder_.tensor(id).storage);
      // A hostile size has no content; read() finds it of the wrong length.
      std::vector<std::byte>& bytes = contents_[id];
      if (storage.nbytes() > kMaxWanted || !bytes.empty()) continue;
      cost_.read += storage.nbytes();
      if (cost_.read > kMaxWantedTogether) {
        return fail(ErrorCode::Corrupt,
                    "tensor {}: {} bytes to read, with those before it, of tensors that say how "
                    "others are quantized (limit {})",
                    quote(name(id)), cost_.read, kMaxWantedTogether);
      }
      bytes.resize(storage.nbytes());
      for (const Extent& extent : storage.extents) {
        batch.push_back(
            {extent.file, extent.offset, std::span(bytes).subspan(extent.begin, extent.nbytes)});
      }
    }
    return batch.empty() ? Result<void>() : source_.read(batch);
  }

  /// What the claim's weight is; nullopt: it is refused.
  std::optional<QuantizedWeight> read(const Claim& claim) {
    const auto refuse = [&](const std::string& reason) {
      builder_.add_obstacle(name(claim.codes), reason);
      return std::nullopt;
    };
    const std::vector<std::string_view>& methods = claim.scheme->methods;
    if (!config_.method.empty() && !methods.empty() &&
        std::ranges::find(methods, config_.method) == methods.end()) {
      return refuse(fmt::format("looks like {}, but {} says quant_method {}", claim.scheme->name,
                                config_.file, quote(config_.method)));
    }
    if (const std::string reason = format_reason(claim); !reason.empty()) {
      return refuse(reason);
    }
    near_ = claim.codes;
    const std::optional<TensorId> comfy = comfy_format(claim);
    if (comfy) {
      if (const std::string reason = comfy_reason(claim, *comfy); !reason.empty()) {
        return refuse(reason);
      }
    }
    Result<QuantizedWeight> weight = claim.scheme->read(*this, claim.codes);
    if (!weight) {
      return refuse(weight.error().message());
    }
    if (comfy) weight->left_out.push_back(*comfy);
    for (const auto* parts : {&weight->companions, &weight->left_out}) {
      const auto part = std::ranges::find_if(*parts, [this](TensorId id) { return claimed_[id]; });
      if (part == parts->end()) continue;
      return refuse(fmt::format("its {} looks quantized, too", last_word(name(*part))));
    }
    if (!weight->name.empty() && find(weight->name, {})) {
      return refuse(fmt::format("decodes to {}, which is stored, too", weight->name));
    }
    if (!weight->name.empty() && !stands_for_.insert(weight->name).second) {
      return refuse(fmt::format("decodes to {}, as another tensor does", weight->name));
    }
    return *std::move(weight);
  }

  /// ComfyUI's own word on the weight: JSON in a tensor of bytes.
  std::optional<TensorId> comfy_format(const Claim& claim) const {
    return find(module_of(claim.name), kComfyFormat);
  }

  /// Why ckfs does not decode the weight, by ComfyUI's mark on it; empty: it does. ComfyUI's
  /// formats of 4 bits and of blocks have the names and dtypes of ModelOpt's, but scales in the
  /// order in which a GPU reads them.
  std::string comfy_reason(const Claim& claim, TensorId id) const {
    const auto bytes = content(id);
    const auto json = parse_json_tree({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                                      "comfy_quant", JsonKeys::Unique);
    if (!json) return fmt::format("its {}", json.error().message());
    const JsonNode* const format = json->find("format");
    if (format == nullptr || format->kind != JsonNode::Kind::String) {
      return "its comfy_quant says no format";
    }
    const DType type = dtype(claim.codes);
    if (format->text == "float8_e4m3fn" && type == DType::F8E4M3) return {};
    if (format->text == "float8_e5m2" && type == DType::F8E5M2) return {};
    return fmt::format("{} that comfy_quant calls {} (known: F8 as float8_e4m3fn, float8_e5m2)",
                       ckfs::name(type), quote(one_line(format->text)));
  }

  /// Why compressed-tensors' format does not go with the tensor; empty: it does.
  std::string format_reason(const Claim& claim) const {
    if (config_.method != "compressed-tensors" || claim.scheme->formats.empty()) return {};
    const QuantizationGroup* const found = group(module_of(claim.name));
    std::string_view format = config_.value("format");
    if (found != nullptr && !found->format.empty()) format = found->format;
    const auto goes = [&](const Scheme& scheme) {
      return std::ranges::find(scheme.formats, format) != scheme.formats.end();
    };
    // Groups of several formats may be declared without theirs; a dense model may have this one.
    if (format.empty() || format == "mixed-precision" || goes(*claim.scheme)) return {};
    if (std::ranges::none_of(quantization_schemes(), goes)) {
      return fmt::format("format {}, which ckfs cannot decode", quote(format));
    }
    return fmt::format("looks like {}, but {} says format {}", claim.scheme->name, config_.file,
                       quote(format));
  }

  void take(const Claim& claim, QuantizedWeight weight) {
    const StoredTensor& codes = builder_.tensor(claim.codes);
    const StorageId storage = codes.storage;
    std::vector<StorageId> companions;
    for (const TensorId id : weight.companions) {
      companions.push_back(builder_.tensor(id).storage);
      leave_out(id, "used to decode its weight");
    }
    for (const TensorId id : weight.left_out) leave_out(id, "describes how its weight is stored");
    Count& count = counts_[{claim.scheme, weight.kind.get()}];
    if (count.weights++ == 0) count.first = claim.codes;
    builder_.set_encoding(storage, weight.kind->encoding, companions, weight.numel);
    for (StorageBox& box : weight.boxes) box.storage = storage;
    const std::string_view shown = weight.name.empty() ? codes.name : weight.name;
    builder_.redefine(claim.codes, shown, weight.shape, std::move(weight.boxes));
  }

  void leave_out(TensorId id, std::string_view reason) {
    if (companion_[id]) return;
    companion_[id] = true;
    ++left_out_[{last_word(name(id)), reason}];
  }

  void refuse(TensorId id, std::string_view reason) {
    builder_.add_obstacle(name(id), reason);
    refused_ = true;
  }
  void refuse_config(std::string_view reason) {
    builder_.add_obstacle(config_.file, reason);
    refused_ = true;
  }

  /// What the configuration says of the whole. False: nothing is quantized.
  bool check_config() {
    if (claims_.empty() && !declared_) return !suspects_.empty() || has_mark_;
    if (claims_.empty()) {
      if (config_.method.empty()) refuse_config("quantization_config has no quant_method");
      return true;
    }
    if (config_.transforms) {
      refuse_config(
          "transform_config is not empty: the weights are rotated, and a dense checkpoint cannot "
          "hold the "
          "operation that turns them back at run time");
    }
    if (config_.method.empty()) {
      builder_.add_note(config_.file,
                        "does not say how weights are quantized; their names and dtypes do");
    }
    return true;
  }

  /// A module's name with 0 for each number: the same in all layers.
  static std::string kind_of(std::string_view module) {
    std::string kind;
    for (const char c : module) {
      const bool digit = c >= '0' && c <= '9';
      if (!digit) kind += c;
      if (digit && (kind.empty() || kind.back() != '0')) kind += '0';
    }
    return kind;
  }

  /// Compares the configuration's targets with tensors that are not quantized. Of the modules that
  /// a pattern names, compressed-tensors quantizes those of the class Linear, which tensors do not
  /// show: embeddings and routers are matrices, too. So a pattern counts for modules that are
  /// quantized in other layers.
  void check_targets() {
    if (claims_.empty()) return;
    for (const std::string& target : targets_.without_match()) {
      std::string text =
          fmt::format("target {} of its config_groups matches no quantized weight", quote(target));
      // Recipes list patterns for modules that a model may not have, and ModelOpt the names that
      // vLLM gives to several modules together ("gate_up_proj").
      if (target.starts_with("re:") || config_.method.starts_with("modelopt")) {
        builder_.add_note(config_.file, std::move(text));
      } else {
        refuse_config(text);
      }
    }
    std::unordered_set<std::string, NameHash> kinds;
    const auto is_known_kind = [&](std::string_view module) {
      if (kinds.empty()) {
        for (const Claim& claim : claims_) kinds.insert(kind_of(module_of(claim.name)));
      }
      return kinds.contains(kind_of(module));
    };
    for (TensorId id = 0; id < companion_.size(); ++id) {
      const bool plain =
          name(id).ends_with(".weight") && shape(id).size() == 2 && is_castable_float(dtype(id));
      if (!plain) continue;
      using Call = ModuleTargets::Call;
      const std::string_view module = module_of(name(id));
      const Call call = targets_.calls_quantized(module);
      if (call == Call::None || (call == Call::Pattern && !is_known_kind(module))) continue;
      builder_.add_obstacle(
          name(id), fmt::format("is {}, but a target of {}'s config_groups calls it quantized",
                                ckfs::name(dtype(id)), config_.file));
    }
  }

  bool is_known_method() const {
    return std::ranges::any_of(quantization_schemes(), [&](const Scheme& scheme) {
      return std::ranges::find(scheme.methods, config_.method) != scheme.methods.end();
    });
  }

  /// Nothing is shown of a method that no scheme knows: its tensors may look like anything, plain
  /// ones among them.
  void refuse_method() {
    const std::string reason =
        fmt::format("quant_method {}, which ckfs cannot decode", quote(config_.method));
    bool named = false;
    for (TensorId id = 0; id < companion_.size(); ++id) {
      if (!claimed_[id] && !is_f8(dtype(id))) continue;
      builder_.add_obstacle(name(id), reason);
      named = true;
    }
    if (!named) builder_.add_obstacle(config_.file, reason);
    builder_.set_quantization({.summary = config_.method, .groups = {}, .left_out = {}});
  }

  /// A tensor that belongs to a weight of some scheme.
  struct Auxiliary {
    const Scheme* scheme = nullptr;  // nullptr: none
    std::string_view stem;           // the name without what makes it one
  };
  Auxiliary auxiliary(TensorId id) const {
    for (const Scheme& scheme : quantization_schemes()) {
      for (const std::string_view ending : scheme.auxiliaries) {
        if (name(id).ends_with(ending)) return {&scheme, without(name(id), ending)};
      }
    }
    return {};
  }

  /// A tensor that no scheme takes and that must be codes all the same.
  struct Suspect {
    TensorId id = 0;
    std::optional<TensorId> part;  // that says so; nullopt: the configuration does
  };

  /// Finds the integers (and floats of a byte or less) that are codes of a tool that no scheme
  /// knows, or knows under other names. To refuse all integers would refuse token tables, masks and
  /// positions, which quantized models have, too; to refuse those beside a scale only would take
  /// codes whose scale is called otherwise for numbers. So a tensor is codes
  ///
  ///   - where another's name says that it decodes this one: `W` and `W_scale`;
  ///   - in the module of such a one, unless its name is that of a table;
  ///   - in a quantized checkpoint, unless its name is that of a table, where it has the name of
  ///     a weight, or elements of 16 bits or less: no table of those has a name that does not say
  ///     so, but masks, which begin with a dimension of 1.
  ///
  /// The rest are numbers: tables of 32 and 64 bits.
  void find_suspects() {
    std::vector<TensorId> rest;
    for (TensorId id = 0; id < companion_.size(); ++id) {
      const bool is_left = !companion_[id] && !claimed_[id] && !shape(id).empty();
      if (!is_left || !may_be_codes(dtype(id)) || is_runtime_scale(name(id))) continue;
      if (!is_part_name(name(id))) rest.push_back(id);
    }
    if (rest.empty()) return;  // so it is with most checkpoints
    ScaleNames parts;
    for (TensorId id = 0; id < companion_.size(); ++id) {
      if (!companion_[id] && !is_runtime_scale(name(id))) parts.add(id, name(id));
    }
    const bool is_quantized = declared_ || !claims_.empty();
    for (const TensorId id : rest) {
      const std::optional<ScaleNames::Found> found = parts.find(name(id));
      using Kinship = ScaleNames::Kinship;
      const bool is_own = found && found->kinship == Kinship::Own;
      const bool is_matrix = shape(id).size() >= 2 && !is_table_name(name(id));
      if (is_own || (is_matrix && found && (is_quantized || found->kinship != Kinship::Loose))) {
        suspects_.push_back({id, found->part});
      } else if (is_quantized && is_matrix && !is_f8(dtype(id)) &&
                 (is_code_name(name(id)) || (bits(dtype(id)) <= 16 && shape(id)[0] != 1))) {
        suspects_.push_back({id, std::nullopt});
      }
    }
  }

  std::string reason_of(const Suspect& suspect) const {
    const std::string_view type = ckfs::name(dtype(suspect.id));
    const std::string where = suspect.part
                                  ? fmt::format(" beside {}", quote(last_word(name(*suspect.part))))
                              : config_.method.empty() ? std::string(" in a quantized checkpoint")
                                                       : std::string();
    const std::string method =
        config_.method.empty()
            ? std::string()
            : fmt::format(" ({} says quant_method {})", config_.file, quote(config_.method));
    return fmt::format("{}{}{}: codes that ckfs cannot decode", type, where, method);
  }

  /// Whether each weight is decoded, by what the names of its parts begin with.
  using Stems = std::unordered_map<std::string_view, bool, NameHash>;
  Stems stems() const {
    Stems stems;
    for (const Claim& claim : claims_) {
      const bool decoded =
          builder_.storage(builder_.tensor(claim.codes).storage).encoding->is_quantized();
      // Before redefine() named it otherwise.
      const std::string_view codes = claim.name;
      for (const char border : {'.', '_'}) {
        stems[codes.substr(0, std::min(codes.rfind(border), codes.size()))] |= decoded;
      }
      stems[codes] |= decoded;
      // The parts of a refused weight may lie further up; taking others along does no harm, because
      // there is an obstacle.
      if (!decoded) stems.try_emplace(module_of(module_of(codes)), false);
    }
    return stems;
  }

  /// Handles the other tensors of a quantized checkpoint once its weights are known.
  void sweep() {
    std::optional<Stems> known;  // most checkpoints leave no part over
    std::vector<TensorId> runtime;
    auto suspect = suspects_.begin();
    for (TensorId id = 0; id < companion_.size(); ++id) {
      if (suspect != suspects_.end() && suspect->id == id) {
        refuse(id, reason_of(*suspect++));
        continue;
      }
      if (companion_[id] || claimed_[id]) continue;
      if (is_runtime_scale(name(id))) {
        runtime.push_back(id);
        continue;
      }
      if (last_word(name(id)) == kComfyMark) {
        leave_out(id, "describes how weights are stored");
        continue;
      }
      if (const Auxiliary part = auxiliary(id); part.scheme != nullptr) {
        if (!known) known = stems();
        sweep_part(id, part, *known);
      } else if (is_f8(dtype(id))) {
        builder_.add_unscaled(id);
        refused_ = true;
      } else if (may_be_codes(dtype(id)) && is_part_name(name(id)) && shape(id).size() >= 2 &&
                 !has_suspect(id, module_of(name(id)))) {
        refuse(id, fmt::format("{} named as if it decoded a weight, which is not here",
                               ckfs::name(dtype(id))));
      }
    }
    // Where nothing is quantized they may be parameters of that name.
    if (!claims_.empty() || refused_) {
      for (const TensorId id : runtime) leave_out(id, "a scale of activations or caches");
    }
    note_orphans(of_plain_, "left out: its weight is not quantized");
    note_orphans(of_absent_, "left out: the weight that it decodes is not here");
  }

  /// A part of a weight that no decoded weight took.
  void sweep_part(TensorId id, const Auxiliary& part, const Stems& known) {
    const auto weight = known.find(part.stem);
    if (weight != known.end()) {
      // Behind a weight that is refused its parts would only repeat it.
      if (weight->second) refuse(id, "beside a weight whose kind has no such part");
      return;
    }
    auto plain = find(part.stem, {});
    if (!plain) plain = find(part.stem, ".weight");
    if (plain && !is_castable_float(dtype(*plain))) {
      // What looks like codes has an obstacle of its own.
      if (!may_be_codes(dtype(*plain))) {
        refuse(id, fmt::format("beside a weight of {}", ckfs::name(dtype(*plain))));
      }
      return;
    }
    if (!plain && has_suspect(id, part.stem)) return;
    if (!plain && !is_certain(id, part)) {
      refuse(id, fmt::format("a part of a weight that is absent ({})", part.scheme->name));
      return;
    }
    leave_out(id, plain ? "its weight is not quantized" : "its weight is not here");
    (plain ? of_plain_ : of_absent_).push_back(id);
  }

  /// Whether a part without its weight is surely a part, and not a parameter of that name, which no
  /// view may leave out. Some endings are common words.
  bool is_certain(TensorId id, const Auxiliary& part) const {
    const std::string_view ending = name(id).substr(part.stem.size());
    if (ending != ".scales" && ending != "_scales" && ending != ".g_idx") return true;
    const std::vector<std::string_view>& methods = part.scheme->methods;
    const bool is_used =
        std::ranges::find(methods, config_.method) != methods.end() ||
        std::ranges::any_of(claims_, [&](const Claim& one) { return one.scheme == part.scheme; });
    return is_used && (shape(id).size() >= 2 || (ending == ".g_idx" && dtype(id) == DType::I32));
  }

  /// Whether a tensor that looks like codes may be the one that `part` decodes.
  bool has_suspect(TensorId part, std::string_view stem) {
    if (suspect_modules_.empty()) {
      for (const Suspect& one : suspects_) {
        suspect_modules_.insert(module_of(name(one.id)));
        suspect_modules_.insert(name(one.id));
        if (one.part) suspect_modules_.insert(name(*one.part));
      }
    }
    return suspect_modules_.contains(stem) || suspect_modules_.contains(name(part)) ||
           suspect_modules_.contains(module_of(name(part)));
  }

  void note_orphans(const std::vector<TensorId>& orphans, std::string_view text) {
    if (orphans.empty()) return;
    std::string more;
    if (orphans.size() > 1) more = fmt::format("; so are {} more tensors", orphans.size() - 1);
    builder_.add_note(std::string(name(orphans.front())), fmt::format("{}{}", text, more));
  }

  void describe() {
    Quantization quantization;
    const bool is_plain = claims_.empty() && !refused_;
    if (!is_plain) quantization.summary = config_.method;
    // Kinds differ in more than their texts: in sizes.
    std::map<std::pair<std::string_view, std::string_view>, Count> groups;
    for (const auto& [of, count] : counts_) {
      Count& group = groups[{of.first->name, of.second->format}];
      if (group.weights == 0 || count.first < group.first) group.first = count.first;
      group.weights += count.weights;
    }
    for (const auto& [texts, group] : groups) {
      QuantizedGroup& one = quantization.groups.emplace_back();
      std::tie(one.scheme, one.format) = texts;
      one.weights = group.weights;
      one.example = group.first;
    }
    for (const auto& [key, count] : left_out_) {
      quantization.left_out.push_back({std::string(key.first), std::string(key.second), count});
    }
    if (groups.size() == 1) {
      const QuantizedGroup& only = quantization.groups.front();
      quantization.summary = fmt::format("{} ({})", only.scheme, only.format);
    } else if (groups.size() > 1) {
      quantization.summary = fmt::format("{} kinds of quantized weights", groups.size());
    } else if (!claims_.empty()) {
      quantization.summary = std::string(claims_.front().scheme->name);
    }
    if (is_plain) {
      if (declared_) {
        builder_.add_note(
            config_.file,
            fmt::format("says quant_method {}, but no tensor is quantized", config_.method));
      }
    } else if (quantization.summary.empty()) {
      quantization.summary = "unknown quantization";
    }
    quantization.casts_all =
        std::ranges::any_of(claims_, [](const Claim& claim) { return claim.scheme->casts_all; });
    builder_.set_quantization(std::move(quantization));
  }

  CatalogBuilder& builder_;
  const TensorNames& names_;
  const bool declared_;
  const QuantizationConfig config_;
  ModuleTargets targets_;
  ByteSource& source_;
  QuantizationCost& cost_;
  TensorId near_ = 0;          // what a scheme is asked about: it looks up names like that one's
  std::vector<bool> claimed_;  // by id
  std::vector<bool> companion_;
  std::vector<Claim> claims_;
  bool has_mark_ = false;          // a tensor says that F8 has scales
  bool refused_ = false;           // a tensor that is not a weight of a scheme
  std::vector<Suspect> suspects_;  // by id
  std::unordered_set<std::string_view, NameHash> suspect_modules_;  // in has_suspect()
  std::vector<TensorId> of_plain_, of_absent_;  // parts of weights that are not quantized, not here
  std::unordered_set<std::string, NameHash> stands_for_;  // names that weights were given
  std::unordered_map<TensorId, std::vector<std::byte>> contents_;
  struct Count {
    std::size_t weights = 0;
    TensorId first = 0;
  };
  std::map<std::pair<const Scheme*, const WeightKind*>, Count> counts_;
  std::map<std::pair<std::string_view, std::string_view>, std::size_t> left_out_;  // suffix, reason
  mutable NameMap<std::shared_ptr<const WeightKind>> kinds_;
};

}  // namespace

Result<std::vector<bool>> apply_quantization(CatalogBuilder& builder, const TensorNames& names,
                                             const std::optional<QuantizationConfig>& config,
                                             ByteSource& source, QuantizationCost& cost) {
  return Quantizer(builder, names, config, source, cost).run();
}

}  // namespace ckfs
