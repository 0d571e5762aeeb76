// Pickles written out instruction by instruction, and what Python would make of them. Pickles of
// torch: torch_file_test.cc; hostile ones: torch_hostile_test.cc.
#include "format/pickle.h"

#include <charconv>
#include <fstream>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <sstream>
#include <string>

namespace ckfs {
namespace {

using std::string_literals::operator""s;

/// A pickle and the bytes that it points into.
struct Parsed {
  explicit Parsed(std::string bytes)
      : text(std::make_unique<std::string>(std::move(bytes))),
        result(parse_pickle(std::as_bytes(std::span(*text)), "p")) {}
  const Pickle* operator->() const { return &result.value(); }
  NodeId root() const { return result->root(); }

  std::unique_ptr<std::string> text;
  Result<Pickle> result;
};

TEST(Pickle, ReadsPlainValues) {
  // (None, True, False, 7, 300, -5, 2**40, -(2**63), 2**64, 1.5, 'ab', b'cd')
  const Parsed pickle(
      "\x80\x02("
      "N\x88\x89K\x07M\x2c\x01J\xfb\xff\xff\xff\x8a\x06\0\0\0\0\0\x01\x8a\x08\0\0\0\0\0\0\0\x80"
      "\x8a\x09\0\0\0\0\0\0\0\0\x01G\x3f\xf8\0\0\0\0\0\0X\x02\0\0\0abC\x02"
      "cdt."s);
  ASSERT_TRUE(pickle.result) << pickle.result.error().message();
  const auto items = pickle->items(pickle.root());
  ASSERT_EQ(items.size(), 12U);
  EXPECT_TRUE(pickle->is_none(items[0]));
  EXPECT_EQ(pickle->boolean(items[1]), true);
  EXPECT_EQ(pickle->boolean(items[2]), false);
  EXPECT_EQ(pickle->integer(items[3]), 7);
  EXPECT_EQ(pickle->integer(items[4]), 300);
  EXPECT_EQ(pickle->integer(items[5]), -5);
  EXPECT_EQ(pickle->integer(items[6]), std::int64_t{1} << 40);
  EXPECT_EQ(pickle->integer(items[7]), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(pickle->integer(items[8]), std::nullopt);
  EXPECT_EQ(pickle->big_integer(items[8]).size(), 9U);
  EXPECT_EQ(pickle->real(items[9]), 1.5);
  EXPECT_EQ(pickle->string(items[10]), "ab");
  EXPECT_EQ(pickle->bytes(items[11]).size(), 2U);
  EXPECT_EQ(pickle->consumed(), pickle.text->size());
}

TEST(Pickle, HasTextsThatPythonHas) {
  // A lone surrogate, as "surrogatepass" reads it; a str of Python 2 that is text, one that is not.
  const Parsed pickle("\x80\x02(\x8c\x03\xed\xa0\x80U\x02\xc3\xa9U\x01\xe0T\x01\0\0\0\xe0t."s);
  ASSERT_TRUE(pickle.result) << pickle.result.error().message();
  const auto items = pickle->items(pickle.root());
  EXPECT_EQ(pickle->string(items[0]), "\xed\xa0\x80");
  EXPECT_EQ(pickle->string(items[1]), "\xc3\xa9");
  EXPECT_EQ(pickle->kind(items[2]), NodeKind::Bytes);
  EXPECT_EQ(pickle->kind(items[3]), NodeKind::Bytes);
  for (const std::string& text :
       {"\x8c\x01\xe0"s, "X\x01\0\0\0\xe0"s, "\x8d\x01\0\0\0\0\0\0\0\xe0"s}) {
    const Parsed bad("\x80\x04" + text + ".");
    ASSERT_FALSE(bad.result);
    EXPECT_EQ(bad.result.error().message(), "p: pickle byte 2: a text that is not UTF-8");
  }
}

TEST(Pickle, AnswersEmptyToAQuestionOfAnotherKind) {
  const Parsed pickle("\x80\x02N."s);
  const NodeId none = pickle.root();
  EXPECT_FALSE(pickle->integer(none) || pickle->string(none) || pickle->boolean(none));
  EXPECT_FALSE(pickle->real(none) || pickle->integers(none) || pickle->find(none, "a"));
  EXPECT_TRUE(pickle->items(none).empty() && pickle->mapping(none).empty());
  EXPECT_TRUE(pickle->is_none(pickle->callable(none)));
  EXPECT_EQ(pickle->global(none), (Pickle::GlobalName{}));
}

// As CPython does.
TEST(Pickle, AddsNothingToAnything) {
  for (const char* text : {"N(e.", "N(u."}) {
    const Parsed none{text};
    ASSERT_TRUE(none.result) << text << ": " << none.result.error().message();
    EXPECT_EQ(none->kind(none.root()), NodeKind::None);
  }
}

TEST(Pickle, StopsAtTheEndOfThePickleAndSaysWhere) {
  const Parsed pickle("\x80\x02K\x01.more"s);
  EXPECT_EQ(pickle->consumed(), 5U);
}

TEST(Pickle, KeepsOneNodeForWhatIsMemoized) {
  // [x, x] with x = ['a']
  const Parsed pickle(
      "\x80\x02](]q\x01X\x01\0\0\0aah\x01"
      "e."s);
  const auto items = pickle->items(pickle.root());
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(items[0], items[1]);
  EXPECT_EQ(pickle->string(pickle->items(items[0])[0]), "a");
}

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    unsigned byte = 0;
    std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16);
    bytes += static_cast<char>(byte);
  }
  return bytes;
}

