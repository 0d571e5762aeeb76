// Whether a sanitizer is built in: its memory and its seconds are not the program's. GCC says so by
// macros, Clang 19 by features.
#pragma once

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define CKFS_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define CKFS_SANITIZED 1
#endif
#endif
#ifndef CKFS_SANITIZED
#define CKFS_SANITIZED 0
#endif

namespace ckfs {

inline constexpr bool kSanitized = CKFS_SANITIZED != 0;

}  // namespace ckfs
