// SHA-256 (FIPS 180-4), for digests of golden data.
#pragma once

#include <cstddef>
#include <span>
#include <string>

namespace ckfs {

/// In lower-case hexadecimal.
std::string sha256(std::span<const std::byte> bytes);

}  // namespace ckfs
