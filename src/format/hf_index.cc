// An index names every tensor of a model once, which for the largest is ten megabytes of JSON. It
// is kept as its text and twelve bytes a name, sorted, rather than as a map of strings: the map
// would cost as much as the whole catalog, and is needed only while the checkpoint is opened.
#include "format/hf_index.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/gallop.h"
#include "base/text.h"
#include "format/json_reader.h"

namespace ckfs {
namespace {

/// Why `name` does not name a file in or below the index's directory; empty: it does.
std::string_view fault_of_path(std::string_view name) {
  if (name.empty()) return "is empty";
  if (name.size() > kMaxIndexFileName) return "is too long";
  if (name.front() == '/') return "is absolute";
  if (name.find('\0') != std::string_view::npos) return "has a NUL character";
  for (std::size_t begin = 0; begin <= name.size();) {
    const std::size_t end = std::min(name.find('/', begin), name.size());
    const std::string_view part = name.substr(begin, end - begin);
    if (part == "..") return "leaves the directory";
    if (part.empty() || part == ".") return "is not a plain path";
    begin = end + 1;
  }
  return {};
}

}  // namespace

/// The handler of events: keeps weight_map, skips everything else at the top level.
class HfIndexReader {
 public:
  HfIndexReader(std::string_view text, std::string_view file_name)
      : text_(text), file_name_(file_name) {}

  Result<HfIndex> read();

  bool null() { return scalar("null"); }
  bool boolean(bool) { return scalar("a boolean"); }
  bool number_integer(std::int64_t) { return scalar("a number"); }
  bool number_unsigned(std::uint64_t) { return scalar("a number"); }
  bool number_float(double, std::string_view) { return scalar("a number"); }
  bool string(std::string_view value);
  bool start_object(std::size_t) { return start("an object"); }
  bool start_array(std::size_t) { return start("a list"); }
  bool end_object() { return end(); }
  bool end_array() { return end(); }
  bool key(std::string_view name);
  bool parse_error(std::size_t byte, std::string_view reason);

 private:
  template <typename... Args>
  bool refuse(fmt::format_string<Args...> text, Args&&... args) {
    error_ = Error(ErrorCode::Corrupt, fmt::format("{}: {}", file_name_,
                                                   fmt::format(text, std::forward<Args>(args)...)));
    return false;
  }
  bool in_map() const { return depth_ == 2 && is_map_; }
  bool scalar(std::string_view kind);
  bool start(std::string_view kind);
  bool end();
  bool finish();

  std::string_view text_;
  std::string_view file_name_;
  HfIndex index_;
  std::optional<Error> error_;

  std::size_t depth_ = 0;
  bool is_map_ = false;  // the member of the top level that is being read is weight_map
  bool seen_map_ = false;
  HfIndex::Slot slot_;
  std::size_t escaped_bytes_ = 0;
  std::map<std::string, std::uint32_t, std::less<>> files_;
};

std::string_view HfIndex::name_of(const Slot& slot) const {
  if (slot.name_size == kEscaped) return escaped_[slot.name];
  return text_.substr(slot.name, slot.name_size);
}

HfIndex::Entry HfIndex::operator[](std::size_t index) const {
  return {name_of(entries_[index]), entries_[index].file};
}

std::optional<std::uint32_t> HfIndex::find(std::string_view name, std::size_t& near) const {
  near = gallop(entries_.size(), near, [&](std::size_t i) { return name_of(entries_[i]) < name; });
  if (near == entries_.size() || name_of(entries_[near]) != name) return std::nullopt;
  return entries_[near].file;
}

Result<HfIndex> parse_hf_index(std::string_view text, std::string_view file_name) {
  if (text.size() > kMaxIndex) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes (limit {})", file_name, text.size(), kMaxIndex);
  }
  CKFS_TRY_VOID(check_json_object(text, file_name));
  return HfIndexReader(text, file_name).read();
}

