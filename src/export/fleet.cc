#include "export/fleet.h"

#include <nlohmann/json.hpp>

namespace ckfs {

namespace {

std::string_view name_of(Split split) {
  return split == Split::Files ? "files" : "ranges";
}

/// A member that is a number from 0 to `most`.
std::optional<std::uint64_t> number_of(const nlohmann::json& json, const char* name,
                                       std::uint64_t most = ~std::uint64_t{0}) {
  const auto at = json.find(name);
  if (at == json.end() || !at->is_number_unsigned()) return std::nullopt;
  const auto number = at->get<std::uint64_t>();
  return number <= most ? std::optional(number) : std::nullopt;
}

JsonMembers members_of(const Fleet& fleet) {
  JsonMembers members = origin_members(fleet.origin);
  members.emplace_back("world", fmt::format("{}", fleet.world));
  members.emplace_back("split", json_quoted(name_of(fleet.split)));
  return members;
}

std::optional<Fleet> fleet_of(const nlohmann::json& json) {
  const auto origin = origin_of(json);
  if (!origin) return std::nullopt;
  const auto world = number_of(json, "world", kMostRanks);
  const auto split = json.find("split");
  if (!world || *world == 0 || split == json.end() || (*split != "files" && *split != "ranges")) {
    return std::nullopt;
  }
  return Fleet{.origin = *origin,
               .world = static_cast<unsigned>(*world),
               .split = *split == "files" ? Split::Files : Split::Ranges};
}

std::optional<RankRecord::Range> parse_range(const nlohmann::json& json) {
  if (!json.is_array() || json.size() != 4) return std::nullopt;
  for (const auto& number : json) {
    if (!number.is_number_unsigned()) return std::nullopt;
  }
  const RankRecord::Range range{
      .step = {json[0].get<std::size_t>(),
               {json[1].get<std::uint64_t>(), json[2].get<std::uint64_t>()}},
      .synced = json[3].get<std::uint64_t>()};
  const ByteRange bytes = range.step.range;
  if (bytes.begin >= bytes.end || range.synced < bytes.begin || range.synced > bytes.end) {
    return std::nullopt;
  }
  return range;
}

}  // namespace

std::string difference(const Fleet& there, const Fleet& here) {
  std::string text;
  const auto differ = [&](const auto& a, const auto& b, const auto& line) {
    if (a == b) return;
    if (!text.empty()) text += "; ";
    text += line();
  };
  differ(there.origin.view, here.origin.view,
         [&] { return fmt::format("view {}, not {}", there.origin.view, here.origin.view); });
  differ(there.origin.fingerprint, here.origin.fingerprint, [&] {
    return fmt::format("a source of fingerprint {:016x}, not {:016x}", there.origin.fingerprint,
                       here.origin.fingerprint);
  });
  differ(there.origin.layout_version, here.origin.layout_version, [&] {
    return fmt::format("layout version {}, not {}", there.origin.layout_version,
                       here.origin.layout_version);
  });
  differ(there.world, here.world,
         [&] { return fmt::format("{} parts, not {}", there.world, here.world); });
  differ(there.split, here.split, [&] {
    return fmt::format("cut by {}, not by {}", name_of(there.split), name_of(here.split));
  });
  return text;
}

std::string rank_record_name(unsigned rank) {
  return fmt::format("{}/rank-{}.json", kExportFolder, rank);
}

std::string rank_lock_name(unsigned rank) {
  return fmt::format("{}/rank-{}.lock", kExportFolder, rank);
}

std::string to_json(const Fleet& fleet) {
  return json_object(members_of(fleet));
}

std::string to_json(const RankRecord& record) {
  JsonMembers members = members_of(record.fleet);
  members.emplace_back("rank", fmt::format("{}", record.rank));
  members.emplace_back("host", json_quoted(record.host));
  members.emplace_back("complete", fmt::format("{}", record.complete));
  std::string parts = "[";
  for (const auto& [step, synced] : record.ranges) {
    parts += fmt::format("{}[{},{},{},{}]", parts.size() == 1 ? "" : ",", step.file,
                         step.range.begin, step.range.end, synced);
  }
  members.emplace_back("parts", parts + "]");
  return json_object(members);
}

Result<Fleet> parse_fleet(std::string_view text) {
  const auto fleet = fleet_of(nlohmann::json::parse(text, nullptr, false));
  if (fleet) return *fleet;
  return fail(ErrorCode::InvalidArgument, "{}: not what an export in parts leaves", kFleetName);
}

Result<RankRecord> parse_rank_record(std::string_view text) {
  const auto broken = [] {
    return fail(ErrorCode::InvalidArgument, "not a record of an export in parts");
  };
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  const auto fleet = fleet_of(json);
  if (!fleet) return broken();
  const auto rank = number_of(json, "rank", fleet->world - 1);
  const auto host = json.find("host");
  const auto complete = json.find("complete");
  const auto parts = json.find("parts");
  const auto end = json.end();
  if (!rank || host == end || !host->is_string() || complete == end || !complete->is_boolean() ||
      parts == end || !parts->is_array()) {
    return broken();
  }
  RankRecord record{.fleet = *fleet,
                    .rank = static_cast<unsigned>(*rank),
                    .host = host->get<std::string>(),
                    .complete = complete->get<bool>(),
                    .ranges = {}};
  for (const auto& entry : *parts) {
    const auto range = parse_range(entry);
    if (!range) return broken();
    record.ranges.push_back(*range);
  }
  return record;
}

}  // namespace ckfs
