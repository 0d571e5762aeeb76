// Where the log of the library goes. A program has one log, whatever it opens.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

namespace ckfs {

enum class LogLevel : std::uint8_t { Debug, Info, Warning, Error, Off };

/// Called with each line, from any thread, one at a time. It must not call the library.
using LogSink = std::function<void(LogLevel level, std::string_view line)>;

/// Sends lines of `least` and above to `sink`; without a sink, to stderr as `ckfs: LEVEL: LINE`.
/// When it returns, no call of the sink before it is under way. Call it first before the first
/// open(), and then at any time. Until then the log is that of spdlog's default logger.
void set_log_sink(LogSink sink, LogLevel least = LogLevel::Warning);

}  // namespace ckfs
