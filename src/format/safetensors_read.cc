// A header is read event by event, not into a tree: that would silently keep the last of two equal
// names, and cost ten times the text. It keeps 24 bytes a tensor; names stay in the text.
//
// Checks come in the order in which a reader of the file would trip over them: length, characters,
// grammar, members, numbers of one tensor, then what all tensors together must cover.
#include <algorithm>
#include <array>
#include <map>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "base/checked.h"
#include "base/load_le.h"
#include "base/size_text.h"
#include "base/text.h"
#include "format/json_reader.h"
#include "format/safetensors.h"

namespace ckfs::safetensors {

/// For a member that no reader knows: the limit of the loader's JSON (safetensors 0.8), less the
/// levels around it.
constexpr std::size_t kMaxNested = 125;

/// The handler of events. Each event returns whether to continue; error_ says why not.
class HeaderReader {
 public:
  HeaderReader(std::string_view text, std::uint64_t data_size, std::string_view file_name)
      : text_(text), data_size_(data_size), file_name_(file_name) {}

  Result<Header> read();

  // Events of read_json().
  bool null() { return scalar("null"); }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(std::int64_t) { return scalar("a negative number"); }
  bool number_unsigned(std::uint64_t value);
  bool number_float(double, std::string_view) { return scalar("a fraction"); }
  bool string(std::string_view value);
  bool start_object(std::size_t);
  bool key(std::string_view name);
  bool end_object();
  bool start_array(std::size_t);
  bool nest();
  bool end_array();
  bool parse_error(std::size_t byte, std::string_view reason);

 private:
  enum class Where { Outside, Top, Tensor, Metadata, Shape, Offsets, Skipped, Done };
  enum class Member { None, DType, Shape, Offsets, Unknown };

  template <typename... Args>
  bool refuse(fmt::format_string<Args...> text, Args&&... args) {
    error_ = Error(ErrorCode::Corrupt, fmt::format("{}: {}", file_name_,
                                                   fmt::format(text, std::forward<Args>(args)...)));
    return false;
  }
  template <typename... Args>
  bool refuse_tensor(fmt::format_string<Args...> text, Args&&... args) {
    return refuse("tensor {}: {}", quote(name_), fmt::format(text, std::forward<Args>(args)...));
  }

  bool scalar(std::string_view kind);
  bool keep_name(std::string_view name);
  void keep_metadata();
  bool end_tensor();
  std::optional<std::uint32_t> keep_shape();
  bool check_names();
  void sort_by_place();
  bool check_coverage();

  std::string_view text_;
  std::uint64_t data_size_;
  std::string_view file_name_;
  Header header_;
  std::optional<Error> error_;

  Where where_ = Where::Outside;
  Where below_skipped_ = Where::Outside;  // where to continue after Skipped
  std::size_t skipped_depth_ = 0;

  // The tensor being read.
  std::string_view name_;
  bool is_metadata_ = false;
  Header::Entry entry_;
  Member member_ = Member::None;
  std::optional<DType> dtype_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  std::vector<std::int64_t> shape_;
  std::array<std::uint64_t, 2> offsets_{};
  std::size_t offset_count_ = 0;

  bool seen_metadata_ = false;
  std::map<std::string, std::optional<std::string>, std::less<>> metadata_;
  decltype(metadata_)::iterator entry_of_metadata_;
  std::size_t metadata_bytes_ = 0;  // of keys
  std::size_t kept_bytes_ = 0;      // of values
  std::size_t escaped_bytes_ = 0;

