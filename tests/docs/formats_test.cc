// docs/FORMATS.md: its table of labels is the one that the code renders.
// (tests/golden/test_labels.py holds each row of that table against bytes.)
#include <fstream>
#include <gtest/gtest.h>
#include <sstream>
#include <string>

#include "api/report.h"

namespace ckfs {
namespace {

TEST(Formats, TableOfLabelsIsTheOneOfTheCode) {
  std::ifstream file(CKFS_TEST_DATA "/../../docs/FORMATS.md");
  ASSERT_TRUE(file.is_open());
  std::ostringstream text;
  text << file.rdbuf();
  const std::string document = text.str();
  const std::string begin_marker = "<!-- labels:begin -->\n";
  const std::size_t begin = document.find(begin_marker);
  const std::size_t end = document.find("<!-- labels:end -->");
  ASSERT_NE(begin, std::string::npos);
  ASSERT_NE(end, std::string::npos);
  const std::size_t table = begin + begin_marker.size();
  EXPECT_EQ(document.substr(table, end - table), labels_table());
}

}  // namespace
}  // namespace ckfs
