// After a fork() the child has the memory of a checkpoint, and neither its threads nor anything
// that wakes its locks. So every object of the public API knows the process that made it: in
// another one it is not used, and its memory is left as it is.
#pragma once

#include <memory>
#include <unistd.h>
#include <utility>

#include "base/error.h"

namespace ckfs {

class OwnProcess {
 public:
  bool is_here() const { return ::getpid() == process_; }
  /// Errors: InvalidArgument, where this is a forked child. `thing` is the name in its message.
  Result<void> check(std::string_view thing) const {
    if (is_here()) return {};
    return fail(ErrorCode::InvalidArgument,
                "{}: opened by process {}, used by process {} (open it again after a fork)", thing,
                process_, ::getpid());
  }

 private:
  pid_t process_ = ::getpid();
};

/// An object that only the process that makes it destroys.
template <typename T, typename... Args>
std::shared_ptr<T> make_owned_here(Args&&... args) {
  const OwnProcess owner;
  return std::shared_ptr<T>(new T{std::forward<Args>(args)...}, [owner](T* object) {
    if (owner.is_here()) delete object;
  });
}

}  // namespace ckfs
