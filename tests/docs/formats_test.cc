// docs/FORMATS.md: its table of labels is the one that the code renders, and it and the manual name
// every parameter of every view.
// (tests/golden/test_labels.py holds each row of that table against bytes.)
#include <algorithm>
#include <fstream>
#include <gtest/gtest.h>
#include <regex>
#include <sstream>
#include <string>

#include "support/labels_table.h"
#include "view/view_table.h"

namespace ckfs {
namespace {

/// A file of docs/.
std::string document_of(const std::string& name) {
  std::ifstream file(CKFS_TEST_DATA "/../../docs/" + name);
  EXPECT_TRUE(file.is_open()) << name;
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// The line that begins with `begin`; empty: there is none.
std::string line_with(const std::string& text, const std::string& begin) {
  const std::size_t at = ("\n" + text).find("\n" + begin);
  return at == std::string::npos ? "" : text.substr(at, text.find('\n', at) - at);
}

TEST(Formats, EveryParameterOfEveryViewIsInItsRow) {
  const std::string document = document_of("FORMATS.md");
  for (const ViewRow& view : view_table()) {
    // The row is the one whose first cell names the view.
    std::istringstream lines(document);
    std::string row;
    for (std::string line; row.empty() && std::getline(lines, line);) {
      const std::size_t cell = line.find('|', 1);
      if (!line.starts_with("| `") || cell == std::string::npos) continue;
      if (line.substr(0, cell).find(fmt::format("`{}`", view.name)) != std::string::npos)
        row = line;
    }
    ASSERT_NE(row, "") << view.name;
    for (const ParameterRow& parameter : view.parameters) {
      const bool block = parameter.form == ParameterForm::Block;
      const std::string values = parameter.is_size()                        ? "SIZE"
                                 : parameter.form == ParameterForm::Modules ? "MODULES"
                                 : parameter.greatest > 0
                                     ? "N"
                                     : fmt::format("{}{}", block ? "ROWSxCOLUMNS\\|" : "",
                                                   fmt::join(parameter.choices, "\\|"));
      EXPECT_NE(row.find(fmt::format("`{}={}`", parameter.key, values)), std::string::npos)
          << view.name << ": " << parameter.key << "=" << values;
    }
  }
}

TEST(Manual, DescribesEveryParameterAndItsViews) {
  const std::string document = document_of("man/ckfs.1.md");
  for (const ViewRow& view : view_table()) {
    for (const ParameterRow& parameter : view.parameters) {
      SCOPED_TRACE(parameter.key);
      const bool block = parameter.form == ParameterForm::Block;
      const std::string values = parameter.is_size()                        ? "***SIZE*"
                                 : parameter.form == ParameterForm::Modules ? "***MODULES*"
                                 : parameter.greatest > 0
                                     ? "***N*"
                                     : fmt::format("{}{}**", block ? "ROWSxCOLUMNS**|**" : "",
                                                   fmt::join(parameter.choices, "**|**"));
      std::string head = line_with(document, "**" + std::string(parameter.key) + "=");
      // A view may have fewer of the values than another; the text says so.
      EXPECT_THAT(head, testing::StartsWith(fmt::format("**{}={}", parameter.key, values)));
      const std::size_t at = document.find(head);
      std::string text = document.substr(at, document.find("\n\n", at) - at);
      const bool files = text.find("In every view of safetensors or torch files") != text.npos;
      text = std::regex_replace(text, std::regex(R"(\*\*[^*]*\*\*)"), "");  // values
      for (const ViewRow& each : view_table()) {
        const bool said = files ? each.container == ContainerKind::Safetensors
                                : text.find(fmt::format("*{}*", each.name)) != text.npos;
        const bool has = std::ranges::find(each.parameters, parameter.key, &ParameterRow::key) !=
                         each.parameters.end();
        EXPECT_EQ(said, has) << each.name;
      }
    }
  }
}

TEST(Formats, TableOfLabelsIsTheOneOfTheCode) {
  const std::string document = document_of("FORMATS.md");
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
