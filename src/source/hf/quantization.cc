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

#include "base/rounding.h"
#include "encoding/block_scale_encoding.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

constexpr std::string_view kScaleSuffix = "_scale_inv";
constexpr std::array<std::int64_t, 2> kDefaultBlock = {128, 128};

bool is_f8(DType dtype) {
  return dtype == DType::F8E4M3 || dtype == DType::F8E5M2 || dtype == DType::F8E4M3FNUZ ||
         dtype == DType::F8E5M2FNUZ;
}

bool is_scale_dtype(DType dtype) {
  return dtype == DType::F32 || dtype == DType::BF16 || dtype == DType::F8E8M0 ||
         dtype == DType::U8;
}

/// Scales of activations and of the key-value cache: they belong to a way of running the model.
bool is_runtime_scale(std::string_view name) {
  constexpr std::array<std::string_view, 7> kNames = {
      "activation_scale", "input_scale", "k_scale", "v_scale", "q_scale", "kv_scale", "prob_scale"};
  const std::size_t dot = name.rfind('.');
  const std::string_view last = dot == std::string_view::npos ? name : name.substr(dot + 1);
  return std::find(kNames.begin(), kNames.end(), last) != kNames.end() ||
         last.ends_with("_activation_scale");
}

class Quantizer {
 public:
  Quantizer(CatalogBuilder& builder, const TensorNames& names)
      : builder_(builder), names_(names), companion_(builder.tensor_count(), false) {}

  std::vector<bool> run(const std::optional<QuantizationConfig>& config) {
    const bool is_fp8 = config && config->method == "fp8";
    const bool unnamed = !config || config->method.empty();
    if (is_fp8 || (unnamed && has_block_scales())) {
      read_fp8(config ? *config : QuantizationConfig{}, unnamed);
    } else if (!unnamed) {
      refuse_method(config->method);
    } else if (!refuse_foreign() && config) {
      builder_.add_obstacle("config.json", "quantization_config has no quant_method");
      builder_.set_quantization("unknown");
    }
    return std::move(companion_);
  }

 private:
  std::optional<TensorId> find(std::string_view name) const {
    const auto at = names_.find(name);
    return at == names_.end() ? std::nullopt : std::optional(at->second);
  }
  const StoredTensor& tensor(TensorId id) const { return builder_.tensor(id); }
  DType dtype(TensorId id) const { return builder_.storage(tensor(id).storage).dtype; }

  bool has_block_scales() const {
    for (TensorId id = 0; id < companion_.size(); ++id) {
      const std::string_view name = tensor(id).name;
      if (!name.ends_with(kScaleSuffix)) continue;
      const auto owner = find(name.substr(0, name.size() - kScaleSuffix.size()));
      if (owner && is_f8(dtype(*owner))) return true;
    }
    return false;
  }

  void read_fp8(const QuantizationConfig& config, bool by_names) {
    const auto block = config.weight_block_size.value_or(kDefaultBlock);
    std::size_t encoded = 0, obstacles = 0, runtime_scales = 0;
    std::string first_runtime_scale;
    const auto refuse = [&](TensorId id, std::string_view reason) {
      builder_.add_obstacle(tensor(id).name, reason);
      ++obstacles;
    };
    for (TensorId id = 0; id < companion_.size(); ++id) {
      const std::string_view name = tensor(id).name;
      if (name.ends_with(kScaleSuffix)) {
        const std::string_view owner_name = name.substr(0, name.size() - kScaleSuffix.size());
        const auto owner = find(owner_name);
        if (!owner) {
          refuse(id, fmt::format("a scale without its weight {}", owner_name));
        } else if (!is_f8(dtype(*owner))) {
          refuse(id,
                 fmt::format("a scale of {}, which is {}", owner_name, ckfs::name(dtype(*owner))));
        } else {
          companion_[id] = true;
        }
      } else if (is_f8(dtype(id))) {
        const auto scale = find(std::string(name) + std::string(kScaleSuffix));
        if (!scale) {
          refuse(id, fmt::format("{} without {}{}", ckfs::name(dtype(id)), name, kScaleSuffix));
        } else if (auto reason = encode(id, *scale, block); !reason.empty()) {
          refuse(id, reason);
        } else {
          ++encoded;
        }
      } else if (is_runtime_scale(name)) {
        companion_[id] = true;
        if (runtime_scales++ == 0) first_runtime_scale = name;
      } else if (const std::string_view kind = foreign_kind(id); !kind.empty()) {
        refuse(id, fmt::format("looks like {} in a checkpoint of fp8 blocks", kind));
      }
    }
    if (encoded + obstacles == 0) {
      companion_.assign(companion_.size(), false);
      builder_.add_note("config.json", "says quant_method fp8, but no tensor is quantized");
      return;
    }
    builder_.set_quantization(fmt::format("fp8 (blocks of {} x {})", block[0], block[1]));
    if (!config.weight_block_size) {
      builder_.add_note("config.json",
                        fmt::format("no weight_block_size; blocks of {} x {}, the usual ones, fit",
                                    block[0], block[1]));
    }
    if (by_names) {
      builder_.add_note("config.json",
                        "does not say how weights are quantized; their names and dtypes do");
    }
    if (runtime_scales > 0) {
      builder_.add_note(first_runtime_scale,
                        runtime_scales == 1
                            ? "a scale of activations or caches; converted views leave it out"
                            : fmt::format("and {} more scales of activations or caches; converted "
                                          "views leave them out",
                                          runtime_scales - 1));
    }
  }

