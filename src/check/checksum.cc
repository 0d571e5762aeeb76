// SHA-256 by the functions that need nothing else of libcrypto (wire/crypto.cc).
#define OPENSSL_SUPPRESS_DEPRECATED

#include "check/checksum.h"

#include <array>
#include <openssl/sha.h>
#include <xxhash.h>

#include "base/base64.h"
#include "format/crc32c.h"

namespace ckfs {

namespace {

struct Names {
  Algorithm algorithm;
  std::string_view name, tag;
};

constexpr Names kNames[] = {{Algorithm::Sha256, "sha256", "SHA256"},
                            {Algorithm::Crc32c, "crc32c", "CRC32C"},
                            {Algorithm::Xxh128, "xxh128", "XXH128"}};

const Names& names(Algorithm algorithm) {
  return kNames[static_cast<std::size_t>(algorithm)];
}

std::string hex(std::span<const unsigned char> bytes) {
  std::string text;
  for (const unsigned char byte : bytes) text += fmt::format("{:02x}", byte);
  return text;
}

class Sha256 : public Checksum {
 public:
  Sha256() { SHA256_Init(&state_); }
  void add(std::span<const std::byte> bytes) override {
    SHA256_Update(&state_, bytes.data(), bytes.size());
  }
  std::string finish() override {
    std::array<unsigned char, SHA256_DIGEST_LENGTH> sum{};
    SHA256_Final(sum.data(), &state_);
    return hex(sum);
  }

 private:
  SHA256_CTX state_{};
};

class Crc32c : public Checksum {
 public:
  void add(std::span<const std::byte> bytes) override {
    sum_ = crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, sum_);
  }
  std::string finish() override {
    std::string bytes;
    for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(sum_ >> shift & 255U);
    return base64(bytes);
  }

 private:
  std::uint32_t sum_ = 0;
};

class Xxh128 : public Checksum {
 public:
  bool begin() { return state_ && XXH3_128bits_reset(state_.get()) == XXH_OK; }
  void add(std::span<const std::byte> bytes) override {
    CKFS_CHECK(XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()) == XXH_OK);
  }
  std::string finish() override {
    XXH128_canonical_t sum;
    XXH128_canonicalFromHash(&sum, XXH3_128bits_digest(state_.get()));
    return hex(sum.digest);
  }

 private:
  std::unique_ptr<XXH3_state_t, decltype([](XXH3_state_t* state) { XXH3_freeState(state); })>
      state_{XXH3_createState()};
};

}  // namespace

std::string_view name(Algorithm algorithm) {
  return names(algorithm).name;
}

std::string_view tag(Algorithm algorithm) {
  return names(algorithm).tag;
}

std::optional<Algorithm> parse_algorithm(std::string_view name) {
  for (const Names& row : kNames) {
    if (row.name == name) return row.algorithm;
  }
  return std::nullopt;
}

Result<std::unique_ptr<Checksum>> Checksum::create(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Sha256:
      return std::make_unique<Sha256>();
    case Algorithm::Crc32c:
      return std::make_unique<Crc32c>();
    case Algorithm::Xxh128: {
      auto sum = std::make_unique<Xxh128>();
      if (sum->begin()) return sum;
      return fail(ErrorCode::OutOfMemory, "{}: no memory for it", name(algorithm));
    }
  }
  CKFS_CHECK(false);
}

}  // namespace ckfs
