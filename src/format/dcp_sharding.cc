// The text is one string of a header, so it is bounded, and so is what is kept of it.
#include "format/dcp_sharding.h"

#include <optional>
#include <utility>

#include "base/checked.h"
#include "base/text.h"
#include "format/json_reader.h"
#include "format/safetensors.h"

namespace ckfs {
namespace {

constexpr std::string_view kOffsets = "saved_offsets";
constexpr std::size_t kMaxDepth = 64;

/// The handler of events: of each member of the top level the list of its saved_offsets.
class ShardingReader {
 public:
  explicit ShardingReader(std::string_view file_name) : file_name_(file_name) {}

  Result<DcpOffsets> read(std::string_view text) {
    CKFS_TRY_VOID(check_json_object(text, file_name_));
    std::size_t end = 0;
    read_json(text, {.token_bytes = safetensors::kMaxString}, end, *this);
    if (error_) return Failure(std::move(*error_));
    return std::move(offsets_);
  }

  bool null() { return scalar(); }
  bool boolean(bool) { return scalar(); }
  bool number_integer(std::int64_t) { return scalar(); }
  bool number_float(double, std::string_view) { return scalar(); }
  bool string(std::string_view) { return scalar(); }
  bool number_unsigned(std::uint64_t value) {
    if (!in_offsets()) return scalar();
    const auto offset = checked_cast<std::int64_t>(value);
    if (!offset || entry_->second.size() == safetensors::kMaxRank) return refuse();
    entry_->second.push_back(*offset);
    return true;
  }
  bool start_object(std::size_t) {
    if (in_offsets() || is_offsets_) return refuse();
    return open();
  }
  bool start_array(std::size_t) {
    if (in_offsets() || depth_ == 1) return refuse();
    return open();
  }
  bool end_object() { return close(); }
  bool end_array() { return close(); }
  bool key(std::string_view name) {
    if (depth_ == 1) {
      bool is_new = false;
      std::tie(entry_, is_new) = offsets_.try_emplace(std::string(name));
      return is_new || refuse();
    }
    if (depth_ != 2) return true;
    is_offsets_ = name == kOffsets;
    return !is_offsets_ || entry_->second.empty() || refuse();
  }
  bool parse_error(std::size_t byte, std::string_view reason) {
    error_ = Error(ErrorCode::Corrupt, fmt::format("{}: {} at its byte {}: {}", file_name_,
                                                   kDcpSharding, byte, reason));
    return false;
  }

 private:
  bool in_offsets() const { return depth_ == 3 && is_offsets_; }
  bool scalar() {
    return in_offsets() || depth_ < 2 || (depth_ == 2 && is_offsets_) ? refuse() : true;
  }
  bool open() {
    if (depth_ == kMaxDepth) return refuse();
    ++depth_;
    return true;
  }
  bool close() {
    if (--depth_ == 2) is_offsets_ = false;
    return true;
  }
  bool refuse() {
    error_ = Error(ErrorCode::Corrupt,
                   fmt::format("{}: {} has no list of offsets for {}", file_name_, kDcpSharding,
                               entry_ == offsets_.end() ? "a tensor" : quote(entry_->first)));
    return false;
  }

  std::string_view file_name_;
  DcpOffsets offsets_;
  DcpOffsets::iterator entry_ = offsets_.end();
  std::optional<Error> error_;
  std::size_t depth_ = 0;
  bool is_offsets_ = false;  // reading the value of saved_offsets
};

}  // namespace

Result<DcpOffsets> parse_dcp_sharding(std::string_view text, std::string_view file_name) {
  return ShardingReader(file_name).read(text);
}

}  // namespace ckfs
