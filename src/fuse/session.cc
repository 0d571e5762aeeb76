// The life of a mount: mount, answer, stop.
//
// Stopping has two ways in. An unmount from outside ends the session by itself. A signal must end a
// loop of libfuse whose threads sleep in read(2) and whose main thread sleeps on a semaphore, and
// libfuse 3.14 looks at its exit flag only when one of them wakes up. Its own signal handlers rely
// on the signal interrupting just the right sleep; here they only write to an eventfd, and a thread
// that waits for it sets the flag and wakes the main thread until it has seen it.

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <ctime>
#include <deque>
#include <fcntl.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <thread>
#include <unistd.h>
#include <utility>

#include "base/mutex.h"
#include "base/start_thread.h"
#include "fuse/mount.h"
#include "fuse/operations.h"
#include "fuse/page_store.h"
#include "sandbox/sandbox.h"

namespace ckfs {
namespace {

namespace stdfs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// Threads that answer requests, unless the user sets a number. Far more than CPUs, because they
/// also wait: a source that does not answer holds the thread of every read that needs it, also of
/// the kernel's read-ahead. While some threads are free, listings and `ckfs stats` work.
constexpr unsigned kThreads = 32;

/// How long the end of a mount waits for requests under way: with the other steps, the mount is
/// gone within two seconds.
constexpr std::chrono::milliseconds kGrace{1500};
/// How long before they are asked to stop, which ends those that decode.
constexpr std::chrono::milliseconds kStopAfter{750};
constexpr Clock::time_point kForever = Clock::time_point::max();

/// How long the main thread may sleep through being woken.
constexpr std::chrono::milliseconds kWakeAgain{10};

/// The eventfd that a signal handler writes to; a handler can reach a global only.
std::atomic<int> stop_event = -1;

void on_signal(int) {
  const int saved = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(stop_event.load(), &one, sizeof one);
  errno = saved;
}

/// SIGTERM, SIGINT and SIGHUP go to an eventfd while this lives. Signal settings inherited across
/// exec do not decide whether a mount can be stopped: SIGTERM is taken even if it was ignored, and
/// none of the three stays blocked; an ignored SIGINT or SIGHUP (nohup, a shell's background jobs)
/// stays ignored. A broken pipe is an error of a system call.
class SignalsToEvent {
 public:
  explicit SignalsToEvent(int event) {
    stop_event = event;
    sigset_t taken;
    sigemptyset(&taken);
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      const int number = kSignals[i];
      ::sigaction(number, nullptr, &before_[i]);
      if (before_[i].sa_handler == SIG_IGN && number != SIGTERM) continue;
      struct sigaction action{};
      action.sa_handler = number == SIGPIPE ? SIG_IGN : on_signal;  // no SA_RESTART
      ::sigaction(number, &action, nullptr);
      if (number != SIGPIPE) sigaddset(&taken, number);
    }
    ::pthread_sigmask(SIG_UNBLOCK, &taken, &mask_before_);
  }
  SignalsToEvent(const SignalsToEvent&) = delete;
  SignalsToEvent& operator=(const SignalsToEvent&) = delete;
  ~SignalsToEvent() {
    for (std::size_t i = 0; i < kSignals.size(); ++i) {
      ::sigaction(kSignals[i], &before_[i], nullptr);
    }
    ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  }

 private:
  static constexpr std::array kSignals = {SIGTERM, SIGINT, SIGHUP, SIGPIPE};
  std::array<struct sigaction, kSignals.size()> before_{};
  sigset_t mask_before_{};
};

/// Makes the kernel forget names, on a thread of its own: the kernel holds the directory's lock
/// while it waits for the lookup that made the name superfluous. Without a thread no name is
/// forgotten, which only costs memory.
class NameForgetter {
 public:
  explicit NameForgetter(fuse_session* session)
      : thread_(start_thread([this, session] { run(session); })) {
    const MutexLock lock(mutex_);
    is_running_ = thread_.has_value();
  }
  NameForgetter(const NameForgetter&) = delete;
  NameForgetter& operator=(const NameForgetter&) = delete;
  /// Requires: requests are answered, or the connection is gone.
  ~NameForgetter() {
    stop(kForever);
    if (thread_) thread_->join();
  }

