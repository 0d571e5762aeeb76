// Opens checkpoints for tests of their sources.
#pragma once

#include <gtest/gtest.h>
#include <map>
#include <memory>
#include <string>

#include "source/open_checkpoint.h"

namespace ckfs {

struct Opened {
  std::unique_ptr<SourceFiles> files;
  std::shared_ptr<const Catalog> catalog;  // nullptr: could not be opened, which is a failure
};

inline Opened open_source(const std::filesystem::path& path,
                          const OpenCheckpointOptions& options = {}) {
  Opened opened;
  opened.files = LocalFiles::create({.engine = IoEngine::Pread}).value();
  auto catalog = open_checkpoint(path, *opened.files, options);
  EXPECT_TRUE(catalog) << catalog.error().message();
  if (catalog) opened.catalog = *catalog;
  return opened;
}

/// The message with which a checkpoint is refused, or "(no error)".
inline std::string error_of(const std::filesystem::path& path,
                            const OpenCheckpointOptions& options = {}) {
  const auto files = LocalFiles::create({.engine = IoEngine::Pread}).value();
  const auto catalog = open_checkpoint(path, *files, options);
  return catalog ? "(no error)" : catalog.error().message();
}

/// Subject -> text; of several notes on one the last.
inline std::map<std::string, std::string> notes_by_subject(const Catalog& catalog) {
  std::map<std::string, std::string> notes;
  for (const Note& note : catalog.notes()) notes[note.subject] = note.text;
  return notes;
}

}  // namespace ckfs
