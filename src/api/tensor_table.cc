// Names are those of the definitions: the table sorts numbers and copies no name.
#include "api/tensor_table.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "base/suggest.h"
#include "base/text.h"

namespace ckfs {

TensorTable::TensorTable(const ViewFiles& files) : files_(files) {
  // A tensor may lie in several files.
  std::unordered_map<const Definition*, std::vector<bool>> seen;
  for (const std::size_t file : files.tensor_files()) {
    const Definition& definition = *files.definition(file);
    std::vector<bool>& seen_here = seen[&definition];
    seen_here.resize(definition.tensors.size(), false);
    for (const std::uint32_t id : files.tensors(file)) {
      if (seen_here[id]) continue;
      seen_here[id] = true;
      rows_.push_back({static_cast<std::uint32_t>(file), id});
    }
  }
  first_serial_ = new_serials(rows_.size());
  by_name_.resize(rows_.size());
  std::iota(by_name_.begin(), by_name_.end(), std::uint32_t{0});
  std::ranges::sort(by_name_, [&](std::uint32_t a, std::uint32_t b) {
    if (folder(a) == folder(b)) {
      return tensor(a).name == tensor(b).name ? a < b : tensor(a).name < tensor(b).name;
    }
    const std::string left = full_name(a), right = full_name(b);
    return left == right ? a < b : left < right;
  });
}

const ModelTensor& TensorTable::tensor(std::size_t index) const {
  const Row& row = rows_[index];
  return files_.definition(row.file)->tensors[row.id];
}

TensorInfo TensorTable::info(std::size_t index) const {
  const ModelTensor& shown = tensor(index);
  return {.name = shown.name,
          .dtype = ckfs::name(shown.expr.dtype()),
          .shape = shown.expr.shape(),
          .file = rows_[index].file,
          .exactness = shown.exactness,
          .folder = folder(index),
          .size = shown.expr.nbytes()};
}

std::string_view TensorTable::folder(std::size_t index) const {
  return files_.directory(rows_[index].file);
}

std::string TensorTable::full_name(std::size_t index) const {
  return std::string(folder(index)) + std::string(tensor(index).name);
}

std::shared_ptr<const FileLayout> TensorTable::layout(std::size_t index) const {
  const Row& row = rows_[index];
  auto layout = std::make_shared<FileLayout>();
  layout->path = full_name(index);
  layout->size = tensor(index).expr.nbytes();
  layout->serial = first_serial_ + index;
  layout->definition = files_.definition(row.file);
  if (layout->size > 0) layout->segments = {{.id = row.id, .kind = Segment::Kind::Tensor}};
  layout->finish();
  return layout;
}

std::optional<std::size_t> TensorTable::find(std::string_view name) const {
  const auto precedes = [&](std::uint32_t index, std::string_view wanted) {
    const std::string_view in = folder(index);
    if (const int order = in.compare(wanted.substr(0, in.size())); order != 0) return order < 0;
    return tensor(index).name < wanted.substr(in.size());
  };
  const auto at = std::lower_bound(by_name_.begin(), by_name_.end(), name, precedes);
  if (at == by_name_.end() || full_name(*at) != name) return std::nullopt;
  return *at;
}

std::string TensorTable::meant(std::string_view name) const {
  std::vector<std::string> owned;  // of folders
  owned.reserve(rows_.size());
  std::vector<std::string_view> known;
  known.reserve(rows_.size());
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    known.push_back(folder(i).empty() ? tensor(i).name : owned.emplace_back(full_name(i)));
  }
  const std::string_view like = closest(name, known);
  return like.empty() ? std::string() : " (did you mean " + one_line(like) + "?)";
}

}  // namespace ckfs