  /// Sets the encoding of `weight`, or says why not.
  std::string encode(TensorId weight, TensorId scale, std::array<std::int64_t, 2> block) {
    const auto shape = tensor(weight).shape;
    const auto grid = tensor(scale).shape;
    if (!is_scale_dtype(dtype(scale))) {
      return fmt::format("its scale is {} (known: F32, BF16, F8_E8M0, U8)",
                         ckfs::name(dtype(scale)));
    }
    if (shape.size() != 2 && shape.size() != 3) {
      return fmt::format("shape {} is not of 2 or 3 dimensions", shape_text(shape));
    }
    const std::int64_t rows = shape[shape.size() - 2];
    const std::int64_t columns = shape[shape.size() - 1];
    std::vector<std::int64_t> needed(shape.begin(), shape.end());
    needed[needed.size() - 2] = ceil_div(rows, block[0]);
    needed[needed.size() - 1] = ceil_div(columns, block[1]);
    if (!std::equal(grid.begin(), grid.end(), needed.begin(), needed.end())) {
      return fmt::format("its scale has shape {}, but blocks of {} x {} over shape {} need {}",
                         shape_text(grid), block[0], block[1], shape_text(shape),
                         shape_text(needed));
    }
    const BlockScale kind{.codes = dtype(weight),
                          .scale = dtype(scale),
                          .rows = rows,
                          .columns = columns,
                          .block_rows = block[0],
                          .block_columns = block[1]};
    auto& encoding = encodings_[kind];
    if (!encoding) encoding = block_scale_encoding(kind);
    const StorageId companion = tensor(scale).storage;
    const StorageId storage = tensor(weight).storage;
    builder_.set_encoding(storage, encoding, std::span(&companion, 1),
                          builder_.storage(storage).numel);
    return {};
  }

  /// The kind of quantization, other than fp8 blocks, that a tensor's name, dtype and neighbours
  /// speak of; empty: none.
  std::string_view foreign_kind(TensorId id) const {
    const std::string_view name = tensor(id).name;
    const DType type = dtype(id);
    const auto with = [&](std::string_view suffix) {
      return find(std::string(name) + std::string(suffix)).has_value();
    };
    if (name.ends_with("_blocks") && type == DType::U8) {
      const std::string base(name.substr(0, name.size() - std::string_view("_blocks").size()));
      if (find(base + "_scales")) return "mxfp4";
    }
    if (name.ends_with(".qweight") && type == DType::I32) return "gptq or awq";
    if (name.ends_with(".weight_packed")) return "compressed-tensors";
    if (!name.ends_with("weight") && !name.ends_with("_proj")) return {};

    const std::string stem(name.substr(0, name.rfind('.') + 1));
    const bool one_byte = is_f8(type) || type == DType::I8 || type == DType::U8;
    if (!one_byte) return {};
    if (with("_scale_2")) return "modelopt nvfp4";
    if (with("_scale")) return is_f8(type) ? "float-quantized" : "int-quantized";
    if (type == DType::I8 && find(stem + "SCB")) return "bitsandbytes int8";
    if (type == DType::U8 && with(".absmax")) return "bitsandbytes 4-bit";
    const auto scale = find(stem + "scale");
    if (scale && dtype(*scale) == DType::F8E8M0) return "DeepSeek-V4 scales";
    return {};
  }

  /// Every tensor that looks quantized in some way that is not known here is an obstacle.
  bool refuse_foreign() {
    bool found = false;
    for (TensorId id = 0; id < companion_.size(); ++id) {
      const std::string_view kind = foreign_kind(id);
      if (kind.empty()) continue;
      if (!found) builder_.set_quantization(std::string(kind));
      found = true;
      builder_.add_obstacle(tensor(id).name,
                            fmt::format("looks like {}, which ckfs cannot decode", kind));
    }
    return found;
  }

  void refuse_method(const std::string& method) {
    const std::string reason = fmt::format("quant_method \"{}\", which ckfs cannot decode", method);
    builder_.set_quantization(method);
    bool named = false;
    for (TensorId id = 0; id < companion_.size(); ++id) {
      const bool f8 = is_f8(dtype(id));
      if (!f8 && foreign_kind(id).empty()) continue;
      builder_.add_obstacle(tensor(id).name, reason);
      named = true;
    }
    if (!named) builder_.add_obstacle("config.json", reason);
  }

  CatalogBuilder& builder_;
  const TensorNames& names_;
  std::vector<bool> companion_;
  std::map<BlockScale, std::shared_ptr<const Encoding>> encodings_;  // of thousands of weights
};

}  // namespace

std::vector<bool> apply_quantization(CatalogBuilder& builder, const TensorNames& names,
                                     const std::optional<QuantizationConfig>& config) {
  return Quantizer(builder, names).run(config);
}

}  // namespace ckfs
