#include "format/dcp_item.h"

#include <algorithm>

#include "base/text.h"

namespace ckfs {
namespace {

Result<DcpItem> open(ByteSource& source, FileId file, ByteRange within, std::uint64_t max_header) {
  CKFS_TRY(const TorchFile torch, TorchFile::open(source, file, within, max_header));
  auto tensor = torch.tensor(torch.root());
  CKFS_TRY_VOID(torch.pickle().budget()->check(source.name(file)));
  if (!tensor) return Failure(tensor.error());
  DcpItem item{*std::move(tensor), {}, torch.header_bytes()};
  CKFS_TRY(item.storage, torch.storage_bytes(item.tensor.storage));
  return item;
}

/// `file: tensor "name", bytes [a, b): ` before what TorchFile says, which may begin with the file.
Failure in_item(const Error& error, const std::string& file, std::string_view name,
                ByteRange within) {
  const std::string_view message = error.message();
  const bool named = message.starts_with(file) && message.substr(file.size()).starts_with(": ");
  return Failure(Error(error.code(),
                       fmt::format("{}: tensor {}, bytes {}: {}", file, quote(name), within,
                                   named ? message.substr(file.size() + 2) : message),
                       error.system_error()));
}

}  // namespace

Result<DcpItem> open_dcp_item(ByteSource& source, FileId file, ByteRange within,
                              std::string_view name, DType dtype,
                              std::span<const std::int64_t> shape, std::uint64_t max_header) {
  const std::string& file_name = source.name(file);
  auto item = open(source, file, within, max_header);
  if (!item) return in_item(item.error(), file_name, name, within);
  const TorchTensor& tensor = item->tensor;
  if (!std::ranges::equal(tensor.shape, shape) || tensor.dtype != dtype) {
    return fail(ErrorCode::Corrupt, "{}: tensor {}: a chunk of {} [{}], but .metadata says {} [{}]",
                file_name, quote(name), ckfs::name(tensor.dtype), fmt::join(tensor.shape, ", "),
                ckfs::name(dtype), fmt::join(shape, ", "));
  }
  return item;
}

}  // namespace ckfs
