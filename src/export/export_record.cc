// The record is JSON so that people can read it, and small enough to be written whole each time (a
// line for each file). An append-only log was the alternative; it would save bytes where a view has
// tens of thousands of files, and cost a replay with its own half-written last line.
//
// The record decides which files may be removed, so a path in it is believed only if it stays
// inside OUT.
#include "export/export_record.h"

#include <charconv>
#include <nlohmann/json.hpp>

namespace ckfs {

namespace {

constexpr int kRecordVersion = 1;

}  // namespace

std::string temporary_name(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  const std::size_t base = slash == std::string_view::npos ? 0 : slash + 1;
  return fmt::format("{}.{}.ckfs-part", path.substr(0, base), path.substr(base));
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

std::string to_json(const ExportRecord& record) {
  nlohmann::ordered_json json;
  json["version"] = kRecordVersion;
  json["fingerprint"] = fmt::format("{:016x}", record.fingerprint);
  json["view"] = record.view;
  json["layout_version"] = record.layout_version;
  nlohmann::ordered_json files = nlohmann::ordered_json::object();
  for (const auto& [path, file] : record.files) {
    files[path] = {{"size", file.size}, {"synced", file.synced}, {"finished", file.finished}};
  }
  json["files"] = std::move(files);
  // Names in a checkpoint need not be UTF-8; a name that is not comes back changed, is then not
  // recognised, and its file is written again.
  return json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

Result<ExportRecord> parse_record(std::string_view text) {
  const auto broken = [] {
    return fail(ErrorCode::InvalidArgument, "{}: not a record of an export", kRecordName);
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (!json.is_object()) return broken();
  const auto version = json.find("version");
  const auto fingerprint = json.find("fingerprint");
  const auto view = json.find("view");
  const auto layout_version = json.find("layout_version");
  const auto files = json.find("files");
  const auto end = json.end();
  if (version == end || *version != kRecordVersion || fingerprint == end ||
      !fingerprint->is_string() || view == end || !view->is_string() || layout_version == end ||
      !layout_version->is_number_integer() || files == end || !files->is_object()) {
    return broken();
  }

  ExportRecord record;
  const auto& hex = fingerprint->get_ref<const std::string&>();
  const auto parsed = std::from_chars(hex.data(), hex.data() + hex.size(), record.fingerprint, 16);
  if (parsed.ec != std::errc() || parsed.ptr != hex.data() + hex.size()) return broken();
  record.view = view->get<std::string>();
  record.layout_version = layout_version->get<int>();
  for (const auto& [path, entry] : files->items()) {
    if (!is_inner_path(path) || !entry.is_object()) return broken();
    const auto size = entry.find("size");
    const auto synced = entry.find("synced");
    const auto finished = entry.find("finished");
    if (size == entry.end() || !size->is_number_unsigned() || synced == entry.end() ||
        !synced->is_number_unsigned() || finished == entry.end() || !finished->is_boolean()) {
      return broken();
    }
    record.files[path] = {.size = size->get<std::uint64_t>(),
                          .synced = synced->get<std::uint64_t>(),
                          .finished = finished->get<bool>()};
  }
  return record;
}

}  // namespace ckfs
