// What tests of the public API begin with.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <gtest/gtest.h>
#include <string>

#include <ckfs/checkpoint.h>

#include "api/open_prepared.h"

namespace ckfs {

/// The checkpoint; the end of the test program where it cannot be opened.
inline Checkpoint open(const std::filesystem::path& path, const OpenOptions& options = {}) {
  auto checkpoint = Checkpoint::open(path, options);
  if (!checkpoint) {
    ADD_FAILURE() << checkpoint.error().message();
    std::abort();
  }
  return *checkpoint;
}

/// The same with options of tests alone.
inline Checkpoint open_with(const std::filesystem::path& path, const OpenOptions& options,
                            const TestOptions& tests) {
  auto checkpoint = open_for_tests(path, options, tests);
  if (!checkpoint) {
    ADD_FAILURE() << checkpoint.error().message();
    std::abort();
  }
  return *checkpoint;
}

inline std::string text_of(const Bytes& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace ckfs
