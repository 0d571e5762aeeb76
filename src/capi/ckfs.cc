// The C library over the public API: handles that own, texts that are lent, errors that are
// objects. No exception leaves it: a caller in another language could not catch one.
#include <atomic>
#include <charconv>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ckfs/budget.h>
#include <ckfs/check.h>
#include <ckfs/checkpoint.h>
#include <ckfs/ckfs.h>
#include <ckfs/export.h>
#include <ckfs/log.h>
#include <ckfs/open_option.h>
#include <ckfs/report.h>

#include "api/report_json.h"
#include "api/result_json.h"
#include "api/status.h"
#include "base/size_text.h"
#include "base/stop.h"
#include "base/suggest.h"
#include "base/text.h"
#include "check/digest.h"
#include "check/verify.h"
#include "export/exporter.h"
#include "fetch/location.h"

struct ckfs_task {
  std::stop_source stop;
  std::atomic<std::uint64_t> done{0};
  std::atomic<std::uint64_t> total{0};
};

struct ckfs_budget {
  ckfs::Budget budget;
};

struct ckfs_checkpoint {
  ckfs::Checkpoint checkpoint;
  std::string source;  // as reports show it
};

struct ckfs_view {
  std::string source;
  ckfs::View view;
  ckfs::FileList files;
  ckfs::ViewTensors tensors;
};

struct ckfs_file {
  ckfs::View view;
  std::string path;
  ckfs::ViewFile file;
};

namespace ckfs::capi {

namespace {

static_assert(CKFS_BIT_EXACT == static_cast<int>(Exactness::BitExact));
static_assert(CKFS_EXACT == static_cast<int>(Exactness::Exact));
static_assert(CKFS_LOSSY == static_cast<int>(Exactness::Lossy));

/// The numbers do not follow ErrorCode: that may be sorted anew.
std::int32_t code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::NotFound:
      return CKFS_NOT_FOUND;
    case ErrorCode::Corrupt:
      return CKFS_CORRUPT;
    case ErrorCode::Unsupported:
      return CKFS_UNSUPPORTED;
    case ErrorCode::InvalidArgument:
      return CKFS_INVALID_ARGUMENT;
    case ErrorCode::Io:
      return CKFS_IO;
    case ErrorCode::Stale:
      return CKFS_STALE;
    case ErrorCode::OutOfMemory:
      return CKFS_OUT_OF_MEMORY;
    case ErrorCode::Stopped:
      return CKFS_STOPPED;
    case ErrorCode::Internal:
    case ErrorCode::NotDirectory:
    case ErrorCode::IsDirectory:
    case ErrorCode::ReadOnly:
    case ErrorCode::BadHandle:
    case ErrorCode::NoAttribute:
      break;
  }
  return CKFS_INTERNAL;
}

struct OwnedError : ckfs_error {
  std::string text;  // that `message` is
};

/// Where there is no memory for another. It is never freed.
ckfs_error no_memory{CKFS_OUT_OF_MEMORY, 0, "out of memory"};

ckfs_error* make_error(const Error& error) {
  try {
    auto owned = std::make_unique<OwnedError>();
    owned->text = one_line(error.message());
    owned->code = code_of(error.code());
    owned->system_error = error.system_error();
    owned->message = owned->text.c_str();
    return owned.release();
  } catch (const std::bad_alloc&) {
    return &no_memory;
  }
}

ckfs_error* give(const Result<void>& result) {
  return result ? nullptr : make_error(result.error());
}

/// Runs `work`; nothing that it throws leaves.
template <typename Work>
ckfs_error* run(const Work& work) {
  return give(or_failure("ckfs", [&]() -> Result<void> { return work(); }));
}

std::stop_token stop_of(const ckfs_task* task) {
  return task == nullptr ? std::stop_token() : task->stop.get_token();
}

std::function<void(std::uint64_t done, std::uint64_t total)> progress_of(ckfs_task* task) {
  if (task == nullptr) return {};
  return [task](std::uint64_t done, std::uint64_t total) {
    task->total.store(total, std::memory_order_relaxed);
    task->done.store(done, std::memory_order_relaxed);
  };
}

/// The default logger of spdlog writes to stdout, which is the caller's.
void start_log_once() {
  static std::once_flag once;
  std::call_once(once, [] { set_log_sink({}); });
}