TEST(Pickle, NumbersTheMemoAsCPythonDoes) {
  std::ifstream file(CKFS_TEST_DATA "/format/pickle-memo.txt");  // tests/tools/make_pickle_memo.py
  std::size_t count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const std::size_t space = line.find(' ');
    const std::string expected = line.substr(space + 1);
    const Parsed pickle(from_hex(line.substr(0, space)));
    if (expected == "error") {
      EXPECT_FALSE(pickle.result) << line;
      continue;
    }
    ASSERT_TRUE(pickle.result) << line << pickle.result.error().message();
    std::vector<std::int64_t> numbers;
    std::istringstream words(expected);
    for (std::int64_t number = 0; words >> number;) numbers.push_back(number);
    EXPECT_EQ(pickle->integers(pickle.root()), numbers) << line;
  }
  EXPECT_GT(count, 400U);
}

TEST(Pickle, HoldsWhatContainsItself) {
  const Parsed pickle("\x80\x02]q\0h\0a."s);
  EXPECT_EQ(pickle->items(pickle.root())[0], pickle.root());
}

TEST(Pickle, RemembersCallsInsteadOfMakingThem) {
  // m.f('a') with state {'k': 1}, then NEWOBJ of a class by STACK_GLOBAL
  const Parsed pickle(
      "\x80\x04(cm\nf\nX\x01\0\0\0a\x85R}X\x01\0\0\0kK\x01sb\x8c\x01m\x8c\x01"
      "C\x93)\x81t."s);
  ASSERT_TRUE(pickle.result) << pickle.result.error().message();
  const auto items = pickle->items(pickle.root());
  ASSERT_EQ(items.size(), 2U);
  EXPECT_EQ(pickle->kind(items[0]), NodeKind::Call);
  EXPECT_EQ(pickle->global(pickle->callable(items[0])), (Pickle::GlobalName{"m", "f"}));
  EXPECT_EQ(pickle->string(pickle->items(pickle->args(items[0]))[0]), "a");
  EXPECT_EQ(pickle->integer(*pickle->find(pickle->state(items[0]), "k")), 1);
  EXPECT_FALSE(pickle->is_mapping(items[0]));
  EXPECT_EQ(pickle->global(pickle->callable(items[1])), (Pickle::GlobalName{"m", "C"}));
  EXPECT_TRUE(pickle->is_none(pickle->state(items[1])));
}

