// What a child of fork() does with objects of its parent.
#pragma once

#include <gtest/gtest.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>

namespace ckfs {

/// Runs `use` in a forked child, and gives the message of the error that it ends with.
template <typename Use>
std::string message_in_child(Use use) {
  int ends[2];
  EXPECT_EQ(::pipe(ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(30);  // rather than wait for a lock without end
    const std::string message = use();
    (void)!::write(ends[1], message.data(), message.size());
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string message(4096, '\0');
  const ssize_t got = ::read(ends[0], message.data(), message.size());
  ::close(ends[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  message.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
  return message;
}

}  // namespace ckfs
