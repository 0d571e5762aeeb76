// What a counting source knows: what was read, and what it was told to do about reads.
//
// Safe for concurrent use by several threads.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "support/slow_source.h"

namespace ckfs {

/// What shall happen to a read.
struct Verdict {
  int error = 0;                            // errno; 0: go on
  std::uint64_t limit = ~std::uint64_t{0};  // give at most this many bytes
  std::chrono::milliseconds late{0};        // wait so long before
};

class ReadRecord {
 public:
  /// Carries out one line of the control file (see counting_source.cc); false if it makes no sense.
  bool command(std::string_view line);

  /// How long reads take. Not judge()'s: a read that fails takes its time too.
  SlowSource& slow() { return slow_; }

  Verdict judge(const std::string& file, std::uint64_t offset, std::uint64_t size);
  /// `size` bytes were given to the reader.
  void count(const std::string& file, std::uint64_t offset, std::uint64_t size);
  void count_open(const std::string& file);

  std::string counts_json() const;
  /// One line for each read: offset, bytes given (or -errno), file.
  std::string log_text() const;

 private:
  enum class Kind : std::uint8_t { Poison, Fail, Late };
  struct Rule {
    Kind kind;
    std::string file;
    std::uint64_t begin;
    std::uint64_t end;
    int number;  // errno, or milliseconds
  };
  struct File {
    std::uint64_t bytes = 0;
    std::uint64_t requests = 0;
    std::uint64_t opens = 0;
    std::map<std::uint64_t, std::uint64_t> ranges;  // begin -> end, disjoint, not touching
  };
  struct Event {
    std::string file;
    std::uint64_t offset;
    std::int64_t result;
  };

  void reset();
  bool slows(std::string_view verb, std::string_view rest);

  SlowSource slow_;
  mutable std::mutex mutex_;  // guards everything below
  std::map<std::string, File> files_;
  std::vector<Rule> rules_;
  std::vector<Event> events_;
  std::vector<Event> poisoned_;
  std::uint64_t failed_reads_ = 0;
  std::uint64_t limit_ = ~std::uint64_t{0};
};

}  // namespace ckfs
