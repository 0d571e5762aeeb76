// Plain web servers: `https://host/path/model.safetensors`, or a directory `https://host/path/`
// whose files are named by what model directories have, and by their index.
//
// A server must send ranges. A file whose server says no ETag is told by its size and
// Last-Modified, and the source is not pinned (RemoteSource::is_pinned).
#pragma once

#include <memory>

#include "fetcher/service.h"

namespace ckfs {

/// Errors: InvalidArgument (--header-file has something else), Io.
Result<std::unique_ptr<Service>> make_web(const ServiceContext& context,
                                          const SourceLocation& location,
                                          const RemoteOptions& options, bool is_file);

/// The login and password that a netrc file has for a host, as "user:password" percent-encoded;
/// empty: none.
std::string find_netrc(std::string_view text, std::string_view host);

}  // namespace ckfs
