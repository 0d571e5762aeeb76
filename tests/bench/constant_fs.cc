// The ceiling of FUSE on this machine: a filesystem of one file whose bytes lie in memory.
//
//   constant_fs MOUNTPOINT BYTES [direct]
//
// It replies to every read from one buffer, with the same session settings as src/fuse, so that the
// ratio of a view to it says what computing costs, whatever the machine. Stays in the foreground.
#define FUSE_USE_VERSION 312

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fuse_lowlevel.h>
#include <string>
#include <vector>

namespace {

constexpr fuse_ino_t kFile = 2;
constexpr double kForever = 1e9;
constexpr std::size_t kLargestRequest = 1 << 20;

struct Server {
  std::uint64_t size = 0;
  bool direct = false;
  std::vector<char> bytes = std::vector<char>(kLargestRequest, 'x');
};

Server& server(fuse_req_t request) {
  return *static_cast<Server*>(fuse_req_userdata(request));
}

struct stat attributes(const Server& server, fuse_ino_t inode) {
  struct stat status{};
  status.st_ino = inode;
  status.st_mode = inode == kFile ? S_IFREG | 0444 : S_IFDIR | 0555;
  status.st_nlink = 1;
  status.st_size = inode == kFile ? static_cast<off_t>(server.size) : 0;
  status.st_blocks = (status.st_size + 511) / 512;
  status.st_blksize = kLargestRequest;
  return status;
}

void init(void*, fuse_conn_info* connection) {
  connection->want |= FUSE_CAP_ASYNC_READ;
  connection->want &=
      ~static_cast<unsigned>(FUSE_CAP_SPLICE_READ | FUSE_CAP_SPLICE_WRITE | FUSE_CAP_SPLICE_MOVE);
  connection->max_write = kLargestRequest;
}

void lookup(fuse_req_t request, fuse_ino_t, const char* name) {
  if (std::strcmp(name, "constant") != 0) {
    fuse_reply_err(request, ENOENT);
    return;
  }
  fuse_entry_param entry{};
  entry.ino = kFile;
  entry.attr = attributes(server(request), kFile);
  entry.attr_timeout = entry.entry_timeout = kForever;
  fuse_reply_entry(request, &entry);
}

void getattr(fuse_req_t request, fuse_ino_t inode, fuse_file_info*) {
  const struct stat status = attributes(server(request), inode);
  fuse_reply_attr(request, &status, kForever);
}

void open(fuse_req_t request, fuse_ino_t, fuse_file_info* file) {
  file->keep_cache = 1;
  file->direct_io = server(request).direct ? 1 : 0;
  fuse_reply_open(request, file);
}

void read(fuse_req_t request, fuse_ino_t, std::size_t size, off_t offset, fuse_file_info*) {
  const Server& self = server(request);
  const auto at = static_cast<std::uint64_t>(offset);
  const std::uint64_t left = at < self.size ? self.size - at : 0;
  fuse_reply_buf(request, self.bytes.data(), std::min<std::uint64_t>(size, left));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  Server self;
  self.size = std::strtoull(argv[2], nullptr, 10);
  self.direct = argc > 3 && std::string(argv[3]) == "direct";
  fuse_lowlevel_ops operations{};
  operations.init = init;
  operations.lookup = lookup;
  operations.getattr = getattr;
  operations.open = open;
  operations.read = read;

  std::string program = argv[0];
  std::string option = "-ofsname=constant";
  char* fuse_argv[] = {program.data(), option.data()};
  fuse_args arguments = FUSE_ARGS_INIT(2, fuse_argv);
  fuse_session* session = fuse_session_new(&arguments, &operations, sizeof operations, &self);
  if (session == nullptr || fuse_set_signal_handlers(session) != 0 ||
      fuse_session_mount(session, argv[1]) != 0) {
    return 1;
  }
  fuse_loop_config* config = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(config, 2);
  fuse_loop_cfg_set_idle_threads(config, 2);
  const int result = fuse_session_loop_mt(session, config);
  fuse_loop_cfg_destroy(config);
  fuse_session_unmount(session);
  fuse_remove_signal_handlers(session);
  fuse_session_destroy(session);
  return result == 0 ? 0 : 1;
}