ckfs_text text_of(std::string_view text) {
  return {text.data(), text.size()};
}

void put(std::string text, ckfs_buffer& buffer) {
  auto owner = std::make_unique<std::string>(std::move(text));
  buffer = {owner->c_str(), owner->size(), owner.get()};
  (void)owner.release();
}

struct Option {
  std::string name;
  std::string value;
};

Result<std::vector<Option>> parse_options(const char* const* options) {
  std::vector<Option> parsed;
  for (; options != nullptr && *options != nullptr; ++options) {
    const std::string_view text = *options;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) {
      return fail(ErrorCode::InvalidArgument, "option {}: not of the form NAME=VALUE", quote(text));
    }
    parsed.push_back({std::string(text.substr(0, equals)), std::string(text.substr(equals + 1))});
  }
  return parsed;
}

Failure no_such_option(const Option& option, std::initializer_list<std::string_view> known) {
  const std::vector<std::string_view> names(known);
  return fail(ErrorCode::InvalidArgument, "{}: no such option{}", one_line(option.name),
              did_you_mean(option.name, names));
}

Result<unsigned> parse_jobs(const Option& option) {
  CKFS_TRY(const std::uint64_t jobs, parse_number(option.name, option.value));
  if (jobs > 1024) {
    return fail(ErrorCode::InvalidArgument, "jobs: {} are too many (at most 1024)", jobs);
  }
  return static_cast<unsigned>(jobs);
}

Result<double> parse_share(const Option& option) {
  double share = 0;
  const char* const end = option.value.data() + option.value.size();
  const auto parsed = std::from_chars(option.value.data(), end, share);
  if (parsed.ec != std::errc() || parsed.ptr != end || !(share > 0) || share > 1) {
    return fail(ErrorCode::InvalidArgument, "{}: \"{}\" is not a share (more than 0, at most 1)",
                option.name, one_line(option.value));
  }
  return share;
}

/// `budget`: nullopt: the checkpoint has memory of its own.
Result<OpenOptions> open_options(const char* const* options, std::optional<Budget> budget) {
  CKFS_TRY(const std::vector<Option> parsed, parse_options(options));
  OpenOptions open;
  open.use.memory = automatic_memory();
  open.use.budget = std::move(budget);
  for (const Option& option : parsed) {
    if (open.use.budget && option.name == "memory") {
      return fail(ErrorCode::InvalidArgument, "memory: the budget says it");
    }
    CKFS_TRY(const bool known, set_open_option(open, option.name, option.value));
    if (!known) {
      return fail(ErrorCode::InvalidArgument, "{}: no such option", one_line(option.name));
    }
  }
  return open;
}

Result<Budget> make_budget(const char* const* options) {
  CKFS_TRY(const std::vector<Option> parsed, parse_options(options));
  OpenOptions open;
  open.use.memory = automatic_memory();
  std::uint64_t for_servers = 0;
  for (const Option& option : parsed) {
    if (option.name == "memory") {
      CKFS_TRY_VOID(set_open_option(open, option.name, option.value));
    } else if (option.name == "for_servers") {
      CKFS_TRY(for_servers, parse_bytes(option.name, option.value, 0));
    } else {
      return no_such_option(option, {"memory", "for_servers"});
    }
  }
  return Budget::create(open.use.memory, for_servers);
}

Result<void> open(const char* source, const char* const* options, std::optional<Budget> budget,
                  ckfs_task* task, ckfs_checkpoint** checkpoint) {
  start_log_once();
  CKFS_TRY(OpenOptions open, open_options(options, std::move(budget)));
  open.stop = stop_of(task);
  CKFS_TRY(Checkpoint made, Checkpoint::open(source, open));
  *checkpoint = std::make_unique<ckfs_checkpoint>(std::move(made), shown_source(source)).release();
  return {};
}

/// Errors: InvalidArgument: a pointer that must not be NULL is.
template <typename... Pointers>
Result<void> check_given(const char* function, const Pointers*... pointers) {
  if ((... && (pointers != nullptr))) return {};
  return fail(ErrorCode::InvalidArgument, "{}: an argument is NULL", function);
}

/// The start of a verb's result: the source and the view.
nlohmann::ordered_json begin(const ckfs_view& view) {
  return begin_result(view.view, view.source);
}

class Clock {
 public:
  double seconds() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  }

 private:
  const std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace

}  // namespace ckfs::capi

