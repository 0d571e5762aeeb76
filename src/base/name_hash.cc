#include "base/name_hash.h"

#include <bit>
#include <chrono>
#include <sys/random.h>
#include <unistd.h>

#include "base/load_le.h"

namespace ckfs {
namespace {

using State = std::array<std::uint64_t, 4>;

void mix(State& v) {
  v[0] += v[1];
  v[2] += v[3];
  v[1] = std::rotl(v[1], 13) ^ v[0];
  v[3] = std::rotl(v[3], 16) ^ v[2];
  v[0] = std::rotl(v[0], 32) + v[3];
  v[2] += v[1];
  v[3] = std::rotl(v[3], 21) ^ v[0];
  v[1] = std::rotl(v[1], 17) ^ v[2];
  v[2] = std::rotl(v[2], 32);
}

std::array<std::uint64_t, 2> draw_key() {
  std::array<std::uint64_t, 2> key{};
  const auto drawn = ::getrandom(key.data(), sizeof(key), GRND_NONBLOCK);
  if (drawn == static_cast<ssize_t>(sizeof(key))) return key;
  // Early in a machine's boot: the time is better than nothing.
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  return {static_cast<std::uint64_t>(now), static_cast<std::uint64_t>(::getpid())};
}

}  // namespace

std::uint64_t sip_hash(std::string_view text, std::array<std::uint64_t, 2> key) {
  State v = {key[0] ^ 0x736f6d6570736575, key[1] ^ 0x646f72616e646f6d, key[0] ^ 0x6c7967656e657261,
             key[1] ^ 0x7465646279746573};
  const auto absorb = [&](std::uint64_t word) {
    v[3] ^= word;
    mix(v);
    v[0] ^= word;
  };
  const auto bytes = std::as_bytes(std::span(text));
  std::size_t i = 0;
  for (; i + 8 <= bytes.size(); i += 8) absorb(load_le<std::uint64_t>(bytes.subspan(i)));
  std::uint64_t last = std::uint64_t{bytes.size()} << 56;
  for (std::size_t k = 0; i + k < bytes.size(); ++k) {
    last |= std::to_integer<std::uint64_t>(bytes[i + k]) << (8 * k);
  }
  absorb(last);
  v[2] ^= 0xff;
  for (int turn = 0; turn < 3; ++turn) mix(v);
  return v[0] ^ v[1] ^ v[2] ^ v[3];
}

std::size_t NameHash::operator()(std::string_view name) const {
  static const std::array<std::uint64_t, 2> key = draw_key();
  return sip_hash(name, key);
}

}  // namespace ckfs
