// A base class, not an interface with implementations that are looked up: which adapter opens a
// tree is a table in open_checkpoint.cc, and each lives for one call.
#include "source/source_opener.h"

#include <algorithm>

#include "base/checked.h"
#include "base/text.h"
#include "format/json_tree.h"
#include "source/adapters.h"
#include "source/header_loader.h"
#include "source/model_directory.h"

namespace ckfs {

SourceOpener::SourceOpener(const SourceTree& tree, SourceFiles& files,
                           const OpenCheckpointOptions& options, std::string_view kind,
                           SourceOpener* whole)
    : tree_(tree),
      files_(files),
      options_(options),
      builder_(kind),
      own_repeated_(files),
      own_searched_(files),
      repeated_(whole == nullptr ? own_repeated_ : whole->repeated_),
      searched_(whole == nullptr ? own_searched_ : whole->searched_),
      elements_(whole == nullptr ? own_elements_ : whole->elements_) {}

Result<std::shared_ptr<const Catalog>> SourceOpener::open() {
  CKFS_TRY(table_, FileTable::create(tree_, files_, builder_));
  if (!tree_.outside_links.empty()) {
    builder_.add_fact(std::string(kOutsideLinks), tree_.outside_links);
  }
  if (const Result<void> done = read(); !done) return explained(done.error());
  note_lfs_pointers();
  return finish();
}

Result<std::shared_ptr<const Catalog>> SourceOpener::open_part(FileTable table) {
  table_ = std::move(table);
  if (const Result<void> done = read(); !done) return explained(done.error());
  return finish();
}

Result<std::shared_ptr<const Catalog>> SourceOpener::finish() {
  const auto adapter = find("adapter_config.json");
  if (adapter && has_adapter("") && builder_.tensor_count() == 0) {
    CKFS_TRY_VOID(add_adapter_fact(*adapter));
  }
  auto catalog = std::move(builder_).build();
  CKFS_TRY_VOID(count_elements(*catalog));
  return catalog;
}

/// Sizes of views and of their indexes are sums over all tensors, in any dtype: none may overflow.
Result<void> SourceOpener::count_elements(const Catalog& catalog) {
  constexpr std::int64_t kMost = std::int64_t{1} << 58;  // 16 bytes each are less than 2^63
  std::int64_t total = elements_;
  for (const StoredTensor& tensor : catalog.tensors()) {
    const auto numel = checked_numel(tensor.shape);
    const auto sum = numel ? checked_add(total, *numel) : std::nullopt;
    if (!sum || *sum > kMost) {
      return fail(ErrorCode::Corrupt, "{}: tensor {}: more than {} elements with those before it",
                  tree_.name, quote(tensor.name), kMost);
    }
    total = *sum;
  }
  elements_ = total;
  return {};
}

Failure SourceOpener::explained(const Error& error) const {
  const std::string_view message = error.message();
  const auto pointers = find_lfs_pointers(tree_, files_, [&](const TreeFile& file) {
    return message.starts_with(file.path) && message.substr(file.path.size()).starts_with(": ");
  });
  return pointers.empty() ? Failure(error) : refuse_lfs_pointer(pointers.front()->path);
}

void SourceOpener::note_lfs_pointers() {
  const auto is_small = [this](const TreeFile& file) {
    return has_lfs_pointer_size(files_.size(id(file.path)));
  };
  for (const TreeFile* file : find_lfs_pointers(tree_, files_, is_small)) {
    builder_.add_note(file->path, "a Git-LFS pointer, not the file itself (git lfs pull gets it)");
  }
}

Result<std::string> SourceOpener::read_once(FileId file, std::uint64_t limit) {
  CKFS_TRY_VOID(repeated_.add(file, std::min(files_.size(file), limit)));
  return read_text(files_, file, limit);
}

Result<void> SourceOpener::add_adapters(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const std::string folder = path.substr(0, path.rfind('/') + 1);
    SourceTree file;
    file.name = tree_.name + "/" + path;
    file.single_file = true;
    file.root = tree_.root / folder;
    file.complete_command = tree_.complete_command;
    file.files.push_back({path.substr(folder.size()), tree_.find(path)->is_link});
    const bool is_torch = kTorchFile.recognizes(file, files_, {});
    auto part = (is_torch ? kTorchFile : kHfSafetensors)
                    .open_file(file, files_, *this, table().below(folder));
    if (!part) {
      const Error error = folder.empty() || part.error().message().starts_with(folder)
                              ? part.error()
                              : part.error().within(folder.substr(0, folder.size() - 1));
      if (folder.empty() || error.code() == ErrorCode::Io || error.code() == ErrorCode::Stale ||
          error.code() == ErrorCode::OutOfMemory) {
        return Failure(error);
      }
      builder_.add_note(path, fmt::format("left out: {}", part.error().message()));
      continue;
    }
    for (const Note& note : (*part)->notes()) builder_.add_note(folder + note.subject, note.text);
    builder_.add_fact(path, fmt::format("an adapter, {} tensors of its own",
                                        (*part)->shards()[0].tensors.size()));
    adapter_folders_.insert(folder);
    builder_.add_part({folder, *std::move(part)});
  }
  return {};
}

Result<void> SourceOpener::add_model(const std::optional<std::filesystem::path>& beside) {
  CKFS_TRY(ModelDirectory model,
           find_model_directory(tree_, *table_, files_, builder_, options_, beside));
  constexpr std::string_view kAdapterConfig = "adapter_config.json";
  if (const auto config = find(kAdapterConfig); config && has_adapter("")) {
    model.side_files.push_back({std::string(kAdapterConfig), *config});
  }
  builder_.set_model(std::move(model));
  return {};
}

Result<void> SourceOpener::add_adapter_fact(FileId config) {
  constexpr std::uint64_t kMaxAdapterConfig = std::uint64_t{1} << 20;
  if (files_.size(config) > kMaxAdapterConfig) return {};  // it is shown, and not looked into
  CKFS_TRY(const std::string text, read_text(files_, config, kMaxAdapterConfig));
  const auto tree = parse_json_tree(text, "adapter_config.json", JsonKeys::LastWins);
  const auto member = [&](std::string_view key) -> std::string {
    const JsonNode* const node = tree ? tree->find(key) : nullptr;
    return node != nullptr && node->kind == JsonNode::Kind::String ? one_line(node->text)
                                                                   : std::string();
  };
  std::string kind = member("peft_type");
  kind = kind == "LORA" ? "a LoRA adapter"
         : kind.empty() ? "an adapter"
                        : fmt::format("an adapter ({})", kind);
  const std::string base = member("base_model_name_or_path");
  builder_.add_fact("adapter_config.json",
                    fmt::format("{} of {}, without that model; converted as it is", kind,
                                base.empty() ? "a model that it does not name" : base));
  return {};
}

void SourceOpener::add_byte_facts(std::uint64_t read, std::uint64_t total) {
  builder_.add_fact("bytes read", std::to_string(read));
  builder_.add_fact("bytes never read", std::to_string(total - std::min(total, read)));
}

std::uint64_t SourceOpener::bytes_of(std::string_view prefix, std::string_view ending) const {
  std::uint64_t sum = 0;
  for (const TreeFile& file : tree_.files) {
    if (file.path.starts_with(prefix) && file.path.ends_with(ending)) {
      sum += files_.size(id(file.path));
    }
  }
  return sum;
}

}  // namespace ckfs
