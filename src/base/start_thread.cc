// pthread_create reports every shortage as EAGAIN, which std::thread throws; that it can also fail
// to allocate its own state is the same shortage.
#include "base/start_thread.h"

#include <atomic>
#include <new>
#include <spdlog/spdlog.h>
#include <system_error>

namespace ckfs {

std::optional<std::thread> start_thread(std::function<void()> work) {
  static std::atomic_flag reported;
  const char* reason = nullptr;
  try {
    return std::thread(std::move(work));
  } catch (const std::system_error&) {
    reason = "the limit on processes or memory is reached";
  } catch (const std::bad_alloc&) {
    reason = "no memory";
  }
  if (!reported.test_and_set()) {
    spdlog::warn("threads: the system refuses another one ({}); ckfs continues with fewer", reason);
  }
  return std::nullopt;
}

}  // namespace ckfs