using namespace ckfs;        // NOLINT(google-build-using-namespace): the functions below are C's
using namespace ckfs::capi;  // NOLINT(google-build-using-namespace)

ckfs_error* ckfs_task_new(ckfs_task** task) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_task_new", task));
    *task = new ckfs_task;
    return {};
  });
}

void ckfs_task_stop(ckfs_task* task) {
  if (task != nullptr) task->stop.request_stop();
}

void ckfs_task_progress(const ckfs_task* task, uint64_t* done, uint64_t* total) {
  if (task == nullptr) return;
  if (done != nullptr) *done = task->done.load(std::memory_order_relaxed);
  if (total != nullptr) *total = task->total.load(std::memory_order_relaxed);
}

void ckfs_task_free(ckfs_task* task) {
  delete task;
}

const char* ckfs_version(void) {
  static const std::string text(version());
  return text.c_str();
}

void ckfs_error_free(ckfs_error* error) {
  if (error == nullptr || error == &no_memory) return;
  delete static_cast<OwnedError*>(error);
}

void ckfs_buffer_release(ckfs_buffer* buffer) {
  if (buffer == nullptr) return;
  delete static_cast<std::string*>(buffer->owner);
  *buffer = {};
}

void ckfs_set_log(void (*log)(void* context, int32_t level, const char* line, uint64_t size),
                  void* context, int32_t level) {
  start_log_once();
  const auto least = static_cast<LogLevel>(level < 0 ? 0 : level > 4 ? 4 : level);
  try {
    if (log == nullptr) {
      set_log_sink({}, least);
    } else {
      set_log_sink(
          [log, context](LogLevel of, std::string_view line) {
            log(context, static_cast<int32_t>(of), line.data(), line.size());
          },
          least);
    }
  } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch)
    // No memory: the log stays where it was.
  }
}

ckfs_error* ckfs_open(const char* source, const char* const* options, ckfs_task* task,
                      ckfs_checkpoint** checkpoint) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_open", source, checkpoint));
    return open(source, options, std::nullopt, task, checkpoint);
  });
}

ckfs_error* ckfs_budget_new(const char* const* options, ckfs_budget** budget) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_budget_new", budget));
    CKFS_TRY(Budget made, make_budget(options));
    *budget = std::make_unique<ckfs_budget>(std::move(made)).release();
    return {};
  });
}

void ckfs_budget_held(const ckfs_budget* budget, uint64_t* held, uint64_t* peak) {
  if (held != nullptr) *held = budget->budget.held();
  if (peak != nullptr) *peak = budget->budget.peak();
}

void ckfs_budget_free(ckfs_budget* budget) {
  delete budget;
}

ckfs_error* ckfs_open_with(const ckfs_budget* budget, const char* source,
                           const char* const* options, ckfs_task* task,
                           ckfs_checkpoint** checkpoint) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_open_with", budget, source, checkpoint));
    return open(source, options, budget->budget, task, checkpoint);
  });
}

void ckfs_close(ckfs_checkpoint* checkpoint) {
  delete checkpoint;
}

ckfs_error* ckfs_report(const ckfs_checkpoint* checkpoint, const char* what, const char* view,
                        ckfs_buffer* json) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_report", checkpoint, what, json));
    const std::string_view wanted = what;
    if (wanted == "view") {
      CKFS_TRY_VOID(check_given("ckfs_report", view));
      CKFS_TRY(std::string text, view_report(checkpoint->checkpoint, view, ReportFormat::Json));
      put(std::move(text), *json);
      return {};
    }
    // Their functions give no error, so a forked child is found out by one that does.
    CKFS_TRY_VOID(checkpoint->checkpoint.view("source"));
    if (wanted == "inspect") {
      put(inspect_report(checkpoint->checkpoint, checkpoint->source, ReportFormat::Json), *json);
    } else if (wanted == "status") {
      MountFacts facts;
      facts.source = checkpoint->source;
      put(status_json(checkpoint->checkpoint, facts), *json);
    } else {
      return fail(ErrorCode::InvalidArgument, "report {}: not one of inspect, status, view",
                  quote(wanted));
    }
    return {};
  });
}

