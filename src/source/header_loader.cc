// A checkpoint may have hundreds of shards, and each costs two dependent reads (length, then text)
// and some milliseconds of parsing; on a network filesystem the waiting is what counts. So threads
// work ahead of the one that builds the catalog, a few files and no more: texts that wait would
// otherwise be the largest thing in memory at mount.
//
// The text is read at exactly its length. Reading a generous first block would save one access a
// file, but a mount must not touch tensor data.
#include "source/header_loader.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "base/size_text.h"
#include "format/known_formats.h"

namespace ckfs {
namespace {

/// `error`, on a file that is not a whole safetensors file; or, if the file's first bytes show
/// another format, an error that names it.
Failure explained(ByteSource& source, FileId file, const Error& error) {
  if (error.code() != ErrorCode::Corrupt) return Failure(error);
  std::vector<std::byte> first(std::min<std::uint64_t>(source.size(file), kFormatMark));
  if (const Result<void> read = source.read_at(file, 0, first); !read) return Failure(error);
  if (!first.empty() && std::ranges::count(first, std::byte{0}) == std::ssize(first)) {
    return fail(ErrorCode::Corrupt,
                "{}: {} zeros (was the download's space reserved, and the download not "
                "finished?); download it again",
                source.name(file),
                first.size() == source.size(file)
                    ? std::string("is all")
                    : fmt::format("begins with {}", grouped(first.size())));
  }
  const std::string what = what_it_is(first);
  if (what.empty()) return Failure(error);
  if (source.name(file).ends_with(".json")) {
    return fail(ErrorCode::Corrupt, "{}: is {} (name the model's directory, not its file)",
                source.name(file), what.substr(0, what.find(" (")));
  }
  return fail(ErrorCode::Corrupt, "{}: is {}", source.name(file), what);
}

std::span<std::byte> bytes_of(std::string& text) {
  return std::as_writable_bytes(std::span(text.data(), text.size()));
}

}  // namespace

Result<std::string> read_text(ByteSource& source, FileId file, std::uint64_t limit) {
  const std::uint64_t size = source.size(file);
  if (size > limit) {
    return fail(ErrorCode::Corrupt, "{}: {} bytes (limit {})", source.name(file), size, limit);
  }
  std::string text(size, '\0');
  CKFS_TRY_VOID(source.read_at(file, 0, bytes_of(text)));
  return text;
}

Result<std::unique_ptr<LoadedHeader>> load_header(ByteSource& source, FileId file,
                                                  const PayForHeader& pay) {
  const std::uint64_t size = source.size(file);
  std::array<std::byte, safetensors::kLengthBytes> start{};
  const std::span prefix(start.data(), std::min<std::uint64_t>(size, start.size()));
  CKFS_TRY_VOID(source.read_at(file, 0, prefix));
  const auto length = safetensors::header_length(prefix, size, source.name(file));
  if (!length) return explained(source, file, length.error());
  if (pay) CKFS_TRY_VOID(pay(file, *length));

  auto loaded = std::make_unique<LoadedHeader>();
  loaded->text.resize(*length);
  if (*length > 0) {
    CKFS_TRY_VOID(source.read_at(file, safetensors::kLengthBytes, bytes_of(loaded->text)));
  }
  auto header = safetensors::parse_header(loaded->text, size, source.name(file));
  if (!header) return explained(source, file, header.error());
  loaded->header = *std::move(header);
  return loaded;
}

Result<void> load_headers(ByteSource& source, std::span<const FileId> files,
                          const PayForHeader& pay, const TakeHeader& take, const Parallel& how) {
  std::vector<std::unique_ptr<LoadedHeader>> loaded(files.size());
  return run_in_order(
      files.size(),
      [&](std::size_t i) -> Result<void> {
        CKFS_TRY(loaded[i], load_header(source, files[i], pay));
        return {};
      },
      [&](std::size_t i) -> Result<void> {
        const std::unique_ptr<LoadedHeader> mine = std::move(loaded[i]);
        return take(i, *mine);
      },
      how);
}

}  // namespace ckfs
