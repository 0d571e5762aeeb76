// libcrypto's one-shot calls: only headers are signed here, never bodies.

#include "wire/crypto.h"

#include <charconv>
#include <memory>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <openssl/sha.h>

namespace ckfs {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
unsigned char* bytes_of(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

struct FreesBio {
  void operator()(BIO* bio) const { BIO_free(bio); }
};
struct FreesKey {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct FreesContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

std::string sha256(std::string_view text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(bytes_of(text), text.size(), bytes_of(digest));
  return digest;
}

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  unsigned size = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), bytes_of(text), text.size(),
       bytes_of(digest), &size);
  return digest;
}

std::string to_hex(std::string_view bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const char c : bytes) {
    out += kDigits[static_cast<unsigned char>(c) >> 4U];
    out += kDigits[static_cast<unsigned char>(c) & 15U];
  }
  return out;
}

std::optional<std::string> from_hex(std::string_view text) {
  if (text.size() % 2 != 0) return std::nullopt;
  std::string bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    unsigned value = 0;
    const char* const end = text.data() + i + 2;
    const auto parsed = std::from_chars(text.data() + i, end, value, 16);
    if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
    bytes += static_cast<char>(value);
  }
  return bytes;
}

std::string base64(std::string_view bytes) {
  // EVP_EncodeBlock ends what it writes with a NUL.
  std::string out((bytes.size() + 2) / 3 * 4 + 1, '\0');
  out.resize(static_cast<std::size_t>(
      EVP_EncodeBlock(bytes_of(out), bytes_of(bytes), static_cast<int>(bytes.size()))));
  return out;
}

std::string base64url(std::string_view bytes) {
  std::string out = base64(bytes);
  out.resize(out.find_last_not_of('=') + 1);
  for (char& c : out) {
    if (c == '+') c = '-';
    if (c == '/') c = '_';
  }
  return out;
}

Result<std::string> sign_rs256(std::string_view text, std::string_view private_key_pem) {
  const auto failed = [](std::string_view what) {
    ERR_clear_error();  // its text may quote the key
    return fail(ErrorCode::InvalidArgument, "private key: {}", what);
  };
  const std::unique_ptr<BIO, FreesBio> bio(
      BIO_new_mem_buf(private_key_pem.data(), static_cast<int>(private_key_pem.size())));
  // Without a callback of its own it would ask for a password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  const std::unique_ptr<EVP_PKEY, FreesKey> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  if (!key || EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_RSA) return failed("no RSA key in PEM");
  const std::unique_ptr<EVP_MD_CTX, FreesContext> context(EVP_MD_CTX_new());
  std::size_t size = 0;
  if (EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), nullptr, &size, bytes_of(text), text.size()) != 1) {
    return failed("it cannot sign");
  }
  std::string signature(size, '\0');
  if (EVP_DigestSign(context.get(), bytes_of(signature), &size, bytes_of(text), text.size()) != 1) {
    return failed("it cannot sign");
  }
  signature.resize(size);
  return signature;
}

}  // namespace ckfs