ckfs_error* ckfs_view_open(const ckfs_checkpoint* checkpoint, const char* name, ckfs_task* task,
                           ckfs_view** view) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_view_open", checkpoint, name, view));
    const StopScope scope(stop_of(task));
    CKFS_TRY(View made, checkpoint->checkpoint.view(name));
    FileList files = made.files();
    ViewTensors tensors = made.tensors();
    *view = std::make_unique<ckfs_view>(checkpoint->source, std::move(made), std::move(files),
                                        std::move(tensors))
                .release();
    return {};
  });
}

void ckfs_view_close(ckfs_view* view) {
  delete view;
}

ckfs_error* ckfs_view_describe(const ckfs_view* view, ckfs_view_info* info) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_view_describe", view, info));
    *info = {text_of(view->view.name()), view->files.size(), view->tensors.size()};
    return {};
  });
}

ckfs_error* ckfs_file_describe(const ckfs_view* view, uint64_t file, ckfs_file_info* info) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_file_describe", view, info));
    if (file >= view->files.size()) {
      return fail(ErrorCode::NotFound, "{}: no file {} (there are {})", view->view.name(), file,
                  view->files.size());
    }
    const FileInfo found = view->files[file];
    *info = {text_of(found.path), found.size, found.tensors, static_cast<int32_t>(found.exactness),
             0};
    return {};
  });
}

ckfs_error* ckfs_tensor_describe(const ckfs_view* view, uint64_t tensor, ckfs_tensor_info* info) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_tensor_describe", view, info));
    if (tensor >= view->tensors.size()) {
      return fail(ErrorCode::NotFound, "{}: no tensor {} (there are {})", view->view.name(), tensor,
                  view->tensors.size());
    }
    const TensorInfo found = view->tensors[tensor];
    *info = {text_of(found.name),
             text_of(found.folder),
             text_of(found.dtype),
             found.shape.data(),
             found.shape.size(),
             found.size,
             found.file,
             static_cast<int32_t>(found.exactness),
             0};
    return {};
  });
}

ckfs_error* ckfs_find_tensor(const ckfs_view* view, const char* name, uint64_t size,
                             uint64_t* tensor) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_find_tensor", view, name, tensor));
    const std::string_view wanted(name, size);
    const auto found = view->tensors.find(wanted);
    if (!found) {
      // The same error as the library's, which knows the name that is most like it.
      CKFS_TRY_VOID(view->view.tensor(wanted));
      return fail(ErrorCode::Internal, "{}: found by one of two ways", quote(wanted));
    }
    *tensor = *found;
    return {};
  });
}

ckfs_error* ckfs_find_file(const ckfs_view* view, const char* path, uint64_t size, uint64_t* file) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_find_file", view, path, file));
    const std::string_view wanted(path, size);
    const auto found = view->files.find(wanted);
    if (!found) {
      return fail(ErrorCode::NotFound, "{}/{}: no such file", view->view.name(), one_line(wanted));
    }
    *file = *found;
    return {};
  });
}

ckfs_error* ckfs_read_tensors(const ckfs_view* view, const ckfs_tensor_read* reads, uint64_t count,
                              uint32_t jobs, ckfs_task* task) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_read_tensors", view));
    if (count > 0) CKFS_TRY_VOID(check_given("ckfs_read_tensors", reads));
    std::vector<TensorRead> wanted;
    wanted.reserve(count);
    for (uint64_t i = 0; i < count; ++i) {
      const ckfs_tensor_read& read = reads[i];
      if (read.out == nullptr && read.size > 0) {
        return fail(ErrorCode::InvalidArgument, "ckfs_read_tensors: an argument is NULL");
      }
      wanted.push_back({.tensor = read.tensor,
                        .out = {static_cast<std::byte*>(read.out), read.size},
                        .first_row = read.first_row,
                        .rows = read.rows});
    }
    if (wanted.size() != 1) {
      return view->view.read(wanted,
                             {.jobs = jobs, .stop = stop_of(task), .progress = progress_of(task)});
    }
    const TensorRead& one = wanted.front();
    CKFS_TRY(const Tensor tensor, view->view.tensor(one.tensor, {.stop = stop_of(task)}));
    CKFS_TRY_VOID(tensor.read_rows(one.first_row, one.rows, one.out));
    if (task != nullptr) progress_of(task)(one.out.size(), one.out.size());
    return {};
  });
}

