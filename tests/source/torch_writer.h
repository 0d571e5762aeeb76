// Torch files made by hand: any object that a pickle can hold, in the archive of torch.save.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "format/torch_zip_writer.h"

namespace ckfs {

/// The opcodes that put one object on a pickle's stack.
using Opcodes = std::string;

template <typename T>
std::string little_endian(T value) {
  std::string bytes(sizeof(T), '\0');
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    bytes[i] = static_cast<char>((static_cast<std::uint64_t>(value) >> (8 * i)) & 0xff);
  }
  return bytes;
}

inline Opcodes py_none() {
  return "N";
}

inline Opcodes py_int(std::int64_t value) {
  return "\x8a\x08" + little_endian(value);
}

inline Opcodes py_str(std::string_view text) {
  return "X" + little_endian(static_cast<std::uint32_t>(text.size())) + std::string(text);
}

inline Opcodes py_list(const std::vector<Opcodes>& items) {
  Opcodes list = "](";
  for (const Opcodes& item : items) list += item;
  return list + "e";
}

inline Opcodes py_tuple(const std::vector<Opcodes>& items) {
  Opcodes tuple = "(";
  for (const Opcodes& item : items) tuple += item;
  return tuple + "t";
}

inline Opcodes py_dict(const std::vector<std::pair<std::string, Opcodes>>& items) {
  Opcodes dict = "}(";
  for (const auto& [key, value] : items) dict += py_str(key) + value;
  return dict + "u";
}

inline Opcodes py_ints(const std::vector<std::int64_t>& values) {
  std::vector<Opcodes> items;
  for (const std::int64_t value : values) items.push_back(py_int(value));
  return py_list(items);
}

inline Opcodes py_global(std::string_view module, std::string_view name) {
  return "c" + std::string(module) + "\n" + std::string(name) + "\n";
}

/// An object of a class with a state: what dataclasses are.
inline Opcodes py_object(std::string_view module, std::string_view name, const Opcodes& state) {
  return py_global(module, name) + ")\x81" + state + "b";
}

inline Opcodes torch_size(const std::vector<std::int64_t>& shape) {
  std::vector<Opcodes> items;
  for (const std::int64_t extent : shape) items.push_back(py_int(extent));
  return py_global("torch", "Size") + py_tuple(items) + "\x85R";
}

/// A file in the making. Storages are numbered as tensors name them.
class TorchWriter {
 public:
  /// A row-major tensor on a storage of its own with these bytes; `type` is "Float", "BFloat16"...
  /// Opcodes of the tensor.
  Opcodes tensor(std::string_view type, const std::vector<std::int64_t>& shape, std::string bytes) {
    std::vector<std::int64_t> stride(shape.size(), 1);
    std::int64_t numel = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      stride[d] = numel;
      numel *= shape[d];
    }
    return strided(type, shape, stride, 0, numel, std::move(bytes));
  }

  /// A view on a new storage of `numel` elements.
  Opcodes strided(std::string_view type, const std::vector<std::int64_t>& shape,
                  const std::vector<std::int64_t>& stride, std::int64_t offset, std::int64_t numel,
                  std::string bytes) {
    const Opcodes storage =
        py_tuple({py_str("storage"), py_global("torch", std::string(type) + "Storage"),
                  py_str(std::to_string(storages_.size())), py_str("cpu"), py_int(numel)}) +
        "Q";
    storages_.push_back(std::move(bytes));
    const auto tuple = [](const std::vector<std::int64_t>& values) {
      std::vector<Opcodes> items;
      for (const std::int64_t value : values) items.push_back(py_int(value));
      return py_tuple(items);
    };
    return py_global("torch._utils", "_rebuild_tensor_v2") +
           py_tuple({storage, py_int(offset), tuple(shape), tuple(stride), "\x89",
                     py_global("collections", "OrderedDict") + ")R"}) +
           "R";
  }

  /// The whole file with `root` as its object.
  std::string file(const Opcodes& root) const {
    const std::string pickle = "\x80\x02" + root + ".";
    std::vector<std::uint64_t> sizes;
    for (const std::string& storage : storages_) sizes.push_back(storage.size());
    const auto archive = torch_zip::TorchArchive::plan("archive", pickle.size(), sizes).value();
    std::string text = archive.render_head() + pickle;
    for (std::size_t i = 0; i < storages_.size(); ++i) {
      text += archive.render_before(i, i + 1) + storages_[i];
    }
    return text + archive.render_tail();
  }

 private:
  std::vector<std::string> storages_;
};

}  // namespace ckfs
