#include "serve/served_views.h"

#include <algorithm>
#include <fmt/format.h>

#include "api/report.h"
#include "base/error.h"
#include "wire/crypto.h"

namespace ckfs {
namespace {

/// Characters of a tag and of a commit: those of a name in git, which the hub's clients expect.
constexpr std::size_t kDigits = 40;

std::string digest(std::string_view text) {
  return to_hex(sha256(text)).substr(0, kDigits);
}

}  // namespace

ServedView::ServedView(View view, std::uint64_t fingerprint)
    : view_(std::move(view)),
      files_(view_.files()),
      identity_(
          fmt::format("ckfs view\n{:016x}\n{}\n{}\n", fingerprint, kLayoutVersion, view_.name())),
      commit_(digest(identity_)) {}

std::string ServedView::tag(const FileInfo& file) const {
  return digest(fmt::format("{}{}\n{}", identity_, file.size, file.path));
}

ServedViews::ServedViews(Checkpoint checkpoint, std::uint64_t most_bytes)
    : checkpoint_(std::move(checkpoint)), most_bytes_(most_bytes) {
  for (const ViewInfo& view : checkpoint_.views()) {
    if (view.available) names_.push_back(view.name);
  }
  // As keys begin with them: a name is sorted with the '/' behind it.
  std::ranges::sort(names_, [](const auto& a, const auto& b) { return a + '/' < b + '/'; });
}

bool ServedViews::is_plain(std::string_view name) const {
  return std::ranges::find(names_, name) != names_.end();
}

Result<std::shared_ptr<const ServedView>> ServedViews::find(std::string_view spelling) {
  {
    const MutexLock lock(mutex_);
    const auto at = std::ranges::find(held_, spelling, &Held::spelling);
    if (at != held_.end()) {
      held_.splice(held_.begin(), held_, at);
      return at->view;
    }
  }
  CKFS_TRY(View view, checkpoint_.view(spelling));
  Held made{.spelling = std::string(spelling),
            .view = nullptr,
            .bytes = memory_of(view),
            .plain = is_plain(view.name())};
  const MutexLock lock(mutex_);
  // Under another spelling it is the same view.
  const auto same = std::ranges::find_if(
      held_, [&](const Held& each) { return each.view->view().name() == view.name(); });
  if (same != held_.end()) {
    held_.splice(held_.begin(), held_, same);
    if (!same->plain) same->spelling = spelling;
    return same->view;
  }
  made.view = std::make_shared<const ServedView>(std::move(view), checkpoint_.fingerprint());
  if (made.plain) made.spelling = made.view->view().name();
  held_.push_front(std::move(made));
  std::size_t count = 0;
  std::uint64_t bytes = 0;
  for (auto at = held_.begin(); at != held_.end();) {
    const auto here = at++;
    if (here->plain) continue;
    bytes += here->bytes;
    if (++count == 1 || (count <= kMostHeld && bytes <= most_bytes_)) continue;
    bytes -= here->bytes;
    held_.erase(here);
  }
  return held_.front().view;
}

std::shared_ptr<const ServedView> ServedViews::find_commit(std::string_view name,
                                                           std::string_view commit) {
  {
    const MutexLock lock(mutex_);
    for (const Held& each : held_) {
      const std::string& whole = each.view->view().name();
      const bool is_of_it =
          whole == name || (whole.starts_with(name) && whole.substr(name.size()).starts_with('@'));
      if (is_of_it && each.view->commit() == commit) return each.view;
    }
  }
  auto plain = find(name);
  return plain && (*plain)->commit() == commit ? *plain : nullptr;
}

}  // namespace ckfs
