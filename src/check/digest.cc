// In a check file of coreutils, a line begins with a backslash if its path has a backslash or an
// end of line, which are escaped then.
#include "check/digest.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>

#include "api/inside.h"
#include "base/mutex.h"
#include "base/parallel.h"
#include "base/stop.h"
#include "base/text.h"
#include "base/units.h"

namespace ckfs {

namespace {

constexpr int kVersion = 1;
constexpr std::uint64_t kPiece = 1_MiB;

std::string escaped(std::string_view path) {
  std::string text;
  for (const char c : path) {
    if (c == '\\') {
      text += "\\\\";
    } else if (c == '\n') {
      text += "\\n";
    } else if (c == '\r') {
      text += "\\r";
    } else {
      text += c;
    }
  }
  return text;
}

/// The path quoted for a shell. Bytes that are not ASCII become escapes.
std::string shell_quoted(std::string_view path) {
  std::string text = "$'";
  for (const char c : path) {
    if (c >= ' ' && c < '\x7f') {
      if (c == '\'' || c == '\\') text += '\\';
      text += c;
    } else {
      text += fmt::format("\\{:03o}", static_cast<unsigned char>(c));
    }
  }
  return text + "'";
}

std::string unescaped(std::string_view text) {
  std::string path;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      path += text[i];
      continue;
    }
    const char next = text[++i];
    path += next == 'n' ? '\n' : next == 'r' ? '\r' : next;
  }
  return path;
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// Whether a sum has the form that Checksum::finish() gives.
bool is_sum(Algorithm algorithm, std::string_view sum) {
  switch (algorithm) {
    case Algorithm::Sha256:
      return sum.size() == 64 && is_hex(sum);
    case Algorithm::Xxh128:
      return sum.size() == 32 && is_hex(sum);
    case Algorithm::Crc32c:
      return sum.size() == 8 && sum.ends_with("==") &&
             std::ranges::all_of(sum.substr(0, 6), [](char c) {
               return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' ||
                      c == '/';
             });
  }
  CKFS_CHECK(false);
}

/// Reads one line of a check file: "TAG (PATH) = SUM", "SUM  PATH" or "SUM *PATH". False: it has
/// none of these forms, its algorithm is unknown, or the path has another sum of that kind already.
bool parse_line(std::string_view line, std::map<std::string, FileDigest>& digests) {
  const bool is_escaped = line.starts_with('\\');
  if (is_escaped) line.remove_prefix(1);
  const auto add = [&](Algorithm algorithm, std::string_view path, std::string_view sum) {
    std::string name = is_escaped ? unescaped(path) : std::string(path);
    FileDigest& digest = digests[name];
    digest.path = std::move(name);
    return digest.sums.emplace(algorithm, sum).first->second == sum;
  };
  for (const Algorithm algorithm : kAlgorithms) {
    const std::string begin = fmt::format("{} (", tag(algorithm));
    const std::size_t end = line.rfind(") = ");
    if (line.starts_with(begin) && end != std::string_view::npos && end >= begin.size()) {
      return add(algorithm, line.substr(begin.size(), end - begin.size()), line.substr(end + 4));
    }
  }
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || space + 2 > line.size() ||
      (line[space + 1] != ' ' && line[space + 1] != '*')) {
    return false;
  }
  const std::string_view sum = line.substr(0, space), path = line.substr(space + 2);
  if (path.empty()) return false;
  if (sum.size() == 64 && is_hex(sum)) return add(Algorithm::Sha256, path, sum);
  if (sum.size() == 32 && is_hex(sum)) return add(Algorithm::Xxh128, path, sum);
  if (sum.size() == 8 && sum.ends_with("==")) return add(Algorithm::Crc32c, path, sum);
  return false;
}

