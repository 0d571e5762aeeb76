#include "export/fleet.h"

#include <charconv>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>

namespace ckfs {

namespace {

std::string_view name_of(Split split) {
  switch (split) {
    case Split::Ranges:
      return "ranges";
    case Split::Weights:
      return "weights";
    case Split::Files:
      break;
  }
  return "files";
}

std::optional<Split> split_of(const nlohmann::json& name) {
  for (const Split split : {Split::Ranges, Split::Weights, Split::Files}) {
    if (name == name_of(split)) return split;
  }
  return std::nullopt;
}

std::string hex(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) {
    fmt::format_to(std::back_inserter(text), "{:02x}", static_cast<unsigned char>(byte));
  }
  return text;
}

std::optional<std::string> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes(text.size() / 2, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    unsigned char byte = 0;
    const char* const begin = text.data() + 2 * i;
    const auto [end, error] = std::from_chars(begin, begin + 2, byte, 16);
    if (error != std::errc() || end != begin + 2) return std::nullopt;
    bytes[i] = static_cast<char>(byte);
  }
  return bytes;
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
  if (!world || *world == 0 || split == json.end()) return std::nullopt;
  const std::optional<Split> known = split_of(*split);
  if (!known) return std::nullopt;
  return Fleet{.origin = *origin, .world = static_cast<unsigned>(*world), .split = *known};
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
  if (record.fleet.split == Split::Weights) {
    members.emplace_back("order", fmt::format("{}", record.order));
    members.emplace_back("steps", fmt::format("{}", record.steps));
    members.emplace_back("left", fmt::format("{}", record.left));
    std::string kept = "[";
    for (const auto& [place, bytes] : record.kept) {
      kept += fmt::format("{}[{},{},\"{}\"]", kept.size() == 1 ? "" : ",", place.first,
                          place.second, hex(bytes));
    }
    members.emplace_back("kept", kept + "]");
  }
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
  if (fleet->split != Split::Weights) return record;
  const auto order = number_of(json, "order");
  const auto steps = number_of(json, "steps");
  const auto left = number_of(json, "left");
  const auto kept = json.find("kept");
  if (!order || !steps || !left || kept == end || !kept->is_array()) return broken();
  record.order = *order;
  record.steps = *steps;
  record.left = *left;
  for (const auto& entry : *kept) {
    if (!entry.is_array() || entry.size() != 3 || !entry[0].is_number_unsigned() ||
        !entry[1].is_number_unsigned() || !entry[2].is_string()) {
      return broken();
    }
    auto bytes = from_hex(entry[2].get_ref<const std::string&>());
    if (!bytes) return broken();
    record.kept.emplace(std::pair(entry[0].get<std::size_t>(), entry[1].get<std::uint64_t>()),
                        *std::move(bytes));
  }
  return record;
}

}  // namespace ckfs
