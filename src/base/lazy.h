// A value that is made when it is first needed, once for all threads.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "base/mutex.h"

namespace ckfs {

template <typename T>
class Lazy {
 public:
  using Make = std::function<std::shared_ptr<const T>()>;
  explicit Lazy(std::shared_ptr<const T> value) : value_(std::move(value)) {}
  explicit Lazy(Make make) : make_(std::move(make)) {}

  /// Valid as long as this. After an exception of its making it is not made, and the next call
  /// tries again. The making must not ask for the value.
  const T& get() const CKFS_EXCLUDES(mutex_) {
    const MutexLock lock(mutex_);
    if (value_ == nullptr) value_ = make_();
    return *value_;
  }

 private:
  const Make make_;
  mutable Mutex mutex_;
  mutable std::shared_ptr<const T> value_ CKFS_GUARDED_BY(mutex_);
};

}  // namespace ckfs
