// The table has every axis of a MaxText mesh that its rules for weights name, not only the three
// that can have a size here: a rule does not apply where another dimension has one of its axes
// already, whatever that axis' size.
#include "view/mesh.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/checked.h"
#include "base/text.h"
#include "tensor/shape.h"

namespace ckfs {
namespace {

enum Axis : std::uint32_t {
  kFsdp = 1,
  kFsdpTranspose = 2,
  kContext = 4,
  kExpert = 8,
  kTensor = 16,
  kTensorSequence = 32,
  kAutoregressive = 64,
};

struct AxisRule {
  std::string_view name;
  std::uint32_t axes;
};

constexpr std::uint32_t kHeads = kTensor | kTensorSequence | kAutoregressive;
constexpr std::uint32_t kData = kFsdp | kFsdpTranspose | kContext | kExpert;

// In MaxText's order, which decides where two rules want one axis.
constexpr std::array<AxisRule, 21> kRules{{
    {"vocab", kHeads},
    {"embed_vocab", kData},
    {"heads", kHeads},
    {"q_heads", kHeads},
    {"kv_heads", kHeads},
    {"q_lora", kData},
    {"q_lora", kData & ~kFsdpTranspose},
    {"kv_lora", kData},
    {"kv_lora", kData & ~kFsdpTranspose},
    {"embed_attn", kData},
    {"exp", kExpert},
    {"mlp_moe", kFsdpTranspose | kHeads},
    {"embed_moe", kFsdp | kFsdpTranspose | kContext},
    {"embed_moe", kFsdp | kContext},
    {"activation_mlp", kTensor | kTensorSequence},
    {"activation_embed", kTensor},
    {"mlp", kFsdpTranspose | kHeads},
    {"gdn_head", kFsdpTranspose | kHeads},
    {"embed", kData},
    {"embed", kData & ~kFsdpTranspose},
    {"norm", kTensor},
}};

}  // namespace

Result<std::vector<std::int64_t>> parts_of(std::span<const std::string> axes,
                                           std::span<const std::int64_t> shape, const Mesh& mesh) {
  CKFS_CHECK(axes.size() == shape.size());
  std::vector<std::uint32_t> assigned(axes.size(), 0);
  std::uint32_t used = 0;
  const auto apply = [&](const AxisRule& rule) {
    const auto dim = std::ranges::find(axes, rule.name);
    if (dim == axes.end() || (used & rule.axes) != 0) return;
    std::uint32_t& place = assigned[static_cast<std::size_t>(dim - axes.begin())];
    if (place != 0) return;
    place = rule.axes;
    used |= rule.axes;
  };
  std::ranges::for_each(kRules, apply);

  std::vector<std::int64_t> parts;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    std::optional<std::int64_t> count = 1;
    for (const auto& [axis, size] : {std::pair{kFsdp, mesh.fsdp}, std::pair{kExpert, mesh.expert},
                                     std::pair{kTensor, mesh.tensor}}) {
      if ((assigned[d] & axis) != 0 && count) count = checked_mul(*count, size);
    }
    if (!count || shape[d] % *count != 0) {
      return fail(ErrorCode::Unsupported, "dimension {} of shape {} ({}) is not a multiple of {}",
                  d, shape_text(shape), axes[d], count ? fmt::format("{}", *count) : "2^63");
    }
    parts.push_back(*count);
  }
  return parts;
}

}  // namespace ckfs
