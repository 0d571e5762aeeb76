// The archive of torch.save, to the byte: torch's PyTorchStreamWriter above miniz. It could be a
// simpler zip (no descriptors, no padding, no zip64 records below 4 GiB) and every torch would read
// it by its directory; but torch.load may also compute where storages lie instead of looking them
// up (config.load.calculate_storage_offsets, FakeTensorMode), and in another layout it would then
// read wrong values without an error.
//
// Every offset follows from the sizes before it, so only 16 bytes a storage are kept; text is made
// when it is read.
#include "format/torch_zip_writer.h"

#include <algorithm>
#include <array>
#include <limits>

#include "base/checked.h"
#include "format/torch_serialization_id.h"
#include "format/zip_records.h"

namespace ckfs::torch_zip {
namespace {

using namespace zip_records;

constexpr std::uint64_t kAlignment = 64;
constexpr std::uint64_t kExtraHead = 4;  // tag and length
constexpr std::uint64_t kEndRecords = kEnd64Size + kLocator64Size + kEndSize;
constexpr std::size_t kSerializationId = 40;  // digits

struct SmallMember {
  std::string_view name;
  std::string_view text;
};
constexpr std::string_view kPickle = "data.pkl";
constexpr std::array<SmallMember, 3> kSmall{
    {{".format_version", "1"}, {".storage_alignment", "64"}, {"byteorder", "little"}}};
constexpr SmallMember kVersion{"version", "3\n"};
constexpr std::string_view kSerializationIdName = ".data/serialization_id";
constexpr std::size_t kFirstStorage = 1 + kSmall.size();  // member number

template <typename T>
void put(std::string& out, std::uint64_t value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(value >> (8 * i));
}

/// What a 32-bit field holds of a value that may need 64.
std::uint64_t saturated(std::uint64_t value) {
  return std::min<std::uint64_t>(value, kFull32);
}

/// Bytes of the values in a zip64 extra field; 0: there is no field.
std::uint64_t zip64_values(std::uint64_t bytes, std::uint64_t header) {
  return (bytes >= kFull32 ? 16U : 0U) + (header >= kFull32 ? 8U : 0U);
}

std::uint64_t zip64_field(std::uint64_t bytes, std::uint64_t header) {
  const std::uint64_t values = zip64_values(bytes, header);
  return values > 0 ? kExtraHead + values : 0;
}

void put_zip64_field(std::string& out, std::uint64_t bytes, std::uint64_t compressed,
                     std::uint64_t header) {
  const std::uint64_t values = zip64_values(bytes, header);
  if (values == 0) return;
  put<std::uint16_t>(out, 0x0001);
  put<std::uint16_t>(out, values);
  if (bytes >= kFull32) {
    put<std::uint64_t>(out, bytes);
    put<std::uint64_t>(out, compressed);
  }
  if (header >= kFull32) put<std::uint64_t>(out, header);
}

/// Members without data have no descriptor.
std::uint64_t descriptor_bytes(std::uint64_t bytes, std::uint64_t header) {
  if (bytes == 0) return 0;
  return zip64_values(bytes, header) > 0 ? 24 : 16;
}

void put_descriptor(std::string& out, std::uint64_t bytes, std::uint64_t header) {
  if (bytes == 0) return;
  put<std::uint32_t>(out, 0x08074b50);
  put<std::uint32_t>(out, 0);  // CRC-32
  if (zip64_values(bytes, header) > 0) {
    put<std::uint64_t>(out, bytes);
    put<std::uint64_t>(out, bytes);
  } else {
    put<std::uint32_t>(out, bytes);
    put<std::uint32_t>(out, bytes);
  }
}

/// Bit 11: names are UTF-8; bit 3: a descriptor follows.
std::uint64_t flags(std::uint64_t bytes) {
  return bytes == 0 ? 0x0800 : 0x0808;
}

}  // namespace

Result<TorchArchive> TorchArchive::plan(std::string root, std::uint64_t pickle_bytes,
                                        std::vector<std::uint64_t> storage_bytes) {
  CKFS_CHECK(root.size() < 256);
  // No member has more than this around its data: headers, names, padding, directory.
  constexpr std::uint64_t kMaxAround = 1024;
  constexpr std::uint64_t kMaxFile = std::numeric_limits<std::int64_t>::max();
  std::uint64_t bound = kMaxAround * (storage_bytes.size() + 8);
  for (std::size_t i = 0; i <= storage_bytes.size(); ++i) {
    const auto sum = checked_add(bound, i == 0 ? pickle_bytes : storage_bytes[i - 1]);
    if (!sum || *sum > kMaxFile) {
      return fail(ErrorCode::Unsupported, "larger than 2^63 - 1 bytes (use max_shard)");
    }
    bound = *sum;
  }

  TorchArchive archive;
  archive.root_ = std::move(root);
  archive.storage_bytes_ = std::move(storage_bytes);
  archive.storage_headers_.resize(archive.storage_bytes_.size());
  const std::uint64_t begin = archive.data_begin({std::string(kPickle), pickle_bytes, 0});
  archive.pickle_ = {begin, begin + pickle_bytes};

  const std::size_t version = archive.members() - 2;
  std::uint64_t at = archive.end(archive.member(kFirstStorage - 1));
  for (std::size_t i = kFirstStorage; i < version; ++i) {
    archive.storage_headers_[i - kFirstStorage] = at;
    at = archive.end(archive.member(i));
  }
  archive.version_ = at;
  archive.directory_ = archive.end(archive.member(version + 1));
  archive.size_ = archive.directory_ + kEndRecords;
  for (std::size_t i = 0; i < archive.members(); ++i) {
    const Member member = archive.member(i);
    archive.size_ += kEntrySize + archive.root_.size() + 1 + member.name.size() +
                     zip64_field(member.bytes, member.header);
  }
  return archive;
}

std::size_t TorchArchive::members() const {
  return kFirstStorage + storage_bytes_.size() + 2;
}

TorchArchive::Member TorchArchive::member(std::size_t index) const {
  if (index == 0) return {std::string(kPickle), pickle_.size(), 0};
  if (index < kFirstStorage) {
    const SmallMember& small = kSmall[index - 1];
    return {std::string(small.name), small.text.size(), end(member(index - 1))};
  }
  const std::size_t k = index - kFirstStorage;
  if (k < storage_bytes_.size()) {
    return {fmt::format("data/{}", k), storage_bytes_[k], storage_headers_[k]};
  }
  if (k == storage_bytes_.size()) {
    return {std::string(kVersion.name), kVersion.text.size(), version_};
  }
  return {std::string(kSerializationIdName), kSerializationId, end(member(index - 1))};
}

std::uint64_t TorchArchive::data_begin(const Member& member) const {
  const std::uint64_t begin = member.header + kLocalSize + root_.size() + 1 + member.name.size() +
                              zip64_field(member.bytes, member.header) + kExtraHead;
  return (begin + kAlignment - 1) / kAlignment * kAlignment;
}

std::uint64_t TorchArchive::end(const Member& member) const {
  return data_begin(member) + member.bytes + descriptor_bytes(member.bytes, member.header);
}

ByteRange TorchArchive::storage(std::size_t k) const {
  const std::uint64_t begin = data_begin(member(kFirstStorage + k));
  return {begin, begin + storage_bytes_[k]};
}

ByteRange TorchArchive::before(std::size_t k) const {
  return {k == 0 ? pickle_.end : storage(k - 1).end, storage(k).begin};
}

ByteRange TorchArchive::tail() const {
  const std::size_t count = storage_bytes_.size();
  return {count == 0 ? pickle_.end : storage(count - 1).end, size_};
}

void TorchArchive::put_local_header(std::string& out, const Member& member) const {
  const std::size_t begin = out.size();
  const std::uint64_t padded = data_begin(member) - member.header;
  const std::uint64_t name = root_.size() + 1 + member.name.size();
  put<std::uint32_t>(out, kLocalSignature);
  put<std::uint16_t>(out, 0);  // version needed
  put<std::uint16_t>(out, flags(member.bytes));
  put<std::uint16_t>(out, 0);  // stored
  put<std::uint32_t>(out, 0);  // time, date
  put<std::uint32_t>(out, 0);  // CRC-32 and sizes: in the descriptor
  put<std::uint64_t>(out, 0);
  put<std::uint16_t>(out, name);
  put<std::uint16_t>(out, padded - kLocalSize - name);
  out += root_;
  out += '/';
  out += member.name;
  // miniz knows the compressed size only behind the data, even if nothing is compressed.
  put_zip64_field(out, member.bytes, 0, member.header);
  const std::uint64_t fill = padded - (out.size() - begin) - kExtraHead;
  out += "FB";
  put<std::uint16_t>(out, fill);
  out.append(fill, 'Z');
}

void TorchArchive::put_directory_entry(std::string& out, const Member& member) const {
  put<std::uint32_t>(out, kEntrySignature);
  put<std::uint32_t>(out, 0);  // versions: made by, needed
  put<std::uint16_t>(out, flags(member.bytes));
  put<std::uint16_t>(out, 0);  // stored
  put<std::uint32_t>(out, 0);  // time, date
  put<std::uint32_t>(out, 0);  // CRC-32
  put<std::uint32_t>(out, saturated(member.bytes));
  put<std::uint32_t>(out, saturated(member.bytes));
  put<std::uint16_t>(out, root_.size() + 1 + member.name.size());
  put<std::uint16_t>(out, zip64_field(member.bytes, member.header));
  put<std::uint16_t>(out, 0);  // comment
  put<std::uint32_t>(out, 0);  // disk, internal attributes
  put<std::uint32_t>(out, 0);  // external attributes
  put<std::uint32_t>(out, saturated(member.header));
  out += root_;
  out += '/';
  out += member.name;
  put_zip64_field(out, member.bytes, member.bytes, member.header);
}

void TorchArchive::put_small_members(std::string& out) const {
  for (std::size_t i = 0; i < kSmall.size(); ++i) {
    const Member small = member(1 + i);
    put_local_header(out, small);
    out += kSmall[i].text;
    put_descriptor(out, small.bytes, small.header);
  }
}

void TorchArchive::put_before(std::string& out, std::size_t k) const {
  if (k == 0) {
    put_descriptor(out, pickle_.size(), 0);
    put_small_members(out);
  } else {
    put_descriptor(out, storage_bytes_[k - 1], storage_headers_[k - 1]);
  }
  if (k < storage_bytes_.size()) put_local_header(out, member(kFirstStorage + k));
}

std::string TorchArchive::render_head() const {
  std::string out;
  put_local_header(out, member(0));
  return out;
}

std::string TorchArchive::render_before(std::size_t begin, std::size_t end) const {
  std::string out;
  for (std::size_t k = begin; k < end; ++k) put_before(out, k);
  return out;
}

std::string TorchArchive::serialization_id() const {
  NameSetHash names;
  std::uint64_t crcs = 0;
  for (std::size_t i = 0; i + 1 < members(); ++i) {
    const Member written = member(i);
    names.add(written.name);
    if (written.bytes > 0) crcs = combine(crcs, 0);
  }
  return fmt::format("{:020}{:020}", names.value(), crcs);
}

std::string TorchArchive::render_tail() const {
  std::string out;
  out.reserve(tail().size());
  put_before(out, storage_bytes_.size());  // without a storage to come
  const Member version = member(members() - 2);
  put_local_header(out, version);
  out += kVersion.text;
  put_descriptor(out, version.bytes, version.header);
  const Member id = member(members() - 1);
  put_local_header(out, id);
  out += serialization_id();
  put_descriptor(out, id.bytes, id.header);

  for (std::size_t i = 0; i < members(); ++i) put_directory_entry(out, member(i));
  const std::uint64_t directory_end = size_ - kEndRecords;
  const std::uint64_t directory_bytes = directory_end - directory_;
  put<std::uint32_t>(out, kEnd64Signature);  // zip64 end record, also where nothing needs it
  put<std::uint64_t>(out, 44);
  put<std::uint16_t>(out, 0x031e);  // made by
  put<std::uint16_t>(out, 45);      // needed
  put<std::uint64_t>(out, 0);       // disks
  put<std::uint64_t>(out, members());
  put<std::uint64_t>(out, members());
  put<std::uint64_t>(out, directory_bytes);
  put<std::uint64_t>(out, directory_);
  put<std::uint32_t>(out, kLocator64Signature);  // its locator
  put<std::uint32_t>(out, 0);
  put<std::uint64_t>(out, directory_end);
  put<std::uint32_t>(out, 1);
  put<std::uint32_t>(out, kEndSignature);  // end record
  put<std::uint32_t>(out, 0);              // disks
  put<std::uint16_t>(out, std::min<std::uint64_t>(members(), kFull16));
  put<std::uint16_t>(out, std::min<std::uint64_t>(members(), kFull16));
  put<std::uint32_t>(out, saturated(directory_bytes));
  put<std::uint32_t>(out, saturated(directory_));
  put<std::uint16_t>(out, 0);  // comment
  return out;
}

}  // namespace ckfs::torch_zip
