// The tensors of a view by number and by name. Costs 24 bytes a tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/checkpoint.h>

#include "container/file_layout.h"
#include "container/view_files.h"

namespace ckfs {

class TensorTable {
 public:
  /// `files` outlives the table.
  explicit TensorTable(const ViewFiles& files);

  std::size_t size() const { return rows_.size(); }
  // Requires of all below: index < size().
  TensorInfo info(std::size_t index) const;
  const ModelTensor& tensor(std::size_t index) const;
  /// Its number in the definition of its file.
  std::uint32_t id(std::size_t index) const { return rows_[index].id; }
  std::string_view folder(std::size_t index) const;
  std::string full_name(std::size_t index) const;
  /// The tensor as a file of its own: its bytes and nothing else. Each call gives a layout of the
  /// same serial, so tiles are shared.
  std::shared_ptr<const FileLayout> layout(std::size_t index) const;

  /// By the folder and the name in it, one after the other.
  std::optional<std::size_t> find(std::string_view name) const;
  /// " (did you mean NAME?)", or nothing.
  std::string meant(std::string_view name) const;

 private:
  struct Row {
    std::uint32_t file = 0;  // the first that has a part of it
    std::uint32_t id = 0;    // in the definition of that file
  };

  const ViewFiles& files_;
  std::vector<Row> rows_;
  std::vector<std::uint32_t> by_name_;
  std::uint64_t first_serial_ = 0;
};

}  // namespace ckfs
