/* library_user SOURCE VIEW TENSOR: a C program that knows nothing but ckfs/ckfs.h and libckfs.so. It
 * writes the bytes of a tensor to standard output. */
#include <ckfs/ckfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(ckfs_error* error) {
  if (error == NULL) return;
  fprintf(stderr, "library_user: %d %s\n", (int)error->code, error->message);
  ckfs_error_free(error);
  exit(1);
}

int main(int count, char** words) {
  const char* const options[] = {"memory=64MiB", "threads=2", NULL};
  ckfs_checkpoint* checkpoint = NULL;
  ckfs_view* view = NULL;
  ckfs_tensor_info info;
  ckfs_tensor_read read;
  uint64_t tensor = 0;
  if (count != 4) return 2;
  check(ckfs_open(words[1], options, NULL, &checkpoint));
  check(ckfs_view_open(checkpoint, words[2], NULL, &view));
  ckfs_close(checkpoint); /* the view keeps what it needs */
  check(ckfs_find_tensor(view, words[3], strlen(words[3]), &tensor));
  check(ckfs_tensor_describe(view, tensor, &info));
  memset(&read, 0, sizeof(read));
  read.tensor = tensor;
  read.rows = CKFS_ALL_ROWS;
  read.size = info.size;
  read.out = malloc(info.size);
  if (read.out == NULL) return 1;
  check(ckfs_read_tensors(view, &read, 1, 0, NULL));
  if (fwrite(read.out, 1, info.size, stdout) != info.size) return 1;
  free(read.out);
  ckfs_view_close(view);
  return 0;
}
