// Files of tests/data.
#pragma once

#include <fstream>
#include <gtest/gtest.h>
#include <iterator>
#include <string>

namespace ckfs {

/// The bytes of tests/data/`path`; EXPECTs that it can be opened.
inline std::string read_test_data(const std::string& path) {
  std::ifstream in(std::string(CKFS_TEST_DATA) + "/" + path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace ckfs
