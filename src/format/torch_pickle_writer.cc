// data.pkl as CPython's C pickler makes it of {name: tensor}, to the byte: which objects it meets
// twice and so memoizes, how it spells numbers, how it cuts a dict into batches. A pickle without a
// memo would load as well and be shorter to write; then a file of ours and one that torch.save made
// of the same tensors would differ for no reason that a user could see.
//
// Files must have sizes before anything is read, so measuring walks the same code as rendering.
#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <unordered_map>

#include "base/checked.h"
#include "format/text_sink.h"
#include "format/torch_zip_writer.h"

namespace ckfs::torch_zip {
namespace {

constexpr std::size_t kBatch = 1000;  // items between a MARK and its SETITEMS

/// How torch calls a dtype: a typed storage class, or, for the dtypes that came after those, the
/// dtype's own name beside an untyped storage.
struct TorchName {
  std::string_view storage;
  std::string_view dtype;
};

TorchName torch_name(DType dtype) {
  switch (dtype) {
    case DType::Bool:
      return {"BoolStorage", {}};
    case DType::U8:
      return {"ByteStorage", {}};
    case DType::I8:
      return {"CharStorage", {}};
    case DType::I16:
      return {"ShortStorage", {}};
    case DType::I32:
      return {"IntStorage", {}};
    case DType::I64:
      return {"LongStorage", {}};
    case DType::F16:
      return {"HalfStorage", {}};
    case DType::BF16:
      return {"BFloat16Storage", {}};
    case DType::F32:
      return {"FloatStorage", {}};
    case DType::F64:
      return {"DoubleStorage", {}};
    case DType::C64:
      return {"ComplexFloatStorage", {}};
    case DType::C128:
      return {"ComplexDoubleStorage", {}};
    case DType::U16:
      return {{}, "uint16"};
    case DType::U32:
      return {{}, "uint32"};
    case DType::U64:
      return {{}, "uint64"};
    case DType::F8E4M3:
      return {{}, "float8_e4m3fn"};
    case DType::F8E5M2:
      return {{}, "float8_e5m2"};
    case DType::F8E4M3FNUZ:
      return {{}, "float8_e4m3fnuz"};
    case DType::F8E5M2FNUZ:
      return {{}, "float8_e5m2fnuz"};
    case DType::F8E8M0:
      return {{}, "float8_e8m0fnu"};
    case DType::F4:
    case DType::F6E2M3:
    case DType::F6E3M2:
      break;
  }
  return {};
}

template <typename Sink>
class Pickler {
 public:
  explicit Pickler(Sink& sink) : sink_(sink) {}

  void dict(std::span<const TensorHead> tensors) {
    put("\x80\x02}");  // protocol 2, an empty dict
    memoize();
    note_shared(tensors);
    if (tensors.size() == 1) {
      item(tensors, 0);
      put("s");
    } else if (!tensors.empty()) {
      std::size_t next = 0;
      std::size_t count = kBatch;
      // A full batch is followed by another, even if nothing is left for it.
      for (; count == kBatch; next += count) {
        count = std::min(kBatch, tensors.size() - next);
        put("(");
        for (std::size_t i = next; i < next + count; ++i) item(tensors, i);
        put("u");
      }
    }
    put(".");
  }

  void tensor(const TensorHead& tensor) {
    put("\x80\x02");
    rebuilt(tensor);
    put(".");
  }

 private:
  using Memo = std::optional<std::uint32_t>;

  void put(std::string_view text) { sink_.put(text); }

  template <typename T>
  void put_le(std::uint64_t value) {
    std::array<char, sizeof(T)> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
    put({bytes.data(), bytes.size()});
  }

  /// Gives the object just written the next number.
  std::uint32_t memoize() {
    const std::uint32_t index = memo_size_++;
    put(index < 256 ? "q" : "r");
    put_memo_index(index);
    return index;
  }

  void recall(std::uint32_t index) {
    put(index < 256 ? "h" : "j");
    put_memo_index(index);
  }

  void put_memo_index(std::uint32_t index) {
    if (index < 256) {
      put_le<std::uint8_t>(index);
    } else {
      put_le<std::uint32_t>(index);
    }
  }

  void string(std::string_view text) {
    put("X");
    put_le<std::uint32_t>(text.size());
    put(text);
    memoize();
  }

  /// An object that is written once and recalled afterwards.
  void constant(Memo& memo, std::string_view text) {
    if (memo) return recall(*memo);
    put("X");
    put_le<std::uint32_t>(text.size());
    put(text);
    memo = memoize();
  }

  void global(Memo& memo, std::string_view module, std::string_view name) {
    if (memo) return recall(*memo);
    put("c");
    put(module);
    put("\n");
    put(name);
    put("\n");
    memo = memoize();
  }