  // The place of shapes seen lately, by hash: equal shapes are kept once, mostly, in bounded
  // memory.
  struct KnownShape {
    std::uint32_t offset = 0;
    std::uint32_t rank = 0;
  };
  std::array<KnownShape, 1024> known_shapes_{};
};

std::string_view Header::name_of(const Entry& entry) const {
  if (entry.name_escaped) return escaped_[entry.name];
  return text_.substr(entry.name, entry.name_size);
}

HeaderTensor Header::operator[](std::size_t index) const {
  const Entry& entry = entries_[index];
  const auto shape = std::span(dimensions_).subspan(entry.shape, entry.rank);
  // Both were computed once without overflow when the header was read.
  const std::uint64_t size = *nbytes(entry.dtype, *checked_numel(shape));
  return {name_of(entry), entry.dtype, shape, entry.begin, entry.begin + size};
}

Result<std::uint64_t> header_length(std::span<const std::byte> prefix, std::uint64_t file_size,
                                    std::string_view file_name) {
  if (file_size == 0) {
    return fail(ErrorCode::Corrupt, "{}: is empty; download it again", file_name);
  }
  if (file_size < kLengthBytes || prefix.size() < kLengthBytes) {
    return fail(ErrorCode::Corrupt,
                "{}: {} bytes, too short for a safetensors file (at least 8); download it again",
                file_name, file_size);
  }
  const auto length = load_le<std::uint64_t>(prefix);
  if (length > kMaxHeader) {
    return fail(ErrorCode::Corrupt, "{}: header of {} bytes (limit {}); not a safetensors file?",
                file_name, length, kMaxHeader);
  }
  if (length > file_size - kLengthBytes) {
    return fail(ErrorCode::Corrupt,
                "{}: cut short in its header: {} of that one's {} bytes are missing; download it "
                "again",
                file_name, grouped(length - (file_size - kLengthBytes)), grouped(length));
  }
  return length;
}

Result<Header> parse_header(std::string_view text, std::uint64_t file_size,
                            std::string_view file_name) {
  CKFS_CHECK(text.size() <= kMaxHeader && text.size() + kLengthBytes <= file_size);
  CKFS_TRY_VOID(check_json_object(text, file_name));
  return HeaderReader(text, file_size - kLengthBytes - text.size(), file_name).read();
}

Result<Header> HeaderReader::read() {
  header_.text_ = text_;
  header_.data_offset_ = kLengthBytes + text_.size();
  // A tensor has at least five strings: its name, three members, and its dtype.
  header_.entries_.reserve(std::min(max_json_strings(text_) / 5, kMaxTensors));

  std::size_t end = 0;
  read_json(text_, {.token_bytes = kMaxString}, end, *this);
  keep_metadata();
  if (!error_ && check_names() && check_coverage()) return std::move(header_);
  return Failure(std::move(*error_));
}

void HeaderReader::keep_metadata() {
  while (!metadata_.empty()) {
    auto entry = metadata_.extract(metadata_.begin());
    if (entry.mapped()) {
      header_.metadata_.emplace_back(std::move(entry.key()), *std::move(entry.mapped()));
    } else {
      header_.metadata_not_kept_.push_back(std::move(entry.key()));
    }
  }
}

bool HeaderReader::parse_error(std::size_t byte, std::string_view reason) {
  return refuse("header at its byte {}: {}", byte, reason);
}

bool HeaderReader::scalar(std::string_view kind) {
  switch (where_) {
    case Where::Top:
      if (is_metadata_) return refuse("__metadata__ is {}, not an object", kind);
      return refuse_tensor("is {}, not an object", kind);
    case Where::Metadata:
      return refuse("__metadata__ has {}, not a string", kind);
    case Where::Tensor:
      if (member_ == Member::DType) return refuse_tensor("dtype is {}, not a string", kind);
      if (member_ == Member::Shape) return refuse_tensor("shape is {}, not a list", kind);
      if (member_ == Member::Offsets) return refuse_tensor("data_offsets is {}, not a list", kind);
      return true;
    case Where::Shape:
      return refuse_tensor("shape has {}, not a whole number", kind);
    case Where::Offsets:
      return refuse_tensor("data_offsets has {}, not a whole number", kind);
    default:
      return true;
  }
}

bool HeaderReader::number_unsigned(std::uint64_t value) {
  if (where_ == Where::Shape) {
    const auto extent = checked_cast<std::int64_t>(value);
    if (!extent) return refuse_tensor("dimension {} (limit 2^63 - 1)", value);
    if (shape_.size() == kMaxRank) return refuse_tensor("more than {} dimensions", kMaxRank);
    shape_.push_back(*extent);
    return true;
  }
  if (where_ == Where::Offsets) {
    if (offset_count_ == 2) return refuse_tensor("data_offsets has more than two numbers");
    offsets_[offset_count_++] = value;
    return true;
  }
  return scalar("a number");
}

bool HeaderReader::string(std::string_view value) {
  if (where_ == Where::Metadata) {
    if (value.size() > kMaxKeptMetadata - kept_bytes_) return true;
    kept_bytes_ += value.size();
    entry_of_metadata_->second = value;
    return true;
  }
  if (where_ == Where::Tensor && member_ == Member::DType) {
    dtype_ = parse_dtype(value);
    if (!dtype_) return refuse_tensor("unknown dtype {}", quote(value));
    return true;
  }
  return scalar("a string");
}

bool HeaderReader::start_object(std::size_t) {
  switch (where_) {
    case Where::Outside:
      where_ = Where::Top;
      return true;
    case Where::Top:
      where_ = is_metadata_ ? Where::Metadata : Where::Tensor;
      member_ = Member::None;
      return true;
    case Where::Tensor:
      if (member_ != Member::Unknown) return scalar("an object");
      below_skipped_ = Where::Tensor;
      where_ = Where::Skipped;
      skipped_depth_ = 1;
      return true;
    case Where::Skipped:
      return nest();
    default:
      return scalar("an object");
  }
}

bool HeaderReader::nest() {
  if (++skipped_depth_ > kMaxNested) return refuse_tensor("nested more than {} deep", kMaxNested);
  return true;
}

bool HeaderReader::start_array(std::size_t) {
  if (where_ == Where::Skipped) return nest();
  if (where_ != Where::Tensor || member_ == Member::DType) return scalar("a list");
  if (member_ == Member::Shape) {
    where_ = Where::Shape;
  } else if (member_ == Member::Offsets) {
    where_ = Where::Offsets;
  } else {
    below_skipped_ = Where::Tensor;
    where_ = Where::Skipped;
    skipped_depth_ = 1;
  }
  return true;
}

bool HeaderReader::end_array() {
  if (where_ == Where::Skipped) {
    if (--skipped_depth_ == 0) where_ = below_skipped_;
    return true;
  }
  if (where_ == Where::Offsets && offset_count_ != 2) {
    return refuse_tensor("data_offsets has {} numbers, not two", offset_count_);
  }
  where_ = Where::Tensor;
  return true;
}

bool HeaderReader::end_object() {
  switch (where_) {
    case Where::Skipped:
      if (--skipped_depth_ == 0) where_ = below_skipped_;
      return true;
    case Where::Tensor:
      where_ = Where::Top;
      return end_tensor();
    case Where::Metadata:
      where_ = Where::Top;
      return true;
    default:
      where_ = Where::Done;
      return true;
  }
}

bool HeaderReader::key(std::string_view name) {
  switch (where_) {
    case Where::Top:
      is_metadata_ = name == "__metadata__";
      if (!is_metadata_) return keep_name(name);
      if (seen_metadata_) return refuse("__metadata__ twice");
      seen_metadata_ = true;
      return true;
    case Where::Metadata: {
      metadata_bytes_ += name.size();
      if (metadata_bytes_ > kMaxEscaped || metadata_.size() == kMaxMetadata) {
        return refuse("__metadata__ has too many names (limit {}, of {} bytes together)",
                      kMaxMetadata, kMaxEscaped);
      }
      bool is_new = false;
      std::tie(entry_of_metadata_, is_new) = metadata_.emplace(name, std::nullopt);
      if (!is_new) return refuse("__metadata__ has {} twice", quote(name));
      return true;
    }
    case Where::Tensor: {
      const auto once = [&](bool& seen, Member member) {
        if (seen) return refuse_tensor("{} twice", name);
        seen = true;
        member_ = member;
        return true;
      };
      if (name == "dtype") return once(has_dtype_, Member::DType);
      if (name == "shape") return once(has_shape_, Member::Shape);
      if (name == "data_offsets") return once(has_offsets_, Member::Offsets);
      member_ = Member::Unknown;
      return true;
    }
    default:
      return true;
  }
}

bool HeaderReader::keep_name(std::string_view name) {
  if (name.size() > kMaxName) {
    return refuse("a tensor's name has {} bytes (limit {})", name.size(), kMaxName);
  }
  if (header_.entries_.size() == kMaxTensors) return refuse("more than {} tensors", kMaxTensors);
  entry_ = {};
  entry_.name_size = static_cast<std::uint16_t>(name.size());
  if (const auto at = offset_in(text_, name)) {
    entry_.name = static_cast<std::uint32_t>(*at);
  } else {
    escaped_bytes_ += name.size() + sizeof(std::string);
    if (escaped_bytes_ > kMaxEscaped) {
      return refuse("names with JSON escapes need more than {} bytes", kMaxEscaped);
    }
    entry_.name_escaped = true;
    entry_.name = static_cast<std::uint32_t>(header_.escaped_.size());
    header_.escaped_.emplace_back(name);
  }
  name_ = header_.name_of(entry_);
  dtype_.reset();
  has_dtype_ = has_shape_ = has_offsets_ = false;
  shape_.clear();
  offset_count_ = 0;
  return true;
}

bool HeaderReader::end_tensor() {
  if (!has_dtype_) return refuse_tensor("no dtype");
  if (!has_shape_) return refuse_tensor("no shape");
  if (!has_offsets_) return refuse_tensor("no data_offsets");
  const auto [begin, end] = offsets_;
  if (begin > end) return refuse_tensor("data_offsets begin {} > end {}", begin, end);

  const auto numel = checked_numel(shape_);
  if (!numel) return refuse_tensor("shape has more than 2^63 - 1 elements");
  // As the loader multiplies: a product that is too large before a 0 comes is an error.
  std::optional<std::uint64_t> product = 1;
  for (const std::int64_t extent : shape_) {
    product = checked_mul(*product, static_cast<std::uint64_t>(extent));
    if (!product) return refuse_tensor("shape has more than 2^64 - 1 elements before its 0");
  }
  const auto element_bits = static_cast<std::int64_t>(bits(*dtype_));
  const auto bit_count = checked_mul(*numel, element_bits);
  if (!bit_count) return refuse_tensor("shape and dtype need more than 2^63 - 1 bits");
  if (*bit_count % 8 != 0) {
    return refuse_tensor("{} elements of {} do not end on a whole byte", *numel,
                         ckfs::name(*dtype_));
  }
  const auto size = static_cast<std::uint64_t>(*bit_count / 8);
  if (size != end - begin) {
    return refuse_tensor("data_offsets hold {} bytes, dtype and shape need {}", end - begin, size);
  }

  const auto shape = keep_shape();
  if (!shape) return refuse("shapes have more than {} dimensions together", kMaxDimensions);
  entry_.shape = *shape;
  entry_.rank = static_cast<std::uint8_t>(shape_.size());
  entry_.begin = begin;
  entry_.dtype = *dtype_;
  header_.entries_.push_back(entry_);
  return true;
}

std::optional<std::uint32_t> HeaderReader::keep_shape() {
  std::uint64_t hash = shape_.size();
  for (const std::int64_t extent : shape_) {
    hash = (hash ^ static_cast<std::uint64_t>(extent)) * 0x9E3779B97F4A7C15;
  }
  KnownShape& known = known_shapes_[hash >> 54];
  const auto old = std::span(header_.dimensions_).subspan(known.offset, known.rank);
  if (std::equal(old.begin(), old.end(), shape_.begin(), shape_.end())) return known.offset;

  if (header_.dimensions_.size() + shape_.size() > kMaxDimensions) return std::nullopt;
  known = {static_cast<std::uint32_t>(header_.dimensions_.size()),
           static_cast<std::uint32_t>(shape_.size())};
  header_.dimensions_.insert(header_.dimensions_.end(), shape_.begin(), shape_.end());
  return known.offset;
}

bool HeaderReader::check_names() {
  std::vector<std::uint32_t> order(header_.entries_.size());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  const auto name_at = [&](std::uint32_t i) { return header_.name_of(header_.entries_[i]); };
  std::sort(order.begin(), order.end(),
            [&](std::uint32_t a, std::uint32_t b) { return name_at(a) < name_at(b); });
  for (std::size_t i = 1; i < order.size(); ++i) {
    name_ = name_at(order[i]);
    if (name_ == name_at(order[i - 1])) return refuse_tensor("twice in the header");
  }
  return true;
}

void HeaderReader::sort_by_place() {
  // Zero-size tensors begin where the next tensor does, and so come first; among themselves they
  // keep the header's order.
  auto& entries = header_.entries_;
  const auto is_empty = [&](const Header::Entry& entry) {
    return checked_numel(std::span(header_.dimensions_).subspan(entry.shape, entry.rank)) == 0;
  };
  const auto before = [&](const Header::Entry& a, const Header::Entry& b) {
    if (a.begin != b.begin) return a.begin < b.begin;
    return is_empty(a) && !is_empty(b);
  };
  if (std::is_sorted(entries.begin(), entries.end(), before)) return;

  std::vector<std::uint32_t> order(entries.size());
  std::iota(order.begin(), order.end(), std::uint32_t{0});
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (before(entries[a], entries[b])) return true;
    return !before(entries[b], entries[a]) && a < b;
  });
  std::vector<Header::Entry> sorted;
  sorted.reserve(entries.size());
  for (const std::uint32_t i : order) sorted.push_back(entries[i]);
  entries = std::move(sorted);
}

bool HeaderReader::check_coverage() {
  sort_by_place();
  const auto& entries = header_.entries_;
  std::uint64_t covered = 0;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const HeaderTensor tensor = header_[i];
    name_ = tensor.name;
    if (tensor.begin < covered) {
      return refuse_tensor("data begins at {}, inside the tensor before it (which ends at {})",
                           tensor.begin, covered);
    }
    if (tensor.begin > covered) {
      return refuse_tensor("data begins at {}, but the {} bytes before it belong to no tensor",
                           tensor.begin, tensor.begin - covered);
    }
    covered = tensor.end;
  }
  if (covered > data_size_) {
    return refuse("cut short: {} of {} bytes are missing; download it again",
                  grouped(covered - data_size_),
                  grouped(checked_add(covered, header_.data_offset_).value_or(covered)));
  }
  if (covered < data_size_) {
    return refuse("{} bytes behind the end of the last tensor at {}; download it again",
                  grouped(data_size_ - covered), grouped(header_.data_offset_ + covered));
  }
  return true;
}

}  // namespace ckfs::safetensors
