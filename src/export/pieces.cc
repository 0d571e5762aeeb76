#include "export/pieces.h"

#include <algorithm>

#include "base/stop.h"

namespace ckfs {

namespace {

constexpr std::uint64_t kPiece = 1_MiB;  // the engine computes so much ahead, so no copy is made
constexpr std::uint64_t kWriteback = 8_MiB;

}  // namespace

Result<void> write_range(const ReadBytes& read, ByteRange range, OutFile& target, std::uint64_t to,
                         const WriteHooks& hooks) {
  const auto place = [&](std::uint64_t at) { return to + (at - range.begin); };
  std::uint64_t begun = range.begin;
  std::uint64_t synced = range.begin;
  for (std::uint64_t at = range.begin; at < range.end;) {
    if (hooks.ends()) return stopped(target.thing());
    // Up to the next multiple: pieces are those of the engine, wherever the range begins.
    const std::uint64_t end = std::min(range.end, (at / kPiece + 1) * kPiece);
    CKFS_TRY(const Bytes bytes, read({at, end}));
    CKFS_CHECK(bytes.size() == end - at);
    CKFS_TRY_VOID(target.write(place(at), bytes.span()));
    at += bytes.size();
    hooks.advance(bytes.size());
    if (at - begun >= kWriteback) {
      // Begun early, so that the fsync finds little left to wait for.
      target.start_writeback(place(begun), at - begun);
      begun = at;
    }
    if (at - synced >= hooks.sync_step && at < range.end) {
      CKFS_TRY_VOID(target.sync());
      synced = at;
      CKFS_TRY_VOID(hooks.synced(place(at)));
    }
  }
  return {};
}

}  // namespace ckfs
