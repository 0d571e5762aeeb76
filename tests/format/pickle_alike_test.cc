// Pickles that are read by another's: the same as when they are parsed by themselves, or not taken.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>
#include <string>
#include <vector>

#include "format/pickle.h"

namespace ckfs {
namespace {

using std::string_literals::operator""s;
using testing::ElementsAre;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

/// All that a tree says, to a depth that its values have.
std::string said_by(const Pickle& pickle, NodeId node, int depth = 6) {
  std::string text = fmt::format("{}", static_cast<int>(pickle.kind(node)));
  if (const auto value = pickle.integer(node)) text += fmt::format(" {}", *value);
  if (const auto value = pickle.string(node)) text += fmt::format(" '{}'", *value);
  const Pickle::GlobalName name = pickle.global(node);
  text += fmt::format(" {}.{} {}(", name.module, name.name, pickle.bytes(node).size());
  if (depth == 0) return text;
  for (const NodeId item : pickle.items(node)) text += said_by(pickle, item, depth - 1) + ",";
  if (pickle.kind(node) == NodeKind::Call) {
    for (const NodeId part : {pickle.callable(node), pickle.args(node), pickle.state(node)}) {
      text += said_by(pickle, part, depth - 1) + ";";
    }
  }
  return text + ")";
}

std::string counted(std::string_view opcode, std::size_t width, std::string_view bytes) {
  std::string text(opcode);
  for (std::size_t i = 0; i < width; ++i) text += static_cast<char>(bytes.size() >> (8 * i));
  return text + std::string(bytes);
}

/// An instruction that makes an integer, or one that makes a text.
std::string random_integer() {
  const auto bytes = [](std::size_t count) {
    return *rc::gen::container<std::string>(count, rc::gen::arbitrary<char>());
  };
  switch (*rc::gen::inRange(0, 5)) {
    case 0:
      return "K" + bytes(1);
    case 1:
      return "M" + bytes(2);
    case 2:
      return "J" + bytes(4);
    case 3:
      return counted("\x8a", 1, bytes(*rc::gen::inRange<std::size_t>(0, 9)));
    default:
      return counted("\x8b", 4, bytes(*rc::gen::inRange<std::size_t>(0, 9)));
  }
}
std::string random_text() {
  const auto text = *rc::gen::container<std::string>(rc::gen::inRange('a', 'e'));
  return *rc::gen::arbitrary<bool>() ? counted("X", 4, text) : counted("\x8c", 1, text);
}

/// Instructions of one object, in which those of a value are left out: each is a letter, "i" an
/// integer, "t" a text.
std::vector<std::string> random_object(int depth) {
  switch (*rc::gen::inRange(0, depth == 0 ? 4 : 8)) {
    case 0:
    case 1:
      return {"i"};
    case 2:
      return {"t"};
    case 3:
      return {"N"};
    default: {
      const bool is_dict = *rc::gen::arbitrary<bool>();
      std::vector<std::string> all{is_dict ? "}q\3(" : "("};
      for (int left = *rc::gen::inRange(0, 4); left > 0; --left) {
        if (is_dict) all.emplace_back("t");
        for (auto& one : random_object(depth - 1)) all.push_back(std::move(one));
      }
      all.emplace_back(is_dict ? "u" : "t");
      if (!is_dict)
        all.back() =
            "tq\3\x30"
            "cos\nsystem\nh\3\x81h\3"
            "b";
      return all;
    }
  }
}

RC_GTEST_PROP(ReadAlike, IsWhatParsingMakes, ()) {
  const std::vector<std::string> object = random_object(3);
  std::string first = "\x80\x02", second = "\x80\x02";
  for (int i = 0; i < 500; ++i) first += "N0";  // so that all changes are worth it
  second = first;
  for (const std::string& part : object) {
    const bool is_value = part == "i" || part == "t";
    const auto made = [&] { return part == "i" ? random_integer() : random_text(); };
    const std::string one = is_value ? made() : part;
    first += one;
    second += is_value && *rc::gen::arbitrary<bool>() ? made() : one;
  }
  first += ".";
  second += ".";
  const auto model = parse_model_pickle(bytes_of(first), "first");
  if (!model) RC_FAIL(model.error().message());
  const auto by_itself = parse_pickle(bytes_of(first), "first");
  RC_ASSERT(said_by(*model, model->root()) == said_by(*by_itself, by_itself->root()));
  const auto alike = read_alike(*model, bytes_of(second));
  RC_ASSERT(alike.has_value());
  const auto parsed = parse_pickle(bytes_of(second), "second");
  if (!parsed) RC_FAIL(parsed.error().message());
  RC_ASSERT(said_by(*alike, alike->root()) == said_by(*parsed, parsed->root()));
  RC_ASSERT(alike->consumed() == parsed->consumed());
}

RC_GTEST_PROP(ReadAlike, TakesNothingThatParsingRefusesOrReadsOtherwise, ()) {
  const std::string filler(600, 'N');  // so that a change is worth it, and blocks are compared
  const std::string first =
      "\x80\x02(" + filler + "X\4\0\0\0rankK\7cos\nsystem\n(K\1J\1\0\0\0t\x81}X\1\0\0\0aK\2sbt."s;
  std::string second = first;
  const std::size_t begin = filler.size();
  for (int changes = *rc::gen::inRange(1, 4); changes > 0; --changes) {
    const auto at = *rc::gen::inRange(begin, second.size());
    if (*rc::gen::arbitrary<bool>()) {
      second[at] = static_cast<char>(second[at] + *rc::gen::inRange(-2, 3));
    } else if (*rc::gen::arbitrary<bool>()) {
      second.erase(at, 1);
    } else {
      second.insert(at, 1, *rc::gen::arbitrary<char>());
    }
  }
  const auto model = parse_model_pickle(bytes_of(first), "first").value();
  const auto alike = read_alike(model, bytes_of(second));
  if (!alike) return;
  const auto parsed = parse_pickle(bytes_of(second), "second");
  if (!parsed) RC_FAIL(parsed.error().message());
  RC_ASSERT(said_by(*alike, alike->root()) == said_by(*parsed, parsed->root()));
}

/// A tuple of the text and the number, padded.
std::string pair_of(std::string_view text, std::string_view number) {
  return "\x80\x02(" + std::string(100, 'N') + counted("X", 4, text) + std::string(number) + "t.";
}

TEST(ReadAlike, HasOtherLengths) {
  const std::string first = pair_of("cuda:0", "K\7"), second = pair_of("cuda:15", "M\x2c\1");
  const Pickle model = parse_model_pickle(bytes_of(first), "first").value();
  const auto alike = read_alike(model, bytes_of(second));
  ASSERT_TRUE(alike);
  const auto items = alike->items(alike->root());
  EXPECT_EQ(alike->string(items[100]), "cuda:15");
  EXPECT_EQ(alike->integer(items[101]), 300);
  EXPECT_EQ(model.string(items[100]), "cuda:0");
}

TEST(ReadAlike, IsNotWhatMeansMoreThanAValue) {
  const std::string first = pair_of("a", "K\7");
  const Pickle model = parse_model_pickle(bytes_of(first), "first").value();
  for (const std::string& other :
       {pair_of("a", "N"), pair_of("a", "X\1\0\0\0b"s), pair_of("\xff", "K\7"),
        pair_of("a", "\x8a\x09\0\0\0\0\0\0\0\0\1"s), pair_of("a", "K\7N"), pair_of("a", ""),
        pair_of("a", "K\7").substr(0, 100), ""s}) {
    EXPECT_FALSE(read_alike(model, bytes_of(other))) << other.size();
  }
  // A name of a global that is a text, and a frame, whose length counts what follows.
  const std::string padding(100, 'N');
  const std::string named = "\x80\x04(" + padding + "\x8c\2os\x8c\4exit\x93t.";
  std::string renamed = named;
  renamed.replace(named.find("exit"), 4, "fork");
  EXPECT_FALSE(read_alike(parse_model_pickle(bytes_of(named), "f").value(), bytes_of(renamed)));
  const std::string framed = "\x80\x04\x95\x69\0\0\0\0\0\0\0("s + padding + "K\7t.";
  std::string other = framed;
  other[framed.size() - 3] = 8;
  EXPECT_FALSE(read_alike(parse_model_pickle(bytes_of(framed), "f").value(), bytes_of(other)));
}

TEST(PickleTrace, TellsWhetherAnAnswerIsTheSame) {
  const std::string first = pair_of("cpu", "K\7");
  const Pickle model = parse_model_pickle(bytes_of(first), "first").value();
  const auto items = model.items(model.root());
  PickleTrace of_text, of_number, of_comparison;
  model.trace(&of_text);
  model.string(items[100]);
  model.trace(&of_number);
  model.integer(items[101]);
  model.trace(&of_comparison);
  EXPECT_FALSE(model.says(items[100], "meta"));
  EXPECT_EQ(model.trace(nullptr), &of_comparison);
  model.integer(items[101]);
  EXPECT_THAT(of_number.read, ElementsAre(items[101]));
  const auto answers = [&](const std::string& text) {
    const auto alike = read_alike(model, bytes_of(text)).value();
    return std::vector{alike.answers_as_model(of_text), alike.answers_as_model(of_number),
                       alike.answers_as_model(of_comparison)};
  };
  EXPECT_THAT(answers(pair_of("cpu", "K\7")), ElementsAre(true, true, true));
  EXPECT_THAT(answers(pair_of("gpu", "K\7")), ElementsAre(false, true, true));
  EXPECT_THAT(answers(pair_of("meta", "K\7")), ElementsAre(false, true, false));
  EXPECT_THAT(answers(pair_of("cpu", "K\6")), ElementsAre(true, false, true));
}

}  // namespace
}  // namespace ckfs