Result<HfIndex> HfIndexReader::read() {
  index_.text_ = text_;
  index_.entries_.reserve(std::min(max_json_strings(text_) / 2, kMaxIndexNames));
  std::size_t end = 0;
  read_json(text_, {.token_bytes = 65'536}, end, *this);
  if (!error_ && finish()) return std::move(index_);
  return Failure(std::move(*error_));
}

bool HfIndexReader::parse_error(std::size_t byte, std::string_view reason) {
  return refuse("at byte {}: {}", byte, reason);
}

bool HfIndexReader::start(std::string_view kind) {
  if (depth_ == 1 && is_map_) {
    if (kind != "an object") return refuse("weight_map is {}, not an object", kind);
  } else if (in_map()) {
    return scalar(kind);
  }
  if (depth_ == kMaxIndexDepth) return refuse("nested more than {} deep", kMaxIndexDepth);
  ++depth_;
  return true;
}

bool HfIndexReader::end() {
  --depth_;
  return true;
}

bool HfIndexReader::scalar(std::string_view kind) {
  if (depth_ == 1 && is_map_) return refuse("weight_map is {}, not an object", kind);
  if (in_map()) {
    return refuse("tensor {}: its file is {}, not a string", quote(index_.name_of(slot_)), kind);
  }
  return true;
}

bool HfIndexReader::key(std::string_view name) {
  if (depth_ == 1) {
    is_map_ = name == "weight_map";
    if (is_map_ && seen_map_) return refuse("weight_map twice");
    seen_map_ = seen_map_ || is_map_;
    return true;
  }
  if (!in_map()) return true;

  if (index_.entries_.size() == kMaxIndexNames) return refuse("more than {} names", kMaxIndexNames);
  if (const auto at = offset_in(text_, name)) {
    slot_.name = static_cast<std::uint32_t>(*at);
    slot_.name_size = static_cast<std::uint32_t>(name.size());
    return true;
  }
  escaped_bytes_ += name.size() + sizeof(std::string);
  if (escaped_bytes_ > kMaxIndexEscaped) {
    return refuse("names with JSON escapes need more than {} bytes", kMaxIndexEscaped);
  }
  slot_.name = static_cast<std::uint32_t>(index_.escaped_.size());
  slot_.name_size = HfIndex::kEscaped;
  index_.escaped_.emplace_back(name);
  return true;
}

bool HfIndexReader::string(std::string_view value) {
  if (!in_map()) return scalar("a string");
  while (value.size() > 2 && value.starts_with("./") && value[2] != '/') value.remove_prefix(2);
  auto at = files_.find(value);
  if (at == files_.end()) {
    const std::string_view fault = fault_of_path(value);
    if (!fault.empty()) {
      return refuse("tensor {}: file name {} {}", quote(index_.name_of(slot_)), quote(value),
                    fault);
    }
    if (files_.size() == kMaxIndexFiles) return refuse("more than {} files", kMaxIndexFiles);
    at = files_.emplace(value, static_cast<std::uint32_t>(files_.size())).first;
  }
  slot_.file = at->second;
  index_.entries_.push_back(slot_);
  return true;
}

bool HfIndexReader::finish() {
  if (!seen_map_) return refuse("no weight_map");
  auto& entries = index_.entries_;
  if (entries.empty()) return refuse("weight_map is empty");

  // Files were numbered as they came; from here on by name.
  std::vector<std::uint32_t> by_name(files_.size());
  index_.files_.reserve(files_.size());
  while (!files_.empty()) {
    auto file = files_.extract(files_.begin());  // long names are not there twice
    by_name[file.mapped()] = static_cast<std::uint32_t>(index_.files_.size());
    index_.files_.push_back(std::move(file.key()));
  }
  for (HfIndex::Slot& slot : entries) slot.file = by_name[slot.file];

  const auto less = [&](const HfIndex::Slot& a, const HfIndex::Slot& b) {
    return index_.name_of(a) < index_.name_of(b);
  };
  if (!std::is_sorted(entries.begin(), entries.end(), less)) {
    std::sort(entries.begin(), entries.end(), less);
  }
  for (std::size_t i = 1; i < entries.size(); ++i) {
    if (index_.name_of(entries[i]) == index_.name_of(entries[i - 1])) {
      return refuse("tensor {}: twice in weight_map", quote(index_.name_of(entries[i])));
    }
  }
  return true;
}

}  // namespace ckfs
