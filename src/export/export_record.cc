// The record is JSON so that people can read it, and small enough to be written whole each time (a
// line for each file). An append-only log was the alternative; it would save bytes where a view has
// tens of thousands of files, and cost a replay with its own half-written last line.
//
// It is built as text. An object of nlohmann's allocates when it is destroyed, and so ends the
// program when memory has run out; a string does not.
//
// The record decides which files may be removed, so only paths that stay inside OUT are accepted.
#include "export/export_record.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

namespace ckfs {

namespace {

constexpr int kRecordVersion = 1;

/// A path as a JSON string: names in a checkpoint need not be UTF-8, JSON's must. Bytes beyond
/// ASCII, and '%', become %XX.
std::string to_ascii(std::string_view path) {
  std::string out;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80 || c == '%') {
      out += fmt::format("%{:02x}", byte);
    } else {
      out += c;
    }
  }
  return out;
}

std::optional<std::string> from_ascii(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i];
      continue;
    }
    if (text.size() - i < 3) return std::nullopt;
    const char* const end = text.data() + i + 3;
    unsigned byte = 0;
    const auto parsed = std::from_chars(text.data() + i + 1, end, byte, 16);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

/// The number that hexadecimal digits write.
std::optional<std::uint64_t> number_of(std::string_view hex) {
  std::uint64_t number = 0;
  const auto parsed = std::from_chars(hex.data(), hex.data() + hex.size(), number, 16);
  if (parsed.ec != std::errc() || parsed.ptr != hex.data() + hex.size()) return std::nullopt;
  return number;
}

}  // namespace

std::string part_name(std::size_t number) {
  return fmt::format("{}/{}.part", kExportFolder, number);
}

bool is_own_path(std::string_view path) {
  return path.substr(0, path.find('/')) == kExportFolder;
}

bool is_inner_path(std::string_view path) {
  while (true) {
    const std::size_t slash = path.find('/');
    const std::string_view part = path.substr(0, slash);
    if (part.empty() || part == "." || part == ".." || part.find('\0') != std::string_view::npos)
      return false;
    if (slash == std::string_view::npos) return true;
    path.remove_prefix(slash + 1);
  }
}

JsonMembers origin_members(const ExportOrigin& origin) {
  return {{"version", fmt::format("{}", kRecordVersion)},
          {"fingerprint", json_quoted(fmt::format("{:016x}", origin.fingerprint))},
          {"view", json_quoted(origin.view)},
          {"layout_version", fmt::format("{}", origin.layout_version)}};
}

std::string json_object(const JsonMembers& members) {
  std::string text = "{";
  for (const auto& [name, value] : members) {
    text += fmt::format("{}\n \"{}\": {}", text.size() == 1 ? "" : ",", name, value);
  }
  return text + "\n}\n";
}

std::string json_quoted(std::string_view text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<ExportOrigin> origin_of(const nlohmann::json& json) {
  if (!json.is_object()) return std::nullopt;
  const auto version = json.find("version");
  const auto fingerprint = json.find("fingerprint");
  const auto view = json.find("view");
  const auto layout_version = json.find("layout_version");
  const auto end = json.end();
  if (version == end || *version != kRecordVersion || fingerprint == end ||
      !fingerprint->is_string() || view == end || !view->is_string() || layout_version == end ||
      !layout_version->is_number_integer()) {
    return std::nullopt;
  }
  ExportOrigin origin;
  const auto number = number_of(fingerprint->get_ref<const std::string&>());
  if (!number) return std::nullopt;
  origin.fingerprint = *number;
  origin.view = view->get<std::string>();
  origin.layout_version = layout_version->get<int>();
  return origin;
}

std::string mark_text(const ExportOrigin& origin) {
  std::string text;
  for (const auto& [name, value] : origin_members(origin)) {
    text += fmt::format("{}\"{}\":{}", text.empty() ? "{" : ",", name, value);
  }
  return text + "}";
}

std::optional<ExportOrigin> parse_mark(std::string_view text) {
  return origin_of(nlohmann::json::parse(text, nullptr, false));
}

std::string to_json(const ExportRecord& record) {
  JsonMembers members = origin_members(record.origin);
  const bool has_steps =
      std::ranges::any_of(record.files, [](const auto& file) { return file.second.steps > 0; });
  if (has_steps) {
    members.emplace_back("order", json_quoted(fmt::format("{:016x}", record.order)));
  }
  std::string files = "{";
  for (const auto& [path, file] : record.files) {
    files += fmt::format("{}\n  {}: {{\"size\": {}, \"synced\": {}, \"finished\": {}",
                         files.size() == 1 ? "" : ",", json_quoted(to_ascii(path)), file.size,
                         file.synced, file.finished);
    if (file.steps > 0) files += fmt::format(", \"steps\": {}", file.steps);
    files += "}";
  }
  members.emplace_back("files", files + (record.files.empty() ? "}" : "\n }"));
  return json_object(members);
}

Result<ExportRecord> parse_record(std::string_view text) {
  const auto broken = [] {
    return fail(ErrorCode::InvalidArgument, "{}: not a record of an export", kRecordName);
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const std::optional<ExportOrigin> origin = origin_of(json);
  const auto files = json.find("files");
  if (!origin || files == json.end() || !files->is_object()) return broken();

  ExportRecord record{.origin = *origin, .order = 0, .files = {}};
  if (const auto order = json.find("order"); order != json.end()) {
    const auto id =
        order->is_string() ? number_of(order->get_ref<const std::string&>()) : std::nullopt;
    if (!id) return broken();
    record.order = *id;
  }
  for (const auto& [path, entry] : files->items()) {
    const auto inner = from_ascii(path);
    if (!inner || !is_inner_path(*inner) || !entry.is_object()) return broken();
    const auto size = entry.find("size");
    const auto synced = entry.find("synced");
    const auto finished = entry.find("finished");
    if (size == entry.end() || !size->is_number_unsigned() || synced == entry.end() ||
        !synced->is_number_unsigned() || finished == entry.end() || !finished->is_boolean()) {
      return broken();
    }
    const auto steps = entry.find("steps");
    if (steps != entry.end() && !steps->is_number_unsigned()) return broken();
    record.files[*inner] = {.size = size->get<std::uint64_t>(),
                            .synced = synced->get<std::uint64_t>(),
                            .finished = finished->get<bool>(),
                            .steps = steps == entry.end() ? 0 : steps->get<std::uint64_t>()};
  }
  return record;
}

}  // namespace ckfs