ckfs_error* ckfs_file_open(const ckfs_view* view, uint64_t number, ckfs_file** file) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_file_open", view, file));
    if (number >= view->files.size()) {
      return fail(ErrorCode::NotFound, "{}: no file {} (there are {})", view->view.name(), number,
                  view->files.size());
    }
    std::string path(view->files[number].path);
    CKFS_TRY(ViewFile opened, view->view.open(path));
    *file = new ckfs_file{view->view, std::move(path), std::move(opened)};
    return {};
  });
}

ckfs_error* ckfs_file_read(const ckfs_file* file, uint64_t offset, void* out, uint64_t size,
                           ckfs_task* task, uint64_t* got) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_file_read", file, got));
    if (size > 0) CKFS_TRY_VOID(check_given("ckfs_file_read", out));
    const std::span<std::byte> place(static_cast<std::byte*>(out), size);
    const StopScope scope(stop_of(task));
    ViewFile reading = file->file;
    CKFS_TRY(*got, reading.read(offset, place));
    return {};
  });
}

void ckfs_file_close(ckfs_file* file) {
  delete file;
}

ckfs_error* ckfs_export(const ckfs_view* view, const char* out, const char* const* options,
                        ckfs_task* task, ckfs_buffer* json) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_export", view, out, json));
    CKFS_TRY(const std::vector<Option> parsed, parse_options(options));
    ExportOptions how;
    for (const Option& option : parsed) {
      if (option.name == "jobs") {
        CKFS_TRY(how.jobs, parse_jobs(option));
      } else if (option.name == "force" && (option.value == "1" || option.value == "0")) {
        how.force = option.value == "1";
      } else {
        return no_such_option(option, {"jobs", "force"});
      }
    }
    how.stop = stop_of(task);
    how.progress = progress_of(task);
    const Clock clock;
    CKFS_TRY(const ExportResult result, export_view(view->view, out, how));
    nlohmann::ordered_json text = begin(*view);
    text["out"] = out;
    text["seconds"] = clock.seconds();
    text.update(json_members(result));
    put(render(text), *json);
    return {};
  });
}

ckfs_error* ckfs_verify(const ckfs_view* view, const char* copy, const char* const* options,
                        ckfs_task* task, ckfs_buffer* json) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_verify", view, copy, json));
    CKFS_TRY(const std::vector<Option> parsed, parse_options(options));
    VerifyOptions how;
    for (const Option& option : parsed) {
      if (option.name == "jobs") {
        CKFS_TRY(how.jobs, parse_jobs(option));
      } else if (option.name == "sample") {
        CKFS_TRY(how.sample, parse_share(option));
      } else if (option.name == "resume") {
        how.resume = option.value;
      } else {
        return no_such_option(option, {"jobs", "sample", "resume"});
      }
    }
    how.stop = stop_of(task);
    how.progress = progress_of(task);
    const Clock clock;
    CKFS_TRY(const VerifyResult result, verify_copy(view->view, copy, how));
    nlohmann::ordered_json text = begin(*view);
    text["copy"] = copy;
    text["seconds"] = clock.seconds();
    text.update(json_members(result, how.sample));
    put(render(text), *json);
    return {};
  });
}

ckfs_error* ckfs_digest(const ckfs_view* view, const char* const* options, ckfs_task* task,
                        ckfs_buffer* json) {
  return run([&]() -> Result<void> {
    CKFS_TRY_VOID(check_given("ckfs_digest", view, json));
    CKFS_TRY(const std::vector<Option> parsed, parse_options(options));
    DigestOptions how;
    std::vector<Algorithm> algorithms;
    for (const Option& option : parsed) {
      if (option.name == "jobs") {
        CKFS_TRY(how.jobs, parse_jobs(option));
      } else if (option.name == "algorithm") {
        const auto algorithm = parse_algorithm(option.value);
        if (!algorithm) {
          return fail(ErrorCode::InvalidArgument,
                      "algorithm: \"{}\" is not one of sha256, crc32c, xxh128",
                      one_line(option.value));
        }
        algorithms.push_back(*algorithm);
      } else {
        return no_such_option(option, {"jobs", "algorithm"});
      }
    }
    if (!algorithms.empty()) how.algorithms = std::move(algorithms);
    how.stop = stop_of(task);
    how.progress = progress_of(task);
    CKFS_TRY(const DigestResult result, digest_view(view->view, how));
    put(digests_json(view->view, view->source, result.files), *json);
    return {};
  });
}
