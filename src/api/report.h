// What ckfs says of a checkpoint, as text for people and as JSON for programs: the output of
// `ckfs inspect`, `ckfs ls` and `ckfs stats`, and the files .ckfs/views.json and .ckfs/status.json
// of a mount. One place, so that the program and the mount never say different things.
//
// Every JSON text is one object, indented by 2, ends in a newline and has "version": kReportVersion
// first. Members are only added within a version. Sizes are bytes. In strings that are not UTF-8 in
// the source, U+FFFD replaces each byte that is not, and each start of a character that is cut.
//
//   inspect  {version, source, kind, quantization: string (empty: plain), tensors, tensor_bytes,
//             companions, files, bytes, mtime, fingerprint: "0123456789abcdef",
//             quantized: [{scheme, format, weights, example}],
//             left_out: [{suffix, tensors, reason}],
//             weight_files: [{path, bytes, role: "model" | "adapter" | "slice" | "other"}],
//             views: [{name, description, available, bytes (of available ones),
//                      fetched_bytes (for all of them, of sources on other machines only),
//                      remarks: [{subject, text}],
//                      reasons: [{subject, text, more: further subjects of this text, not
//                      listed}]}],
//             experts: [{layout, available, reason: string (empty: available)}],
//             facts: [{subject, text}], notes: [{subject, text}],
//             labels: [{view, label, from, to, tensors}]}
//   inspect --view
//            {version, view, arrays: [{name, dtype, shape, chunk: [n] (Orbax only), exactness,
//             sources: [name], more_sources (not listed)}], left_out: [name],
//             decoding: {needed, decoded, chunks, mends: [string]} (of compressed sources only)}
//   ls       {version, view: string (empty at the root), entries: [{path, type: "directory" |
//             "file", size, exactness, tensors, inode}]}; size and the rest for files only
//   views    {version, layout, source: {kind, quantization, mtime, fingerprint},
//             views: [{name, files: [{path, size, exactness, tensors, sources: [path]}]}]}
//   status   {version, mountpoint, source, log, pid, started, uptime (seconds),
//             errors: [{operation, error, kind, count}],
//             last_error: {time, operation, error, kind, message} (absent: none),
//             requests, bytes_to_readers, bytes_delivered (among them), source_bytes, tiles,
//             tiles_unread, hits, memory, memory_peak, memory_budget, decoded_bytes (of compressed
//             chunks), spilled_bytes, io, remote: {requests, bytes, retries, faults, window,
//             cache_found, cache_missed, cache_kept, cache_left_out, cache_evicted} (of sources
//             on other machines only), files: [{path, bytes, requests, size}],
//             given: [{view, path, bytes}]} (api/status.h)
//
// All functions are safe for concurrent use.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ckfs/checkpoint.h>
#include <ckfs/report.h>

#include "base/error.h"

namespace ckfs {

/// What a user should know before reading a mounted checkpoint, a line each: why there is
/// nothing to see but `source`, and the first of what no view shows.
std::vector<std::string> opening_notes(const Checkpoint& checkpoint);

/// The files of the source that are links out of it; empty: none. In a hub cache its repository is
/// what they may be in.
std::string outside_links(const Checkpoint& checkpoint);

/// About how many bytes of memory the view keeps, layouts of open files not counted.
std::uint64_t memory_of(const View& view);

/// The version that was taken of a source of another machine, for people; empty: it is of this one.
std::string source_version(const Checkpoint& checkpoint);

/// .ckfs/views.json: every file of every view that is available without parameters (and that
/// Checkpoint::view() gives), and of `more` (the parameterised ones that are held).
std::string views_json(const Checkpoint& checkpoint, std::span<const View> more = {});

/// Paths of the source files that hold the bytes of a view's file, and what decodes them (but a
/// database's nodes, in which small values lie), joined by newlines: the attribute
/// user.ckfs.source. Requires: `file` is an index in View::files().
std::string sources_of(const View& view, std::size_t file);

/// The label, and of quantized tensors whose bytes they are equal to: "quantized (equal to slime
/// 624b824 on CPU)".
std::string label_text(const View& view, Exactness exactness);

}  // namespace ckfs
