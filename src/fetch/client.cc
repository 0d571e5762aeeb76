// The program is started by posix_spawn, with two descriptors and an environment: secrets are in
// the environment or in files that it reads itself, and what else it must know comes by messages.

#include "fetch/client.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <map>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/mutex.h"
#include "fetch/fetch_queue.h"
#include "fetch/shared_memory.h"

namespace ckfs {
namespace {

Result<pid_t> spawn_fetcher(const FetchClientOptions& options, int socket, int memory,
                            int its_log) {
  // Above the numbers that they get there, or one would overwrite the other.
  const UniqueFd high_socket(::fcntl(socket, F_DUPFD_CLOEXEC, 10));
  const UniqueFd high_memory(::fcntl(memory, F_DUPFD_CLOEXEC, 10));
  const UniqueFd high_log(::fcntl(its_log, F_DUPFD_CLOEXEC, 10));
  if (!high_socket || !high_memory) return system_failure(errno, options.program, "descriptors");
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDWR, 0);
  const int log = high_log ? high_log.get() : 0;
  ::posix_spawn_file_actions_adddup2(&actions, log, 1);
  ::posix_spawn_file_actions_adddup2(&actions, log, 2);
  ::posix_spawn_file_actions_adddup2(&actions, high_socket.get(), kFetcherSocket);
  ::posix_spawn_file_actions_adddup2(&actions, high_memory.get(), kFetcherMemory);
  sigset_t none;
  ::sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  // A session of its own: a terminal's Ctrl-C is for the program that the user has started.
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSID);
  std::string program = options.program;
  std::string connections = fmt::format("--connections={}", options.connections);
  std::string timeout = fmt::format("--timeout-ms={}", options.timeout.count());
  std::array<char*, 4> arguments = {program.data(), connections.data(), timeout.data(), nullptr};
  pid_t process = 0;
  const int error = ::posix_spawn(&process, options.program.c_str(), &actions, &attributes,
                                  arguments.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (error == ENOENT) {
    return fail(ErrorCode::NotFound,
                "{}: not there, and sources that are not on this machine need it (install the "
                "package ckfs-remote)",
                options.program);
  }
  if (error != 0) return system_failure(error, options.program, "posix_spawn");
  return process;
}

}  // namespace

class FetchClient::Impl {
 public:
  Impl(std::unique_ptr<FetchQueue> queue, pid_t process)
      : queue_(std::move(queue)), process_(process) {}