  void add(std::string name) {
    const MutexLock lock(mutex_);
    if (!is_running_) return;
    names_.push_back(std::move(name));
    changed_.notify_all();
  }

  /// No notification follows from now on. False: one is still under way at `last`; it waits for the
  /// answer to a lookup.
  bool stop(Clock::time_point last) {
    MutexLock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    while (is_running_ && changed_.wait_until(lock, last)) {
    }
    return !is_running_;
  }

 private:
  void run(fuse_session* session) {
    MutexLock lock(mutex_);
    while (true) {
      while (names_.empty() && !stopping_) changed_.wait(lock);
      if (stopping_) break;
      const std::string name = std::move(names_.front());
      names_.pop_front();
      lock.unlock();
      ::fuse_lowlevel_notify_inval_entry(session, FUSE_ROOT_ID, name.c_str(), name.size());
      lock.lock();
    }
    is_running_ = false;
    changed_.notify_all();
  }

  Mutex mutex_;
  CondVar changed_;
  std::deque<std::string> names_ CKFS_GUARDED_BY(mutex_);
  bool is_running_ CKFS_GUARDED_BY(mutex_) = false;
  bool stopping_ CKFS_GUARDED_BY(mutex_) = false;
  std::optional<std::thread> thread_;
};

/// Whether the kernel has closed the connection: another program has unmounted.
bool is_gone(int device) {
  pollfd poll{.fd = device, .events = 0, .revents = 0};
  return ::poll(&poll, 1, 0) > 0 && (poll.revents & POLLERR) != 0;
}

/// Unmounts. If another mount covers the path by now, that one is left alone, and ours ends when
/// /dev/fuse is closed.
Result<void> take_away(MountKeeper& keeper) {
  if (keeper.is_adopted()) return {};  // the program that has mounted unmounts, too
  CKFS_TRY(const bool unmounted, keeper.unmount());
  if (!unmounted) {
    spdlog::warn("{}: covered by another mount: left in place, and no longer served",
                 keeper.target().native());
  }
  return {};
}

/// Waits for the first answer of the mount, then for a signal, then for another. Between the two
/// signals the detached mount lives while it is in use.
class Watcher {
 public:
  Watcher(fuse_session* session, int device, NameForgetter& forgetter, PageStore& pages,
          ReadsUnderWay& reads, int event, MountKeeper& keeper, const Filesystem* used,
          std::function<void()> ready, std::function<void()> give_up)
      : session_(session),
        device_(device),
        forgetter_(forgetter),
        pages_(pages),
        reads_(reads),
        event_(event),
        keeper_(keeper),
        used_(used),
        ready_(std::move(ready)),
        give_up_(std::move(give_up)),
        main_(::pthread_self()) {}
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;

  /// Call this first. False: no thread can be started; then call nothing else.
  bool start() {
    thread_ = start_thread([this] { run(); });
    return thread_.has_value();
  }

  /// The loop has ended, the session is still there.
  void loop_ended() {
    const MutexLock lock(mutex_);
    ended_ = true;
    changed_.notify_one();
    const std::uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = ::write(event_, &one, sizeof one);
  }

  /// Whether a signal has ended the mount: detached, or given up although requests were under way.
  /// Requires: loop_ended().
  bool taken_away() {
    const MutexLock lock(mutex_);
    return detached_ || abandoned_;
  }

  /// Requires: loop_ended(), and the mount is gone or aborted (else its first answer never comes).
  void join() { thread_->join(); }

 private:
  void run() {
    try {
      announce();
    } catch (const std::exception& exception) {
      spdlog::error("{}: {}", keeper_.target().native(), exception.what());
    }
    wait_for_event();
    if (detach()) wait_for_event();
    const auto now = Clock::now();
    const auto last = now + kGrace;
    if (!stop_notifications(now + kStopAfter)) reads_.stop_all();
    if (!stop_notifications(last)) {
      abandon_and_abort();
      stop_notifications(kForever);
    }
    stop_loop(now + kStopAfter, std::max(last, Clock::now() + 10 * kWakeAgain));
  }

