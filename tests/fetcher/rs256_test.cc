#include "fetcher/rs256.h"

#include <gtest/gtest.h>

namespace ckfs {
namespace {

TEST(Rs256, SaysThatAKeyIsNoneAndNothingOfIt) {
  const auto refused = sign_rs256("text", "-----BEGIN PRIVATE KEY-----\nsecret\n");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message(), "private key: no RSA key in PEM");
}

}  // namespace
}  // namespace ckfs
