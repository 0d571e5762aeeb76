// The default logger of spdlog may not be replaced while other threads write to it. So it is
// replaced once, by one that never changes, whose sink knows where lines go now.
#include <cstdio>
#include <memory>
#include <mutex>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>

#include <ckfs/log.h>

#include "base/text.h"

namespace ckfs {

namespace {

LogLevel level_of(spdlog::level::level_enum level) {
  switch (level) {
    case spdlog::level::trace:
    case spdlog::level::debug:
      return LogLevel::Debug;
    case spdlog::level::info:
      return LogLevel::Info;
    case spdlog::level::warn:
      return LogLevel::Warning;
    default:
      return LogLevel::Error;
  }
}

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::Debug:
      return spdlog::level::debug;
    case LogLevel::Info:
      return spdlog::level::info;
    case LogLevel::Warning:
      return spdlog::level::warn;
    case LogLevel::Error:
      return spdlog::level::err;
    case LogLevel::Off:
      break;
  }
  return spdlog::level::off;
}

const char* word_of(LogLevel level) {
  switch (level) {
    case LogLevel::Debug:
      return "debug";
    case LogLevel::Info:
      return "info";
    case LogLevel::Warning:
      return "warning";
    default:
      return "error";
  }
}

class SwitchedSink : public spdlog::sinks::base_sink<std::mutex> {
 public:
  void set(LogSink target) {
    const std::lock_guard lock(mutex_);
    target_ = std::move(target);
  }

 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const std::string_view line(message.payload.data(), message.payload.size());
    if (target_) {
      target_(level_of(message.level), line);
    } else {
      const std::string text = one_line(line);
      std::fprintf(stderr, "ckfs: %s: %s\n", word_of(level_of(message.level)), text.c_str());
    }
  }
  void flush_() override {}

 private:
  LogSink target_;  // under mutex_, which is the base's
};

}  // namespace

void set_log_sink(LogSink sink, LogLevel least) {
  static const std::shared_ptr<SwitchedSink> switched = [] {
    auto made = std::make_shared<SwitchedSink>();
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("ckfs", made));
    return made;
  }();
  switched->set(std::move(sink));
  spdlog::default_logger_raw()->set_level(level_of(least));
}

}  // namespace ckfs
