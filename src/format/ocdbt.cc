// Structs are stored as columns: all first members, then all second ones. So a leaf grows as eight
// columns at once and is put together at the end; a counter in the place of each gives its size.
#include "format/ocdbt.h"

#include <algorithm>
#include <array>
#include <type_traits>

#include "base/error.h"
#include "format/crc32c.h"

namespace ckfs::ocdbt {
namespace {

// Magic, length, format version, compression, and the checksum behind the body.
constexpr std::uint64_t kEnvelope = 4 + 8 + 1 + 1 + 4;

/// LEB128 without a sign.
class Varint {
 public:
  explicit Varint(std::uint64_t value) {
    while (value > 0x7f) {
      bytes_[size_++] = static_cast<char>((value & 0x7f) | 0x80);
      value >>= 7;
    }
    bytes_[size_++] = static_cast<char>(value);
  }
  operator std::string_view() const { return {bytes_.data(), size_}; }

 private:
  std::array<char, 10> bytes_;
  std::size_t size_ = 0;
};

void put_le(std::string& out, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out += static_cast<char>((value >> (8 * i)) & 0xff);
}

std::size_t common_prefix(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
}

std::string enveloped(std::uint32_t magic, std::string_view body) {
  std::string out;
  out.reserve(body.size() + kEnvelope);
  for (int i = 3; i >= 0; --i) out += static_cast<char>((magic >> (8 * i)) & 0xff);
  put_le(out, body.size() + kEnvelope, 8);
  out += '\0';  // format version
  out += '\0';  // not compressed
  out += body;
  put_le(out, crc32c(out), 4);
  return out;
}

/// Files by their paths: what each shares with the one before, the rest, and no base path.
template <typename Put>
void put_files(Put put, std::size_t count, const auto& name) {
  put(Varint(count));
  std::vector<std::string> names;
  std::vector<std::size_t> shared;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back(name(i));
    shared.push_back(i == 0 ? 0 : common_prefix(names[i - 1], names[i]));
  }
  for (std::size_t i = 1; i < count; ++i) put(Varint(shared[i]));
  for (std::size_t i = 0; i < count; ++i) put(Varint(names[i].size() - shared[i]));
  for (std::size_t i = 0; i < count; ++i) put(Varint(0));
  for (std::size_t i = 0; i < count; ++i) put(std::string_view(names[i]).substr(shared[i]));
}

}  // namespace

template <typename Column>
void Leaf<Column>::add_key(std::string_view key) {
  CKFS_CHECK(entries_ < kNodeEntries && (entries_ == 0 || std::string_view(last_) < key));
  const std::size_t shared = common_prefix(last_, key);
  if (entries_ > 0) prefixes_.put(Varint(shared));
  suffixes_.put(Varint(key.size() - shared));
  keys_.put(key.substr(shared));
  last_ = key;
  ++entries_;
}

template <typename Column>
void Leaf<Column>::add(std::string_view key, std::string_view value) {
  add_key(key);
  sizes_.put(Varint(value.size()));
  kinds_.put(std::string_view("\0", 1));
  values_.put(value);
}

template <typename Column>
void Leaf<Column>::add(std::string_view key, const DataLocation& value) {
  add_key(key);
  sizes_.put(Varint(value.size));
  kinds_.put("\1");
  const auto [id, is_new] = ids_.emplace(value.file, static_cast<std::uint32_t>(files_.size()));
  if (is_new) files_.push_back(value.file);
  file_ids_.put(Varint(id->second));
  offsets_.put(Varint(value.offset));
  value_bytes_ += value.size;
}

template <typename Column>
template <typename Put>
void Leaf<Column>::put_file_table(Put put) const {
  put_files(put, files_.size(), [&](std::size_t i) { return name_(files_[i]); });
}

template <typename Column>
std::uint64_t Leaf<Column>::size() const {
  std::uint64_t table = 0;
  put_file_table([&](std::string_view text) { table += text.size(); });
  return kEnvelope + 1 + table + std::string_view(Varint(entries_)).size() + prefixes_.size() +
         suffixes_.size() + keys_.size() + sizes_.size() + kinds_.size() + file_ids_.size() +
         offsets_.size() + values_.size();
}

template <typename Column>
std::string Leaf<Column>::render() const {
  std::string body(1, '\0');  // height
  if constexpr (std::is_same_v<Column, KeptColumn>) {
    put_file_table([&](std::string_view text) { body += text; });
    body += Varint(entries_);
    for (const KeptColumn* column :
         {&prefixes_, &suffixes_, &keys_, &sizes_, &kinds_, &file_ids_, &offsets_, &values_}) {
      body += column->text();
    }
  }
  return enveloped(kNodeMagic, body);
}

template class Leaf<CountedColumn>;
template class Leaf<KeptColumn>;

std::string render_interior(std::uint8_t height, std::string_view node_file,
                            std::span<const Child> children) {
  CKFS_CHECK(!children.empty() && children.size() <= kNodeEntries);
  std::string body(1, static_cast<char>(height));
  const auto put = [&](std::string_view text) { body += text; };
  put_files(put, 1, [&](std::size_t /*file*/) { return std::string(node_file); });
  put(Varint(children.size()));
  std::vector<std::size_t> shared{0};
  for (std::size_t i = 1; i < children.size(); ++i) {
    shared.push_back(common_prefix(children[i - 1].first_key, children[i].first_key));
    put(Varint(shared[i]));
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    put(Varint(children[i].first_key.size() - shared[i]));
  }
  // Nodes keep their keys whole: what all keys of a node begin with is in it once, and that is all
  // that leaving it out would save.
  for (std::size_t i = 0; i < children.size(); ++i) put(Varint(0));
  for (std::size_t i = 0; i < children.size(); ++i) {
    put(std::string_view(children[i].first_key).substr(shared[i]));
  }
  for (std::size_t i = 0; i < children.size(); ++i) put(Varint(0));  // the file
  const auto column = [&](auto member) {
    for (const Child& child : children) put(Varint(member(child)));
  };
  column([](const Child& child) { return child.offset; });
  column([](const Child& child) { return child.size; });
  column([](const Child& child) { return child.totals.keys; });
  column([](const Child& child) { return child.totals.tree_bytes; });
  column([](const Child& child) { return child.totals.value_bytes; });
  return enveloped(kNodeMagic, body);
}

std::string render_manifest(std::string_view node_file, const Root& root) {
  std::string body;
  const auto put = [&](std::string_view text) { body += text; };
  for (const std::uint64_t half : root.uuid) put_le(body, half, 8);
  // Orbax requires it of writers; this database has none.
  body += '\0';              // one manifest file
  put(Varint(1024));         // largest inline value
  put(Varint(100'000'000));  // largest decoded node
  body += '\4';              // arity of the version tree, log 2
  body += '\0';              // not compressed
  put_files(put, 1, [&](std::size_t /*file*/) { return std::string(node_file); });
  put(Varint(1));  // versions
  put(Varint(1));  // its generation
  body += static_cast<char>(root.height);
  put(Varint(0));  // the file
  put(Varint(root.offset));
  put(Varint(root.size));
  put(Varint(root.totals.keys));
  put(Varint(root.totals.tree_bytes));
  put(Varint(root.totals.value_bytes));
  put_le(body, 1, 8);  // when it was written, in nanoseconds: the same on every host
  put(Varint(0));      // nodes of older versions
  return enveloped(kManifestMagic, body);
}

}  // namespace ckfs::ocdbt
