// Where a writer of text puts it: counted when a layout is measured, kept when it is read. One
// template writes both, so that a size can never differ from its text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckfs {

class CountingSink {
 public:
  void put(std::string_view text) { size_ += text.size(); }
  std::uint64_t size() const { return size_; }

 private:
  std::uint64_t size_ = 0;
};

/// Appends to `out`, which must outlive it.
class TextSink {
 public:
  explicit TextSink(std::string& out) : out_(out) {}
  void put(std::string_view text) { out_ += text; }

 private:
  std::string& out_;
};

}  // namespace ckfs
