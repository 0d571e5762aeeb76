#include "export/pieces.h"

#include <algorithm>
#include <cerrno>

namespace ckfs {

namespace {

constexpr std::uint64_t kPiece = 1_MiB;  // what the engine computes ahead, so no copy is made
constexpr std::uint64_t kWriteback = 8_MiB;

}  // namespace

Result<void> write_range(ViewFile& source, ByteRange range, OutFile& target,
                         const WriteHooks& hooks) {
  std::uint64_t begun = range.begin;
  std::uint64_t synced = range.begin;
  for (std::uint64_t at = range.begin; at < range.end;) {
    if (hooks.ends()) {
      return Failure(Error(ErrorCode::Io, fmt::format("{}: stopped", target.thing()), EINTR));
    }
    // Up to the next multiple: pieces are the engine's own, wherever the range begins.
    const std::uint64_t end = std::min(range.end, (at / kPiece + 1) * kPiece);
    CKFS_TRY(const Bytes bytes, source.read(at, end - at));
    CKFS_CHECK(bytes.size() > 0);
    CKFS_TRY_VOID(target.write(at, bytes.span()));
    at += bytes.size();
    hooks.advance(bytes.size());
    if (at - begun >= kWriteback) {
      // Begun early, so that the fsync finds little left to wait for.
      target.start_writeback(begun, at - begun);
      begun = at;
    }
    if (at - synced >= hooks.sync_step && at < range.end) {
      CKFS_TRY_VOID(target.sync());
      synced = at;
      CKFS_TRY_VOID(hooks.synced(at));
    }
  }
  return {};
}

}  // namespace ckfs