Result<std::vector<FileDigest>> parse_json(const nlohmann::json& json) {
  const auto broken = [] {
    return fail(ErrorCode::InvalidArgument, "not what ckfs digest --json prints");
  };
  const auto version = json.find("version");
  const auto files = json.find("files");
  if (version == json.end() || *version != kVersion || files == json.end() || !files->is_array()) {
    return broken();
  }
  std::vector<FileDigest> digests;
  for (const auto& file : *files) {
    if (!file.is_object()) return broken();
    const auto path = file.find("path");
    if (path == file.end() || !path->is_string()) return broken();
    FileDigest digest{.path = path->get<std::string>(), .sums = {}};
    if (digest.path.find("\uFFFD") != std::string::npos) {
      return fail(
          ErrorCode::InvalidArgument,
          "{}: U+FFFD in JSON may replace bytes that are not UTF-8 (the other forms of ckfs "
          "digest keep such names)",
          quote(digest.path));
    }
    for (const Algorithm algorithm : kAlgorithms) {
      const auto sum = file.find(name(algorithm));
      if (sum != file.end() && sum->is_string()) digest.sums[algorithm] = sum->get<std::string>();
    }
    if (digest.sums.empty()) return broken();
    digests.push_back(std::move(digest));
  }
  return digests;
}

}  // namespace

Result<DigestJournal> DigestJournal::open(const std::string& path, const View& view,
                                          const std::vector<Algorithm>& algorithms) {
  std::set<std::string_view> names;
  for (const Algorithm algorithm : algorithms) names.insert(name(algorithm));
  const nlohmann::ordered_json made_from{
      {"version", kVersion},
      {"fingerprint", fmt::format("{:016x}", view.checkpoint().fingerprint())},
      {"view", view.name()},
      {"layout_version", kLayoutVersion},
      {"algorithms", names}};
  const FileList files = view.files();
  std::map<std::string, FileDigest> known;
  CKFS_TRY(ResumeFile file,
           ResumeFile::open(path, fmt::format("{}digest {}", ResumeFile::kBegin, made_from.dump()),
                            [&](std::string_view line) {
                              std::map<std::string, FileDigest> one;
                              if (!parse_line(line, one)) return false;
                              const FileDigest& digest = one.begin()->second;
                              const auto& [algorithm, sum] = *digest.sums.begin();
                              if (!is_sum(algorithm, sum) || !files.find(digest.path)) return false;
                              FileDigest& all = known[digest.path];
                              all.path = digest.path;
                              all.sums[algorithm] = sum;
                              return true;
                            }));
  std::erase_if(known, [&](const auto& entry) {
    return entry.second.sums.size() < names.size();  // the last one may be incomplete
  });
  return DigestJournal(std::move(file), std::move(known));
}

const FileDigest* DigestJournal::find(const std::string& path) const {
  const auto at = known_.find(path);
  return at == known_.end() ? nullptr : &at->second;
}

Result<void> DigestJournal::add(const FileDigest& digest) {
  return file_.add(check_lines(digest, true));
}

Result<DigestResult> digest_view(const View& view, const DigestOptions& options) {
  CKFS_TRY_VOID(check_process(view));
  if (options.algorithms.empty()) {
    return fail(ErrorCode::InvalidArgument, "{}: no algorithm for its digests", view.name());
  }
  std::optional<DigestJournal> journal;
  if (!options.resume.empty()) {
    CKFS_TRY(journal, DigestJournal::open(options.resume.native(), view, options.algorithms));
  }
  std::vector<std::size_t> files(view.files().size());
  std::iota(files.begin(), files.end(), std::size_t{0});
  DigestResult result;
  DigestOptions each = options;
  each.each = [&](const FileDigest& digest) -> Result<void> {
    if (journal && journal->find(digest.path)) ++result.files_kept;
    result.files.push_back(digest);
    return options.each ? options.each(digest) : Result<void>();
  };
  CKFS_TRY_VOID(digest_files(view, files, each, journal ? &*journal : nullptr));
  return result;
}