  /// To be called while requests are answered. False: a notification waits at `last`, for an answer
  /// that waits for the source.
  bool stop_notifications(Clock::time_point last) {
    const bool no_page = pages_.stop(last);
    return forgetter_.stop(last) && no_page;
  }

  /// Ends the waits that no thread of this process can end: a thread that waits in the kernel keeps
  /// the device open, even if another closes it. Where a connection cannot be aborted, all wait for
  /// the source, and the loop continues, because a request that it left would never be answered.
  void abandon_and_abort() {
    const MutexLock lock(mutex_);
    if (ended_) return;
    abandon();
    abort();
  }

  void abort() CKFS_REQUIRES(mutex_) {
    if (const Result<bool> aborted = keeper_.abort(); !aborted || !*aborted) {
      spdlog::warn("{}: its connection cannot be aborted (fusectl): readers wait for the source",
                   keeper_.target().native());
    }
  }

  /// Waits for one event: two signals that come before the first is read still count as two. Or for
  /// the end of the connection: the mount is no longer used, or was aborted.
  void wait_for_event() const {
    std::array<pollfd, 2> polled = {pollfd{.fd = event_, .events = POLLIN, .revents = 0},
                                    pollfd{.fd = device_, .events = 0, .revents = 0}};
    while (::poll(polled.data(), polled.size(), -1) < 0 && errno == EINTR) {
    }
    if (polled[0].revents == 0) return;
    std::uint64_t count = 0;
    while (::read(event_, &count, sizeof count) < 0 && errno == EINTR) {
    }
  }

  /// Detaches the mount. The kernel ends the session when its last user is gone, or at once if
  /// there is none. False: the mount cannot be detached now.
  bool detach() {
    {
      const MutexLock lock(mutex_);
      if (ended_ || used_ == nullptr || is_gone(device_)) return false;
    }
    // Without the lock: fusermount3 looks at the mount, and the loop answers.
    const Result<bool> unmounted = keeper_.unmount();
    if (!unmounted || !*unmounted) return false;
    const MutexLock lock(mutex_);
    detached_ = true;
    if (const std::size_t files = used_->open_files(); files > 0 && !ended_) {
      spdlog::warn(
          "{}: detached by a signal; {} files are open or mapped and served until they "
          "are closed (a second signal ends that)",
          keeper_.target().native(), files);
    }
    return true;
  }

  void announce() {
    // The kernel holds this back until the handshake is done, so an answer means that all is up.
    // Of a mount in another namespace there is no path to ask by.
    struct stat status{};
    if (!keeper_.is_adopted() && ::stat(keeper_.target().c_str(), &status) != 0) {
      return;  // unmounted before
    }
    {
      // Otherwise the directory below the mount has answered.
      const MutexLock lock(mutex_);
      if (ended_ || is_gone(device_)) return;
    }
    ready_();
  }

  /// Again and again: the main thread may be just about to sleep when it is woken.
  void stop_loop(Clock::time_point patient, Clock::time_point last) {
    bool asked = false;
    MutexLock lock(mutex_);
    while (!ended_) {
      const auto now = Clock::now();
      if (now > patient && !std::exchange(asked, true)) {
        lock.unlock();
        reads_.stop_all();
        lock.lock();
        continue;
      }
      if (now > last) {
        abandon();
        abort();
        close_device();
        give_up_();
        return;
      }
      ::fuse_session_exit(session_);
      ::pthread_kill(main_, SIGTERM);
      (void)changed_.wait_until(lock, now + kWakeAgain);
    }
  }

