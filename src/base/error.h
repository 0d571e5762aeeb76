// Error and Result are part of the public API (include/ckfs/error.h); this header adds the means to
// make and to pass them on.
#pragma once

#include <fmt/format.h>
#include <new>
#include <type_traits>
#include <utility>

#include <ckfs/error.h>

namespace ckfs {

/// Builds the Failure that a function returns: `return fail(ErrorCode::Corrupt, "{}: ...", name);`
template <typename... Args>
[[nodiscard]] Failure fail(ErrorCode code, fmt::format_string<Args...> text, Args&&... args) {
  return Failure(Error(code, fmt::format(text, std::forward<Args>(args)...)));
}

/// The Failure of a system call on `thing`: `what` names the call or its purpose; `error` is its
/// errno, which the Error keeps. ENOENT is NotFound, every other errno Io; a caller that knows
/// better (a link that must not be followed, a path that is not a directory) makes its Error by
/// hand.
[[nodiscard]] Failure system_failure(int error, std::string_view thing, std::string_view what);

/// The Result of make(), OutOfMemory where that throws std::bad_alloc. The error needs no memory:
/// its text fits into the string object.
template <typename Make>
[[nodiscard]] std::invoke_result_t<Make> or_out_of_memory(Make&& make) {
  try {
    return std::forward<Make>(make)();
  } catch (const std::bad_alloc&) {
    return Failure(Error(ErrorCode::OutOfMemory, "out of memory"));
  }
}

/// The same, and Internal where it throws another std::exception: `what` names the code that threw.
template <typename Make>
[[nodiscard]] std::invoke_result_t<Make> or_failure(std::string_view what, const Make& make) {
  return or_out_of_memory([&]() -> std::invoke_result_t<Make> {
    try {
      return make();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      return fail(ErrorCode::Internal, "{}: {}", what, error.what());
    }
  });
}

/// The requirement on a Result's value: tl::expected moves it in functions that are noexcept, so
/// that a std::bad_alloc there ends the program (a std::deque of libstdc++ allocates when it is
/// moved).
template <typename T>
inline constexpr bool kMovesQuietly = std::is_nothrow_move_constructible_v<T>;

/// Aborts with file, line and text: a broken invariant of ckfs itself, never a bad file.
[[noreturn]] void check_failed(const char* file, int line, const char* condition);

}  // namespace ckfs

#define CKFS_CONCAT_(a, b) a##b
#define CKFS_CONCAT(a, b) CKFS_CONCAT_(a, b)

/// CKFS_TRY(auto value, function());  -- declares `value`, or returns the Failure of function().
#define CKFS_TRY(declaration, ...) \
  CKFS_TRY_(CKFS_CONCAT(ckfs_try_, __LINE__), declaration, __VA_ARGS__)
#define CKFS_TRY_(temporary, declaration, ...)                                    \
  auto temporary = (__VA_ARGS__);                                                 \
  static_assert(::ckfs::kMovesQuietly<std::remove_cvref_t<decltype(*temporary)>>, \
                "a Result whose value throws when it is moved ends the program"); \
  if (!temporary) return ::ckfs::Failure(std::move(temporary).error());           \
  declaration = std::move(temporary).value()

/// CKFS_TRY_VOID(function());  -- the same for a Result<void>.
#define CKFS_TRY_VOID(...)                                                            \
  do {                                                                                \
    auto ckfs_try_result = (__VA_ARGS__);                                             \
    if (!ckfs_try_result) return ::ckfs::Failure(std::move(ckfs_try_result).error()); \
  } while (false)

#define CKFS_CHECK(condition) \
  (static_cast<bool>(condition) ? void(0) : ::ckfs::check_failed(__FILE__, __LINE__, #condition))
