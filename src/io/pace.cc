// Two measurements in a row that agree decide, or one that is beyond doubt, and the decision stays:
// one that is wrong costs speed and no byte (of a server that streams nearly all speed: so there
// are more votes where one is worth little), but comparing again and again would make a stream
// start over each time. A busy moment can fool one measurement; the threshold is 1.5, where two in
// flight give 2 from a source that answers each request for itself and 1 from one that streams.
#include "io/pace.h"

namespace ckfs {
namespace {

constexpr double kGain = 1.5;
/// As four at once give nearly 4: no busy moment does that.
constexpr double kClearGain = 3;
constexpr int kVotes = 2;
constexpr int kDoubtfulVotes = 6;  // for asking at once; against it two are enough

}  // namespace

bool Pace::at_once() const {
  const MutexLock lock(mutex_);
  return at_once_;
}

bool Pace::wants_comparison() const {
  const MutexLock lock(mutex_);
  return votes_ > -kVotes && !at_once_;
}

void Pace::compared(std::chrono::duration<double> in_order, std::chrono::duration<double> at_once,
                    Trust trust) {
  const MutexLock lock(mutex_);
  if (votes_ <= -kVotes || at_once_) return;  // another thread was faster
  const bool gains = in_order > kGain * at_once;
  if (gains != (votes_ > 0)) votes_ = 0;
  const bool clear = trust == Trust::Much && in_order > kClearGain * at_once;
  votes_ += !gains ? -1 : clear ? kVotes : 1;
  at_once_ = votes_ >= (trust == Trust::Much ? kVotes : kDoubtfulVotes);
}

}  // namespace ckfs