Result<void> digest_files(const View& view, const std::vector<std::size_t>& files,
                          const DigestOptions& options, DigestJournal* journal) {
  const std::vector<Algorithm>& algorithms = options.algorithms;
  const FileList all = view.files();
  std::uint64_t total = 0;
  for (const std::size_t file : files) total += all[file].size;
  Mutex mutex;
  std::uint64_t done = 0;  // under mutex
  std::vector<FileDigest> made(files.size());
  const auto make = [&](std::size_t i) -> Result<void> {
    const FileInfo info = all[files[i]];
    if (const FileDigest* const known = journal ? journal->find(std::string(info.path)) : nullptr) {
      made[i] = *known;
      const MutexLock lock(mutex);
      done += info.size;
      if (options.progress) options.progress(done, total);
      return {};
    }
    CKFS_TRY(ViewFile file, view.open(info.path, {.whole = true, .once = true}));
    std::vector<std::unique_ptr<Checksum>> sums;
    for (const Algorithm algorithm : algorithms) {
      CKFS_TRY(sums.emplace_back(), Checksum::create(algorithm));
    }
    for (std::uint64_t at = 0; at < info.size;) {
      if (stop_asked()) return stopped(info.path);
      CKFS_TRY(const Bytes bytes, lend(file, at, std::min(kPiece, info.size - at)));
      for (const auto& sum : sums) sum->add(bytes.span());
      at += bytes.size();
      const MutexLock lock(mutex);
      done += bytes.size();
      if (options.progress) options.progress(done, total);
    }
    made[i].path = info.path;
    for (std::size_t k = 0; k < sums.size(); ++k) made[i].sums[algorithms[k]] = sums[k]->finish();
    return journal ? journal->add(made[i]) : Result<void>();
  };
  const StopScope scope(options.stop);
  const std::size_t cpus = std::max(1u, std::thread::hardware_concurrency());
  const std::size_t jobs = options.jobs == 0 ? cpus : options.jobs;
  return run_in_order(files.size(), make,
                      [&](std::size_t i) -> Result<void> {
                        const FileDigest digest = std::move(made[i]);
                        return options.each ? options.each(digest) : Result<void>();
                      },
                      {.few = jobs, .most = jobs});
}

std::string check_lines(const FileDigest& digest, bool tagged, NamesFor names) {
  const bool quoted = names == NamesFor::Terminal && one_line(digest.path) != digest.path;
  const std::string path = quoted ? shell_quoted(digest.path) : escaped(digest.path);
  const std::string_view mark = quoted || path == digest.path ? "" : "\\";
  std::string text;
  for (const auto& [algorithm, sum] : digest.sums) {
    text += tagged ? fmt::format("{}{} ({}) = {}\n", mark, tag(algorithm), path, sum)
                   : fmt::format("{}{}  {}\n", mark, sum, path);
  }
  return text;
}

std::string digests_json(const View& view, std::string_view source,
                         const std::vector<FileDigest>& digests) {
  const FileList files = view.files();
  nlohmann::ordered_json json;
  json["version"] = kVersion;
  json["source"] = source;
  json["fingerprint"] = fmt::format("{:016x}", view.checkpoint().fingerprint());
  json["view"] = view.name();
  json["layout_version"] = kLayoutVersion;
  json["ckfs"] = version();
  if (!view.tool().empty()) json["quantized_as"] = view.tool();
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const FileDigest& digest : digests) {
    const auto file = files.find(digest.path);
    CKFS_CHECK(file.has_value());
    const FileInfo info = files[*file];
    nlohmann::ordered_json entry;
    entry["path"] = digest.path;
    entry["size"] = info.size;
    entry["exactness"] = name(info.exactness);
    for (const auto& [algorithm, sum] : digest.sums) entry[std::string(name(algorithm))] = sum;
    list.push_back(std::move(entry));
  }
  json["files"] = std::move(list);
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

Result<std::vector<FileDigest>> parse_digests(std::string_view text) {
  std::vector<FileDigest> digests;
  const nlohmann::json json = nlohmann::json::parse(text, nullptr, false);
  if (json.is_object()) {
    CKFS_TRY(digests, parse_json(json));
  } else {
    std::map<std::string, FileDigest> found;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      const std::string_view line = text.substr(0, end);
      text.remove_prefix(std::min(end + 1, text.size()));
      if (line.empty() || line.starts_with('#') || parse_line(line, found)) continue;
      return fail(ErrorCode::InvalidArgument,
                  "\"{}\": neither a check file's line nor JSON, or contradicts a line before it",
                  line.substr(0, 80));
    }
    for (auto& [path, digest] : found) digests.push_back(std::move(digest));
  }
  std::set<std::string_view> paths;
  for (const FileDigest& digest : digests) {
    if (!paths.insert(digest.path).second) {
      return fail(ErrorCode::InvalidArgument, "{}: comes twice", digest.path);
    }
  }
  if (digests.empty()) return fail(ErrorCode::InvalidArgument, "no digests in it");
  return digests;
}

}  // namespace ckfs
