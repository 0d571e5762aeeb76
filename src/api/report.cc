// Reports are built as JSON values first where a program reads them, and as plain lines where
// people do: two short functions for each report. One structure rendered both ways would be a third
// thing to learn, and the texts for people may change at will while the JSON may not.
#include "api/report.h"

#include <algorithm>
#include <array>
#include <fmt/format.h>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <unordered_set>

#include "api/checkpoint_impl.h"
#include "api/inside.h"
#include "api/report_json.h"
#include "api/status.h"
#include "base/size_text.h"
#include "base/text.h"
#include "source/file_role.h"
#include "source/numbered_files.h"
#include "source/source_tree.h"
#include "view/dcp_view.h"
#include "view/megatron_view.h"
#include "view/program_names.h"

namespace ckfs {
namespace {

using Out = std::back_insert_iterator<std::string>;

/// With all subjects that the catalog, or that of the subject's folder, has names of; `more` counts
/// the others.
Json pairs(const std::vector<Reason>& reasons, const Catalog& catalog) {
  Json list = Json::array();
  for (const Reason& reason : reasons) {
    list.push_back({{"subject", reason.subject}, {"text", reason.text}});
    if (reason.more == 0) continue;
    // By directory: of folders in each other the inner one comes later.
    std::span<const std::string> others = catalog.more_obstacles(reason.text);
    std::string directory;
    for (const CatalogPart& part : catalog.parts()) {
      if (!reason.subject.starts_with(part.directory)) continue;
      // Beside the source's own lie adapters.
      if (part.directory.empty() && others.size() == reason.more) continue;
      others = part.catalog->more_obstacles(reason.text);
      directory = part.directory;
    }
    if (others.size() != reason.more) {
      list.back()["more"] = reason.more;
      continue;
    }
    for (const std::string& other : others) {
      list.push_back({{"subject", directory + other}, {"text", reason.text}});
    }
  }
  return list;
}

Json pairs(std::span<const Note> notes) {
  Json list = Json::array();
  for (const Note& note : notes) list.push_back({{"subject", note.subject}, {"text", note.text}});
  return list;
}

/// What the adapters and the source's files say of it.
std::vector<Note> facts_of(const Checkpoint& checkpoint) {
  std::vector<Note> facts;
  for (SourceFact& fact : impl_of(checkpoint).files->facts()) {
    facts.push_back({std::move(fact.subject), std::move(fact.text)});
  }
  std::ranges::copy(impl_of(checkpoint).catalog->facts(), std::back_inserter(facts));
  return facts;
}

std::string fingerprint_text(const Checkpoint& checkpoint) {
  return fmt::format("{:016x}", checkpoint.fingerprint());
}

/// What the headers say of the whole checkpoint.
struct Totals {
  std::size_t tensors = 0;  // that views show
  std::size_t companions = 0;
  std::uint64_t tensor_bytes = 0;  // as stored, companions included
  std::size_t files = 0;
  std::uint64_t bytes = 0;  // of all files
};

/// Bytes of all storages that tensors name, each once; without an optimizer's masters.
std::uint64_t stored_bytes(const Catalog& catalog) {
  std::vector<bool> shown(catalog.tensors().size(), true);
  if (const Masters* const masters = catalog.masters()) {
    for (const Masters::Pair& pair : masters->pairs) shown[pair.master] = false;
  }
  std::vector<StorageId> storages;
  for (TensorId id = 0; id < shown.size(); ++id) {
    if (!shown[id]) continue;
    const StoredTensor& tensor = catalog.tensor(id);
    storages.push_back(tensor.storage);
    for (const StorageBox& box : tensor.boxes) storages.push_back(box.storage);
  }
  std::ranges::sort(storages);
  const auto repeated = std::ranges::unique(storages);
  storages.erase(repeated.begin(), repeated.end());
  std::uint64_t bytes = 0;
  for (const StorageId id : storages) {
    bytes += catalog.storage(id).nbytes();
  }
  return bytes;
}

Totals totals(const Checkpoint::Impl& checkpoint) {
  const Catalog& catalog = *checkpoint.catalog;
  Totals result;
  for (const Shard& shard : catalog.shards()) result.tensors += shard.tensors.size();
  result.companions = catalog.tensors().size() - result.tensors;
  if (catalog.masters() != nullptr) result.companions -= catalog.masters()->pairs.size();
  result.tensor_bytes = stored_bytes(catalog);
  for (const CatalogPart& part : catalog.parts()) {
    std::size_t shown = 0;
    for (const Shard& shard : part.catalog->shards()) shown += shard.tensors.size();
    result.tensors += shown;
    result.companions += part.catalog->tensors().size() - shown;
    result.tensor_bytes += stored_bytes(*part.catalog);
  }
  result.files = catalog.files().size();
  for (const SourceFile& file : catalog.files()) result.bytes += checkpoint.files->size(file.file);
  return result;
}

/// How many tensors of a view get one label, for each pair of an encoding in the source and a dtype
/// in the view.
struct Label {
  std::string view;
  Exactness exactness = Exactness::BitExact;
  std::string from, to;
  std::size_t tensors = 0;
  std::string tool = {};  // Definition::tool
};

std::vector<Label> labels(const Checkpoint& checkpoint) {
  std::vector<Label> result;
  for (const ViewInfo& view : checkpoint.views()) {
    if (!view.available) continue;
    const auto definition =
        define_view(impl_of(checkpoint).catalog, {view.name, {}}, impl_of(checkpoint).recipes);
    if (!definition) continue;  // the view's own lookup reports it
    std::map<std::tuple<Exactness, std::string, std::string>, std::size_t> counts;
    const auto count_all = [&](const Definition& one) {
      for (const ModelTensor& tensor : one.tensors) {
        // Of a quantized weight its codes count.
        const bool is_quantized = tensor.weight != ModelTensor::kNone;
        if (is_quantized && tensor.output != 0) continue;
        const auto id =
            one.catalog->find(is_quantized ? one.weights[tensor.weight].name : tensor.name);
        if (!id) continue;
        const Storage& storage = one.catalog->storage(one.catalog->tensor(*id));
        ++counts[{tensor.exactness, storage.encoding->text(),
                  std::string(name(tensor.expr.dtype()))}];
      }
    };
    count_all(**definition);
    for (const DefinitionPart& part : (*definition)->parts) count_all(*part.definition);
    for (const auto& [key, count] : counts) {
      const auto& [exactness, from, to] = key;
      result.push_back({view.name, exactness, from, to, count,
                        exactness == Exactness::Quantized ? (*definition)->tool : std::string()});
    }
  }
  return result;
}

/// A layout of the experts (`@experts=LAYOUT`) and why it is absent; empty: it is there.
struct ExpertLayout {
  std::string name;
  std::string reason;
};

/// All of them where the source has experts: it is of a family that recipes know, or its names say
/// so. Of the first view that has the parameter and is available; otherwise there are none.
std::vector<ExpertLayout> expert_layouts(const Checkpoint& checkpoint) {
  constexpr std::string_view kView = "bf16-safetensors";
  const Checkpoint::Impl& impl = impl_of(checkpoint);
  const auto config = config_numbers(*impl.catalog);
  const bool known = config && impl.recipes.find_layouts(*config) != nullptr;
  const bool named = std::ranges::any_of(impl.catalog->tensors(), [](const StoredTensor& tensor) {
    return tensor.name.find(".experts.") != std::string_view::npos;
  });
  const bool available = std::ranges::any_of(checkpoint.views(), [&](const ViewInfo& view) {
    return view.name == kView && view.available;
  });
  std::vector<ExpertLayout> layouts;
  if (!available || (!known && !named)) return layouts;
  for (const char* layout : {"linear", "fused", "packed"}) {
    const auto definition =
        define_view(impl.catalog, {std::string(kView), {{"experts", layout}}}, impl.recipes);
    layouts.push_back({layout, definition ? std::string() : definition.error().message()});
  }
  return layouts;
}

/// The source's own tensors, and those of the folders of a pipeline: by directory ("": its own).
std::vector<CatalogPart> with_parts(const Checkpoint& checkpoint) {
  const std::shared_ptr<const Catalog>& catalog = impl_of(checkpoint).catalog;
  std::vector<CatalogPart> all{{"", catalog}};
  all.insert(all.end(), catalog->parts().begin(), catalog->parts().end());
  return all;
}

/// "fp8 ...; text_encoder: int8 ..."; empty: nothing is quantized.
std::string quantization_of(const Checkpoint& checkpoint) {
  std::string text;
  for (const CatalogPart& part : with_parts(checkpoint)) {
    if (!part.catalog->is_quantized()) continue;
    std::string_view folder = part.directory;
    if (folder.ends_with('/')) folder.remove_suffix(1);
    text += fmt::format("{}{}{}{}", text.empty() ? "" : "; ", folder, folder.empty() ? "" : ": ",
                        part.catalog->quantization());
  }
  return text;
}

/// What a view's files take together; nullopt: it cannot be made after all.
std::optional<std::uint64_t> bytes_of_view(const Checkpoint& checkpoint, const std::string& name) {
  const Result<View> view = checkpoint.view(name);
  if (!view) return std::nullopt;
  std::uint64_t bytes = 0;
  const FileList files = view->files();
  for (std::size_t i = 0; i < files.size(); ++i) bytes += files[i].size;
  return bytes;
}

/// Bytes on other machines that a reader of all of its files needs.
std::uint64_t bytes_fetched(const Checkpoint& checkpoint, const std::string& name) {
  const Result<View> view = checkpoint.view(name);
  return view ? bytes_elsewhere(*view) : 0;
}

/// A file of weights of the source, and its role in the views.
struct WeightFile {
  std::string path;
  std::uint64_t bytes = 0;
  std::string_view role;
};

/// The files that hold the tensors of `catalog` or of a part of it, those of chunks not among them.
std::unordered_set<FileId> files_in_use(const Checkpoint& checkpoint) {
  std::unordered_set<FileId> used;
  for (const CatalogPart& part : with_parts(checkpoint)) {
    for (const Storage& storage : part.catalog->storages()) {
      for (const Extent& extent : storage.extents) {
        if (!is_chunk(extent.file)) used.insert(part.catalog->place(extent).file);
      }
    }
  }
  return used;
}

std::vector<WeightFile> weight_files(const Checkpoint& checkpoint) {
  const Checkpoint::Impl& impl = impl_of(checkpoint);
  const std::unordered_set<FileId> used = files_in_use(checkpoint);
  std::vector<std::string> unused;
  for (const SourceFile& file : impl.catalog->files()) {
    if (!used.contains(file.file)) unused.push_back(file.path);
  }
  const auto slices = find_slices(unused);
  std::vector<WeightFile> files;
  for (const SourceFile& file : impl.catalog->files()) {
    const FileRole role = role_of(file.path);
    const bool is_used = used.contains(file.file);
    const bool is_weights = role == FileRole::Weights || role == FileRole::Adapter;
    if (!is_used && !is_weights) continue;
    const std::string_view what = role == FileRole::Adapter    ? "adapter"
                                  : is_used                    ? "model"
                                  : slices.contains(file.path) ? "slice"
                                                               : "other";
    files.push_back({file.path, impl.files->size(file.file), what});
  }
  return files;
}

std::string inspect_json(const Checkpoint& checkpoint, std::string_view source) {
  const Catalog& catalog = *impl_of(checkpoint).catalog;
  const Totals total = totals(impl_of(checkpoint));
  Json json = versioned();
  json["source"] = source;
  json["kind"] = catalog.kind();
  json["quantization"] = quantization_of(checkpoint);
  json["quantized"] = Json::array();
  json["left_out"] = Json::array();
  for (const auto& [directory, part] : with_parts(checkpoint)) {
    for (const QuantizedGroup& group : part->quantization_details().groups) {
      json["quantized"].push_back(
          {{"scheme", group.scheme},
           {"format", group.format},
           {"weights", group.weights},
           {"example", directory + std::string(part->tensor(group.example).name)}});
    }
    for (const LeftOut& one : part->quantization_details().left_out) {
      json["left_out"].push_back(
          {{"suffix", one.suffix}, {"tensors", one.tensors}, {"reason", one.reason}});
    }
  }
  json["tensors"] = total.tensors;
  json["tensor_bytes"] = total.tensor_bytes;
  json["companions"] = total.companions;
  json["files"] = total.files;
  json["bytes"] = total.bytes;
  json["mtime"] = checkpoint.mtime();
  json["fingerprint"] = fingerprint_text(checkpoint);
  json["views"] = Json::array();
  for (const ViewInfo& view : checkpoint.views()) {
    Json one{{"name", view.name},
             {"description", view.description},
             {"available", view.available},
             {"reasons", pairs(view.reasons, catalog)},
             {"remarks", pairs(view.remarks, catalog)}};
    const auto bytes =
        view.available ? bytes_of_view(checkpoint, view.name) : std::optional<std::uint64_t>();
    if (bytes) one["bytes"] = *bytes;
    if (const std::uint64_t far = bytes ? bytes_fetched(checkpoint, view.name) : 0) {
      one["fetched_bytes"] = far;
    }
    json["views"].push_back(std::move(one));
  }
  json["weight_files"] = Json::array();
  for (const WeightFile& file : weight_files(checkpoint)) {
    json["weight_files"].push_back(
        {{"path", file.path}, {"bytes", file.bytes}, {"role", file.role}});
  }
  json["experts"] = Json::array();
  for (const ExpertLayout& layout : expert_layouts(checkpoint)) {
    json["experts"].push_back(
        {{"layout", layout.name}, {"available", layout.reason.empty()}, {"reason", layout.reason}});
  }
  json["facts"] = pairs(facts_of(checkpoint));
  json["notes"] = pairs(catalog.notes());
  json["labels"] = Json::array();
  for (const Label& label : labels(checkpoint)) {
    json["labels"].push_back({{"view", label.view},
                              {"label", name(label.exactness)},
                              {"from", label.from},
                              {"to", label.to},
                              {"tensors", label.tensors}});
    if (!label.tool.empty()) json["labels"].back()["quantized_as"] = label.tool;
  }
  return render(json);
}

/// Each way in which weights are quantized, how exactly views show it, and the tensors that views
/// leave out.
void add_quantization(const CatalogPart& part, std::string& text) {
  const Out out(text);
  const Catalog& catalog = *part.catalog;
  const Quantization& quantization = catalog.quantization_details();
  for (const QuantizedGroup& group : quantization.groups) {
    fmt::format_to(out, "  {:>7}  {}: {} (\"{}{}\")\n", group.weights, one_line(group.scheme),
                   one_line(group.format), one_line(part.directory),
                   one_line(catalog.tensor(group.example).name));
    std::string exactness;
    for (const DType to : {DType::BF16, DType::F16, DType::F32}) {
      fmt::format_to(Out(exactness), "{}{} in {}", exactness.empty() ? "" : ", ",
                     name(exactness_of(catalog, group.example, to)), name(to));
    }
    fmt::format_to(out, "           {}\n", exactness);
  }
  for (const LeftOut& one : quantization.left_out) {
    fmt::format_to(out, "  {:>7}  left out: {} ({})\n", one.tensors, one_line(one.suffix),
                   one_line(one.reason));
  }
}

/// `path` as a shell takes it.
std::string shell_word(std::string_view path) {
  const bool is_plain = !path.empty() && std::ranges::all_of(path, [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || is_digit(c) ||
           std::string_view("/._-+,:@%=").find(c) != std::string_view::npos;
  });
  if (is_plain) return std::string(path);
  std::string quoted = "'";
  for (const char c : path) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

/// Why a view is not there, and what of others stays as it is: for --all.
void add_reasons(std::span<const Reason> reasons, std::string& text) {
  for (const Reason& reason : reasons) {
    fmt::format_to(Out(text), "    {}: {}{}\n", one_line(reason.subject), one_line(reason.text),
                   reason.more > 0 ? fmt::format(" (and {} more)", reason.more) : "");
  }
}

void add_views(const Checkpoint& checkpoint, InspectDetail detail, std::string& text) {
  const Out out(text);
  const std::vector<Label> all_labels = labels(checkpoint);
  const std::vector<ViewInfo> views = checkpoint.views();
  // Where nothing can be converted, the reason is what the reader came for.
  const bool all =
      detail == InspectDetail::All || std::ranges::count(views, true, &ViewInfo::available) <= 1;
  std::string absent;
  for (const ViewInfo& view : views) {
    if (!view.available && !all) {
      absent += (absent.empty() ? "" : ", ") + view.name;
      continue;
    }
    const auto bytes =
        view.available ? bytes_of_view(checkpoint, view.name) : std::optional<std::uint64_t>();
    fmt::format_to(out, "  {:<20} {:>8}  {}\n", view.name, bytes ? human_size(*bytes) : "-",
                   view.available ? view.description : "not available:");
    add_reasons(view.reasons, text);
    if (const std::uint64_t far = bytes ? bytes_fetched(checkpoint, view.name) : 0) {
      fmt::format_to(out, "    reading all of it fetches {}\n", human_size(far));
    }
    for (const Label& label : all_labels) {
      if (label.view != view.name) continue;
      fmt::format_to(out, "    {:<9} {:>7}  {} -> {}{}\n", name(label.exactness), label.tensors,
                     one_line(label.from), one_line(label.to),
                     label.tool.empty() ? "" : fmt::format(" (equal to {})", label.tool));
    }
    add_reasons(view.remarks, text);
  }
  if (!absent.empty()) {
    fmt::format_to(out, "  not available: {} (--all says why)\n", absent);
  }
  if (std::ranges::find(all_labels, Exactness::Lossy, &Label::exactness) != all_labels.end()) {
    text += "  lossy: an ordinary cast to fewer bits; each value is rounded to the nearest\n";
  }
}

constexpr std::string_view kTitanView = "dcp@names=torchtitan";

/// Whether the model can be shown as torchtitan loads it: only the rules know, so it is made.
bool has_titan_view(const Checkpoint& checkpoint) {
  const Recipes& recipes = impl_of(checkpoint).recipes;
  const std::shared_ptr<const Catalog>& catalog = impl_of(checkpoint).catalog;
  const Result<ConfigNumbers> config = config_numbers(*catalog);
  if (!config || recipes.find_program(kTorchTitanNames, *config) == nullptr) return false;
  const auto spec = parse_view_spec(kTitanView);
  return spec && define_view(catalog, *spec, recipes).has_value();
}

/// What to type next, with `source` as the user wrote it.
void add_next_commands(const Checkpoint& checkpoint, std::string_view source, std::string& text) {
  const Out out(text);
  const std::string word = one_line(shell_word(source));
  text += "\nnext\n";
  fmt::format_to(out, "  ckfs mount {} view\n", word);
  const std::vector<ViewInfo> views = checkpoint.views();
  const auto is_there = [&](std::string_view name) {
    const auto found = std::ranges::find(views, name, &ViewInfo::name);
    return found != views.end() && found->available;
  };
  if (is_there("bf16-safetensors")) {
    fmt::format_to(out, "  ckfs export {} bf16-safetensors OUT\n", word);
  }
  for (const bool scanned : {false, true}) {
    const std::string_view view = scanned ? "maxtext-scanned" : "maxtext-unscanned";
    if (!is_there(view)) continue;
    fmt::format_to(out, "  MaxText: load_parameters_path=$PWD/view/{}/0/items scan_layers={}\n",
                   view, scanned);
  }
  if (is_there(kMegatronView)) {
    fmt::format_to(out,
                   "  Megatron: --load $PWD/view/{} --finetune --no-load-optim --no-load-rng\n",
                   kMegatronView);
  }
  if (is_there(kDcpView) && has_titan_view(checkpoint)) {
    fmt::format_to(out, "  torchtitan: --checkpoint.initial_load_path=$PWD/view/{}\n", kTitanView);
  }
}

std::string inspect_text(const Checkpoint& checkpoint, std::string_view source,
                         InspectDetail detail) {
  const Catalog& catalog = *impl_of(checkpoint).catalog;
  const Totals total = totals(impl_of(checkpoint));
  const std::string quantization = quantization_of(checkpoint);
  std::string text;
  const Out out(text);
  fmt::format_to(out, "{}: {}, {}\n", one_line(source), catalog.kind(),
                 quantization.empty() ? "not quantized" : one_line(quantization));
  fmt::format_to(out, "  {} tensors, {} companions (scales), {} of tensor data\n", total.tensors,
                 total.companions, human_size(total.tensor_bytes));
  fmt::format_to(out, "  {} files, {}, newest of {}\n", total.files, human_size(total.bytes),
                 date_text(checkpoint.mtime()));
  for (const Note& fact : facts_of(checkpoint)) {
    fmt::format_to(out, "  {}: {}\n", one_line(fact.subject), one_line(fact.text));
  }
  const std::vector<CatalogPart> parts = with_parts(checkpoint);
  if (std::ranges::any_of(parts, [](const CatalogPart& part) {
        return !part.catalog->quantization_details().groups.empty();
      })) {
    text += "\nquantized weights\n";
  }
  for (const CatalogPart& part : parts) add_quantization(part, text);

  text += "\nviews\n";
  add_views(checkpoint, detail, text);
  const std::vector<ExpertLayout> layouts = expert_layouts(checkpoint);
  if (!layouts.empty()) text += "\nlayouts of experts\n";
  for (const ExpertLayout& layout : layouts) {
    fmt::format_to(out, "  @experts={:<12}{}\n", layout.name,
                   layout.reason.empty() ? " available" : " not available:");
    if (!layout.reason.empty()) fmt::format_to(out, "    {}\n", one_line(layout.reason));
  }
  if (!catalog.notes().empty()) text += "\nnotes\n";
  for (const Note& note : catalog.notes()) {
    fmt::format_to(out, "  {}: {}\n", one_line(note.subject), one_line(note.text));
  }
  add_next_commands(checkpoint, source, text);
  return text;
}

/// An entry of `ckfs ls`: a directory where there is no `file`.
struct Entry {
  std::string path;
  std::optional<FileInfo> file = {};
  std::uint64_t inode = 0;  // of the file
};

/// The entries of the directory `path` of the view ("" is the view itself), or the one file of that
/// path; empty: there is nothing of that name.
std::vector<Entry> entries_at(const View& view, std::string_view path) {
  std::vector<Entry> entries;
  const std::string prefix = path.empty() ? std::string() : std::string(path) + "/";
  const FileList files = view.files();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const FileInfo file = files[i];
    if (file.path == path) return {{std::string(path), file, file_inode(view, i)}};
    if (!file.path.starts_with(prefix)) continue;
    const std::string_view rest = file.path.substr(prefix.size());
    const std::size_t slash = rest.find('/');
    if (slash == std::string_view::npos) {
      entries.push_back({std::string(rest), file, file_inode(view, i)});
      continue;
    }
    // "a/x" and "a/y" need not be neighbours: "a-b" may come between "a" and "a/x", but nothing
    // comes between two paths with the same prefix "a/".
    const std::string_view directory = rest.substr(0, slash);
    if (entries.empty() || entries.back().file || entries.back().path != directory) {
      entries.push_back({std::string(directory)});
    }
  }
  std::ranges::sort(entries, {}, &Entry::path);
  return entries;
}

std::string list_json(std::string_view view, std::span<const Entry> entries) {
  Json json = versioned();
  json["view"] = view;
  json["entries"] = Json::array();
  for (const Entry& entry : entries) {
    Json item{{"path", entry.path}, {"type", entry.file ? "file" : "directory"}};
    if (entry.file) {
      item["size"] = entry.file->size;
      item["exactness"] = name(entry.file->exactness);
      item["tensors"] = entry.file->tensors;
      item["inode"] = entry.inode;
    }
    json["entries"].push_back(std::move(item));
  }
  return render(json);
}

std::string list_text(std::span<const Entry> entries, ListDetail detail) {
  std::string text;
  const Out out(text);
  for (const Entry& entry : entries) {
    if (detail == ListDetail::Names) {
      fmt::format_to(out, "{}{}\n", one_line(entry.path), entry.file ? "" : "/");
    } else if (!entry.file) {
      fmt::format_to(out, "{:>15} {:<9} {}/\n", "-", "-", one_line(entry.path));
    } else {
      fmt::format_to(out, "{:>15} {:<9} {}\n", entry.file->size, name(entry.file->exactness),
                     one_line(entry.path));
    }
  }
  return text;
}

/// Names of the source files behind a file of a view, sorted: of all of a storage where a part of
/// it is shown.
std::vector<std::string> source_paths(const View::Impl& view, std::size_t file) {
  // The one that is shared with the file's readers, and kept for the next call: of an Orbax item's
  // data file a layout is tens of MB, and a tool asks for an attribute twice.
  const std::shared_ptr<const FileLayout> shared = view.files->layout(file);
  const FileLayout& layout = *shared;
  const Catalog& catalog = *layout.definition->catalog;
  std::set<FileId> files;
  const auto add_extents = [&](const Storage& storage) {
    for (const Extent& extent : storage.extents) {
      if (!is_chunk(extent.file)) {
        files.insert(catalog.place(extent).file);
        continue;
      }
      const SourceChunk chunk = catalog.chunks().chunk(extent.file);
      if (chunk.stored.size > 0) files.insert(chunk.stored.file);
    }
  };
  std::unordered_set<StorageId> seen;  // boxes are many, their storages few
  const auto add_storage = [&](StorageId id) {
    if (!seen.insert(id).second) return;
    const Storage& storage = catalog.storage(id);
    add_extents(storage);
    for (const StorageId companion : storage.companions()) add_extents(catalog.storage(companion));
  };
  for (const Segment& segment : layout.segments) {
    if (segment.kind == Segment::Kind::File) files.insert(segment.id);
    if (segment.kind != Segment::Kind::Tensor) continue;
    for (const TensorExpr* expr : layout.sources(segment.id)) {
      if (const auto whole = expr->whole()) {
        add_storage(whole->storage);
        continue;
      }
      for (const Box& box : expr->boxes()) {
        if (!box.is_constant()) add_storage(box.source);
      }
    }
  }
  std::set<std::string> paths;
  for (const FileId id : files) paths.insert(view.checkpoint->source().name(id));
  // A text is an edited config.json, wherever that lies.
  for (const TextFile& text : layout.definition->texts) {
    if (view.files->directory(file) + text.path != layout.path) continue;
    paths.insert(view.checkpoint->source().name(layout.definition->catalog->model().config_file));
  }
  return {paths.begin(), paths.end()};
}

/// The memory of a definition, without its parts. Of the memory that it shares with others only its
/// boxes count.
std::uint64_t memory_of(const Definition& definition) {
  // Twice the objects themselves, as memory_of() a view.
  constexpr std::uint64_t kEachTensor = 2 * sizeof(ModelTensor);
  constexpr std::uint64_t kEachBox = 2 * sizeof(Box) + sizeof(Loop);
  std::uint64_t bytes = 0;
  for (const ModelTensor& tensor : definition.tensors) {
    bytes += kEachTensor + kEachBox * tensor.expr.box_list().size();
  }
  for (const QuantizedTensor& weight : definition.weights) {
    bytes += 2 * sizeof(QuantizedTensor) + kEachBox * weight.values.box_list().size();
  }
  for (const std::vector<std::uint32_t>& set : definition.sets) {
    bytes += sizeof(set) + set.capacity() * sizeof(std::uint32_t) + 32;
  }
  for (const LeftTensor& left : definition.left) bytes += sizeof(left) + left.rule.capacity();
  for (const TextFile& text : definition.texts) bytes += text.text.size();
  for (const std::string& name : definition.names) bytes += sizeof(std::string) + name.capacity();
  return bytes;
}

Json view_files(const View& view) {
  Json files = Json::array();
  const FileList list = view.files();
  for (std::size_t i = 0; i < list.size(); ++i) {
    const FileInfo file = list[i];
    files.push_back({{"path", file.path},
                     {"size", file.size},
                     {"exactness", name(file.exactness)},
                     {"tensors", file.tensors},
                     {"sources", source_paths(impl_of(view), i)}});
  }
  Json json{{"name", view.name()}, {"files", std::move(files)}};
  if (!view.tool().empty()) json["quantized_as"] = view.tool();
  return json;
}

}  // namespace

std::string inspect_report(const Checkpoint& checkpoint, std::string_view source,
                           ReportFormat format, InspectDetail detail) {
  if (!impl_of(checkpoint).check_process()) return {};
  return format == ReportFormat::Json ? inspect_json(checkpoint, source)
                                      : inspect_text(checkpoint, source, detail);
}

std::string source_version(const Checkpoint& checkpoint) {
  for (const SourceFact& fact : impl_of(checkpoint).files->facts()) {
    if (fact.subject == kVersionTaken) return fact.text;
  }
  return {};
}

std::vector<std::string> opening_notes(const Checkpoint& checkpoint) {
  constexpr std::size_t kMost = 5;
  std::vector<std::string> lines;
  const std::vector<ViewInfo> views = checkpoint.views();
  const auto available = std::ranges::count(views, true, &ViewInfo::available);
  const auto absent = std::ranges::find(views, false, &ViewInfo::available);
  if (available == 1 && absent != views.end() && !absent->reasons.empty()) {
    const Reason& reason = absent->reasons.front();
    lines.push_back(
        fmt::format("only source/ can be shown: {}: {}: {} (`ckfs inspect` has all reasons)",
                    absent->name, reason.subject, reason.text));
  }
  const std::span<const Note> notes = impl_of(checkpoint).catalog->notes();
  for (const Note& note : notes.first(std::min(notes.size(), kMost))) {
    lines.push_back(fmt::format("{}: {}", note.subject, note.text));
  }
  if (notes.size() > kMost) {
    lines.push_back(
        fmt::format("{} more such notes (`ckfs inspect` has them)", notes.size() - kMost));
  }
  return lines;
}

std::uint64_t memory_of(const View& view) {
  // Nodes of tables and spare capacity: measured at twice the objects themselves.
  constexpr std::uint64_t kEachFile = 256;
  const Definition& definition = *impl_of(view).definition;
  std::uint64_t bytes = kEachFile * impl_of(view).files->size() + memory_of(definition);
  for (const DefinitionPart& part : definition.parts) bytes += memory_of(*part.definition);
  return bytes;
}

std::string outside_links(const Checkpoint& checkpoint) {
  const std::span<const Note> facts = impl_of(checkpoint).catalog->facts();
  const auto found = std::ranges::find(facts, kOutsideLinks, &Note::subject);
  return found == facts.end() ? std::string() : found->text;
}

Result<std::string> list_report(const Checkpoint& checkpoint, std::string_view where,
                                ListDetail detail, ReportFormat format) {
  while (where.ends_with('/')) where.remove_suffix(1);
  while (where.starts_with('/')) where.remove_prefix(1);
  const auto render_list = [&](std::string_view view, std::span<const Entry> entries) {
    return format == ReportFormat::Json ? list_json(view, entries) : list_text(entries, detail);
  };
  if (where.empty()) {
    std::vector<Entry> entries;
    for (ViewInfo& info : checkpoint.views()) {
      if (info.available) entries.push_back({std::move(info.name)});
    }
    return render_list("", entries);
  }
  const std::size_t slash = std::min(where.find('/'), where.size());
  CKFS_TRY(const View view, checkpoint.view(where.substr(0, slash)));
  const std::string_view path = where.substr(std::min(slash + 1, where.size()));
  const std::vector<Entry> entries = entries_at(view, path);
  if (entries.empty() && !path.empty()) {
    return fail(ErrorCode::NotFound, "{}/{}: no such file", view.name(), path);
  }
  return render_list(view.name(), entries);
}

std::string views_json(const Checkpoint& checkpoint, std::span<const View> more) {
  const Catalog& catalog = *impl_of(checkpoint).catalog;
  Json json = versioned();
  json["layout"] = kLayoutVersion;
  json["source"] = {{"kind", catalog.kind()},
                    {"quantization", quantization_of(checkpoint)},
                    {"mtime", checkpoint.mtime()},
                    {"fingerprint", fingerprint_text(checkpoint)}};
  json["views"] = Json::array();
  for (const ViewInfo& info : checkpoint.views()) {
    if (!info.available) continue;
    if (const Result<View> view = checkpoint.view(info.name)) {
      json["views"].push_back(view_files(*view));
    }
  }
  for (const View& view : more) json["views"].push_back(view_files(view));
  return render(json);
}

std::string sources_of(const View& view, std::size_t file) {
  return fmt::format("{}", fmt::join(source_paths(impl_of(view), file), "\n"));
}

std::string label_text(const View& view, Exactness exactness) {
  if (exactness != Exactness::Quantized) return std::string(name(exactness));
  return fmt::format("{} (equal to {})", name(exactness), view.tool());
}

}  // namespace ckfs
