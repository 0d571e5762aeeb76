/* The C library of ckfs, libckfs.so: open a checkpoint, list its views, read tensors and files of
 * them, export, verify, digest. Python, and any other language, come in here.
 *
 *   ckfs_open("DeepSeek-V3", NULL, NULL, &checkpoint);
 *   ckfs_view_open(checkpoint, "bf16-safetensors", NULL, &view);
 *   ckfs_find_tensor(view, "model.norm.weight", 17, &number);
 *   ckfs_tensor_describe(view, number, &tensor);
 *   ckfs_tensor_read read = {number, 0, CKFS_ALL_ROWS, out, tensor.size};
 *   ckfs_read_tensors(view, &read, 1, 0, NULL);
 *
 * Results. Each function that can fail gives NULL, or an error, which the caller frees with
 * ckfs_error_free(). After an error the places for results are as they were; buffers to read into
 * have undefined contents.
 *
 * Texts are UTF-8 where the source is; they have a size, and a NUL behind their last byte only
 * where that is said. Sizes are bytes. Numbers of files, tensors and rows begin with 0.
 *
 * Threads. Everything may be called from several threads at once; each object is closed once, and
 * after its last use. A view keeps its checkpoint alive, a file its view: they may be closed in any
 * order.
 *
 * Processes, signals and aborts: as ckfs/checkpoint.h says. After a fork() the child gets
 * CKFS_INVALID_ARGUMENT from all objects of its parent, and may close them.
 *
 * ABI. Every symbol has a version (CKFS_1). Symbols, members of structs and numbers keep their
 * meaning; a change of one is a new symbol version, and programs that are linked with the old one
 * go on with it. CKFS_ABI_VERSION counts additions. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CKFS_ABI_VERSION 1

#define CKFS_API __attribute__((visibility("default")))

/* The numbers of ckfs_error::code. */
enum {
  CKFS_NOT_FOUND = 1,        /* no such checkpoint, view, file or tensor */
  CKFS_CORRUPT = 2,          /* the bytes of a file contradict its format */
  CKFS_UNSUPPORTED = 3,      /* well-formed, but not something ckfs can serve */
  CKFS_INVALID_ARGUMENT = 4, /* the request has no meaning */
  CKFS_IO = 5,               /* the system failed */
  CKFS_STALE = 6,            /* a source file is no longer the one that was opened */
  CKFS_OUT_OF_MEMORY = 7,    /* more than the budget can give, or than the system has */
  CKFS_INTERNAL = 8,         /* a bug in ckfs */
  CKFS_STOPPED = 9           /* ckfs_task_stop() */
};

typedef struct ckfs_error {
  int32_t code;
  int32_t system_error; /* the errno of the system call behind it; 0: there was none */
  const char* message;  /* one line, THING: FACT (LIMIT); ends in NUL */
} ckfs_error;

typedef struct ckfs_budget ckfs_budget;
typedef struct ckfs_checkpoint ckfs_checkpoint;
typedef struct ckfs_view ckfs_view;
typedef struct ckfs_file ckfs_file;
typedef struct ckfs_task ckfs_task;

typedef struct ckfs_text {
  const char* data;
  uint64_t size;
} ckfs_text;

/* Bytes that the library has made. JSON texts in them end in NUL, which is not counted. */
typedef struct ckfs_buffer {
  const void* data;
  uint64_t size;
  void* owner;
} ckfs_buffer;

typedef struct ckfs_view_info {
  ckfs_text name; /* canonical: keys sorted, defaults left out */
  uint64_t files;
  uint64_t tensors;
} ckfs_view_info;

enum { CKFS_BIT_EXACT = 0, CKFS_EXACT = 1, CKFS_LOSSY = 2 };

typedef struct ckfs_file_info {
  ckfs_text path; /* in the view, with '/' */
  uint64_t size;
  uint64_t tensors;
  int32_t exactness; /* of its least exact tensor */
  int32_t reserved;
} ckfs_file_info;

typedef struct ckfs_tensor_info {
  ckfs_text name;       /* as in its file */
  ckfs_text folder;     /* of the view, with a '/' behind it; empty: the view is one model */
  ckfs_text dtype;      /* safetensors' name: "BF16" */
  const int64_t* shape; /* `dimensions` numbers */
  uint64_t dimensions;
  uint64_t size; /* of all elements, row-major and little-endian */
  uint64_t file; /* the first that has a part of it */
  int32_t exactness;
  int32_t reserved;
} ckfs_tensor_info;

#define CKFS_ALL_ROWS INT64_C(-1)

/* Rows of a tensor (indices of its first dimension; a scalar has one), and the place for them. */
typedef struct ckfs_tensor_read {
  uint64_t tensor;
  int64_t first_row;
  int64_t rows; /* or CKFS_ALL_ROWS: from first_row to the last */
  void* out;
  uint64_t size; /* of `out`, exactly that of the rows */
} ckfs_tensor_read;

/* "0.2.0"; lives as long as the library. */
CKFS_API const char* ckfs_version(void);

CKFS_API void ckfs_error_free(ckfs_error* error); /* of NULL: nothing */
CKFS_API void ckfs_buffer_release(ckfs_buffer* buffer);

/* Lines of the log of `level` and above go to `log`, from any thread, one at a time; it must not
 * call the library. NULL: to stderr. Levels: 0 debug, 1 info, 2 warning, 3 error, 4 none. Without a
 * call the level is 2. When it returns, no call of the function before it is under way. */
CKFS_API void ckfs_set_log(void (*log)(void* context, int32_t level, const char* line,
                                       uint64_t size),
                           void* context, int32_t level);

/* Long work that another thread follows, or ends. The functions that take a task also take NULL. A
 * task that was stopped ends every call that it is given to, with CKFS_STOPPED; none waits for more
 * than a block of work, unless the source does not answer. `done` and `total` are bytes; both are 0
 * before they are known. */
