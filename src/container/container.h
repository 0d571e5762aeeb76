// The packaging of a view's content: which files a directory has, where everything lies in each,
// and the texts between the tensors.
//
// A container knows model tensors and side files as src/view defines them, and decides names, order
// and splitting. Paths may lie in directories of any depth, and there may be 100,000 of them. So a
// container keeps only what facts() gives for a file, and computes its byte positions when it is
// opened.
//
// Containers are immutable and safe for concurrent use. A layout keeps alive all that its render()
// needs, and through FileLayout::definition, which ViewFiles adds, the sources of its tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ckfs/types.h>

#include "base/byte_source.h"
#include "base/error.h"
#include "container/file_layout.h"
#include "view/view.h"

namespace ckfs {

/// What a listing says of a file.
struct FileFacts {
  std::uint64_t size = 0;
  std::uint32_t tensors = 0;                  // how many Container::tensors() gives
  Exactness exactness = Exactness::BitExact;  // the least exact of them
  std::optional<FileId> copy_of = {};         // the source file that it is, byte by byte
};

class Container : public std::enable_shared_from_this<Container> {
 public:
  virtual ~Container() = default;

  /// Files are numbered from 0, in the order that loaders see them in; size() of them.
  virtual std::size_t size() const = 0;
  /// Within the view, or the directory of its part, with '/'. Each path comes once.
  virtual std::string path(std::size_t file) const = 0;
  /// Final when the container is made: no tensor byte is needed.
  virtual FileFacts facts(std::size_t file) const = 0;
  /// The model tensors of the file, in its own order: numbers in Definition::tensors.
  virtual std::vector<std::uint32_t> tensors(std::size_t file) const = 0;

  /// Sets segments, literals and render(); FileLayout::finish() and ViewFiles add the rest. Each
  /// call gives the same layout, of facts(file).size bytes.
  virtual FileLayout lay_out(std::size_t file) const = 0;
};

/// The containers of a view, in no order that matters: that of its tensors, if it has any, and the
/// side files. Errors: Unsupported (a tensor that the container cannot hold, a file beyond the
/// format's limits), InvalidArgument (more than 100,000 shards: by max_shard, by layer, or as
/// the source has them).
Result<std::vector<std::shared_ptr<const Container>>> make_containers(
    const std::shared_ptr<const Definition>& definition, const ByteSource& source);

}  // namespace ckfs
