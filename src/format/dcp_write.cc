// Objects are written as Python's pickler writes dataclasses: an empty object of the class, then
// its state. Words and classes that come with every chunk are memoized, or the text would be three
// times as long; nothing else is.
#include "format/dcp_write.h"

#include <array>
#include <map>
#include <optional>
#include <utility>

#include "base/error.h"
#include "format/text_sink.h"
#include "format/torch_names.h"

namespace ckfs::dcp {
namespace {

constexpr std::string_view kClasses = "torch.distributed.checkpoint.metadata";

template <typename Sink>
class MetadataPickler {
 public:
  explicit MetadataPickler(Sink& sink) : sink_(sink) {}

  void metadata(std::span<const WrittenTensor> tensors, Planner planner) {
    put("\x80\x04");
    object(kClasses, "Metadata");
    put("}(");
    word("state_dict_metadata");
    put("}(");
    for (const WrittenTensor& tensor : tensors) {
      text(tensor.name);
      storage_metadata(tensor);
    }
    put("u");
    word("planner_data");
    put("}(");
    for (const WrittenTensor& tensor : tensors) {
      if (planner == Planner::None) break;
      text(tensor.name);
      text(tensor.name);
      put("\x85");
    }
    put("u");
    word("storage_data");
    put("}(");
    for (const WrittenTensor& tensor : tensors) {
      for (std::size_t k = 0; k < tensor.chunks.size(); ++k) place(tensor, k);
    }
    put("u");
    word("storage_meta");
    put("N");
    put("ub.");
  }

 private:
  void put(std::string_view bytes) { sink_.put(bytes); }

  template <typename T>
  void put_le(std::uint64_t value) {
    std::array<char, sizeof(T)> bytes{};
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(value >> (8 * i));
    put({bytes.data(), bytes.size()});
  }

  void text(std::string_view text) {
    put("X");
    put_le<std::uint32_t>(text.size());
    put(text);
  }

  /// Writes an object the first time, and recalls it after that.
  template <typename Write>
  void once(const std::string& name, Write write) {
    const auto known = memo_.find(name);
    if (known == memo_.end()) {
      write();
      put("\x94");
      memo_.emplace(name, static_cast<std::uint32_t>(memo_.size()));
    } else if (known->second < 256) {
      put("h");
      put_le<std::uint8_t>(known->second);
    } else {
      put("j");
      put_le<std::uint32_t>(known->second);
    }
  }

  void word(std::string_view word) {
    once(std::string(word), [&] { text(word); });
  }

  void global(std::string_view module, std::string_view name) {
    once(fmt::format("{}\n{}", module, name), [&] {
      text(module);
      text(name);
      put("\x93");
    });
  }

  /// An object of a class, before its state.
  void object(std::string_view module, std::string_view name) {
    global(module, name);
    put(")\x81");
  }

  void integer(std::uint64_t number) {
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
      put("\x8a\x08");
      CKFS_CHECK(number >> 63 == 0);
      put_le<std::uint64_t>(number);
    }
  }

  void size(std::span<const std::int64_t> numbers) {
    global("torch", "Size");
    put("(");
    for (const std::int64_t number : numbers) integer(static_cast<std::uint64_t>(number));
    put("t\x85R");
  }

  static std::span<const std::int64_t> offsets(const WrittenTensor& tensor, std::size_t chunk) {
    const std::size_t rank = tensor.shape.size();
    return std::span(tensor.boxes).subspan(2 * rank * chunk, rank);
  }

  static std::span<const std::int64_t> sizes(const WrittenTensor& tensor, std::size_t chunk) {
    const std::size_t rank = tensor.shape.size();
    return std::span(tensor.boxes).subspan((2 * chunk + 1) * rank, rank);
  }

  void storage_metadata(const WrittenTensor& tensor) {
    object(kClasses, "TensorStorageMetadata");
    put("}(");
    word("properties");
    properties(tensor.dtype);
    word("size");
    size(tensor.shape);
    word("chunks");
    put("](");
    for (std::size_t k = 0; k < tensor.chunks.size(); ++k) {
      object(kClasses, "ChunkStorageMetadata");
      put("}(");
      word("offsets");
      size(offsets(tensor, k));
      word("sizes");
      size(sizes(tensor, k));
      put("ub");
    }
    put("eub");
  }

  /// Equal ones are one object, as nothing changes one.
  void properties(DType dtype) {
    const std::string_view name = torch_dtype_name(dtype);
    once(fmt::format("properties {}", name), [&] {
      object(kClasses, "TensorProperties");
      put("(");
      global("torch", name);
      global("torch.serialization", "_get_layout");
      text("torch.strided");
      put("\x85R\x89");
      global(kClasses, "_MEM_FORMAT_ENCODING");
      put("K");
      put_le<std::uint8_t>(0);
      put("\x85R\x89tb");
    });
  }

  void place(const WrittenTensor& tensor, std::size_t chunk) {
    object(kClasses, "MetadataIndex");
    put("}(");
    word("fqn");
    text(tensor.name);
    word("offset");
    size(offsets(tensor, chunk));
    word("index");
    integer(chunk);
    put("ub");
    object("torch.distributed.checkpoint.filesystem", "_StorageInfo");
    put("}(");
    word("relative_path");
    text(data_file(tensor.chunks[chunk].file));
    word("offset");
    integer(tensor.chunks[chunk].offset);
    word("length");
    integer(tensor.chunks[chunk].length);
    put("ub");
  }

  Sink& sink_;
  std::map<std::string, std::uint32_t, std::less<>> memo_;
};

}  // namespace

std::string data_file(std::uint32_t number) {
  return fmt::format("__0_{}.distcp", number);
}

std::uint64_t measure_metadata(std::span<const WrittenTensor> tensors, Planner planner) {
  CountingSink sink;
  MetadataPickler(sink).metadata(tensors, planner);
  return sink.size();
}

std::string render_metadata(std::span<const WrittenTensor> tensors, Planner planner) {
  std::string out;
  out.reserve(measure_metadata(tensors, planner));
  TextSink sink(out);
  MetadataPickler(sink).metadata(tensors, planner);
  return out;
}

}  // namespace ckfs::dcp
