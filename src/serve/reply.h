// An answer before it is sent, and the small texts that answers are made of.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/byte_range.h"
#include "base/error.h"
#include "serve/request.h"
#include "serve/served_views.h"

namespace ckfs {

/// Bytes of a view's file.
struct FileBytes {
  std::shared_ptr<const ServedView> view;
  std::string path;
  ByteRange range;
};

struct Reply {
  int status = 200;
  HttpHeaders headers = {};  // names as they are sent; length, date and connection are the server's
  std::string text = {};
  std::optional<FileBytes> file = {};  // in the place of `text`
  /// In the place of `text`: its parts one after another, an empty one at the end. So a list of
  /// 100,000 files takes the memory of a page.
  std::function<Result<std::string>()> parts = {};
};

/// "Not Found", of 404.
std::string_view reason_of(int status);

/// What a program may take a file of that name for: "application/json".
std::string_view content_type(std::string_view path);

/// `text` for XML and HTML: markup as entities. nullopt: XML cannot hold it (controls, not UTF-8).
std::optional<std::string> xml_text(std::string_view text);

/// `text` in double quotes for JSON. Errors: Unsupported (not UTF-8), naming `text`.
Result<std::string> json_name(std::string_view text);

/// A header's value without what would end it.
std::string header_text(std::string_view text);

/// The status that stands for an error of a view or a read.
int status_of(const Error& error);

}  // namespace ckfs
