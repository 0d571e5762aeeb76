// A corpus of checkpoints, each broken in one place, held to reach every error of its readers.
#pragma once

#include <algorithm>
#include <functional>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <vector>

#include "source/opened.h"
#include "support/cost_limit.h"
#include "support/error_texts.h"
#include "support/temporary_directory.h"

namespace ckfs {

struct Broken {
  std::string name;
  std::string message;  // a part of it
  std::function<void(const TemporaryDirectory&)> build;
  OpenCheckpointOptions options = {};
};

inline std::string message_of(const Broken& broken) {
  const TemporaryDirectory directory;
  broken.build(directory);
  std::size_t bytes = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory.path())) {
    if (entry.is_regular_file()) bytes += entry.file_size();
  }
  const CostLimit limit(bytes);
  return error_of(directory.path(), broken.options);
}

inline void expect_refused(const Broken& broken) {
  const std::string message = message_of(broken);
  EXPECT_THAT(message, testing::HasSubstr(broken.message));
  EXPECT_EQ(message.find('\n'), std::string::npos) << "an error is one line";
}

/// Every error text in the files of src/source that `wanted` names, `at_least` so many, is that of
/// some case, or `exempt`.
inline void expect_all_errors_reached(const std::vector<Broken>& cases,
                                      const std::function<bool(const std::string&)>& wanted,
                                      std::size_t at_least,
                                      const std::set<std::string>& exempt = {}) {
  const auto sources = std::filesystem::path(CKFS_TEST_DATA) / "../../src/source";
  const std::set<std::string> texts = error_texts(sources, wanted);
  EXPECT_GE(texts.size(), at_least);
  std::vector<std::string> messages;
  for (const Broken& broken : cases) messages.push_back(message_of(broken));
  for (const std::string& text : texts) {
    const auto reaches = [&](const std::string& message) { return comes_from(message, text); };
    EXPECT_TRUE(exempt.contains(text) || std::ranges::any_of(messages, reaches))
        << "no case has the error: " << text;
  }
}

}  // namespace ckfs
