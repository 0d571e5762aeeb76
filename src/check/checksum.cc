#include "check/checksum.h"

#include <array>
#include <openssl/evp.h>
#include <xxhash.h>

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
  bool begin() { return context_ && EVP_DigestInit_ex(context_.get(), EVP_sha256(), nullptr) == 1; }
  void add(std::span<const std::byte> bytes) override {
    CKFS_CHECK(EVP_DigestUpdate(context_.get(), bytes.data(), bytes.size()) == 1);
  }
  std::string finish() override {
    std::array<unsigned char, 32> sum{};
    CKFS_CHECK(EVP_DigestFinal_ex(context_.get(), sum.data(), nullptr) == 1);
    return hex(sum);
  }

 private:
  std::unique_ptr<EVP_MD_CTX, decltype([](EVP_MD_CTX* context) { EVP_MD_CTX_free(context); })>
      context_{EVP_MD_CTX_new()};
};

class Crc32c : public Checksum {
 public:
  void add(std::span<const std::byte> bytes) override {
    sum_ = crc32c({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, sum_);
  }
  std::string finish() override {
    std::array<unsigned char, 4> bytes{};
    for (std::size_t i = 0; i < 4; ++i) bytes[i] = static_cast<unsigned char>(sum_ >> (24 - 8 * i));
    std::array<unsigned char, 9> text{};
    EVP_EncodeBlock(text.data(), bytes.data(), static_cast<int>(bytes.size()));
    return reinterpret_cast<const char*>(text.data());
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

template <typename Kind>
Result<std::unique_ptr<Checksum>> begun(Algorithm algorithm) {
  auto sum = std::make_unique<Kind>();
  if (sum->begin()) return sum;
  return fail(ErrorCode::Unsupported, "{}: this system's library refuses it", name(algorithm));
}

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
      return begun<Sha256>(algorithm);
    case Algorithm::Crc32c:
      return std::make_unique<Crc32c>();
    case Algorithm::Xxh128:
      return begun<Xxh128>(algorithm);
  }
  CKFS_CHECK(false);
}

}  // namespace ckfs