  ~Impl() {
    queue_.reset();  // closes the socket, by which the supervisor ends
    // A daemon that was forked since is not its parent: then there is nothing to wait for.
    while (::waitpid(process_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  FetchQueue& queue() { return *queue_; }
  pid_t process() const { return process_; }
  std::uint32_t next_source() { return next_source_++; }

  void add(std::uint32_t number, const RemoteSource& source, const RemoteOptions& options,
           std::uint32_t known_to) {
    queue_->set_source(number, pack(AttachRequest{source.pinned, options, source.is_file, {}}),
                       known_to);
    const MutexLock lock(mutex_);
    objects_[number] = source.objects;
  }

  Result<Opened> open_once(const SourceLocation& location, const RemoteOptions& options,
                           const RemoteSource* known, bool& is_lost);

  /// The object, packed. Errors: InvalidArgument.
  Result<std::string> pack_object(std::uint32_t source, std::size_t object, ByteRange range) {
    const MutexLock lock(mutex_);
    const auto found = objects_.find(source);
    if (found == objects_.end() || object >= found->second.size() || range.empty() ||
        range.end > found->second[object].size || range.size() > queue_->memory() / 4) {
      return fail(ErrorCode::InvalidArgument, "fetcher: no such source, object or range");
    }
    return pack(found->second[object]);
  }

  FetchStats stats(std::chrono::milliseconds patience);

 private:
  /// Counts that were heard, and the condition of those that wait for newer ones.
  struct Heard {
    Mutex mutex;
    CondVar changed;
    FetchStats earlier CKFS_GUARDED_BY(mutex);  // of generations that are dead
    FetchStats last CKFS_GUARDED_BY(mutex);     // of `generation`
    std::uint32_t generation CKFS_GUARDED_BY(mutex) = 0;
    bool is_asked CKFS_GUARDED_BY(mutex) = false;  // one question is enough for all that wait
  };

  std::unique_ptr<FetchQueue> queue_;
  const pid_t process_;
  const std::shared_ptr<Heard> heard_ = std::make_shared<Heard>();
  std::atomic<std::uint32_t> next_source_ = 1;
  Mutex mutex_;
  std::map<std::uint32_t, std::vector<RemoteObject>> objects_ CKFS_GUARDED_BY(mutex_);
};

FetchStats FetchClient::Impl::stats(std::chrono::milliseconds patience) {
  const auto add = [](FetchStats& to, const FetchStats& from) {
    to.requests += from.requests;
    to.bytes += from.bytes;
    to.wanted += from.wanted;
    to.retries += from.retries;
    to.faults += from.faults;
  };
  FetchMessage message;
  message.kind = FetchMessageKind::Stats;
  MutexLock lock(heard_->mutex);
  const bool asks = !std::exchange(heard_->is_asked, true);
  lock.unlock();
  const auto heed = [heard = heard_, add](Result<FetchedBytes> bytes, const FetchMessage& answer) {
    const MutexLock its_lock(heard->mutex);
    heard->is_asked = false;
    heard->changed.notify_all();
    if (!bytes) return;
    const std::span<const std::byte> text = bytes->span();
    const auto stats = unpack_stats({reinterpret_cast<const char*>(text.data()), text.size()});
    if (!stats) return;
    if (heard->generation != answer.generation) add(heard->earlier, heard->last);
    heard->generation = answer.generation;
    heard->last = *stats;
  };
  if (asks) queue_->ask(message, "", kLeastPlace, heed);
  const auto until = std::chrono::steady_clock::now() + patience;
  lock.lock();
  while (heard_->is_asked && heard_->changed.wait_until(lock, until)) {
  }
  FetchStats sum = heard_->last;
  add(sum, heard_->earlier);
  return sum;
}

Result<FetchClient::Opened> FetchClient::Impl::open_once(const SourceLocation& location,
                                                         const RemoteOptions& options,
                                                         const RemoteSource* known, bool& is_lost) {
  const std::size_t capacity = std::min<std::size_t>(queue_->memory() / 4, std::size_t{1} << 20);
  Opened opened{next_source(), {}};
  FetchMessage message, answer;
  message.kind = FetchMessageKind::Open;
  message.source = opened.number;
  CKFS_TRY(
      const std::string head,
      queue_->ask_now(message,
                      pack(AttachRequest{.location = location,
                                         .options = options,
                                         .known = known == nullptr ? "" : known->pinned.revision}),
                      capacity, answer));
  const std::uint32_t generation = answer.generation;
  const std::uint64_t count = answer.object;
  CKFS_TRY(opened.source, unpack_head(head));
  if (count == 0 && known != nullptr && !known->pinned.revision.empty() &&
      opened.source.pinned == known->pinned) {
    // Attached anew: the fetcher that said so has seen no listing.
    opened.source = *known;
    add(opened.number, opened.source, options, 0);
    return opened;
  }
  if (count > kMostObjects) return fail(ErrorCode::Corrupt, "fetcher: too many objects");
  message.kind = FetchMessageKind::List;
  while (opened.source.objects.size() < count) {
    message.object = opened.source.objects.size();
    const auto page = queue_->ask_now(message, "", capacity, answer);
    if (!page && page.error().code() == ErrorCode::Stopped) return Failure(page.error());
    if (answer.generation != generation) {  // the one that had the listing is dead
      is_lost = true;
      return fail(ErrorCode::Io, "ckfs-fetcher died while it listed {}", location.masked());
    }
    if (!page) return Failure(page.error());
    CKFS_TRY(auto objects, unpack_objects(*page));
    if (objects.empty() || opened.source.objects.size() + objects.size() > count) {
      return fail(ErrorCode::Corrupt, "fetcher: a listing that has no end");
    }
    std::ranges::move(objects, std::back_inserter(opened.source.objects));
  }
  add(opened.number, opened.source, options, generation);
  return opened;
}

Result<std::unique_ptr<FetchClient>> FetchClient::start(const FetchClientOptions& options) {
  constexpr std::size_t kLeastMemory = std::size_t{1} << 20;
  constexpr std::size_t kMostMemory = std::size_t{4} << 30;
  CKFS_TRY(SharedMemory memory,
           SharedMemory::make(std::clamp(options.memory, kLeastMemory, kMostMemory)));
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    return system_failure(errno, "fetcher", "socketpair");
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  const int shared = memory.descriptor();
  std::array<int, 2> log{-1, -1};
  // A fetcher waits for no reader of its log: lines that the pipe does not take are lost.
  if (options.relays_log && ::pipe2(log.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    return system_failure(errno, "fetcher", "pipe");
  }
  UniqueFd our_log(log[0]);
  const UniqueFd its_log(log[1]);
  CKFS_TRY(auto queue, FetchQueue::make(std::move(ours), std::move(memory), options.timeout,
                                        std::move(our_log)));
  CKFS_TRY(const pid_t process,
           spawn_fetcher(options, theirs.get(), shared, its_log ? its_log.get() : STDERR_FILENO));
  return std::unique_ptr<FetchClient>(
      new FetchClient(std::make_unique<Impl>(std::move(queue), process)));
}

FetchClient::FetchClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FetchClient::~FetchClient() = default;

Result<FetchClient::Opened> FetchClient::open(const SourceLocation& location,
                                              const RemoteOptions& options,
                                              const RemoteSource* known) {
  constexpr int kMostTries = 3;
  for (int tries = 1;; ++tries) {
    bool is_lost = false;
    auto opened = impl_->open_once(location, options, known, is_lost);
    if (opened || !is_lost || tries == kMostTries) return opened;
  }
}

Result<std::uint32_t> FetchClient::attach(const RemoteSource& source,
                                          const RemoteOptions& options) {
  const std::uint32_t number = impl_->next_source();
  impl_->add(number, source, options, 0);
  return number;
}

std::uint64_t FetchClient::read(std::uint32_t source, std::size_t object, ByteRange range,
                                Done done) {
  auto answered = [size = range.size(), done = std::move(done)](Result<FetchedBytes> bytes,
                                                                const FetchMessage& /*answer*/) {
    if (bytes && bytes->span().size() != size) {
      return done(fail(ErrorCode::Internal, "fetcher: an answer of another size"));
    }
    done(std::move(bytes));
  };
  auto input = impl_->pack_object(source, object, range);
  if (!input) return impl_->queue().refuse(std::move(answered), input.error());
  FetchMessage message;
  message.kind = FetchMessageKind::Read;
  message.source = source;
  message.size = range.size();
  message.offset = range.begin;
  return impl_->queue().ask(message, *std::move(input), std::max(range.size(), kLeastPlace),
                            std::move(answered));
}

void FetchClient::cancel(std::uint64_t read) {
  impl_->queue().cancel(read);
}

Result<void> FetchClient::read_now(std::uint32_t source, std::size_t object, ByteRange range,
                                   std::span<std::byte> to) {
  if (to.size() != range.size()) {
    return fail(ErrorCode::InvalidArgument, "fetcher: a place of another size");
  }
  CKFS_TRY(std::string input, impl_->pack_object(source, object, range));
  FetchMessage message, answer;
  message.kind = FetchMessageKind::Read;
  message.source = source;
  message.size = range.size();
  message.offset = range.begin;
  CKFS_TRY(
      const std::string bytes,
      impl_->queue().ask_now(message, std::move(input), std::max(to.size(), kLeastPlace), answer));
  if (bytes.size() != to.size()) {
    return fail(ErrorCode::Internal, "fetcher: an answer of another size");
  }
  std::memcpy(to.data(), bytes.data(), to.size());
  return {};
}

FetchStats FetchClient::stats(std::chrono::milliseconds patience) {
  return impl_->stats(patience);
}

std::uint32_t FetchClient::generation() const {
  return impl_->queue().generation();
}
pid_t FetchClient::process() const {
  return impl_->process();
}
std::size_t FetchClient::longest_read() const {
  return impl_->queue().memory() / 4;
}

}  // namespace ckfs
