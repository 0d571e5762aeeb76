// S3 and compatible servers: `s3://bucket/prefix` (Amazon S3 API Reference).
//
// One listing of the prefix gives names, sizes and ETags; every range is asked for under the ETag
// of its object (If-Match) and checked to be of it. The bucket's region is the one that is
// configured, or the one that S3 names when it is asked in another.
#pragma once

#include <memory>

#include "fetcher/service.h"

namespace ckfs {

/// Errors: InvalidArgument (an endpoint is not a URL).
Result<std::unique_ptr<Service>> make_s3(const ServiceContext& context,
                                         const SourceLocation& location,
                                         const RemoteOptions& options, bool is_file);

}  // namespace ckfs
