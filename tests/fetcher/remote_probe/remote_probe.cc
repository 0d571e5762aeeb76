// Asks a fetcher as the daemon does, for tests that have no mount: lists a location, or copies it.
//
//   ckfs_remote_probe FETCHER LOCATION list|copy [OPTION=VALUE...]
//
// Options: endpoint=URL, anonymous=1, memory=BYTES, connections=N, timeout=MS, piece=BYTES,
// out=DIR, stats=1, header_file=FILE, wait=1 (copies when a line comes from standard input). Prints
// JSON, a line for the head and one for each object; errors go to stderr, with status 1.

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>

#include "base/mutex.h"
#include "fetch/client.h"

namespace ckfs {
namespace {

using Options = std::map<std::string, std::string>;

std::uint64_t number(const Options& options, const std::string& name, std::uint64_t otherwise) {
  const auto found = options.find(name);
  return found == options.end() ? otherwise : std::stoull(found->second);
}
std::string text(const Options& options, const std::string& name) {
  const auto found = options.find(name);
  return found == options.end() ? "" : found->second;
}

void print(const FetchClient::Opened& opened) {
  const RemoteSource& source = opened.source;
  std::cout << nlohmann::json{{"pinned", source.pinned.text()},
                              {"is_file", source.is_file},
                              {"is_pinned", source.is_pinned},
                              {"time", source.time},
                              {"refused", source.refused}}
                   .dump()
            << "\n";
  for (const RemoteObject& object : source.objects) {
    std::cout << nlohmann::json{{"name", object.name},
                                {"size", object.size},
                                {"version", object.version},
                                {"hash", object.hash},
                                {"time", object.time}}
                     .dump()
              << "\n";
  }
  std::cout.flush();
}

/// All pieces of all objects at once; the shared memory is what holds them back.
Result<void> copy(FetchClient& client, const FetchClient::Opened& opened, const Options& options) {
  const std::uint64_t piece = number(options, "piece", 1 << 20);
  const std::vector<RemoteObject>& objects = opened.source.objects;
  std::vector<std::vector<std::byte>> contents;
  std::size_t left = 0;
  for (const RemoteObject& object : objects) {
    contents.emplace_back(object.size);
    left += (object.size + piece - 1) / piece;
  }
  Mutex mutex;
  CondVar changed;
  std::vector<std::optional<Error>> errors(objects.size());
  const auto began = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < objects.size(); ++i) {
    for (std::uint64_t at = 0; at < objects[i].size; at += piece) {
      const ByteRange range{at, std::min(at + piece, objects[i].size)};
      client.read(opened.number, i, range, [&, i, at](const Result<FetchedBytes>& result) {
        if (result)
          std::ranges::copy(result->span(), contents[i].begin() + static_cast<std::ptrdiff_t>(at));
        const MutexLock lock(mutex);
        if (!result && !errors[i]) errors[i] = result.error();
        if (--left == 0) changed.notify_all();
      });
    }
  }
  {
    MutexLock lock(mutex);
    while (left > 0) changed.wait(lock);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  std::cerr << "read in " << took.count() << " s\n";
  std::optional<Error> first;
  for (std::size_t i = 0; i < objects.size(); ++i) {
    if (errors[i]) {
      if (!first) first = errors[i];
      continue;
    }
    const auto path = std::filesystem::path(text(options, "out")) / objects[i].name;
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(contents[i].data()),
               static_cast<std::streamsize>(contents[i].size()));
  }
  if (first) return Failure(*first);
  return {};
}

Result<void> run(const std::string& program, const std::string& location, const std::string& verb,
                 const Options& options) {
  CKFS_TRY(const auto client,
           FetchClient::start(
               {.program = program,
                .memory = number(options, "memory", std::size_t{64} << 20),
                .connections = number(options, "connections", 16),
                .timeout = std::chrono::milliseconds(number(options, "timeout", 60'000))}));
  std::cerr << "supervisor " << client->process() << "\n";
  CKFS_TRY(const SourceLocation where, parse_location(location));
  CKFS_TRY(const auto opened,
           client->open(where, {.endpoint_url = text(options, "endpoint"),
                                .anonymous = number(options, "anonymous", 0) != 0,
                                .header_file = text(options, "header_file")}));
  print(opened);
  if (number(options, "wait", 0) != 0) {
    std::string line;
    std::getline(std::cin, line);
  }
  if (verb == "copy") CKFS_TRY_VOID(copy(*client, opened, options));
  if (number(options, "stats", 0) != 0) {
    const FetchStats stats = client->stats(std::chrono::seconds(60));
    std::cout << nlohmann::json{{"requests", stats.requests},
                                {"bytes", stats.bytes},
                                {"wanted", stats.wanted},
                                {"retries", stats.retries},
                                {"faults", stats.faults},
                                {"window", stats.window},
                                {"generation", client->generation()}}
                     .dump()
              << "\n";
  }
  return {};
}

}  // namespace
}  // namespace ckfs

int main(int count, char** arguments) {
  if (count < 4) return 2;
  ckfs::Options options;
  for (int i = 4; i < count; ++i) {
    const std::string option = arguments[i];
    options[option.substr(0, option.find('='))] = option.substr(option.find('=') + 1);
  }
  const auto result = ckfs::run(arguments[1], arguments[2], arguments[3], options);
  if (result) return 0;
  std::cerr << "error " << static_cast<int>(result.error().code()) << ": "
            << result.error().message() << "\n";
  return 1;
}
