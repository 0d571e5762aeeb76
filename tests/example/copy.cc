// ckfs-copy CHECKPOINT VIEW OUT
//
// Writes a view to a directory, compares the copy with the view, and prints its digests as
// sha256sum(1) does. A signal ends it, and the next run continues from there.
#include <csignal>
#include <cstdint>
#include <iostream>
#include <pthread.h>
#include <stop_token>
#include <thread>

#include <ckfs/check.h>
#include <ckfs/checkpoint.h>
#include <ckfs/export.h>

namespace {

int report(const ckfs::Error& error) {
  std::cerr << "ckfs-copy: " << error.message() << '\n';
  return 1;
}

/// Asks for an end at the first SIGINT. Made before any thread, because these inherit the mask.
class Interrupt {
 public:
  Interrupt() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] {
      int number = 0;
      sigwait(&signals_, &number);
      stop_.request_stop();
    });
  }
  ~Interrupt() {
    pthread_kill(thread_.native_handle(), SIGINT);
    thread_.join();
  }
  std::stop_token token() const { return stop_.get_token(); }

 private:
  sigset_t signals_{};
  std::stop_source stop_;
  std::thread thread_;
};

}  // namespace

int main(int count, char** arguments) {
  if (count != 4) {
    std::cerr << "usage: ckfs-copy CHECKPOINT VIEW OUT\n";
    return 2;
  }
  const Interrupt interrupt;
  const std::stop_token stop = interrupt.token();
  const auto checkpoint = ckfs::Checkpoint::open(arguments[1], {.stop = stop});
  if (!checkpoint) return report(checkpoint.error());
  const auto view = checkpoint->view(arguments[2]);
  if (!view) return report(view.error());

  const auto show = [](std::uint64_t done, std::uint64_t total) {
    std::cerr << '\r' << done << " of " << total << " bytes";
  };
  const auto written = ckfs::export_view(*view, arguments[3], {.stop = stop, .progress = show});
  std::cerr << '\n';
  if (!written) return report(written.error());
  std::cerr << written->files << " files, " << written->bytes << " bytes written; "
            << written->files_kept << " files were there\n";

  const auto compared = ckfs::verify_copy(*view, arguments[3], {.stop = stop});
  if (!compared) return report(compared.error());
  for (const ckfs::Difference& difference : compared->differences) {
    std::cerr << difference.path << ": " << difference.text << '\n';
  }
  if (compared->differing > 0) return 1;

  const auto digests = ckfs::digest_view(*view, {.stop = stop});
  if (!digests) return report(digests.error());
  for (const ckfs::FileDigest& file : digests->files) {
    std::cout << file.sums.at(ckfs::Algorithm::Sha256) << "  " << file.path << '\n';
  }
  return 0;
}
