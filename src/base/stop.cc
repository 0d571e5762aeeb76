#include "base/stop.h"

#include <utility>

namespace ckfs {
namespace {

/// nullptr: nothing that this thread does is ever to be given up.
thread_local const StopScope* innermost_scope = nullptr;

}  // namespace

StopScope::StopScope(std::stop_token token) : token_(std::move(token)), outer_(innermost_scope) {
  innermost_scope = this;
}

StopScope::~StopScope() {
  innermost_scope = outer_;
}

std::stop_token StopScope::token() {
  return innermost_scope == nullptr ? std::stop_token() : innermost_scope->token_;
}

bool StopScope::asked() noexcept {
  return innermost_scope != nullptr && innermost_scope->token_.stop_requested();
}

bool stop_asked() noexcept {
  return StopScope::asked();
}

Failure stopped(std::string_view thing) {
  return fail(ErrorCode::Stopped, "{}: stopped", thing);
}

}  // namespace ckfs
