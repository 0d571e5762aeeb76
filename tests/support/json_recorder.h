// Writes down the events of read_json(), and of nlohmann's SAX reader, which it is compared with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <fmt/format.h>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ckfs {

class JsonRecorder {
 public:
  std::vector<std::string> events;
  std::string error;  // of the text; empty: it is JSON

  bool null() { return add("null"); }
  bool boolean(bool value) { return add(value ? "true" : "false"); }
  bool number_integer(std::int64_t value) { return add(fmt::format("i{}", value)); }
  bool number_unsigned(std::uint64_t value) { return add(fmt::format("u{}", value)); }
  bool number_float(double value, std::string_view text) {
    return add(fmt::format("f{:a} {}", value, text));
  }
  bool string(std::string_view text) { return add(fmt::format("s{}", text)); }
  bool key(std::string_view text) { return add(fmt::format("k{}", text)); }
  bool start_object(std::size_t /*size*/) { return add("{"); }
  bool end_object() { return add("}"); }
  bool start_array(std::size_t /*size*/) { return add("["); }
  bool end_array() { return add("]"); }
  void parse_error(std::size_t byte, std::string_view reason) {
    error = fmt::format("{}: {}", byte, reason);
  }

  // nlohmann's alone.
  bool binary(const std::vector<std::uint8_t>& /*value*/) { return false; }
  bool parse_error(std::size_t /*position*/, const std::string& /*token*/,
                   const std::exception& what) {
    error = what.what();
    return false;
  }

 private:
  bool add(std::string event) {
    events.push_back(std::move(event));
    return true;
  }
};

}  // namespace ckfs