TEST(Pickle, TakesAnOrderedDictForADictionary) {
  // Filled by SETITEMS, made of pairs, and empty.
  const std::string type = "ccollections\nOrderedDict\n";
  const Parsed pickle("\x80\x02("s + type + ")R(X\x01\0\0\0aK\x01X\x01\0\0\0bK\x02u"s + type +
                      "](X\x01\0\0\0cK\x03\x86"
                      "e\x85R"s +
                      type + ")Rt."s);
  ASSERT_TRUE(pickle.result) << pickle.result.error().message();
  const auto items = pickle->items(pickle.root());
  ASSERT_EQ(items.size(), 3U);
  EXPECT_EQ(pickle->mapping(items[0]).size(), 2U);
  EXPECT_EQ(pickle->integer(*pickle->find(items[0], "b")), 2);
  EXPECT_EQ(pickle->mapping(items[1]).size(), 1U);
  EXPECT_EQ(pickle->integer(*pickle->find(items[1], "c")), 3);
  EXPECT_TRUE(pickle->is_mapping(items[2]));
  EXPECT_TRUE(pickle->mapping(items[2]).empty());
}

TEST(Pickle, FindsTheLastOfEqualKeysAsPythonWould) {
  const Parsed pickle("\x80\x02}(X\x01\0\0\0aK\x01X\x01\0\0\0aK\x02u."s);
  EXPECT_EQ(pickle->integer(*pickle->find(pickle.root(), "a")), 2);
  EXPECT_EQ(pickle->mapping(pickle.root()).size(), 2U);
}

TEST(Pickle, ReadsTorchSizesAndPlainSequencesOfIntegers) {
  const Parsed pickle(
      "\x80\x02(ctorch\nSize\n(K\x02K\x03t\x85R](K\x04K\x05"
      "e)(K\x01Ntt."s);
  ASSERT_TRUE(pickle.result) << pickle.result.error().message();
  const auto items = pickle->items(pickle.root());
  EXPECT_EQ(pickle->integers(items[0]), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(pickle->integers(items[1]), (std::vector<std::int64_t>{4, 5}));
  EXPECT_EQ(pickle->integers(items[2]), std::vector<std::int64_t>{});
  EXPECT_EQ(pickle->integers(items[3]), std::nullopt);
}

void put(std::string& out, std::uint64_t value, int width) {
  for (int i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i) & 0xff);
}

/// The characters with these numbers.
std::string utf8(const std::string& numbers) {
  std::string text;
  for (const char c : numbers) {
    const unsigned number = static_cast<unsigned char>(c);
    if (number >= 0x80) text += static_cast<char>(0xc0 | number >> 6);
    text += static_cast<char>(number < 0x80 ? number : 0x80 | (number & 0x3f));
  }
  return text;
}

RC_GTEST_PROP(Pickle, ReadsBackIntegersAndStringsOfAnySize,
              (std::vector<std::pair<std::string, std::int64_t>> values)) {
  // Appended one by one, so that lists grow past each other.
  std::string text =
      "\x80\x02}q\x01]q\x02"
      "0";
  for (auto& [name, value] : values) {
    name = utf8(name);
    text += "X";
    put(text, name.size(), 4);
    text += name + "\x8a\x08";
    put(text, static_cast<std::uint64_t>(value), 8);
    text += "sh\x02\x8a\x08"s;
    put(text, static_cast<std::uint64_t>(value), 8);
    text += "a0";
  }
  text += "h\x02\x86."s;
  const Parsed pickle(std::move(text));
  RC_ASSERT(pickle.result.has_value());
  const auto pair = pickle->items(pickle.root());
  const auto mapping = pickle->mapping(pair[0]);
  RC_ASSERT(mapping.size() == values.size());
  const auto list = pickle->integers(pair[1]);
  RC_ASSERT(list.has_value() && list->size() == values.size());
  for (std::size_t i = 0; i < values.size(); ++i) {
    RC_ASSERT(pickle->string(mapping[i].key) == values[i].first);
    RC_ASSERT(pickle->integer(mapping[i].value) == values[i].second);
    RC_ASSERT((*list)[i] == values[i].second);
  }
}

RC_GTEST_PROP(Pickle, IsReadOrRefusedWhateverTheBytes, (const std::string& noise)) {
  const Parsed pickle("\x80\x02" + noise + ".");
  if (!pickle.result) {
    RC_ASSERT(pickle.result.error().message().find('\n') == std::string::npos);
  }
}

}  // namespace
}  // namespace ckfs
