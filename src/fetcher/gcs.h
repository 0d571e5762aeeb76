// Google Cloud Storage: `gs://bucket/prefix`, by its JSON API. An object is asked for under the
// generation that was listed, so that one that was replaced is gone and never mixed.
#pragma once

#include <memory>

#include "fetcher/service.h"

namespace ckfs {

/// Errors: InvalidArgument (an endpoint is not a URL).
Result<std::unique_ptr<Service>> make_gcs(const ServiceContext& context,
                                          const SourceLocation& location,
                                          const RemoteOptions& options, bool is_file);

}  // namespace ckfs
