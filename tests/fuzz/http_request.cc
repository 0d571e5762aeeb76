// Fuzz target: requests of clients, as `ckfs serve` parses them, with the ranges and signatures in
// them. What is accepted is within its bounds, and no request passes without the key.
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "fuzz/work_limit.h"
#include "serve/access.h"
#include "serve/conditions.h"
#include "serve/request.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ckfs;
  const WorkLimit limit(size);
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const TakenRequest taken = take_request(bytes);
  if (taken.bad) {
    CKFS_CHECK(taken.bad->status >= 400 && taken.bad->status <= 505);
    return 0;
  }
  CKFS_CHECK(taken.used <= size);
  if (taken.used == 0) return 0;
  const ServeRequest& request = taken.request;
  CKFS_CHECK(request.path.starts_with('/') && request.path.find('\0') == std::string::npos);
  CKFS_CHECK(request.headers.size() <= kMostRequestHeaders);
  const std::uint64_t total = size % 3 == 0 ? 0 : size * 7919;
  const AskedBytes asked = asked_bytes(request, "tag", 1'700'000'000, total);
  CKFS_CHECK(asked.range.begin <= asked.range.end && asked.range.end <= total);
  CKFS_CHECK(asked.wanted != Wanted::Part || !asked.range.empty());
  CKFS_CHECK(check_key(request, {"id", "a secret of the test", ""}, 1'700'000'000));
  (void)is_own_name(request.host);
  return 0;
}
