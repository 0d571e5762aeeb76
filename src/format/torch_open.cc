// Finding the pickle and the storages of a torch file. In a zip both are members, and the directory
// gives their places. The stream of earlier torch has neither directory nor lengths: five pickles,
// one after the other, then for each storage its number of elements and its bytes. So the pickles
// are walked instruction by instruction in small steps: a read must not reach far into the tensor
// data behind them (which may be the gigabytes of an optimizer's state, on a disk far away). The
// places of the storages then follow from the sizes that the pickle names, and are checked against
// the file's.
#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <numeric>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/text.h"
#include "format/pickle_opcode.h"
#include "format/torch_file.h"

namespace ckfs {
namespace {

constexpr std::array<std::uint8_t, 4> kZipMagic{'P', 'K', 3, 4};
/// LONG1 and the ten bytes of 0x1950a86a20f9469cfc6c, after PROTO and perhaps FRAME.
constexpr std::array<std::uint8_t, 12> kLegacyMagic{0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46,
                                                    0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
constexpr std::size_t kMagicBytes = 32;  // to look for it in
constexpr std::int64_t kLegacyProtocol = 1001;
constexpr std::int64_t kLastZipVersion = 10;  // that torch's own reader takes
constexpr std::uint64_t kSmallMember = 64;

// Steps of a walk: a 64th of the bytes walked so far. In a real stream the list of keys, which lies
// between the pickle and the tensor data, is longer than that.
constexpr std::uint64_t kLeastStep = 32;
constexpr std::uint64_t kStepShare = 64;
constexpr std::uint64_t kMostStep = std::uint64_t{1} << 20;

constexpr std::size_t kMaxZipName = 0xffff;  // bytes of the longest name in a zip

constexpr std::uint64_t kCountBytes = 8;     // before the bytes of a storage
constexpr std::size_t kCountsAtOnce = 4096;  // such counts in one batch

template <std::size_t N>
bool contains(std::span<const std::byte> bytes, const std::array<std::uint8_t, N>& magic) {
  return std::search(bytes.begin(), bytes.end(), magic.begin(), magic.end(),
                     [](std::byte a, std::uint8_t b) { return a == std::byte{b}; }) != bytes.end();
}

bool is_zip(std::span<const std::byte> prefix) {
  return contains(prefix.first(std::min(prefix.size(), kZipMagic.size())), kZipMagic);
}

bool is_legacy(std::span<const std::byte> prefix) {
  return contains(prefix.first(std::min(prefix.size(), kMagicBytes)), kLegacyMagic);
}

std::string_view trimmed(std::span<const std::byte> bytes) {
  return trim({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

}  // namespace

/// Builds a TorchFile from one of the two forms.
class TorchFileReader {
 public:
  TorchFileReader(ByteSource& source, FileId file, ByteRange within, std::uint64_t max_header)
      : source_(source),
        file_(file),
        within_(within),
        max_header_(max_header),
        name_(source.name(file)) {}

  /// By these models, or to be one.
  void read_by(std::span<const TorchFile* const> models) { models_ = models; }

  Result<TorchFile> read();

 private:
  Result<TorchFile> read_zip();
  Result<void> check_zip_version(const ZipArchive& zip, const std::string& root) const;
  Result<TorchFile> read_legacy();

  /// The next pickle of the stream, as a range of text_.
  Result<ByteRange> walk_pickle();
  /// Reads up to `wanted`, if the file has it.
  Result<void> fetch(std::uint64_t wanted);
  /// Reads up to `needed` and a step further.
  Result<void> fetch_step(std::uint64_t needed);
  Result<void> parse_object(TorchFile& torch) const;
  Result<Pickle> parse(ByteRange pickle) const {
    return parse_pickle(std::span(text_).subspan(pickle.begin, pickle.size()), name_);
  }
  Result<void> check_preamble();
  Result<void> place_storages(TorchFile& torch, const Pickle& keys) const;

  ByteSource& source_;
  FileId file_;
  ByteRange within_;
  std::uint64_t max_header_;
  const std::string& name_;
  std::optional<std::span<const TorchFile* const>> models_;  // nullopt: none are wanted

  // Of the stream: the bytes read from its start on, and how far they were walked.
  std::vector<std::byte> text_;
  std::uint64_t walked_ = 0;
  std::uint64_t data_begin_ = 0;  // steps stop there; 0: not known yet
};

bool TorchFile::recognize(std::span<const std::byte> prefix) {
  return is_zip(prefix) || is_legacy(prefix);
}

Result<TorchFile> TorchFile::open(ByteSource& source, FileId file, ByteRange within,
                                  std::uint64_t max_header) {
  CKFS_CHECK(within.end <= source.size(file));
  return TorchFileReader(source, file, within, max_header).read();
}

Result<TorchFile> TorchFile::open_alike(ByteSource& source, FileId file, ByteRange within,
                                        std::span<const TorchFile* const> models) {
  CKFS_CHECK(within.end <= source.size(file));
  TorchFileReader reader(source, file, within, kMaxPickle);
  reader.read_by(models);
  return reader.read();
}

Result<TorchFile> TorchFileReader::read() {
  CKFS_TRY_VOID(fetch(kMagicBytes));
  if (is_zip(text_)) return read_zip();
  if (is_legacy(text_)) return read_legacy();
  return fail(ErrorCode::Unsupported,
              "{}: not a torch file (neither a zip archive nor torch's stream before 1.6)", name_);
}

Result<TorchFile> TorchFileReader::read_zip() {
  text_.clear();
  CKFS_TRY(ZipArchive zip,
           ZipArchive::open(source_, file_, within_, std::min(kMaxZipDirectory, max_header_)));
  if (zip.size() == 0) return fail(ErrorCode::Corrupt, "{}: a zip archive without members", name_);
  const std::string_view first = zip[0].name;
  const std::string root(first.substr(0, first.find('/') + 1));
  const auto member = zip.find(root + "data.pkl");
  if (!member) {
    return fail(ErrorCode::Unsupported, "{}: a zip archive without {}: not written by torch.save",
                name_, quote(root + "data.pkl"));
  }
  if (zip.find(root + "constants.pkl")) {
    return fail(ErrorCode::Unsupported, "{}: a TorchScript program, not a checkpoint", name_);
  }
  CKFS_TRY_VOID(check_zip_version(zip, root));

  TorchFile torch(source_, file_);
  CKFS_TRY(torch.text_, zip.read(*member, max_header_));
  CKFS_TRY_VOID(parse_object(torch));
  torch.header_bytes_ = zip.directory_size() + torch.text_.size();
  torch.zip_ = std::move(zip);
  torch.root_name_ = root;
  return torch;
}

/// The pickle and the storages that it names.
Result<void> TorchFileReader::parse_object(TorchFile& torch) const {
  if (!models_) {
    CKFS_TRY(torch.pickle_, parse_pickle(torch.text_, name_));
    return torch.collect_storages();
  }
  for (std::size_t i = 0; i < models_->size(); ++i) {
    auto pickle = torch.read_by(*(*models_)[i]);
    if (!pickle) continue;
    torch.pickle_ = *std::move(pickle);
    torch.model_ = i;
    torch.storages_ = (*models_)[i]->storages_;
    for (TorchFile::Storage& storage : torch.storages_) storage.begin = 0;
    torch.references_ = (*models_)[i]->references_;
    return {};
  }
  auto as_model = parse_model_pickle(torch.text_, name_);
  if (as_model) {
    torch.pickle_ = *std::move(as_model);
  } else {
    CKFS_TRY(torch.pickle_, parse_pickle(torch.text_, name_));
  }
  torch.pickle_.trace(&torch.storages_trace_);
  auto collected = torch.collect_storages();
  torch.pickle_.trace(nullptr);
  return collected;
}

std::optional<Pickle> TorchFile::read_by(const TorchFile& model) const {
  auto pickle = read_alike(model.pickle_, text_);
  if (pickle && !pickle->answers_as_model(model.storages_trace_)) pickle.reset();
  return pickle;
}

Result<void> TorchFileReader::check_zip_version(const ZipArchive& zip,
                                                const std::string& root) const {
  if (const auto member = zip.find(root + "byteorder")) {
    CKFS_TRY(const auto bytes, zip.read(*member, kSmallMember));
    if (trimmed(bytes) != "little") {
      return fail(ErrorCode::Unsupported, "{}: byte order {} (only little)", name_,
                  quote(trimmed(bytes)));
    }
  }
  auto member = zip.find(root + "version");
  if (!member) member = zip.find(root + ".data/version");
  if (!member) return fail(ErrorCode::Corrupt, "{}: a torch file without its version", name_);
  CKFS_TRY(const auto bytes, zip.read(*member, kSmallMember));
  const std::string_view text = trimmed(bytes);
  std::int64_t version = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), version);
  if (error != std::errc() || stop != text.data() + text.size() || version < 1 ||
      version > kLastZipVersion) {
    return fail(ErrorCode::Unsupported, "{}: torch file version {} (1 to {})", name_, quote(text),
                kLastZipVersion);
  }
  return {};
}

Result<void> TorchFileReader::fetch(std::uint64_t wanted) {
  const std::uint64_t have = text_.size();
  const std::uint64_t whole = std::min(wanted, within_.size());
  if (whole <= have) return {};
  text_.resize(whole);
  return source_.read_at(file_, within_.begin + have, std::span(text_).subspan(have, whole - have));
}

Result<void> TorchFileReader::fetch_step(std::uint64_t needed) {
  std::uint64_t wanted = text_.size() + std::clamp(walked_ / kStepShare, kLeastStep, kMostStep);
  if (text_.size() < data_begin_) wanted = std::min(wanted, data_begin_);
  return fetch(std::max(needed, wanted));
}

Result<ByteRange> TorchFileReader::walk_pickle() {
  const std::uint64_t begin = walked_;
  while (true) {
    if (walked_ == text_.size()) CKFS_TRY_VOID(fetch_step(walked_ + 1));
    if (walked_ == text_.size()) {
      return fail(ErrorCode::Corrupt, "{}: ends inside a pickle: the file is incomplete", name_);
    }
    const Instruction instruction = read_instruction(std::span(text_).subspan(walked_));
    if (instruction.size == 0) {
      return fail(ErrorCode::Corrupt, "{}: byte {}: no pickle opcode {:#04x}", name_, walked_,
                  static_cast<unsigned>(instruction.opcode));
    }
    const auto end = checked_add(walked_, instruction.size);
    if (!end || *end > within_.size()) {
      return fail(ErrorCode::Corrupt,
                  "{}: byte {}: pickle opcode {:#04x} needs {} bytes (limit {})", name_, walked_,
                  static_cast<unsigned>(instruction.opcode), instruction.size,
                  within_.size() - walked_);
    }
    if (*end - begin > max_header_) {
      return fail(ErrorCode::Unsupported, "{}: a pickle of more than {} bytes", name_, max_header_);
    }
    if (*end > text_.size()) {
      // Of a line that does not end here, twice as much: looked for again from its beginning for
      // every step, the end of a long one would take time that grows with its square.
      const bool in_line = instruction.argument_size == 0;
      const std::uint64_t seen = text_.size() - walked_;
      CKFS_TRY_VOID(fetch_step(in_line ? std::max(*end, walked_ + 2 * seen) : *end));
      continue;
    }
    walked_ = *end;
    if (instruction.opcode == Opcode::Stop) return ByteRange{begin, walked_};
  }
}

Result<void> TorchFileReader::check_preamble() {
  CKFS_TRY_VOID(walk_pickle());  // the magic number, which recognize() saw
  CKFS_TRY(const ByteRange protocol_range, walk_pickle());
  CKFS_TRY(const Pickle protocol, parse(protocol_range));
  if (protocol.integer(protocol.root()) != kLegacyProtocol) {
    return fail(ErrorCode::Unsupported, "{}: not torch's stream protocol {}", name_,
                kLegacyProtocol);
  }
  CKFS_TRY(const ByteRange system_range, walk_pickle());
  CKFS_TRY(const Pickle system, parse(system_range));
  const auto little = system.find(system.root(), "little_endian");
  if (!little || system.boolean(*little) != true) {
    return fail(ErrorCode::Unsupported, "{}: byte order big or unknown (only little)", name_);
  }
  return {};
}

Result<TorchFile> TorchFileReader::read_legacy() {
  CKFS_TRY_VOID(check_preamble());
  CKFS_TRY(const ByteRange object_range, walk_pickle());
  TorchFile torch(source_, file_);
  torch.text_.assign(text_.begin() + static_cast<std::ptrdiff_t>(object_range.begin),
                     text_.begin() + static_cast<std::ptrdiff_t>(object_range.end));
  CKFS_TRY_VOID(parse_object(torch));

  // Nothing follows the storages, so the list of keys ends where they begin.
  std::optional<std::uint64_t> data_bytes = 0;
  for (const TorchFile::Storage& storage : torch.storages_) {
    if (data_bytes) data_bytes = checked_add(*data_bytes, storage.size);
    if (data_bytes) data_bytes = checked_add(*data_bytes, kCountBytes);
  }
  if (data_bytes && *data_bytes <= within_.size()) data_begin_ = within_.size() - *data_bytes;
  CKFS_TRY(const ByteRange keys_range, walk_pickle());
  CKFS_TRY(const Pickle keys, parse(keys_range));
  CKFS_TRY_VOID(keys.within_budget(name_, place_storages(torch, keys)));
  torch.header_bytes_ = text_.size();
  return torch;
}

Result<void> TorchFileReader::place_storages(TorchFile& torch, const Pickle& keys) const {
  if (keys.kind(keys.root()) != NodeKind::List) {
    return fail(ErrorCode::Corrupt, "{}: the list of its storages is not a list", name_);
  }
  auto& storages = torch.storages_;
  std::vector<std::uint32_t> by_key(storages.size());
  std::iota(by_key.begin(), by_key.end(), std::uint32_t{0});
  std::sort(by_key.begin(), by_key.end(),
            [&](std::uint32_t a, std::uint32_t b) { return storages[a].key < storages[b].key; });

  std::vector<std::uint32_t> order;  // storages as they lie
  std::uint64_t at = walked_;
  for (const NodeId node : keys.items(keys.root())) {
    const auto key = keys.string(node);
    const auto found = std::lower_bound(
        by_key.begin(), by_key.end(), key.value_or(""),
        [&](std::uint32_t i, std::string_view wanted) { return storages[i].key < wanted; });
    if (!key || found == by_key.end() || storages[*found].key != *key) {
      // Without its dtype it is not known how many bytes to skip. If a dtype is named that is not
      // understood, that is the error to report.
      CKFS_TRY_VOID(torch.check_storages());
      return fail(ErrorCode::Corrupt, "{}: lists storage {}, which nothing in it names", name_,
                  quote(key.value_or("(no string)")));
    }
    TorchFile::Storage& storage = storages[*found];
    if (storage.begin != 0 || storage.conflicting) {
      return fail(ErrorCode::Corrupt, "{}: storage {} twice, or with two sizes", name_,
                  quote(*key));
    }
    const auto data = checked_add(at, kCountBytes);
    const auto end = data ? checked_add(*data, storage.size) : std::nullopt;
    if (!end || *end > within_.size()) {
      return fail(ErrorCode::Corrupt,
                  "{}: storage {} of {} bytes at {} reaches beyond the file ({})", name_,
                  quote(*key), storage.size, at, within_.size());
    }
    storage.begin = within_.begin + *data;
    order.push_back(*found);
    at = *end;
  }

  std::vector<std::array<std::byte, kCountBytes>> counts;
  std::vector<ReadRequest> batch;
  for (std::size_t first = 0; first < order.size(); first += kCountsAtOnce) {
    const auto some =
        std::span(order).subspan(first, std::min(kCountsAtOnce, order.size() - first));
    counts.resize(some.size());
    batch.clear();
    for (std::size_t i = 0; i < some.size(); ++i) {
      batch.push_back({file_, storages[some[i]].begin - kCountBytes, counts[i]});
    }
    CKFS_TRY_VOID(source_.read(batch));
    for (std::size_t i = 0; i < some.size(); ++i) {
      const TorchFile::Storage& storage = storages[some[i]];
      const auto count = load_le<std::int64_t>(counts[i]);
      const auto expected = static_cast<std::int64_t>(storage.size / storage.width);
      if (count != expected) {
        return fail(ErrorCode::Corrupt, "{}: storage {} has {} elements, the pickle has {}", name_,
                    quote(storage.key), count, expected);
      }
    }
  }
  return {};
}

Result<void> TorchFile::collect_storages() {
  constexpr std::size_t kBytes = 128;  // kept for a reference, about
  std::map<std::string_view, std::uint32_t> by_key;
  for (NodeId node = 0; node < pickle_.node_count(); ++node) {
    if (pickle_.kind(node) != NodeKind::PersistentId) continue;
    const auto id = storage_id(node);
    // Its error matters only to a caller that asks for a tensor on it.
    if (!id || !pickle_.budget()->hold(kBytes)) continue;
    const DType dtype = id->dtype.value_or(DType::U8);
    const std::uint64_t size = *nbytes(dtype, id->numel);
    const auto [place, is_new] = by_key.emplace(id->key, storage_count());
    references_.push_back({node, place->second});
    if (is_new) {
      storages_.push_back(
          {.key = id->key, .size = size, .width = static_cast<std::uint8_t>(bits(dtype) / 8)});
    } else {
      Storage& storage = storages_[place->second];
      storage.conflicting = storage.conflicting || storage.size != size;
    }
  }
  return pickle_.budget()->check(source_->name(file_));
}

std::optional<ZipMember> TorchFile::find_member(std::string_view key) const {
  if (key.size() > kMaxZipName) return std::nullopt;
  return zip_->find(fmt::format("{}data/{}", root_name_, key));
}

Result<void> TorchFile::check_storages() const {
  for (NodeId node = 0; node < pickle_.node_count(); ++node) {
    if (pickle_.kind(node) != NodeKind::PersistentId) continue;
    const auto id = storage_id(node);
    if (!id) return Failure(id.error().within(source_->name(file_)));
  }
  return {};
}

Result<ByteRange> TorchFile::storage_bytes(std::uint32_t storage) const {
  CKFS_TRY(const std::vector<ByteRange> ranges, storage_bytes(std::span(&storage, 1)));
  return ranges.front();
}

Result<std::vector<ByteRange>> TorchFile::storage_bytes(
    std::span<const std::uint32_t> storages) const {
  const std::string& file_name = source_->name(file_);
  std::vector<ByteRange> ranges;
  ranges.reserve(storages.size());
  if (!zip_) {
    for (const std::uint32_t i : storages) {
      const Storage& storage = storages_[i];
      if (storage.begin == 0) {
        return fail(ErrorCode::Corrupt, "{}: no storage {} in its list", file_name,
                    quote(storage.key));
      }
      ranges.push_back({storage.begin, storage.begin + storage.size});
    }
    return ranges;
  }
  // Each storage once, however many tensors it has: looking it up costs its key's length.
  std::vector<std::uint32_t> wanted(storages.begin(), storages.end());
  std::ranges::sort(wanted);
  wanted.erase(std::unique(wanted.begin(), wanted.end()), wanted.end());
  std::vector<ByteRange> places;  // of `wanted`
  std::vector<ZipMember> members;
  for (const std::uint32_t i : wanted) {
    const Storage& storage = storages_[i];
    const auto member = find_member(storage.key);
    if (!member) {
      return fail(ErrorCode::Corrupt, "{}: no zip member {}", file_name,
                  quote(fmt::format("{}data/{}", root_name_, storage.key.substr(0, kMaxZipName))));
    }
    if (member->size != storage.size || storage.conflicting) {
      return fail(ErrorCode::Corrupt, "{}: zip member {} has {} bytes, the pickle needs {}",
                  file_name, quote(member->name), member->size, storage.size);
    }
    // Nothing to find, and a ZeRO-3 model file has 100,000 such.
    places.push_back({member->header, member->header});
    if (member->size != 0) members.push_back(*member);
  }
  CKFS_TRY(const std::vector<ByteRange> found, zip_->data(members));
  auto next = found.begin();
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (storages_[wanted[i]].size != 0) places[i] = *next++;
  }
  for (const std::uint32_t i : storages) {
    ranges.push_back(
        places[static_cast<std::size_t>(std::ranges::lower_bound(wanted, i) - wanted.begin())]);
  }
  return ranges;
}

}  // namespace ckfs