  /// Gives up: the source does not answer, or a request takes long, and no thread can be taken out
  /// of it. Readers need not wait for that.
  void abandon() CKFS_REQUIRES(mutex_) {
    if (std::exchange(abandoned_, true)) return;
    spdlog::warn(
        "{}: the source has not answered for {} s: given up (as long as it does not "
        "answer, the kernel may keep process {})",
        keeper_.target().native(), std::chrono::duration<double>(kGrace).count(), ::getpid());
    const bool is_there = !detached_ && !is_gone(device_);
    const Result<void> unmounted = is_there ? take_away(keeper_) : Result<void>();
    if (!unmounted) spdlog::error("{}", unmounted.error().message());
  }

  /// Below the loop, by which the kernel ends all requests; /dev/null takes its number, and what
  /// late answers there are. Requires: no notification is under way.
  void close_device() const {
    const UniqueFd null(::open("/dev/null", O_RDWR | O_CLOEXEC));
    if (null) ::dup3(null.get(), device_, O_CLOEXEC);
  }

  fuse_session* const session_;
  const int device_;
  NameForgetter& forgetter_;
  PageStore& pages_;
  ReadsUnderWay& reads_;
  const int event_;
  MountKeeper& keeper_;
  const Filesystem* const used_;  // nullptr: no matter what is open
  const std::function<void()> ready_;
  const std::function<void()> give_up_;
  const pthread_t main_;
  Mutex mutex_;      // guards the session's life, too, where ended_ is false
  CondVar changed_;  // ended_
  bool ended_ CKFS_GUARDED_BY(mutex_) = false;
  bool detached_ CKFS_GUARDED_BY(mutex_) = false;
  bool abandoned_ CKFS_GUARDED_BY(mutex_) = false;
  std::optional<std::thread> thread_;
};

void log_from_libfuse(fuse_log_level level, const char* format, va_list arguments) {
  std::array<char, 512> text{};
  std::vsnprintf(text.data(), text.size(), format, arguments);
  std::string_view line(text.data());
  while (line.ends_with('\n')) line.remove_suffix(1);
  spdlog::log(level <= FUSE_LOG_WARNING ? spdlog::level::warn : spdlog::level::debug, "libfuse: {}",
              line);
}

/// A libfuse session that ends with its owner; nullptr where there is no memory for it.
struct SessionCloser {
  void operator()(fuse_session* session) const { ::fuse_session_destroy(session); }
};
using Session = std::unique_ptr<fuse_session, SessionCloser>;

Session make_session(Served& served, int device) {
  ::fuse_set_log_func(log_from_libfuse);
  std::string program = "ckfs";
  std::array<char*, 2> arguments = {program.data(), nullptr};
  fuse_args args = FUSE_ARGS_INIT(1, arguments.data());
  const fuse_lowlevel_ops operations = make_operations();
  Session session(::fuse_session_new(&args, &operations, sizeof operations, &served));
  ::fuse_opt_free_args(&args);
  // With such a path libfuse takes over a device that is mounted already.
  const std::string path = fmt::format("/dev/fd/{}", device);
  if (session && ::fuse_session_mount(session.get(), path.c_str()) != 0) session.reset();
  return session;
}

/// The result of libfuse if it could not start its first thread; all others are negative errnos,
/// and reading from /dev/fuse never gives EPERM.
constexpr int kNoThread = -1;

int run_loop(fuse_session* session) {
  fuse_loop_config* config = ::fuse_loop_cfg_create();
  ::fuse_loop_cfg_set_max_threads(config, kThreads);
  // Idle threads stay: making them anew costs more than they do.
  ::fuse_loop_cfg_set_idle_threads(config, kThreads);
  const int result = ::fuse_session_loop_mt(session, config);
  ::fuse_loop_cfg_destroy(config);
  return result;
}

/// Only the source and the daemon's own directories can be read from here on. The threads of the
/// loop are not started yet.
Result<void> confine(const MountOptions& options) {
  ::tzset();  // the log's times: its file is read now
  std::vector<stdfs::path> readable = paths_covering(options.source_files);
  readable.insert(readable.end(), options.own_directories.begin(), options.own_directories.end());
  CKFS_TRY_VOID(confine_reading(readable));
  return {};
}

/// serve_mount() from its mount on. `is_there`: whether the mount is, for the caller to take away.
Result<void> serve_device(Filesystem& filesystem, MountKeeper& keeper, const MountOptions& options,
                          const std::function<void()>& ready, UniqueFd device, int event,
                          bool& is_there) {
  const stdfs::path& target = keeper.target();
  if (options.confined) CKFS_TRY_VOID(confine(options));

  std::optional<NameForgetter> forgetter;
  std::shared_ptr<PageStore> pages;
  std::optional<ReadsUnderWay> reads;
  Served served{.filesystem = filesystem,
                .direct = options.direct,
                .others = options.allow_other,
                .user = ::geteuid(),
                .group = ::getegid(),
                .forget_name = [&](std::string name) { forgetter->add(std::move(name)); }};
  const int number = device.get();
  Session session = make_session(served, number);
  if (!session) {
    return fail(ErrorCode::Io, "{}: libfuse could not make a session", target.native());
  }
  [[maybe_unused]] const int owned_by_session = device.release();

  forgetter.emplace(session.get());
  pages = std::make_shared<PageStore>(session.get());
  reads.emplace([&keeper, number](pid_t thread, bool direct) {
    if (is_gone(number)) return true;  // all of them are
    const Result<bool> gone = keeper.is_gone(thread, direct);
    return gone && *gone;
  });
  served.reads = &*reads;
  // Shared: readers that are still open at the end keep what they were opened with.
  served.deliver = [pages](InodeNumber inode, std::uint64_t offset,
                           std::span<const std::byte> bytes) {
    return pages->put(inode, offset, bytes);
  };
  Watcher watcher(
      session.get(), number, *forgetter, *pages, *reads, event, keeper,
      options.stop_now ? nullptr : &filesystem,
      [&] {
        spdlog::info("{}: mounted {}", target.native(), options.source);
        ready();
      },
      options.give_up);
  const auto no_thread = [&] {
    return fail(ErrorCode::Io,
                "{}: no thread can be started to serve it (limit: pids.max, ulimit -u)",
                target.native());
  };
  if (!watcher.start()) return no_thread();
  const int result = run_loop(session.get());
  watcher.loop_ended();

  const bool gone = is_gone(number);
  const bool taken_away = watcher.taken_away();
  is_there = false;
  // No thread answers any more: a notification that waits for an answer would never end.
  if (!gone) (void)keeper.abort();
  Result<void> unmounted;
  if (!gone && !taken_away) unmounted = take_away(keeper);
  pages->stop(kForever);
  forgetter->stop(kForever);
  session.reset();  // closes the device: readers that are left get ENOTCONN, none hangs
  watcher.join();
  spdlog::info("{}: unmounted{}", target.native(), gone && !taken_away ? "" : " by a signal");
  CKFS_TRY_VOID(unmounted);
  if (result == kNoThread) return no_thread();
  if (result < 0) {
    return fail(ErrorCode::Io, "{}: FUSE session: {}", target.native(), std::strerror(-result));
  }
  return {};
}

}  // namespace

Result<void> serve_mount(Filesystem& filesystem, MountKeeper& keeper, const MountOptions& options,
                         const std::function<void()>& ready) {
  const stdfs::path& target = keeper.target();
  if (!keeper.is_adopted()) {
    CKFS_TRY_VOID(check_mountpoint(target, options.source));  // opening may have taken long
    CKFS_TRY_VOID(check_hides_none(target, options.source_files));
  }
  const UniqueFd event(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
  if (!event) return system_failure(errno, target.native(), "eventfd");
  // Before the mount: a signal from here on must not leave it behind.
  const SignalsToEvent signals(event.get());
  CKFS_TRY(UniqueFd device, keeper.mount());
  bool is_there = true;
  const Result<void> served = or_failure("serving the mount", [&] {
    return serve_device(filesystem, keeper, options, ready, std::move(device), event.get(),
                        is_there);
  });
  const Result<void> taken = is_there ? take_away(keeper) : Result<void>();
  if (served || taken) return served ? taken : served;
  spdlog::error("{}", taken.error().message());
  return served;
}

}  // namespace ckfs