CKFS_API ckfs_error* ckfs_task_new(ckfs_task** task);
CKFS_API void ckfs_task_stop(ckfs_task* task);
CKFS_API void ckfs_task_progress(const ckfs_task* task, uint64_t* done, uint64_t* total);
CKFS_API void ckfs_task_free(ckfs_task* task); /* of NULL: nothing */

/* Opens a source: a directory, a file, a model of the hub's cache, or a location. `options`: NULL,
 * or "name=value" texts with NULL behind the last one; names and values are those of the options of
 * `ckfs mount -o` that say what is opened, and how ("memory=4GiB", "tag=global_step10"). The memory
 * is by default a quarter of the control group's limit, or 1 GiB. */
CKFS_API ckfs_error* ckfs_open(const char* source, const char* const* options, ckfs_task* task,
                               ckfs_checkpoint** checkpoint);
CKFS_API void ckfs_close(ckfs_checkpoint* checkpoint); /* of NULL: nothing */

/* Memory that several checkpoints share: together they hold no more than one alone would. Options:
 * "memory", as of ckfs_open(); "for_servers" (0), how much of it is set apart for sources on other
 * machines: each takes a quarter of the memory, but between 16 and 256 MiB, and without it none is
 * opened. The handle may be freed while what was opened with it is in use. */
CKFS_API ckfs_error* ckfs_budget_new(const char* const* options, ckfs_budget** budget);
/* Bytes in use now, or kept for reuse, and the most that ever were, without those that servers
 * have. Both are 0 in a child of a fork. The places may be NULL. */
CKFS_API void ckfs_budget_held(const ckfs_budget* budget, uint64_t* held, uint64_t* peak);
CKFS_API void ckfs_budget_free(ckfs_budget* budget); /* of NULL: nothing */
/* ckfs_open() with memory of a budget; "memory" is then no option. */
CKFS_API ckfs_error* ckfs_open_with(const ckfs_budget* budget, const char* source,
                                    const char* const* options, ckfs_task* task,
                                    ckfs_checkpoint** checkpoint);

/* A report as JSON (docs/CLI_ABI.md). `what`: "inspect"; "status", what was read so far; "view",
 * all tensors of the view of that name and what they are made of. `view` is NULL otherwise. */
CKFS_API ckfs_error* ckfs_report(const ckfs_checkpoint* checkpoint, const char* what,
                                 const char* view, ckfs_buffer* json);

/* A view by its name, with or without parameters: "bf16-safetensors@max_shard=5GB". */
CKFS_API ckfs_error* ckfs_view_open(const ckfs_checkpoint* checkpoint, const char* name,
                                    ckfs_task* task, ckfs_view** view);
CKFS_API void ckfs_view_close(ckfs_view* view); /* of NULL: nothing */

/* Facts of a view. The texts in them live as long as the view. */
CKFS_API ckfs_error* ckfs_view_describe(const ckfs_view* view, ckfs_view_info* info);
CKFS_API ckfs_error* ckfs_file_describe(const ckfs_view* view, uint64_t file, ckfs_file_info* info);
CKFS_API ckfs_error* ckfs_tensor_describe(const ckfs_view* view, uint64_t tensor,
                                          ckfs_tensor_info* info);

/* The number of the tensor of that name, with its folder before it where it has one; of the file of
 * that path. The names have `size` bytes. */
CKFS_API ckfs_error* ckfs_find_tensor(const ckfs_view* view, const char* name, uint64_t size,
                                      uint64_t* tensor);
CKFS_API ckfs_error* ckfs_find_file(const ckfs_view* view, const char* path, uint64_t size,
                                    uint64_t* file);

/* Reads tensors, or rows of them, by `jobs` threads (0: one for each CPU), in the order in which
 * the view's files have them, whatever the order of `reads`. */
CKFS_API ckfs_error* ckfs_read_tensors(const ckfs_view* view, const ckfs_tensor_read* reads,
                                       uint64_t count, uint32_t jobs, ckfs_task* task);

/* A file of a view, for one reader: what it will read next is computed ahead of it. */
CKFS_API ckfs_error* ckfs_file_open(const ckfs_view* view, uint64_t number, ckfs_file** file);
/* Fills `out`. `got` is `size`, or less at the end of the file. */
CKFS_API ckfs_error* ckfs_file_read(const ckfs_file* file, uint64_t offset, void* out,
                                    uint64_t size, ckfs_task* task, uint64_t* got);
CKFS_API void ckfs_file_close(ckfs_file* file); /* of NULL: nothing */

/* The verbs of the program, with their results as JSON (docs/CLI_ABI.md). Options are "name=value"
 * texts as of ckfs_open(). */

/* Writes the files of a view to the directory `out`. Options: "jobs", "force" (1 or 0). */
CKFS_API ckfs_error* ckfs_export(const ckfs_view* view, const char* out, const char* const* options,
                                 ckfs_task* task, ckfs_buffer* json);
/* Compares the files below `copy` with the view. A difference is not an error: `equal` of the
 * result is false. Options: "jobs", "sample" (a share of the pieces, as 0.01), "resume" (a file).
 */
CKFS_API ckfs_error* ckfs_verify(const ckfs_view* view, const char* copy,
                                 const char* const* options, ckfs_task* task, ckfs_buffer* json);
/* Digests of all files of a view. Options: "jobs", "algorithm" (sha256, crc32c, xxh128; repeatable;
 * sha256 where there is none). */
CKFS_API ckfs_error* ckfs_digest(const ckfs_view* view, const char* const* options, ckfs_task* task,
                                 ckfs_buffer* json);

#ifdef __cplusplus
}
#endif
