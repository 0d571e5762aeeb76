// Finds the tensors in a pickle, and their bytes. Torch writes a tensor as a call of one of its
// _rebuild functions on a storage, an offset, a shape and strides; parameters and tensors with
// attributes wrap that in one more call. These few functions are known by name, and their arguments
// are read as data. Anything else is not a tensor, whatever it would return in Python.
//
// Opening the file and finding the storages: torch_open.cc.
#include "format/torch_file.h"

#include <algorithm>
#include <array>

#include "base/checked.h"
#include "base/text.h"
#include "format/torch_names.h"

namespace ckfs {
namespace {

/// What a function of torch makes of its arguments.
enum class Rebuild : std::uint8_t {
  Nothing,   // not a tensor
  Strided,   // (storage, offset, shape, stride, requires_grad, hooks, metadata)
  Typed,     // the same with a dtype before the metadata: the storage has none
  Wrapped,   // (tensor, requires_grad, ...): a parameter
  FromType,  // (function, type, its arguments, state): a tensor with attributes, or of a subclass
  Unserved,  // a tensor that is not a strided view on stored bytes
};

struct KnownFunction {
  std::string_view name;
  Rebuild rebuild;
  std::string_view reason = {};  // of Unserved
};

constexpr std::string_view kWrapperSubclass = "_rebuild_wrapper_subclass";

constexpr auto kFunctions = std::to_array<KnownFunction>({
    {"_rebuild_tensor", Rebuild::Strided},
    {"_rebuild_tensor_v2", Rebuild::Strided},
    {"_rebuild_npu_tensor", Rebuild::Strided},
    {"_rebuild_tensor_v3", Rebuild::Typed},
    {"_rebuild_parameter", Rebuild::Wrapped},
    {"_rebuild_parameter_with_state", Rebuild::Wrapped},
    {"Parameter", Rebuild::Wrapped},
    {"Buffer", Rebuild::Wrapped},
    {"_rebuild_from_type", Rebuild::FromType},
    {"_rebuild_from_type_v2", Rebuild::FromType},
    {"_rebuild_sparse_tensor", Rebuild::Unserved, "a sparse tensor"},
    {"_rebuild_sparse_csr_tensor", Rebuild::Unserved, "a sparse tensor"},
    {"_rebuild_nested_tensor", Rebuild::Unserved, "a nested tensor"},
    {"_rebuild_qtensor", Rebuild::Unserved, "a quantized tensor"},
    {kWrapperSubclass, Rebuild::Unserved, "a tensor without storage of its own"},
    {"_rebuild_meta_tensor_no_storage", Rebuild::Unserved, "on the meta device, without values"},
    {"_rebuild_device_tensor_from_numpy", Rebuild::Unserved, "a numpy array"},
    {"_rebuild_device_tensor_from_cpu_tensor", Rebuild::Unserved, "a tensor of a plugin's device"},
    {"_rebuild_xla_tensor", Rebuild::Unserved, "a numpy array"},
    {"_rebuild_mlc_tensor", Rebuild::Unserved, "a numpy array"},
});

/// Wrapped and FromType are followed this often: a Parameter with attributes needs two.
constexpr int kMaxWrapping = 8;

const KnownFunction* known_function(const Pickle& pickle, NodeId callable) {
  const Pickle::GlobalName global = pickle.global(callable);
  if (!global.module.starts_with("torch")) return nullptr;
  const auto* const found =
      std::find_if(kFunctions.begin(), kFunctions.end(),
                   [&](const KnownFunction& known) { return known.name == global.name; });
  return found == kFunctions.end() ? nullptr : found;
}

/// The innermost call of a chain of wrappings.
struct Unwrapped {
  const KnownFunction* function = nullptr;  // nullptr: not a tensor
  std::span<const NodeId> args;
  std::span<const NodeId> from_type;  // the arguments of the last FromType around it
};

Unwrapped unwrap(const Pickle& pickle, NodeId node) {
  Unwrapped found;
  if (pickle.kind(node) != NodeKind::Call) return found;
  NodeId callable = pickle.callable(node);
  NodeId args = pickle.args(node);
  for (int depth = 0; depth < kMaxWrapping; ++depth) {
    const KnownFunction* const function = known_function(pickle, callable);
    if (function == nullptr) return {};
    found.args = pickle.items(args);
    if (function->rebuild == Rebuild::FromType) {
      if (found.args.size() < 3) return {};
      found.from_type = found.args;
      callable = found.args[0];
      args = found.args[2];
    } else if (function->rebuild == Rebuild::Wrapped) {
      if (found.args.empty() || pickle.kind(found.args[0]) != NodeKind::Call) return {};
      callable = pickle.callable(found.args[0]);
      args = pickle.args(found.args[0]);
    } else {
      found.function = function;
      return found;
    }
  }
  return {};
}

std::string list_of(std::span<const std::int64_t> values) {
  return fmt::format("[{}]",
                     fmt::join(values.first(std::min<std::size_t>(values.size(), 16)), ", "));
}

/// Torch's bits "read me negated" and "read me conjugated" lie beside the bytes.
bool has_math_bit(const Pickle& pickle, NodeId metadata) {
  for (const std::string_view bit : {"conj", "neg"}) {
    const auto value = pickle.find(metadata, bit);
    if (value && pickle.boolean(*value) != false) return true;
  }
  return false;
}

template <typename... Args>
Failure corrupt(fmt::format_string<Args...> text, Args&&... args) {
  return fail(ErrorCode::Corrupt, text, std::forward<Args>(args)...);
}

}  // namespace

bool TorchFile::is_tensor(NodeId node) const {
  return unwrap(pickle_, node).function != nullptr;
}

std::optional<TorchWrapper> TorchFile::wrapper(NodeId node) const {
  const Unwrapped found = unwrap(pickle_, node);
  if (found.function == nullptr || found.function->name != kWrapperSubclass) return std::nullopt;
  if (found.from_type.size() < 4) return std::nullopt;
  return TorchWrapper{pickle_.global(found.from_type[1]), found.args, found.from_type[3]};
}

Result<TorchTensor> TorchFile::tensor(NodeId node) const {
  const Unwrapped found = unwrap(pickle_, node);
  if (found.function == nullptr) return corrupt("not a tensor");
  if (found.function->rebuild == Rebuild::Unserved) {
    return fail(ErrorCode::Unsupported, "{} ({})", found.function->reason, found.function->name);
  }
  return strided(found.args, found.function->name);
}

Result<TorchTensor> TorchFile::strided(std::span<const NodeId> args,
                                       std::string_view function) const {
  const bool typed = function == "_rebuild_tensor_v3";
  const std::size_t metadata_at = typed ? 7 : 6;
  if (args.size() < (typed ? 7 : 4)) {
    return corrupt("{} with {} arguments", function, args.size());
  }
  CKFS_TRY(const StorageId id, storage_id(args[0]));
  const auto reference =
      std::lower_bound(references_.begin(), references_.end(), args[0],
                       [](const Reference& r, NodeId node) { return r.node < node; });
  CKFS_CHECK(reference != references_.end() && reference->node == args[0]);
  if (storages_[reference->storage].conflicting) {
    return corrupt("storage {} is named with two different sizes", quote(id.key));
  }

  TorchTensor tensor;
  tensor.storage = reference->storage;
  tensor.dtype = id.dtype.value_or(DType::U8);
  if (typed) {
    const Pickle::GlobalName global = pickle_.global(args[6]);
    const auto dtype = torch_dtype(global.name);
    if (global.module != "torch" || !dtype) {
      return fail(ErrorCode::Unsupported, "dtype {}.{}, which ckfs does not have",
                  quote(global.module), quote(global.name));
    }
    tensor.dtype = *dtype;
  }
  if (args.size() > metadata_at && has_math_bit(pickle_, args[metadata_at])) {
    return fail(ErrorCode::Unsupported, "a conjugated or negated view");
  }

  const auto offset = pickle_.integer(args[1]);
  if (!offset || *offset < 0) return corrupt("its offset is not a number of elements");
  for (const NodeId list : {args[2], args[3]}) {  // before they are copied
    const std::size_t rank = pickle_.sequence(list).size();
    if (rank <= kMaxTorchRank) continue;
    return fail(ErrorCode::Unsupported, "{} dimensions (limit {})", rank, kMaxTorchRank);
  }
  auto shape = pickle_.integers(args[2]);
  auto stride = pickle_.integers(args[3]);
  if (!shape) return corrupt("its shape is not a list of integers");
  if (!stride) return corrupt("its stride is not a list of integers");
  if (stride->size() != shape->size()) {
    return corrupt("{} strides for {} dimensions", stride->size(), shape->size());
  }
  const auto numel = checked_numel(*shape);
  if (!numel) return corrupt("shape {} has no possible number of elements", list_of(*shape));

  // Everything below counts elements of the tensor's dtype; an untyped storage counts bytes.
  const auto width = static_cast<std::int64_t>(bits(tensor.dtype) / 8);
  const auto storage_width = id.dtype ? static_cast<std::int64_t>(bits(*id.dtype) / 8) : 1;
  const auto bytes_before = checked_mul(id.view_offset, storage_width);
  const auto bytes_inside = checked_mul(id.view_numel, storage_width);
  if (!bytes_before || !bytes_inside || *bytes_before % width != 0) {
    return corrupt("storage {}: its view at {} is not one of {}", quote(id.key), id.view_offset,
                   name(tensor.dtype));
  }
  const std::int64_t limit = *bytes_inside / width;
  std::optional<std::int64_t> last = offset;
  for (std::size_t i = 0; i < shape->size(); ++i) {
    if ((*stride)[i] < 0) return corrupt("stride {} (at least 0)", list_of(*stride));
    if (*numel == 0) continue;
    const auto reach = checked_mul((*shape)[i] - 1, (*stride)[i]);
    last = reach && last ? checked_add(*last, *reach) : std::nullopt;
  }
  if (*numel != 0 && (!last || *last >= limit)) {
    return corrupt("offset {}, shape {} and stride {} reach beyond storage {} of {} elements",
                   *offset, list_of(*shape), list_of(*stride), quote(id.key), limit);
  }
  const auto from_begin = checked_add(*offset, *bytes_before / width);
  if (!from_begin) return corrupt("offset {} of a view at {}", *offset, id.view_offset);
  if (!nbytes(tensor.dtype, *numel)) {
    return corrupt("shape {} has no possible number of bytes", list_of(*shape));
  }
  tensor.offset = *from_begin;
  tensor.shape = std::move(*shape);
  tensor.stride = std::move(*stride);
  return tensor;
}

Result<TorchFile::StorageId> TorchFile::storage_id(NodeId node) const {
  if (pickle_.kind(node) != NodeKind::PersistentId) return corrupt("it has no storage");
  const NodeId tuple = pickle_.persistent_id(node);
  const auto parts = pickle_.items(tuple);
  if (pickle_.kind(tuple) != NodeKind::Tuple || parts.size() < 5 ||
      !pickle_.says(parts[0], "storage")) {
    return corrupt("its persistent id names no storage");
  }
  const Pickle::GlobalName type = pickle_.global(parts[1]);
  const auto key = pickle_.string(parts[2]);
  const auto numel = pickle_.integer(parts[4]);
  if (!key || !numel || *numel < 0) return corrupt("its storage has no key or no size");
  if (pickle_.says(parts[3], "meta")) {
    return fail(ErrorCode::Unsupported, "on the meta device, without values");
  }
  const auto known = type.module.starts_with("torch") ? storage_type(type.name) : std::nullopt;
  if (!known) {
    return fail(ErrorCode::Unsupported, "storage type {}.{}", quote(type.module), quote(type.name));
  }
  StorageId id{*key, known->dtype, *numel, 0, *numel};
  if (!nbytes(id.dtype.value_or(DType::U8), *numel)) {
    return corrupt("storage {} of {} elements", quote(*key), *numel);
  }
  // The stream before torch 1.6 can name a part of a storage: (key, offset, numel) or None.
  if (parts.size() > 5 && !pickle_.is_none(parts[5])) {
    const auto view = pickle_.sequence(parts[5]);
    const auto offset = view.size() == 3 ? pickle_.integer(view[1]) : std::nullopt;
    const auto part = view.size() == 3 ? pickle_.integer(view[2]) : std::nullopt;
    if (!offset || !part || *offset < 0 || *part < 0 || *offset > *numel ||
        *part > *numel - *offset) {
      return corrupt("storage {}: a view that is not inside its {} elements", quote(*key), *numel);
    }
    id.view_offset = *offset;
    id.view_numel = *part;
  }
  return id;
}

}  // namespace ckfs
