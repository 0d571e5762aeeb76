// Apart from wire/crypto.h: what reads keys is most of libcrypto, and only this program needs it.

#include "fetcher/rs256.h"

#include <memory>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <openssl/pem.h>

namespace ckfs {
namespace {

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

Result<std::string> sign_rs256(std::string_view text, std::string_view private_key_pem) {
  const auto no_key = [](std::string_view what) {
    ERR_clear_error();  // its text may quote the key
    return fail(ErrorCode::InvalidArgument, "private key: {}", what);
  };
  const std::unique_ptr<BIO, FreesBio> bio(
      BIO_new_mem_buf(private_key_pem.data(), static_cast<int>(private_key_pem.size())));
  // Without a callback of its own it would ask for a password on the terminal.
  const auto no_password = [](char*, int, int, void*) { return 0; };
  const std::unique_ptr<EVP_PKEY, FreesKey> key(
      PEM_read_bio_PrivateKey(bio.get(), nullptr, no_password, nullptr));
  if (!key || EVP_PKEY_get_base_id(key.get()) != EVP_PKEY_RSA) return no_key("no RSA key in PEM");
  const std::unique_ptr<EVP_MD_CTX, FreesContext> context(EVP_MD_CTX_new());
  std::size_t size = 0;
  if (EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()) != 1 ||
      EVP_DigestSign(context.get(), nullptr, &size,
                     reinterpret_cast<const unsigned char*>(text.data()), text.size()) != 1) {
    return no_key("it cannot sign");
  }
  std::string signature(size, '\0');
  if (EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                     reinterpret_cast<const unsigned char*>(text.data()), text.size()) != 1) {
    return no_key("it cannot sign");
  }
  signature.resize(size);
  return signature;
}

}  // namespace ckfs
