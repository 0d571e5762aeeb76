// Expat calls back from C: nothing is thrown through it, and an error is kept until it
// returns.

#include "fetcher/xml.h"

#include <expat.h>
#include <memory>
#include <string>
#include <vector>

namespace ckfs {
namespace {

struct FreesParser {
  void operator()(XML_Parser parser) const { XML_ParserFree(parser); }
};

struct XmlReading {
  XML_Parser parser;
  const XmlElementEnds& ends;
  std::string path = {};
  std::vector<std::size_t> lengths = {};  // of `path`, one for each open element
  std::vector<std::string> texts = {};    // likewise
  std::string_view fault = {};
  bool is_ended = false;  // by the caller

  void stop(std::string_view why) {
    if (fault.empty()) fault = why;
    XML_StopParser(parser, XML_FALSE);
  }

  void begin(std::string_view name) {
    if (lengths.size() == kMostXmlDepth || name.size() > 256) {
      return stop("elements are nested too deep, or have too long a name");
    }
    lengths.push_back(path.size());
    texts.emplace_back();
    if (!path.empty()) path += '/';
    path += name.substr(name.rfind(':') == std::string_view::npos ? 0 : name.rfind(':') + 1);
  }

  void add(std::string_view text) {
    if (texts.empty()) return;
    if (texts.back().size() + text.size() > kLongestXmlText) {
      return stop("an element has more than 65536 bytes of text");
    }
    texts.back() += text;
  }

  void end() {
    if (texts.empty()) return;
    const bool go_on = ends(path, texts.back());
    path.resize(lengths.back());
    lengths.pop_back();
    texts.pop_back();
    if (!go_on) {
      is_ended = true;
      XML_StopParser(parser, XML_FALSE);
    }
  }
};

/// Runs `work` of the reading that `data` is; an exception may not cross expat.
template <typename Work>
void quietly(void* data, const Work& work) {
  auto& reading = *static_cast<XmlReading*>(data);
  try {
    if (reading.fault.empty() && !reading.is_ended) work(reading);
  } catch (const std::bad_alloc&) {
    reading.stop("out of memory");
  }
}

}  // namespace

Result<void> read_xml(std::string_view text, std::string_view thing, const XmlElementEnds& ends) {
  const std::unique_ptr<XML_ParserStruct, FreesParser> parser(XML_ParserCreate("UTF-8"));
  if (!parser || text.size() > INT32_MAX) {
    return fail(ErrorCode::OutOfMemory, "{}: out of memory", thing);
  }
  XmlReading reading{.parser = parser.get(), .ends = ends};
  XML_SetUserData(parser.get(), &reading);
  XML_SetElementHandler(
      parser.get(),
      [](void* data, const XML_Char* name, const XML_Char** /*attributes*/) {
        quietly(data, [&](XmlReading& it) { it.begin(name); });
      },
      [](void* data, const XML_Char* /*name*/) {
        quietly(data, [](XmlReading& it) { it.end(); });
      });
  XML_SetCharacterDataHandler(parser.get(), [](void* data, const XML_Char* part, int size) {
    quietly(data, [&](XmlReading& it) { it.add({part, static_cast<std::size_t>(size)}); });
  });
  XML_SetStartDoctypeDeclHandler(
      parser.get(), [](void* data, const XML_Char* /*name*/, const XML_Char* /*system*/,
                       const XML_Char* /*public*/, int /*internal*/) {
        quietly(data, [](XmlReading& it) { it.stop("it has a document type"); });
      });
  const auto status = XML_Parse(parser.get(), text.data(), static_cast<int>(text.size()), XML_TRUE);
  if (reading.is_ended) return {};
  if (!reading.fault.empty()) return fail(ErrorCode::Corrupt, "{}: {}", thing, reading.fault);
  if (status != XML_STATUS_OK) {
    return fail(ErrorCode::Corrupt, "{}: not XML: {} (line {})", thing,
                XML_ErrorString(XML_GetErrorCode(parser.get())),
                XML_GetCurrentLineNumber(parser.get()));
  }
  return {};
}

}  // namespace ckfs
