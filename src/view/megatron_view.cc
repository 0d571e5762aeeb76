// Megatron asks for the names that the checkpoint's content_metadata says: with numbered layers it
// finds the tensors of any model there, whatever its own configuration would stack. Releases before
// 0.13 do not read it, and stack layers that are all alike; layers=stacked is for them.
//
// A loader reads chunks, each whole where it needs a part. So chunks are one layer's, and one
// expert's.
#include "view/megatron_view.h"

#include <algorithm>

#include "base/text.h"
#include "format/torch_zip_writer.h"
#include "view/dcp_view.h"
#include "view/hf_model.h"
#include "view/program_model.h"
#include "view/program_names.h"

namespace ckfs {
namespace {

constexpr std::string_view kDirectory = "release/";
constexpr std::string_view kLayerPrefix = "decoder.layers.";

/// Whether the layers of the tensor are its first dimension.
bool is_stacked(std::string_view name) {
  return name.starts_with(kLayerPrefix) && name.size() > kLayerPrefix.size() &&
         !is_digit(name[kLayerPrefix.size()]);
}

/// The leading dimensions that number layers and experts.
std::size_t numbering_dimensions(const ModelTensor& tensor) {
  const bool experts = tensor.name.find(".experts.experts.") != std::string_view::npos;
  return (is_stacked(tensor.name) ? 1 : 0) + (experts ? 1 : 0);
}

/// common.pt: what torch.save writes of {"checkpoint_version": 3.0, "iteration": 0,
/// "content_metadata": {...}}, of plain types alone.
std::string common_file(bool stacked) {
  std::string pickle("\x80\x02}(", 4);
  const auto word = [&](std::string_view text) {
    pickle += 'X';
    for (int i = 0; i < 4; ++i) pickle += static_cast<char>(text.size() >> (8 * i));
    pickle += text;
  };
  word("checkpoint_version");
  pickle += std::string_view("G\x40\x08\0\0\0\0\0\0", 9);  // 3.0
  word("iteration");
  pickle += std::string_view("K\0", 2);
  word("content_metadata");
  pickle += "}(";
  word("singleton_local_shards");
  pickle += "\x89";
  word("non_homogeneous_layers");
  pickle += stacked ? "\x89" : "\x88";
  pickle += "uu.";
  const auto archive = torch_zip::TorchArchive::plan("common", pickle.size(), {});
  CKFS_CHECK(archive);  // a small file
  std::string file = archive->render_head();
  file += pickle;
  return file + archive->render_tail();
}

void add_files(Definition& definition, bool stacked) {
  definition.side_files = {};
  definition.texts.clear();
  const auto add = [&](std::string_view directory, std::string_view name, std::string text) {
    definition.texts.push_back({fmt::format("{}{}", directory, name), std::move(text)});
  };
  add("", "latest_checkpointed_iteration.txt", "release");
  // Releases up to 0.16 want all four fields, and no other.
  add(kDirectory, "metadata.json",
      R"({"sharded_backend": "torch_dist", "sharded_backend_version": 1, )"
      R"("common_backend": "torch", "common_backend_version": 1})");
  add(kDirectory, "common.pt", common_file(stacked));
}

}  // namespace

MegatronView find_megatron_view(const std::shared_ptr<const Catalog>& catalog,
                                const Recipes& recipes) {
  MegatronView view;
  view.obstacles =
      hf_model_obstacles(*catalog, *find_view_row("bf16-safetensors"), Unscaled::Unsaid);
  if (view.obstacles.empty()) view.obstacles = part_obstacles(*catalog);
  if (!view.obstacles.empty()) return view;
  auto made = define_megatron(catalog, {std::string(kMegatronView), {}}, recipes);
  if (made) {
    view.definition = *std::move(made);
  } else {
    view.obstacles = {{"source", made.error().message()}};
  }
  return view;
}

Result<std::shared_ptr<Definition>> define_megatron(std::shared_ptr<const Catalog> catalog,
                                                    const ViewSpec& spec, const Recipes& recipes) {
  const bool stacked = parameter_of(spec, "layers", "numbered") == "stacked";
  CKFS_TRY(
      std::shared_ptr<Definition> definition,
      define_program_model(
          std::move(catalog),
          {.program = kMegatronNames, .spec = spec, .numbers = {{"view.stacked", stacked ? 1 : 0}}},
          recipes));
  if (stacked) {
    for (const ModelTensor& tensor : definition->tensors) {
      if (!tensor.name.starts_with(kLayerPrefix) || is_stacked(tensor.name)) continue;
      return fail(ErrorCode::Unsupported,
                  "{}: layers=stacked: \"{}\": not all layers are alike (Megatron numbers them "
                  "itself)",
                  kMegatronView, one_line(tensor.name));
    }
  }
  cut_leading(*definition, numbering_dimensions);
  definition->packaging = {.container = ContainerKind::Dcp,
                           .placement = Placement::Split,
                           .dcp = {.directory = std::string(kDirectory)}};
  add_files(*definition, stacked);
  return definition;
}

}  // namespace ckfs