  void integer(std::int64_t value) {
    CKFS_CHECK(value >= 0);
    const auto number = static_cast<std::uint64_t>(value);
    if (number <= 0xff) {
      put("K");
      put_le<std::uint8_t>(number);
    } else if (number <= 0xffff) {
      put("M");
      put_le<std::uint16_t>(number);
    } else if (number <= 0x7fffffff) {
      put("J");
      put_le<std::uint32_t>(number);
    } else {
      // LONG1: as few bytes as hold the number and its sign.
      std::size_t bytes = 4;
      while (bytes < 8 && (number >> (8 * bytes - 1)) != 0) ++bytes;
      put("\x8a");
      put_le<std::uint8_t>(bytes);
      for (std::size_t i = 0; i < bytes; ++i) put_le<std::uint8_t>((number >> (8 * i)) & 0xff);
    }
  }

  void integers(std::span<const std::int64_t> values) {
    if (values.empty()) return put(")");
    if (values.size() > 3) put("(");
    for (const std::int64_t value : values) integer(value);
    switch (values.size()) {
      case 1:
        put("\x85");
        break;
      case 2:
        put("\x86");
        break;
      case 3:
        put("\x87");
        break;
      default:
        put("t");
    }
    memoize();
  }

  void item(std::span<const TensorHead> tensors, std::size_t index) {
    const TensorHead& tensor = tensors[index];
    string(tensor.name);
    if (tensor.same_as != TensorHead::kOwnStorage) {
      recall(shared_.at(tensor.same_as));
      return;
    }
    const std::uint32_t memo = rebuilt(tensor);
    const auto shared = shared_.find(static_cast<std::uint32_t>(index));
    if (shared != shared_.end()) shared->second = memo;
  }

  /// The call of torch's function that makes the tensor; gives the number of its result.
  std::uint32_t rebuilt(const TensorHead& tensor) {
    const TorchName name = torch_name(tensor.dtype);
    const bool typed = name.dtype.empty();
    const auto numel = checked_numel(tensor.shape);
    CKFS_CHECK(numel.has_value() && can_hold(tensor.dtype));
    const std::int64_t width = bits(tensor.dtype) / 8;
    const auto dtype = static_cast<std::size_t>(tensor.dtype);

    if (typed) {
      global(rebuild_v2_, "torch._utils", "_rebuild_tensor_v2");
    } else {
      global(rebuild_v3_, "torch._utils", "_rebuild_tensor_v3");
    }
    put("((");
    constant(storage_word_, "storage");
    if (typed) {
      global(storage_classes_[dtype], "torch", name.storage);
    } else {
      global(untyped_storage_, "torch.storage", "UntypedStorage");
    }
    string(fmt::format("{}", storages_++));
    constant(cpu_word_, "cpu");
    integer(typed ? *numel : *numel * width);
    put("t");
    memoize();
    put("Q");
    integer(0);  // offset in the storage
    integers(tensor.shape);
    strides(tensor.shape);
    put("\x89");                                          // requires_grad: False
    global(ordered_dict_, "collections", "OrderedDict");  // backward hooks: none
    put(")R");
    memoize();
    if (!typed) global(dtypes_[dtype], "torch", name.dtype);
    put("t");
    memoize();
    put("R");
    return memoize();
  }

  void strides(std::span<const std::int64_t> shape) {
    std::vector<std::int64_t> strides(shape.size());
    std::int64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      strides[d] = stride;
      // The product for a tensor without elements may exceed its size: an overflow does not matter,
      // but must not be undefined behaviour.
      stride = static_cast<std::int64_t>(
                   static_cast<std::uint64_t>(stride) *
                   static_cast<std::uint64_t>(std::max<std::int64_t>(shape[d], 1))) &
               std::numeric_limits<std::int64_t>::max();
    }
    integers(strides);
  }

  void note_shared(std::span<const TensorHead> tensors) {
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      const std::uint32_t source = tensors[i].same_as;
      if (source == TensorHead::kOwnStorage) continue;
      CKFS_CHECK(source < i && tensors[source].same_as == TensorHead::kOwnStorage);
      shared_.emplace(source, 0);
    }
  }

  Sink& sink_;
  std::uint32_t memo_size_ = 0;
  std::uint64_t storages_ = 0;
  /// Results that other names recall: index of the tensor -> memo number.
  std::unordered_map<std::uint32_t, std::uint32_t> shared_;
  Memo rebuild_v2_, rebuild_v3_, storage_word_, cpu_word_, untyped_storage_, ordered_dict_;
  std::array<Memo, kDTypeCount> storage_classes_, dtypes_;
};

}  // namespace

bool can_hold(DType dtype) {
  const TorchName name = torch_name(dtype);
  return !name.storage.empty() || !name.dtype.empty();
}

std::uint64_t measure_pickle(std::span<const TensorHead> tensors) {
  CountingSink sink;
  Pickler(sink).dict(tensors);
  return sink.size();
}

std::uint64_t measure_pickle(const TensorHead& tensor) {
  CountingSink sink;
  Pickler(sink).tensor(tensor);
  return sink.size();
}

std::string render_pickle(const TensorHead& tensor) {
  std::string out;
  TextSink sink(out);
  Pickler(sink).tensor(tensor);
  return out;
}

std::string render_pickle(std::span<const TensorHead> tensors) {
  std::string out;
  out.reserve(measure_pickle(tensors));
  TextSink sink(out);
  Pickler(sink).dict(tensors);
  return out;
}

}  // namespace ckfs::torch_zip
